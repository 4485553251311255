"""A candidate that computes something else is never chosen, however fast, and is told."""

import numpy as np
import pytest
from decision_samples import parameters, with_template
from search_samples import TARGET, StandInMeasurer, dense_kernel, efficiencies, task_of

from tilewright.ir import show
from tilewright.measuring.budget import Budget
from tilewright.measuring.kernel_program import kernel_program
from tilewright.measuring.network_validation import Validation
from tilewright.tuning.kernels.result_check import (
    check_contenders,
    difference,
    is_right,
    tolerance_of,
    write_reproducer,
)
from tilewright.tuning.kernels.search import run_searches
from tilewright.tuning.kernels.search_space import search_space
from tilewright.tuning.report import report_of


@pytest.fixture(scope="module")
def kernel():
    return dense_kernel(8, 16, 64)


class CheckedMeasurer(StandInMeasurer):
    """Kernels with some parameters give other results."""

    def __init__(self, seconds, wrong=()):
        super().__init__(seconds)
        self.wrong, self.compared = wrong, []

    def outputs(self, program, built):
        self.compared.append(parameters(program.kernel))
        return [np.ones(4, np.float32) + (0.01 if parameters(program.kernel) in self.wrong else 0.0)]


def searched(kernel, wrong, patience=None):
    task = task_of(kernel, patience=patience)
    task.module = lambda f: f
    times = efficiencies(task.search.space, 1)
    measurer = CheckedMeasurer(lambda f: times[parameters(f)], wrong(times))
    run_searches([task], measurer, Budget(), progress=False, check=is_right)
    return task, measurer, times


@pytest.fixture(autouse=True)
def reproducers(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "tilewright.tuning.kernels.result_check.temporary_reproducers", lambda: tmp_path / "wrong"
    )
    monkeypatch.setattr(
        "tilewright.tuning.kernels.result_check.write_reproducer", lambda name, *_: tmp_path / f"{name}.ir"
    )
    return tmp_path


def test_the_fastest_that_is_right_wins(kernel, capsys):
    order = []

    def wrong(times):
        order.extend(sorted(times, key=times.get))
        return order[:2]

    task, measurer, times = searched(kernel, wrong)
    best = parameters(task.search.variants[task.search.best])
    assert best == next(p for p in order if p not in measurer.wrong)
    assert task.search.certified  # what is wrong rules nothing out
    assert 1 <= len(task.wrong) <= 2
    err = capsys.readouterr().err
    for part in ("bug: kernel", "differs by 4 of 4 elements of result 0", "program", ".ir"):
        assert part in err
    assert len(measurer.compared) < len(times) / 4  # only what would be the best
    report = report_of([task], measurer, Budget(), Validation({}, {}), recalled=False)
    assert report["wrong"] == list(task.wrong.values())
    assert report["kernels"][0]["failed"] == len(task.wrong)


def test_contenders_are_checked_before_they_compete(kernel):
    task, measurer, _ = searched(kernel, lambda times: ())
    second = task.outcome.ranking[1].point
    measurer.wrong = [parameters(task.search.space.variant(second))]
    task.right.discard(second)
    check_contenders(task, measurer)
    assert second in task.wrong
    assert second not in {r.point for r in task.outcome.ranking}
    assert len(task.right) >= 2
    compared = len(measurer.compared)
    check_contenders(task, measurer)
    assert len(measurer.compared) == compared


def test_rounding_is_no_difference_and_a_wrong_element_is(kernel):
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((8, 64), np.float32), rng.standard_normal((16, 64), np.float32)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    assert difference(kernel, [x @ w.T], [exact.astype(np.float32)]) is None
    wrong = (x @ w.T).copy()
    wrong[7, 15] += 0.01
    assert "1 of 128 elements of result 0" in difference(kernel, [x @ w.T], [wrong])
    wrong[7, 15] = np.nan
    assert difference(kernel, [x @ w.T], [wrong]) is not None
    assert difference(kernel, [wrong], [wrong]) is None


def test_tolerance_goes_by_type_and_length():
    short, long = dense_kernel(8, 16, 16), dense_kernel(8, 16, 64)
    assert tolerance_of(long) == pytest.approx(2 * tolerance_of(short))
    half = dense_kernel(64, 64, 64, dtype="f16")
    assert tolerance_of(half) == 1e-2
    rounded = with_template(short, "matrix")
    assert tolerance_of(rounded) == 1e-2
    off = [np.ones(8, np.float32)], [np.full(8, 1.001, np.float32)]
    assert difference(short, *off) is not None
    assert difference(rounded, *off) is None


def test_a_reproducer_holds_both_programs(kernel, reproducers):
    space = search_space(kernel, TARGET.hardware)
    programs = [kernel_program(space.variant(i), (1,)) for i in (0, 1)]
    path = write_reproducer(kernel.name, parameters(space.variant(1)), *programs)
    text = path.read_text()
    assert text.startswith('// {"kernel": "')
    for i in (0, 1):
        assert show(programs[i]) in text
