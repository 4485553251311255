"""`irdump` from the outside: inputs, passes, outputs, exit codes, one line on stderr for every failure."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright.ir import equal, parse, parse_file, show
from tilewright.passes import scoped_registry
from tilewright.tools.irdump.command import main

GRAPH = """module @net {
  graph.func @main(%x: f32[2, 3]) -> f32[2, 3] {
    %0 = graph.relu(%x) : f32[2, 3] loc "relay:nn.relu#0"
    %1 = graph.relu(%x) : f32[2, 3]
    %2 = graph.add(%0, %1) : f32[2, 3]
    graph.return(%2)
  }
}
"""
RELAY = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3), float32]) -> Tensor[(2, 3), float32] {
  nn.relu(%x)
}
"""
THREAD = """module @m {
  thread.func @k(%x: f32[4], grid = [1, 1, 1], block = 4) {
    %v = thread.load(%x, at = [tid]) : f32
    %w = scalar.add(%v, %v) : f32
    thread.store(%w, %x, at = [tid])
    thread.return()
  }
}
"""
PLUGIN = '''
from tilewright.ir.nodes import Module
from tilewright.passes import Level, PassContext, register_pass

@register_pass(Level.GRAPH, Level.TENSOR, Level.THREAD)
def rename_for_test(module: Module, ctx: PassContext, *, name: str = "renamed") -> Module:
    """Give the module another name.

    rewrite: module @a --> module @name
    """
    if name == "boom":
        raise ValueError("cannot go on")
    return Module(name, module.funcs, module.attrs, module.constants)
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {"g.ir": GRAPH, "n.relay": RELAY, "t.ir": THREAD, "plugin.py": PLUGIN}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def run(*arguments: str) -> int:
    """The exit code; new passes are forgotten afterwards."""
    with scoped_registry():
        try:
            return main(arguments)
        except SystemExit as e:
            return int(e.code or 0)


def test_a_file_without_passes_is_printed_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("g.ir") == 0
    assert equal(parse(capsys.readouterr().out), parse(GRAPH))
    assert run("g.ir", "--no-locations") == 0
    assert 'loc "' not in capsys.readouterr().out


def test_passes_run_and_reports_go_to_stderr(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--pass-pipeline", "cse, dce", "--print-after", "c*", "--diff", "--timing", "--verify-each")
    assert run("g.ir", *arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.count("graph.relu") == 1
    assert "# after cse (1 of 2)" in captured.err
    assert "after dce" not in captured.err.replace("+++ after dce", "")
    assert "-    %1 = graph.relu(%x)" in captured.err
    assert "total" in captured.err


def test_print_after_all_prints_every_pass(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("g.ir", "--pass-pipeline", "cse, dce", "--print-after-all") == 0
    assert capsys.readouterr().err.count("# after ") == 2


def test_timing_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("g.ir", "--pass-pipeline", "cse, dce", "--timing", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert [(p["name"], p["changed"]) for p in report["passes"]] == [("cse", True), ("dce", False)]
    assert (report["passes"][0]["ops_before"], report["passes"][-1]["ops_after"]) == (4, 3)
    assert report["pipeline"] == "cse, dce"


def test_relay_text_is_read_from_files_and_stdin(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("n.relay") == 0
    assert "graph.relu(%x)" in capsys.readouterr().out
    for text in (RELAY, GRAPH, "# a comment\n\n" + GRAPH):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        assert run("-") == 0
        assert "graph.relu(%x)" in capsys.readouterr().out


def test_params_are_bound(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = RELAY.replace("float32]) ->", "float32], %w: Tensor[(2, 3), float32]) ->").replace(
        "nn.relu(%x)", "add(%x, %w)"
    )
    (folder / "two.relay").write_text(two)
    assert run("two.relay", "--params", "random", "--seed", "3") == 0
    assert "graph.constant" in capsys.readouterr().out
    assert run("g.ir", "--params", "random") == 2
    assert "--params and --inputs are for Relay" in capsys.readouterr().err


def test_lists(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--list-passes", "--import", "plugin.py") == 0
    assert 'rename-for-test{name="renamed"}' in capsys.readouterr().out.replace("=renamed}", '="renamed"}')
    assert run("--list-passes", "--json") == 0
    assert {"cse", "dce"} <= {p["name"] for p in json.loads(capsys.readouterr().out)}
    assert run("--list-ops", "--json") == 0
    ops = {o["name"]: o for o in json.loads(capsys.readouterr().out)}
    load = {a["name"]: a for a in ops["thread.load"]["attributes"]}
    assert (load["at"]["required"], load["lanes"]["default"]) == (True, "1")
    assert run("--list-ops") == 0
    assert "thread.load(%buffer, at: exprs, lanes: int = 1" in capsys.readouterr().out


def test_passes_from_files_and_modules(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("g.ir", "--pass-pipeline", "rename-for-test{name=other}")
    assert run(*arguments, "--import", "plugin.py") == 0
    assert "module @other" in capsys.readouterr().out
    assert run(*arguments) == 2
    assert "unknown pass 'rename-for-test'" in capsys.readouterr().err


def test_source_of_thread_level_kernels(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("t.ir", "--level", "source", "--target", "cuda:sm_80") == 0
    assert "__global__" in capsys.readouterr().out
    assert run("t.ir", "--level", "source", "--target", "opencl") == 0
    assert "__kernel" in capsys.readouterr().out
    assert run("g.ir", "--pass-pipeline", "cse", "--level", "source") == 2
    assert "not allowed with" in capsys.readouterr().err


def test_levels_only_go_down(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("t.ir", "--level", "tensor") == 2
    assert "t.ir: the module is at the thread level already" in capsys.readouterr().err


def test_outputs_are_written_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "out.ir").write_text("before")
    arguments = ("--pass-pipeline", "cse, dce", "-o", "out.ir", "--dump-dir", "steps")
    assert run("g.ir", *arguments) == 0
    assert capsys.readouterr().out == ""
    assert "graph.relu" in show(parse_file(folder / "out.ir"))
    assert (folder / "steps" / "000-input.ir").exists()
    (folder / "out.ir").write_text("before")
    broken = ("--import", "plugin.py", "--pass-pipeline", "rename-for-test{name=boom}", "-o", "out.ir")
    assert run("g.ir", *broken, "--html", "p.html") == 1
    assert (folder / "out.ir").read_text() == "before"
    assert not (folder / "p.html").exists()
    assert not [p for p in folder.iterdir() if p.suffix == ".part"]


def test_a_failing_pass_leaves_a_file_that_irdump_reruns(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    arguments = ("--import", "plugin.py", "--pass-pipeline", "cse, rename-for-test{name=boom}, dce")
    assert run("g.ir", *arguments) == 1
    err = capsys.readouterr().err
    assert "cannot go on" in err
    assert re.search(r"cannot go on.*plugin\.py:\d+\)", err)  # the line of the pass that raised
    rerun = shlex.split(err.split("rerun it with: irdump ")[1])
    assert rerun[1:] == ["--import", str(folder / "plugin.py")]
    assert run(*rerun) == 1
    assert "pass 'rename-for-test' (1 of 2) failed" in capsys.readouterr().err


def test_a_failure_is_told_where_no_reproducer_can_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "tilewright-reproducers").write_text("a file where the folder should be")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert run("g.ir", "--import", "plugin.py", "--pass-pipeline", "rename-for-test{name=boom}") == 1
    err = capsys.readouterr().err
    assert "cannot go on" in err
    assert f"no reproducer could be written to {folder / 'tilewright-reproducers'}: File exists" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected a FILE"),
        (("missing.ir",), "missing.ir: cannot read the file"),
        ((".",), "cannot read"),
        (("bad.ir",), "bad.ir:1:8: expected a symbol"),
        (("wrong.ir",), "wrong.ir: invalid module: 2 faults @main, line 3 [relay:nn.relu#0]: expected"),
        (("garbage",), "expected"),
        (("g.ir", "--pass-pipeline", "nope"), "--pass-pipeline:1:1: unknown pass 'nope'"),
        (("g.ir", "--pass-pipeline", "cse", "--print-after", "x*"), "no pass of the pipeline"),
        (("g.ir", "--target", "tpu"), "expected a target among"),
        (("g.ir", "--level", "lower"), "invalid choice"),
        (("g.ir", "--json"), "--json goes with"),
        (("g.ir", "--frobnicate"), "unrecognized arguments"),
        (("g.ir", "--import", "no.such.module"), "cannot import 'no.such.module'"),
        (("g.ir", "--import", "syntax.py"), "cannot import 'syntax.py': SyntaxError"),
        (("g.ir", "-o", "no/such/folder/out.ir"), "No such file or directory"),
        (("g.ir", "--level", "graph", "-o", "g.ir/x"), "Not a directory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    (folder / "bad.ir").write_text("module { }")
    (folder / "wrong.ir").write_text(GRAPH.replace("f32[2, 3] loc", "f32[3, 3] loc"))
    (folder / "garbage").write_bytes(bytes(range(1, 128)) * 50)
    (folder / "syntax.py").write_text("def f(:")
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("irdump: error: ")


def test_the_command_itself(folder: Path) -> None:
    command = [sys.executable, "-m", "tilewright.tools.irdump"]
    good = subprocess.run([*command, "-"], input=GRAPH, capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert equal(parse(good.stdout), parse(GRAPH))
    bad = subprocess.run([*command, "-"], input="module", capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "Traceback" not in bad.stderr


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs a device file")
def test_endless_input_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(os.devnull.replace("null", "zero")) == 2
    assert "expected at most" in capsys.readouterr().err


def test_onnx_files_are_read(tmp_path, capsys):
    onnx = pytest.importorskip("onnx")
    h, f32 = onnx.helper, onnx.TensorProto.FLOAT
    x, y = (h.make_tensor_value_info(n, f32, ["batch", 3]) for n in "xy")
    graph = h.make_graph([h.make_node("Relu", ["x"], ["y"])], "net", [x], [y])
    path = tmp_path / "net.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 18)]), path)
    assert main([str(path), "--shape", "batch=2", "--pass-pipeline", "infer-shapes"]) == 0
    assert "graph.relu(%x) : f32[2, 3]" in capsys.readouterr().out
    assert main([str(path), "--pass-pipeline", "infer-shapes"]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"irdump: warning: {path}: 'batch' is taken as 1; --shape batch=... sets it"
    assert main([str(path), "--params", "random", "--pass-pipeline", "infer-shapes"]) == 2
    assert "--params and --inputs are for Relay networks" in capsys.readouterr().err


def test_shapes_of_what_is_no_onnx_file_are_refused(tmp_path, capsys):
    path = tmp_path / "net.ir"
    path.write_text(GRAPH)
    assert main([str(path), "--shape", "x=1,3", "--pass-pipeline", "infer-shapes"]) == 2
    assert "expected an ONNX file" in capsys.readouterr().err
