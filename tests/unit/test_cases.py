"""Every case file below tests/cases: output, text, verification, a second run, results before and after."""

from pathlib import Path

import pytest
from golden_cases import SEPARATOR, Case, check

from tilewright.passes import pass_defs

CASES = Path(__file__).parents[1] / "cases"
FILES = sorted(CASES.rglob("*.ir"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(CASES)))
def test_case(path: Path, update_golden: bool):
    check(Case.read(path), update=update_golden)


def test_cases_are_named_as_the_pass_they_show():
    known = {
        d.name.replace("-", "_"): d.origin.split(".")[2]
        for d in pass_defs()
        if d.origin.startswith("tilewright")
    }
    for path in FILES:
        owners = [n for n in known if path.stem == n or path.stem.startswith(f"{n}_")]
        assert [known[n] for n in owners] == [path.parent.name], path


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


def test_the_harness_compares_results(tmp_path, monkeypatch):
    import golden_cases

    wrong = case(tmp_path)
    real = golden_cases.run_pipeline

    def spoil(module, pipeline, ctx):
        text = golden_cases.show(real(module, pipeline, ctx)).replace("graph.add", "graph.multiply")
        return golden_cases.parse(text)

    monkeypatch.setattr(golden_cases, "run_pipeline", spoil)
    monkeypatch.setitem(wrong.header, "idempotent", "no")
    with pytest.raises(AssertionError, match="results differ"):
        check(Case(wrong.path, wrong.header, wrong.given, EXPECTED.replace("graph.add", "graph.multiply")))


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
