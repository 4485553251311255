"""`--shape` and `--constant` of `bench` and `cluster plan`: networks with open extents."""

import json

import numpy as np
import pytest

from tilewright.tools.cli import main

onnx = pytest.importorskip("onnx")
FLOAT, INT64 = 1, 7
FIXED = ("--target", "opencl", "--peers", "none", "--rounds", "1", "--replays", "2")


@pytest.fixture
def network(tmp_path):
    """x[unnamed, length] times a matrix, its columns repeated `times` times."""
    h = onnx.helper
    weight = onnx.numpy_helper.from_array(_ramp(), "w")
    nodes = [
        h.make_node("MatMul", ["x", "w"], ["p"]),
        h.make_node("Tile", ["p", "times"], ["y"]),
    ]
    graph = h.make_graph(
        nodes,
        "net",
        [
            h.make_tensor_value_info("x", FLOAT, [None, "length", 3]),
            h.make_tensor_value_info("times", INT64, [3]),
        ],
        [h.make_tensor_value_info("y", FLOAT, None)],
        [weight],
    )
    path = tmp_path / "open.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), path)
    return str(path)


def _ramp():
    return np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_open_extents_and_values_of_inputs_are_given(network, jobs, tmp_path):
    out = tmp_path / "bench.json"
    given = ("--shape", "x=2,5,3", "--constant", "times=1,1,2", "--jobs", jobs, "--json", str(out))
    assert main(["bench", network, *FIXED, *given]) == 0
    data = json.loads(out.read_text())
    (row,) = data["rows"]
    assert (row["network"], row["batch"], row["status"]) == ("open", 2, "ok")
    assert row["ours"][0]["relative_error"] < 1e-6
    assert data["protocol"]["shapes"] == ["x=2,5,3"]
    assert data["protocol"]["constants"] == ["times=1,1,2"]


def test_batches_replace_the_first_extent_of_a_shape(network, tmp_path):
    out = tmp_path / "bench.json"
    given = ("--shape", "x=1,5,3", "--constant", "times=1,1,2", "--batch", "3", "--json", str(out))
    assert main(["bench", network, *FIXED, *given]) == 0
    assert [r["batch"] for r in json.loads(out.read_text())["rows"]] == [3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{data}/relay/mlp.relay", "--constant", "data=1"], "--constant: expected an ONNX file"),
        (["{net}", "--shape", "z=1", "--constant", "times=1,1,2"], "z"),
        (["{net}", "--shape", "x=1,a", "--constant", "times=1,1,2"], "expected NAME=N,N,... with integers"),
        (["{net}", "--suite", "main", "--shape", "x=1,5,3"], "--shape: expected this option without --suite"),
    ],
)
def test_what_cannot_be_given_is_one_sentence(network, data_dir, arguments, message, capsys):
    arguments = [x.format(net=network, data=data_dir) for x in arguments]
    assert main(["bench", *arguments, *FIXED]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_plans_of_open_networks(network, capsys):
    plan = ("cluster", "plan", "--cluster", "dgx-a100", "--training", "everything", "--json")
    given = ("--shape", "x=2,5,3", "--constant", "times=1,1,2")
    assert main([*plan, "--model", network, *given]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["model"] == "open"
    assert facts["feasible"] > 0
    assert main([*plan, "--model", "gpt-3", "--shape", "x=2"]) == 2
    assert "only networks have inputs" in capsys.readouterr().err


def test_plans_for_devices_here_take_them_too(network, capsys):
    plan = ("cluster", "plan", "--cluster", "dgx-a100", "--devices", "2", "--model", network)
    assert main([*plan]) == 2
    assert "length" in capsys.readouterr().err
    assert main([*plan, "--shape", "x=2,5,3", "--constant", "times=1,1,2"]) == 2
    assert "expected 64, the devices of dgx-a100" in capsys.readouterr().err  # the network is read by now
