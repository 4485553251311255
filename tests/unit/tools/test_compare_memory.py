"""The memory comparison: PyTorch's calls with views, results in place and frees; tool and documentation."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest
from relay_builder import Net

from tilewright.ir import UnsupportedError, op_defs
from tilewright.tools import compare_memory
from tilewright.tools.torch_peer.program import TorchProgram
from tilewright.tools.torch_peer.rules import RULES

MAP = 4 * 8 * 16 * 16  # bytes of one feature map below


def kinds(program: TorchProgram) -> Counter:
    return Counter((step.name.removeprefix("graph."), step.kind) for step in program.steps)


def conv(net: Net, x: str, channels: int = 8) -> str:
    return net("nn.conv2d({}, {}, channels=8, kernel_size=[1, 1])", x, net.weight(8, channels, 1, 1))


def test_activations_and_sums_overwrite_what_nobody_needs():
    net = Net()
    first = conv(net, net.input(1, 4, 16, 16), 4)
    second = net("nn.relu({})", conv(net, first))
    total = net("add({}, {})", first, second)
    program = TorchProgram(net.module(conv(net, total)))
    assert kinds(program) == {("conv2d", "new"): 3, ("relu", "in place"): 1, ("add", "in place"): 1}
    # The input stays; then first and second, or their sum and the result.
    assert program.estimated_peak() == MAP // 2 + 2 * MAP
    assert program.estimated_peak(16) == MAP // 2 + MAP
    assert program.estimated_peak(in_place=False) == MAP // 2 + 3 * MAP
    assert program.weight_bytes == 4 * (8 * 4 + 8 * 8 + 8 * 8)


def test_what_is_needed_later_is_not_overwritten():
    net = Net()
    x = conv(net, net.input(1, 8, 16, 16))
    y = net("nn.relu({})", x)
    program = TorchProgram(net.module(conv(net, net("multiply({}, {})", y, x))))
    assert kinds(program)["relu", "new"] == 1
    net = Net()
    program = TorchProgram(net.module(conv(net, net("nn.relu({})", net.input(1, 8, 16, 16)))))
    assert kinds(program)["relu", "new"] == 1  # the input is the caller's


def test_a_view_keeps_the_memory_it_shows():
    net = Net()
    x = conv(net, net.input(1, 8, 16, 16))
    view = net("reshape({}, newshape=[1, 8, 256])", x)
    again = net("reshape({}, newshape=[1, 8, 16, 16])", view)
    relu = net("nn.relu({})", x)  # x dies here, its view does not
    program = TorchProgram(net.module(net("add({}, {})", again, relu)))
    assert kinds(program)["reshape", "view"] == 2
    assert kinds(program)["relu", "new"] == 1
    assert program.estimated_peak() == 3 * MAP


def test_silu_and_gelu_are_one_call():
    net = Net()
    x = conv(net, net.input(1, 8, 16, 16))
    x = net("multiply({}, {})", x, net("sigmoid({})", x))
    x = conv(net, x)
    inner = net("erf({})", net("multiply({}, {})", x, "0.707107f"))
    half = net("add({}, {})", "0.5f", net("multiply({}, {})", inner, "0.5f"))
    program = TorchProgram(net.module(net("multiply({}, {})", x, half)))
    assert kinds(program) == {("conv2d", "new"): 2, ("silu", "in place"): 1, ("gelu", "new"): 1}


def test_ops_without_a_rule_are_named():
    net = Net()
    with pytest.raises(UnsupportedError, match=r"graph\.cumsum"):
        TorchProgram(net.module(net("cumsum({}, axis=1)", net.input(2, 3))))


def test_the_tool_prints_and_writes_every_batch(tmp_path, capsys):
    net = Net()
    x = conv(net, net.input(1, 8, 16, 16))
    path = tmp_path / "small.relay"
    path.write_text(net.text(net("nn.relu({})", conv(net, x))), encoding="utf-8")
    out = tmp_path / "memory.json"
    assert compare_memory.main([str(path), "--batch", "1", "4", "--no-torch", "--json", str(out)]) == 0
    rows = json.loads(out.read_text(encoding="utf-8"))
    assert [row["batch"] for row in rows] == [1, 4]
    for row in rows:
        # the result of the network lies in the arena
        assert (row["inputs"], row["outputs"], row["arena"]) == (
            row["batch"] * MAP,
            0,
            2 * row["batch"] * MAP,
        )
        assert row["arena_lower_bound"] == row["arena"]
        assert row["beyond_weights"] == 3 * row["batch"] * MAP
        assert row["weights_imported"] == 2 * 4 * 64
        assert row["torch_estimate"] == 3 * row["batch"] * MAP
        assert row["ratio_to_estimate"] == 1
    assert "small, batch 4, fp32: 98.3 kB beyond the weights" in capsys.readouterr().out


def test_the_documented_code_runs():
    page = (Path(__file__).parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})  # its assertions are the test


def test_every_torch_call_is_of_an_op():
    """PyTorch's calls stand apart from the ops: an op that is renamed must be renamed there as well."""
    assert RULES.keys() <= {d.name for d in op_defs()}
