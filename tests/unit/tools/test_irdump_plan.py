"""`irdump --level plan` from the outside: what is compiled, read back, told and shown on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tilewright.ir import InputError, equal, parse
from tilewright.levels import verify
from tilewright.tools.irdump.command import main

NET = """module @net {
  graph.func @main(%x: f32[4, 8], %w: f32[8, 8]) -> f32[4, 8], f32[4, 8] {
    %0 = graph.softmax(%x, axis = 1) : f32[4, 8]
    %1 = graph.dense(%0, %w) : f32[4, 8]
    %2 = graph.softmax(%x, axis = 0) : f32[4, 8] loc "relay:nn.softmax#1"
    graph.return(%1, %2)
  }
}
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.ir").write_text(NET)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    try:
        code = main(arguments)
    except SystemExit as e:
        code = int(e.code or 0)
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
    return captured.err


def streams(text: str) -> set[str]:
    return set(re.findall(r"stream = (\d+)", text))


def test_the_plan_of_a_network(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "net.ir", "--level", "plan")
    verify(parse(text))
    assert 'module @plan(target = "opencl")' in text
    assert 'origin = ["relay:nn.softmax#1"]' in text
    plain = run(capsys, "net.ir", "--level", "plan", "--no-locations")
    assert "origin" not in plain
    assert plain == re.sub(r', origin = \[".*"\]', "", text)


def test_options_of_the_compilation_are_decided_for(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serial = run(capsys, "net.ir", "--level", "plan", "--streams", "serial")
    beside = run(capsys, "net.ir", "--level", "plan", "--streams", "exact")
    assert (len(streams(serial)), len(streams(beside))) == (1, 2)
    assert "f16[4, 8]" not in serial
    assert "f16[4, 8]" in run(capsys, "net.ir", "--level", "plan", "--precision", "fp16")
    assert "f16[4, 8]" in run(capsys, "net.ir", "--level", "tensor", "--precision", "fp16")
    options = ("--partitioner", "none", "--conv-algorithm", "direct", "--workspace", "any")
    verify(parse(run(capsys, "net.ir", "--level", "plan", *options)))


def test_a_plan_is_read_again(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "net.ir", "--level", "plan")
    (net / "plan.ir").write_text(text)
    assert run(capsys, "plan.ir") == text
    assert equal(parse(run(capsys, "plan.ir", "--level", "plan", "--target", "cuda")), parse(text))
    for arguments, words in (
        (("--level", "thread"), "plan.ir: the module is at the plan level already"),
        (("--level", "source"), "plan.ir: the module is at the plan level already"),
        (("--pass-pipeline", "cse"), "there are plan"),
    ):
        assert words in refused(capsys, "plan.ir", *arguments)


def test_a_fault_names_file_and_line(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "net.ir", "--level", "plan").splitlines()
    at = next(i for i, line in enumerate(lines) if "plan.launch" in line)
    lines[at] = re.sub(r"block = \d+", "block = 0", lines[at])
    (net / "plan.ir").write_text("\n".join(lines))
    err = refused(capsys, "plan.ir")
    assert err.startswith(f"irdump: error: plan.ir: invalid module: @main, line {at + 1}: launch 0 (")
    assert "expected block in 1..4096, got 0" in err


def test_what_goes_with_what(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--streams goes with --level plan or --html" in refused(capsys, "net.ir", "--streams", "exact")
    assert "--precision goes with --level or --html" in refused(capsys, "net.ir", "--precision", "fp16")
    err = refused(capsys, "net.ir", "--level", "plan", "--streams", "sideways")
    assert "net.ir: expected streams among model" in err
    err = refused(capsys, "net.ir", "--level", "plan", "--target", "reference")
    assert "expected a target with kernels for --level plan, got reference" in err
    (net / "own.ir").write_text("# pipeline: cse\n" + NET)
    err = refused(capsys, "own.ir", "--html", "p.html", "--precision", "fp16")
    assert "own.ir: it names its own passes, of which no option chooses" in err
    (net / "weights.ir").write_text(NET.replace("%w: f32[8, 8]", "%y: f32[1]").replace(
        "    %0", '    %w = graph.constant(name = "w") : f32[8, 8]\n    %0'))  # fmt: skip
    assert "constants have no data: w" in refused(capsys, "weights.ir", "--level", "plan")


def page_state(path: Path) -> dict[str, Any]:
    """The data of a page of passes."""
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert data is not None
    return dict(json.loads(data[1]))


def test_the_page_steps_to_the_plan(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "net.ir", "--level", "plan", "--html", "steps.html") == ""
    state = page_state(net / "steps.html")
    *passes, last = state["steps"]
    assert last["label"] == "plan"
    assert passes[-1]["label"].startswith("place-barriers")
    text = "\n".join(state["table"][i] for i in last["lines"]) + "\n"
    assert text == run(capsys, "net.ir", "--level", "plan", "--no-locations")
    assert last["ops"] == len(parse(text).main.body.ops)


def test_the_page_of_a_whole_run_ends_with_the_plan(net: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "net.ir", "--html", "steps.html", "-o", "thread.ir", "--streams", "serial") == ""
    state = page_state(net / "steps.html")
    assert [step["label"] for step in state["steps"][-2:]][1:] == ["plan"]
    text = "\n".join(state["table"][i] for i in state["steps"][-1]["lines"]) + "\n"
    plan = ("net.ir", "--level", "plan", "--no-locations", "--streams", "serial")
    assert text == run(capsys, *plan)
    assert (net / "thread.ir").read_text() == run(capsys, "net.ir", "--level", "thread")
    run(capsys, "net.ir", "--html", "steps.html", "--target", "reference")
    assert page_state(net / "steps.html")["steps"][-1]["label"] != "plan"


def test_the_plan_of_the_documentation_is_one() -> None:
    text = (Path(__file__).parents[3] / "docs" / "plan.md").read_text()
    (example,) = re.findall(r"```\n(module @plan.*?)```", text, re.DOTALL)
    verify(parse(example))
    overlapping = parse(example.replace("offset = 131072", "offset = 0"))
    with pytest.raises(InputError, match=r"line 12: .*share arena bytes, but their uses may interleave"):
        verify(overlapping)
