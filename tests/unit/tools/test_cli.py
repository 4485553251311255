"""The command line: results, exit codes, one line for every error, nothing half-written."""

import json

import numpy as np
import pytest

import tilewright as tw
from tilewright.tools.cli import main


@pytest.fixture
def mlp(data_dir):
    return str(data_dir / "relay" / "mlp.relay")


def test_run_checks_and_reports(mlp, capsys, tmp_path):
    out = tmp_path / "out.npz"
    assert (
        main(["run", mlp, "--target", "opencl", "--check", "--json", "--output", str(out), "--repeats", "2"])
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result["relative_error"] < 1e-5
    assert result["outputs"][0]["shape"] == [1, 10]
    assert np.load(out)["out0"].shape == (1, 10)


def test_compile_then_run_the_file(mlp, capsys, tmp_path):
    path = str(tmp_path / "mlp.tw")
    assert main(["compile", mlp, "--params", "random", "--target", "opencl", "-o", path]) == 0
    assert "4 kernels" in capsys.readouterr().out
    assert main(["run", path, "--json", "--repeats", "1"]) == 0


def test_a_weight_missing_from_the_file_is_named(mlp, capsys, tmp_path):
    weights = dict(tw.frontends.relay.load(mlp, params="random").constants)
    del weights["fc3_bias"]
    part = str(tmp_path / "part.npz")
    np.savez(part, **weights)
    assert main(["run", mlp, "--params", part, "--target", "reference", "--check"]) == 2
    assert "no value is given for 'fc3_bias' (name the inputs with --inputs" in capsys.readouterr().err
    given = ["--params", part, "--inputs", "data,fc3_bias", "--target", "reference"]
    assert main(["run", mlp, *given]) == 0


@pytest.mark.parametrize("network", ["zoo:nasnet_mobile", "net.ir"])
def test_networks_with_weights_of_their_own_take_no_file(network, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.ir").write_text("")
    assert main(["run", network, "--params", "absent.npz"]) == 2
    assert "--params: expected a Relay network with this option" in capsys.readouterr().err


def test_explain_names_bound_and_limit(mlp, capsys):
    assert main(["explain", mlp, "--target", "cuda:sm_90a"]) == 0
    text = capsys.readouterr().out
    assert "limited by" in text
    assert main(["explain", mlp, "--target", "cuda:sm_90a", "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)
    assert [k["calls"] for k in kernels] == [1, 1, 1]  # the last two layers are one chain


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "missing.relay"],
        ["run", "{bad}", "--target", "opencl"],
        ["explain", "{mlp}", "--target", "cuda:sm_9"],
        ["compile", "{mlp}", "--params", "missing.npz"],
        ["run", "{mlp}", "--repeats", "0"],
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(mlp, arguments, tmp_path, capsys):
    bad = tmp_path / "bad.relay"
    bad.write_text('#[version = "0.0.5"]\ndef @main(%x: Tensor[(1, 2), float32]) { nn.nothing(%x) }\n')
    assert main([a.format(mlp=mlp, bad=bad) for a in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1


def test_a_failed_compile_leaves_no_file(mlp, tmp_path):
    path = tmp_path / "no" / "such" / "folder.tw"
    assert main(["compile", mlp, "--params", "random", "--target", "opencl", "-o", str(path)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_an_algorithm_of_convolutions_can_be_named(tmp_path, capsys):
    path = tmp_path / "conv.ir"
    path.write_text(
        "module @m { graph.func @main(%x: f32[1, 4, 6, 6], %w: f32[4, 4, 3, 3]) -> f32[1, 4, 4, 4] {"
        " %y = graph.conv2d(%x, %w) : f32[1, 4, 4, 4] graph.return(%y) } }"
    )
    kernels = {}
    for name in ("direct", "winograd2"):
        arguments = ["compile", str(path), "--target", "opencl", "--conv-algorithm", name, "--json"]
        assert main(arguments) == 0
        kernels[name] = len(json.loads(capsys.readouterr().out)["kernels"])
    assert kernels == {"direct": 1, "winograd2": 4}
