"""Networks of the zoo: the published sizes and structure, and a small one compiled against the reference."""

import re
from collections import Counter
from math import prod
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.streams import plan_streams
from tilewright.runtime.streams.assignment import with_streams
from tilewright.tools.cli import main

nasnet_mobile = tw.frontends.zoo.nasnet_mobile
SMALL = {"stem_cells": 1, "stages": 1, "cells": 1, "filters": 12, "size": 35, "classes": 10}


@pytest.fixture(scope="module")
def nasnet():
    return nasnet_mobile()


def multiply_adds(module):
    """Of convolutions and the dense layer."""
    products = (op for op in module.main.body.ops if op.name in ("graph.conv2d", "graph.dense"))
    return sum(prod(op.result.tensor.shape) * prod(op.operands[1].tensor.shape[1:]) for op in products)


def test_size_is_the_published_one(nasnet):
    """5.3 M parameters and 564 M multiply-adds (Zoph et al. 2018, table 3); statistics are not trained."""
    tw.verify(nasnet)
    trained = [a.size for name, a in nasnet.constants.items() if not name.endswith((".mean", ".var"))]
    assert sum(trained) == pytest.approx(5.3e6, rel=0.005)
    assert multiply_adds(nasnet) == pytest.approx(564e6, rel=0.005)
    assert nasnet.input_types[0].shape == (1, 3, 224, 224)
    assert nasnet.main.result_types[0].shape == (1, 1000)


def test_cells_and_branches(nasnet):
    ops = nasnet.main.body.ops
    results = {op.loc: op.result.tensor.shape for op in ops if op.name == "graph.concatenate"}
    cells = [shape for loc, shape in results.items() if "before" not in loc]
    wanted = [(44, 56), (88, 28), *[(264, 28)] * 4, (352, 14), *[(528, 14)] * 4, (704, 7), *[(1056, 7)] * 4]
    assert cells == [(1, channels, size, size) for channels, size in wanted]
    blocks = [op for op in ops if op.name == "graph.add"]
    assert len(blocks) == 5 * len(cells)
    assert Counter(op.loc.split(".")[0] for op in blocks) == {loc: 5 for loc in results if "." not in loc}
    depthwise = [op for op in ops if op.name == "graph.conv2d" and op["groups"] != 1]
    assert len(depthwise) == 2 * (4 * 5 + 12 * 5)  # five separable ones in each cell, each applied twice
    taps = Counter(op.operands[1].tensor.shape[-1] for op in depthwise)
    assert taps == {7: 4 * 4, 5: 4 * 4 + 12 * 4, 3: 4 * 2 + 12 * 6}


def test_weights_follow_the_seed(nasnet):
    first, other = nasnet_mobile(**SMALL), nasnet_mobile(seed=1, **SMALL)
    for name, array in nasnet_mobile(**SMALL).constants.items():
        np.testing.assert_array_equal(array, first.constants[name])
    kernel = "cell0.last.kernel"
    assert not np.array_equal(first.constants[kernel], other.constants[kernel])
    assert all((a > 0.5).all() for name, a in nasnet.constants.items() if name.endswith(".var"))


def test_it_compiles(nasnet):
    exe = tw.compile(nasnet, target="null", streams="exact")
    assert exe.output_types[0].shape == (1, 1000)
    assert len(exe.plan.launches) > 200


def test_small_one_agrees_with_the_reference_on_any_number_of_streams():
    module = nasnet_mobile(**SMALL)
    x = np.random.default_rng(0).standard_normal(module.input_types[0].shape).astype(np.float32)
    (wanted,) = tw.interpret(module, x)
    assert np.ptp(wanted - tw.interpret(module, -x)[0]) > 1e-3  # the image matters
    exe = tw.compile(module, target="opencl", streams="exact")
    concurrent, constants = exe.plan, exe.artifact.constants
    assert len({launch.stream for launch in concurrent.launches}) >= 5
    serial = with_streams(concurrent, plan_streams(concurrent.dag, "serial"))
    with OpenClDevice() as device, device.load(serial, constants) as one:
        (got,) = one.run([x])
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)
        with device.load(concurrent, constants) as several:
            assert (one.out_of_order, several.out_of_order) == (False, True)
            for _ in range(10):
                np.testing.assert_array_equal(several.run([x])[0], got)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"filters": 20}, "multiple of 12"),
        ({"size": 16}, "size of 32 to 16384"),
        ({"cells": 0}, "cells of 1 to 64"),
    ],
)
def test_impossible_sizes_are_refused(change, fault):
    with pytest.raises(InputError, match=fault):
        nasnet_mobile(**{**SMALL, **change})


def test_command_line_names_the_zoo(capsys):
    assert main(["run", "zoo:resnet9000", "--target", "reference"]) == 2
    assert "nasnet_mobile" in capsys.readouterr().err
    assert main(["run", "zoo:gpt_tiny", "--target", "reference"]) == 0
    assert "zoo:gpt_tiny" in capsys.readouterr().out


def test_documentation_is_true():
    page = (Path(__file__).parents[3] / "docs" / "frontends.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page[page.index("## Zoo") :], re.DOTALL)
    exec(code, {})
