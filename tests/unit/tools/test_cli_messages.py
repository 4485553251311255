"""What commands say: what a file takes, what is missing before work begins, and every error once."""

import io
import json

import pytest
from command_samples import printed, refused

import tilewright as tw
from tilewright.distributed.launcher import RankErrors
from tilewright.runtime.errors import DeviceMissingError
from tilewright.tools.cli import main
from tilewright.tools.commands import network as shared
from tilewright.tools.commands.rank_run import rank_lines

NETWORK = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 4), float32], %w: Tensor[(3, 4), float32]) {
  nn.dense(%x, %w, units=None)
}
"""


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "net.relay"
    path.write_text(NETWORK)
    return str(path)


def test_compile_says_what_the_file_takes(network, capsys, tmp_path):
    out = str(tmp_path / "net.tw")
    text = printed(capsys, "compile", network, "--target", "null", "-o", out)
    assert "2 inputs: x float32[2, 4], w float32[3, 4] (no weights are bound: --params FILE" in text
    text = printed(capsys, "compile", network, "--target", "null", "--params", "random", "-o", out)
    assert "\n1 input: x float32[2, 4]\n" in text
    report = json.loads(printed(capsys, "compile", network, "--target", "null", "--json"))
    assert [i["name"] for i in report["inputs"]] == ["x", "w"]
    assert report["outputs"][0]["shape"] == [2, 3]
    with pytest.raises(SystemExit):
        main(["compile", "--help"])
    assert "(default none: every parameter stays an input)" in " ".join(capsys.readouterr().out.split())


def test_explain_reads_saved_executables(network, capsys, tmp_path):
    out = str(tmp_path / "net.tw")
    printed(capsys, "compile", network, "--target", "null", "--params", "random", "-o", out)
    saved = printed(capsys, "explain", out)
    shown = printed(capsys, "explain", network, "--target", "null")
    assert saved.splitlines()[1:] == shown.splitlines()[1:]
    assert "1 kernels, 1 launches" in saved
    assert json.loads(printed(capsys, "explain", out, "--json"))[0]["calls"] == 1
    code, err = refused(capsys, "explain", out, "--partitioners")
    assert (code, "--partitioners: expected a network" in err) == (2, True)
    exe = tw.load(out)
    exe.artifact.facts["kernels"][0].pop("cost")
    exe.save(out)
    assert "expected a saved executable with facts of its kernels" in refused(capsys, "explain", out)[1]


@pytest.mark.parametrize("command", ["compile", "tune", "partition network --devices 2"])
def test_commands_that_need_a_network_say_so(capsys, command):
    code, err = refused(capsys, *command.split(), "net.tw")
    assert code == 2
    assert err.startswith("error: net.tw: expected a network, got a saved executable")


@pytest.mark.parametrize("more", [[], ["--memory-cap", "1MiB"], ["--devices", "2"]])
def test_a_missing_device_is_told_before_compiling(network, capsys, monkeypatch, more):
    def missing(target):
        raise DeviceMissingError("this machine has no such device")

    for name in ("run.compile_module", "run.compile_network", "rank_run.launch_command"):
        monkeypatch.setattr(f"tilewright.tools.commands.{name}", lambda *_, **__: pytest.fail("compiled"))
    monkeypatch.setattr(shared, "open_device", missing)
    assert main(["run", network, "--target", "cuda:sm_90a", *more]) == 1
    assert capsys.readouterr().err == "error: this machine has no such device\n"


def test_a_long_file_name_is_bad_input(capsys):
    code, err = refused(capsys, "run", "x" * 5000)
    assert (code, err) == (2, f"error: {'x' * 200}: no such file\n")


def test_memory_that_is_missing_is_told_with_its_amount(network, capsys, monkeypatch):
    def full(*_, **__):
        raise MemoryError("Unable to allocate 3.73 GiB")

    monkeypatch.setattr("tilewright.tools.commands.run.load_network", full)
    assert main(["run", network]) == 1
    assert capsys.readouterr().err == "error: out of memory: Unable to allocate 3.73 GiB\n"


def test_every_error_of_ranks_is_told_once(capsys):
    rule = "-" * 74 + "\n"
    summary = "prterun detected that one or more processes exited with non-zero status,\n"
    said = (
        f"warning: slow\nerror: rank 1: net.relay: no such file\nerror: rank 0: net.relay: no such file\n"
        f"error: rank 2: stopped, because rank 0 is gone\n{rule}{summary}{rule}{rule}no slots\n{rule}"
    )
    errors = RankErrors()
    errors.read(io.StringIO(said))
    assert errors.summary() == "rank 1: net.relay: no such file"
    assert capsys.readouterr().err == f"warning: slow\n{rule}no slots\n{rule}"
    assert RankErrors().summary() == ""


def test_a_division_of_nothing_is_told():
    row = {"rank": 0, "seconds_median": 1e-3, "communications": 0, "bytes_communicated": 0, "device": "CPU"}
    assert "nothing of the network was divided" in rank_lines({"ranks": [row, {**row, "rank": 1}]})
    assert "nothing" not in rank_lines({"ranks": [row, {**row, "rank": 1, "communications": 2}]})


def test_steps_of_a_network_are_those_of_the_default_passes(network, capsys, tmp_path):
    from tilewright.tools.irdump import command as irdump

    out = tmp_path / "steps.html"
    assert irdump.main([network, "--html", str(out)]) == 0
    assert "graph-to-tensor" in out.read_text()
    assert "vectorise" in out.read_text()


def test_what_a_build_complains_of_is_told_once():
    from tilewright.runtime.opencl.driver import first_complaint

    failed = "clBuildProgram failed: BUILD_PROGRAM_FAILURE"
    assert (
        first_complaint(f"{failed} - {failed} - {failed}\n\nBuild on CPU", "") == f"{failed}\n\nBuild on CPU"
    )
