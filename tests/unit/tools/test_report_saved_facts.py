"""Saved executables that say odd things of themselves: one sentence that names the fact."""

import copy

import pytest

import tilewright as tw
from tilewright.ir import InputError
from tilewright.running.executable import Artifact, Executable
from tilewright.runtime.plan.container import read_saved, write_container
from tilewright.tools.cli import main
from tilewright.tools.report import collect, report_page

NET = """module @net {
  graph.func @main(%x: f32[1, 4, 8, 8], %w: f32[4, 4, 3, 3]) -> f32[1, 4, 8, 8] {
    %0 = graph.conv2d(%x, %w, strides = [1, 1], padding = [1, 1, 1, 1], groups = 1) : f32[1, 4, 8, 8]
    %1 = graph.relu(%0) : f32[1, 4, 8, 8]
    graph.return(%1)
  }
}
"""
ODD = (None, "odd", -1, 0, 2.5, float("nan"), [], ["odd"], {}, {"odd": 1}, True)


@pytest.fixture(scope="module")
def compiled():
    return tw.compile(tw.parse(NET), target="opencl")


def changed(exe, facts=None, texts=None):
    a = exe.artifact
    return Executable(
        Artifact(a.plan, a.constants, facts or a.facts, saved_texts=texts or a.texts), exe.target
    )


def page(exe):
    return report_page(collect(exe, "net", repeats=0))


def places(value, path=()):
    """The paths of all entries of nested objects and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*path, key)
        yield from places(inner, (*path, key))


def test_a_sound_one_has_a_page(compiled):
    assert "</html>" in page(changed(compiled))


def test_whatever_a_fact_is_it_is_taken_or_named(compiled):
    told = []
    paths = [p for p in places(compiled.artifact.facts) if p[0] in ("hardware", "kernels", "convolutions")]
    assert len(paths) > 30
    for number, path in enumerate(paths):
        facts = copy.deepcopy(compiled.artifact.facts)
        inner = facts
        for key in path[:-1]:
            inner = inner[key]
        if number % 3 or isinstance(inner, list):
            inner[path[-1]] = ODD[number % len(ODD)]
        else:
            del inner[path[-1]]
        try:
            collect(changed(compiled, facts), "net", repeats=0)
        except InputError as e:
            told.append(str(e))
    assert len(told) > 20


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("kernels", None, "kernels is None"),
        ("kernels", [], "expected facts of every kernel, those of"),
        ("kernels", [5], r"expected kernels\[0\] to be an object of facts, got 5"),
        ("kernels", [{"name": "k"}], r"kernels\[0\]\.template is missing"),
        ("convolutions", [{}], r"convolutions\[0\]\.origins is missing"),
        ("hardware", 5, "hardware is 5"),
    ],
)
def test_odd_facts_are_named(compiled, key, value, said):
    with pytest.raises(InputError, match=said):
        page(changed(compiled, {**compiled.artifact.facts, key: value}))


def test_texts_that_miss_are_named(compiled):
    texts = compiled.artifact.texts
    for name in ("graph", "tensor", "thread"):
        with pytest.raises(InputError, match=f"the text '{name}' is missing"):
            page(changed(compiled, texts={k: v for k, v in texts.items() if k != name}))
    with pytest.raises(InputError, match="expected every kernel in the text 'tensor'"):
        page(changed(compiled, texts={**texts, "tensor": texts["graph"]}))


def test_the_command_names_the_file(compiled, tmp_path, capsys):
    path = str(tmp_path / "net.tw")
    compiled.save(path)
    saved = read_saved(path)
    (kernel,) = saved.facts["kernels"]
    del kernel["cost"]
    write_container(path, saved)
    assert main(["report", path, "-o", str(tmp_path / "page.html"), "--repeats", "0"]) == 2
    assert f"error: {path}: expected facts of a compilation, kernels[0].cost is" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()
