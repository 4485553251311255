"""`tilewright bench` without a GPU and without PyTorch: arguments, rows, files, and a run from end to end."""

import json

import pytest

from tilewright.ir import InputError, UnsupportedError, WorkError
from tilewright.tools.arguments.bench import SUITES
from tilewright.tools.bench import command as bench
from tilewright.tools.bench.networks import network_paths
from tilewright.tools.bench.peers import check_peers
from tilewright.tools.cli import main


@pytest.fixture
def folder(data_dir):
    return data_dir / "relay"


def run(folder, *arguments):
    fixed = ("--target", "opencl", "--peers", "none", "--rounds", "2", "--replays", "3")
    return main(["bench", "--folder", str(folder), *fixed, *arguments])


def test_a_network_from_end_to_end(folder, tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert run(folder, "mlp", "--batch", "1", "3", "--libraries", "both", "--json", str(out)) == 0
    data = json.loads(out.read_text())
    assert [(r["network"], r["batch"], r["status"]) for r in data["rows"]] == [
        ("mlp", 1, "ok"),
        ("mlp", 3, "ok"),
    ]
    assert data["protocol"]["l2"] == "warm"
    for row in data["rows"]:
        assert [r["variant"] for r in row["ours"]] == ["", "no libraries"]
        assert row["ratio"] is None
        for ours in row["ours"]:
            assert 0 < ours["relative_error"] < 1e-5
            assert ours["p10_ms"] <= ours["median_ms"] <= ours["p90_ms"]
            assert ours["runs"] >= 6
            assert ours["launches"] == 4
            assert ours["wall_ms"] > 0
    assert data["summary"] == []
    text = capsys.readouterr().out
    assert "| mlp | 3 | fp32 |" in text


def test_a_kernel_from_end_to_end(folder, tmp_path, capsys):
    out = tmp_path / "bench.json"
    arguments = ("--kernels", "gemm", "--sizes", "32", "--precision", "fp32", "fp16", "--json", str(out))
    assert run(folder, *arguments) == 0
    rows = json.loads(out.read_text())["kernels"]
    assert [(r["kernel"], r["precision"], r["status"]) for r in rows] == [
        ("gemm 32", "fp32", "ok"),
        ("gemm 32", "fp16", "ok"),
    ]
    assert all(r["ours"][0]["tflop_per_s"] > 0 and "of_copy" not in r for r in rows)
    assert "| gemm 32 | fp16 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected a network or --suite, or --kernels"),
        (["mlq"], "did you mean 'mlp'"),
        (["missing.relay"], "no such file"),
        (["mlp", "--folder", "nowhere"], "found none"),
        (["mlp", "--batch", "0"], "--batch"),
        (["mlp", "--rounds", "0"], "--rounds"),
        (["mlp", "--time-limit", "-1"], "--time-limit"),
        (["mlp", "--budget", "5s"], "--tune measure"),
        (["mlp", "--peers", "tensorflow"], "got 'tensorflow'"),
        (["mlp", "--peers", "torch-graph"], "expected peers on cpu"),
        (["mlp", "--cold"], "--cold"),
        (["mlp", "--plot", "bench.png"], ".svg"),
        (["mlp", "--json", "no/such/folder.json"], "cannot write"),
    ],
)
def test_bad_arguments_are_one_sentence(folder, arguments, message, capsys):
    assert run(folder, *arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_suites_name_networks_that_exist(folder):
    for suite in SUITES:
        assert all(p.is_file() for p in network_paths([], [suite], folder))
    assert [p.stem for p in network_paths(["mlp", "lstm"], ["recurrent"], folder)] == [
        "mlp",
        "lstm",
        "pt_bilstm",
        "pt_bigru",
    ]


def test_peers_are_named():
    assert check_peers(["none"], "cpu") == ()
    assert check_peers(["torch-graph", "torch-graph", "torch-eager"], "cuda") == (
        "torch-graph",
        "torch-eager",
    )
    assert check_peers(None, "cpu") == ("onnxruntime", "torch-eager")
    with pytest.raises(InputError, match="none alone"):
        check_peers(["none", "torch-graph"], "cuda")


def test_a_wrong_result_ends_in_exit_code_1(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("tilewright.tools.bench.comparison.largest_error", lambda got, expected: 0.5)
    out = tmp_path / "bench.json"
    assert run(folder, "mlp", "--json", str(out)) == 1
    (row,) = json.loads(out.read_text())["rows"]
    assert row["status"] == "wrong"
    assert "median_ms" not in row["ours"][0]
    assert "mlp in fp32: wrong results of tilewright" in capsys.readouterr().err


def test_what_cannot_be_compiled_is_a_row(folder, tmp_path, monkeypatch, capsys):
    def fail(*_args, **_options):
        raise UnsupportedError("no such thing")

    monkeypatch.setattr("tilewright.tools.bench.ours.tw.compile", fail)
    out = tmp_path / "bench.json"
    assert run(folder, "mlp", "--json", str(out)) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["status"], row["reason"]) == ("failed", "no such thing")
    assert "failed: no such thing" in capsys.readouterr().out


def test_an_interrupted_run_keeps_its_rows(folder, tmp_path, monkeypatch):
    done = []

    def row(case, imported, reference, settings):
        if done:
            raise KeyboardInterrupt
        done.append(case)
        return {"network": case.network, "batch": 1, "precision": "fp32", "status": "failed", "reason": "-"}

    monkeypatch.setattr(bench, "compare_network", row)
    out = tmp_path / "bench.json"
    assert run(folder, "mlp", "dqn", "--json", str(out)) == 130
    assert [r["network"] for r in json.loads(out.read_text())["rows"]] == ["mlp"]


def test_rows_beyond_the_time_limit_say_so(folder, tmp_path, capsys):
    out = tmp_path / "bench.json"
    assert run(folder, "mlp", "--time-limit", "1e-9", "--json", str(out)) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["reason"] == "the time limit was over"


def test_the_deadline_ends_work():
    from tilewright.tools.bench.torch_contenders import deadline

    def forever():
        while True:
            pass

    with pytest.raises(WorkError, match=r"waiting took longer than 0\.05 s"), deadline(0.05, "waiting"):
        forever()
    with deadline(60.0, "nothing"):
        pass


def test_a_folder_without_networks_says_which_option_names_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "--suite", "main", "--peers", "none", "--target", "null"]) == 2
    assert "tests/data/relay: expected NAME.relay files in the folder for" in (err := capsys.readouterr().err)
    assert "name another with --folder" in err
