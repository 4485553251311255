"""The memory comparison: PyTorch's calls with views, results in place and frees; tool and documentation."""

import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
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


def test_one_run_compares_several_precisions_and_says_what_replays_take(tmp_path, capsys):
    net = Net()
    path = tmp_path / "small.relay"
    path.write_text(net.text(net("nn.relu({})", conv(net, net.input(1, 8, 16, 16)))), encoding="utf-8")
    out = tmp_path / "memory.json"
    command = [str(path), "--precision", "fp32", "fp16", "--no-torch", "--json", str(out)]
    assert compare_memory.main(command) == 0
    wide, narrow = json.loads(out.read_text(encoding="utf-8"))
    assert (wide["precision"], narrow["precision"]) == ("fp32", "fp16")
    assert narrow["torch_estimate"] < wide["torch_estimate"]
    assert wide["replay_model_s"] > 0
    assert wide["replay_measured_s"] is None  # there is no device
    printed = capsys.readouterr().out
    assert "by the model" in printed
    (line,) = (x for x in printed.splitlines() if x.split()[:3] == ["small", "fp16", "1"])
    assert float(line.split()[5]) == pytest.approx(narrow["ratio_to_estimate"], abs=1e-3)


class FakeTensor:
    """An array with the few methods of a tensor that calls in the test below need."""

    def __init__(self, array):
        self.array = array

    def is_floating_point(self):
        return self.array.dtype.kind == "f"

    def to(self, kind):
        return self if isinstance(kind, str) else FakeTensor(self.array.astype(kind))

    def relu_(self):
        self.array = np.maximum(self.array, 0)
        return self


def test_a_network_in_16_bits_casts_its_weights_and_inputs():
    """Inputs come as float32; what calls see and return has the type of the model."""
    net = Net()
    x = net("add({}, {})", net.input(2, 8), net.weight(8))
    program = TorchProgram(net.module(net("nn.relu({})", x)))
    torch = SimpleNamespace(
        float16=np.float16,
        from_numpy=FakeTensor,
        add=lambda a, b: FakeTensor(a.array + b.array),
    )
    given = FakeTensor(np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, "graph.add", lambda torch, x, op: torch.add(*x))
        (result,) = program.function(torch, "cuda", "float16")(given)
    assert given.array.dtype == np.float32
    assert result.array.dtype == np.float16
    assert result.array.min() >= 0


def test_the_documented_code_runs():
    page = (Path(__file__).parents[3] / "docs" / "memory.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(code, {})  # its assertions are the test


def test_every_torch_call_is_of_an_op():
    """PyTorch's calls stand apart from the ops: an op that is renamed must be renamed there as well."""
    assert RULES.keys() <= {d.name for d in op_defs()}
