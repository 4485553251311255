"""Every case file below tests/cases: output, text, verification, a second run, results before and after."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from golden_cases import SEPARATOR, Case, check

from tilewright.ir import parse, show
from tilewright.passes import Pipeline, pass_defs

CASES = Path(__file__).parents[2] / "cases"
FILES = sorted(CASES.rglob("*.ir"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CASES)))
def test_case(path: Path, update_golden: bool):
    check(Case.read(path), update=update_golden)


def owners_of(path: Path, passes: Iterable[str]) -> list[str]:
    """The passes, in snake case, that a case file is named after."""
    return [n for n in passes if path.stem == n or path.stem.startswith(f"{n}_")]


def test_cases_are_named_as_the_pass_they_show():
    known = {d.name.replace("-", "_"): d.origin.split(".")[2] for d in pass_defs() if d.own}
    for path in FILES:
        assert [known[n] for n in owners_of(path, known)] == [path.parent.name], path


def test_every_pass_has_a_case_that_runs_it_and_that_it_changes():
    shown = set()
    for case in map(Case.read, FILES):
        run = [p.name.replace("-", "_") for p in Pipeline.parse(case.header["pipeline"])]
        if case.expected != show(parse(case.given)):
            shown |= {n.replace("_", "-") for n in owners_of(case.path, run)}
    assert {d.name for d in pass_defs() if d.own} - shown == set()


GIVEN = """# pipeline: cse
# reason: for the tests of the harness

module @m {
  graph.func @main(%x: f32[2]) -> f32[2] {
    %0 = graph.relu(%x) : f32[2]
    %1 = graph.relu(%x) : f32[2]
    %2 = graph.add(%0, %1) : f32[2]
    graph.return(%2)
  }
}
"""
EXPECTED = """module @m {
  graph.func @main(%x: f32[2]) -> f32[2] {
    %0 = graph.relu(%x) : f32[2]
    %1 = graph.add(%0, %0) : f32[2]
    graph.return(%1)
  }
}
"""


def case(folder: Path, given: str = GIVEN, expected: str = EXPECTED) -> Case:
    path = folder / "cse.ir"
    path.write_text(f"{given}{SEPARATOR}{expected}")
    return Case.read(path)


def test_the_harness_accepts_what_is_right_and_refuses_another_output(tmp_path):
    check(case(tmp_path))
    with pytest.raises(AssertionError, match="another output"):
        check(case(tmp_path, expected=EXPECTED.replace("%0, %0", "%0, %x")))


def test_updating_rewrites_the_output_and_nothing_else(tmp_path):
    check(case(tmp_path, expected=""), update=True)
    assert (tmp_path / "cse.ir").read_text() == GIVEN + SEPARATOR + EXPECTED


def test_the_harness_needs_a_reason(tmp_path):
    with pytest.raises(AssertionError, match="the header has"):
        case(tmp_path, given=GIVEN.replace("# reason", "# because"))


@pytest.mark.parametrize(
    ("pipeline", "key"),
    [
        ("cse", ""),
        ("split-batch{devices=2, rank=1}", "# ranks: 2\n"),
        ('set-input-shapes{shapes="x=3"}', "# resized: yes\n"),
        ("narrow-interface", "# retyped: yes\n# tolerance: 1e-3\n"),
    ],
    ids=["alone", "ranks", "resized", "retyped"],
)
def test_the_harness_compares_results(tmp_path, monkeypatch, pipeline, key):
    import golden_cases

    given = GIVEN.replace("pipeline: cse\n", f"pipeline: {pipeline}\n# idempotent: no\n{key}")
    check(case(tmp_path, given, expected=""), update=True)
    real = golden_cases.run_pipeline

    def spoil(module, pipeline, ctx):
        text = golden_cases.show(real(module, pipeline, ctx)).replace("graph.add", "graph.multiply")
        return golden_cases.parse(text)

    monkeypatch.setattr(golden_cases, "run_pipeline", spoil)
    with pytest.raises(AssertionError, match="results differ"):
        check(Case.read(tmp_path / "cse.ir"), update=True)


def test_the_harness_runs_passes_a_second_time(tmp_path, monkeypatch):
    import golden_cases

    runs: list[int] = []
    real = golden_cases.run_pipeline

    def restless(module, pipeline, ctx):
        runs.append(1)
        return real(module, pipeline, ctx).with_attrs(runs=len(runs))

    monkeypatch.setattr(golden_cases, "run_pipeline", restless)
    expected = EXPECTED.replace("module @m", "module @m(runs = 1)")
    with pytest.raises(AssertionError, match="a second run"):
        check(case(tmp_path, expected=expected))
