"""The page that steps through passes: self-contained, complete, and its edits rebuild every state."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir import parse, show
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.tools.irdump.command import main
from tilewright.tools.irdump.page import LastStep, edits, page
from tilewright.tools.irdump.record import Recorder

GRAPH = """module @net {
  graph.func @main(%x: f32[2, 3]) -> f32[2, 3] {
    %0 = graph.relu(%x) : f32[2, 3]
    %1 = graph.relu(%x) : f32[2, 3]
    %2 = graph.add(%0, %1) : f32[2, 3]
    graph.return(%2)
  }
}
"""


class Page(HTMLParser):
    """Tags with their attributes, and the texts of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data


def recorded(name: str = "net.ir", last: LastStep | None = None) -> tuple[str, Recorder]:
    module = parse(GRAPH)
    recorder = Recorder(module)
    run_pipeline(module, Pipeline.parse("cse, dce, dce"), PassContext(instruments=(recorder,)))
    return page(name, "opencl", recorder, last), recorder


def test_page_is_well_formed_and_loads_nothing() -> None:
    parsed = Page(recorded()[0])
    assert parsed.open == []
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "img", "iframe", "object", "embed", "base")
        assert not {"src", "href", "srcset", "data", "action"} & attributes.keys()
    policies = [a.get("content") or "" for _, a in parsed.tags if a.get("http-equiv")]
    assert policies[0].startswith("default-src 'none'")
    text = recorded()[0]
    assert "url(" not in text
    assert "@import" not in text
    assert "<!-- " not in text


def test_data_holds_every_state() -> None:
    text, recorder = recorded(last=LastStep("source", "The emitted kernels", "int a;\nint b;", 3))
    data = json.loads(Page(text).scripts[0])
    assert [s["label"] for s in data["steps"]] == ["input", "cse", "dce", "dce", "source"]
    changed = [s["changed"] for s in data["steps"]]
    assert changed == [False, *(r.changed for r in recorder.passes), True]
    states = [show(recorder.start), *(show(r.after) for r in recorder.passes), "int a;\nint b;"]
    lines: list[str] = []
    for step, state in zip(data["steps"], states, strict=True):
        if "lines" in step:
            lines = [data["table"][i] for i in step["lines"]]
        assert lines == state.splitlines()


def test_hostile_names_stay_text() -> None:
    name = "</script><script>alert(1)</script><!-- data -->"
    parsed = Page(recorded(name)[0])
    assert len(parsed.scripts) == 2
    assert json.loads(parsed.scripts[0])["file"] == name


LINES = st.lists(st.sampled_from(["a", "b", "c", "}"]), max_size=12).map(tuple)


@settings(deadline=None)
@given(LINES, LINES)
def test_edits_rebuild_the_new_state(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    out: list[str] = []
    at = 0
    for i, j, k, n in edits(a, b):
        out += [*a[at:i], *b[k:n]]
        at = j
    assert (*out, *a[at:]) == b
    assert bool(edits(a, b)) == (a != b)


def test_command_writes_the_page(tmp_path: Path) -> None:
    (tmp_path / "g.ir").write_text(GRAPH)
    out = tmp_path / "steps.html"
    assert main([str(tmp_path / "g.ir"), "--pass-pipeline", "cse, dce", "--html", str(out)]) == 0
    assert Page(out.read_text()).tags[0][0] == "html"
