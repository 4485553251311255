"""Updates sorted by target: what a walk over all of them gives, for every mode and kind of index."""

import numpy as np
import pytest
from graph_op_agreement import lowered, module_of

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.ordered.choose_scatter import sorting_pays
from tilewright.passes.tensor.sums import sort_scatters

GPU = resolve_target("cuda:sm_90a")
CONTEXT = PassContext(str(GPU), GPU.hardware, verify_each=True)


def names_of(module):
    return [op.name for op in module.main.body.ops]


def sorted_updates(module, monkeypatch):
    monkeypatch.setattr(sort_scatters, "sorting_pays", lambda *args, **kwargs: True)
    return run_pipeline(lowered(module), Pipeline.parse("sort-scatters"), CONTEXT)


def array(*shape, dtype=np.float32, low=-9, high=9):
    return np.random.default_rng(sum(shape)).integers(low, high, shape).astype(dtype)


CASES = {
    "line": ("scatter_nd", [array(40), array(1, 300, dtype=np.int64, low=-50, high=60), array(300)], {}),
    "rows": ("scatter_nd", [array(20, 3), array(1, 70, dtype=np.int32, low=-25, high=24), array(70, 3)], {}),
    "planes": (
        "scatter_nd",
        [array(5, 6), array(2, 4, 9, dtype=np.int32, low=-7, high=8), array(4, 9)],
        {},
    ),
    "first-axis": (
        "scatter_elements",
        [array(12, 1), array(33, 1, dtype=np.int32, low=-12, high=12), array(33, 1)],
        {"axis": 0},
    ),
}


@pytest.mark.parametrize("mode", ["update", "add", "mul", "min", "max"])
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_the_walk(name, mode, monkeypatch):
    op, arrays, attrs = CASES[name]
    if mode == "mul":
        arrays = [*arrays[:-1], np.sign(arrays[-1])]
    attrs = {**attrs, "mode" if op == "scatter_nd" else "reduction": mode}
    module = module_of(op, arrays, **attrs)
    changed = sorted_updates(module, monkeypatch)
    assert "tensor.scatter" not in names_of(changed)
    (wanted,) = tw.interpret(module, *arrays)
    np.testing.assert_array_equal(tw.interpret(changed, *arrays)[0], wanted)


@pytest.mark.parametrize("mode", ["update", "add"])
def test_compiled(mode, monkeypatch):
    arrays = [array(11), array(1, 30, dtype=np.int32, low=-11, high=14), array(30)]  # three updates a place
    module = module_of("scatter_nd", arrays, mode=mode)
    (wanted,) = tw.interpret(module, *arrays)
    with tw.compile(sorted_updates(module, monkeypatch), target="opencl") as exe:
        np.testing.assert_array_equal(exe(*arrays)[0], wanted)


def test_what_cannot_be_sorted_stays(monkeypatch):
    mean = module_of("scatter_elements", CASES["first-axis"][1], axis=0, reduction="mean")
    assert "tensor.scatter" in names_of(sorted_updates(mean, monkeypatch))
    arrays = [array(12, 4), array(5, 4, dtype=np.int32, low=0, high=12), array(5, 4)]
    own = module_of("scatter_elements", arrays, axis=0, reduction="add")  # every column has its own indices
    assert "tensor.scatter" in names_of(sorted_updates(own, monkeypatch))


def test_the_model_sorts_many_updates_of_few_lines():
    assert sorting_pays(100_000, 1_000_000, 1, 4, GPU.hardware, combined=True)
    assert sorting_pays(100_000, 1_000_000, 1, 4, GPU.hardware, combined=False)
    assert not sorting_pays(64, 1000, 64, 4, GPU.hardware, combined=True)
    assert not sorting_pays(100_000, 1_000_000, 1, 4, resolve_target("opencl").hardware, combined=True)
