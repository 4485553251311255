"""The search of a kernel's space: the best is found, the bound certifies it, budgets hold, bugs are told."""

import numpy as np
import pytest
from decision_samples import parameters, template
from search_samples import TARGET, StandInMeasurer, dense_kernel, efficiencies, task_of

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.ir import InputError, UnsupportedError
from tilewright.measuring.budget import Budget, budget_seconds
from tilewright.measuring.network_validation import Validation
from tilewright.tuning.kernels.kernel_outcome import outcome_in, outcome_of, record_of
from tilewright.tuning.kernels.search import BATCH, run_searches
from tilewright.tuning.kernels.search_space import search_space
from tilewright.tuning.report import report_of, violations_of


@pytest.fixture(scope="module")
def kernel():
    return dense_kernel(8, 16, 64)


@pytest.fixture(scope="module")
def large():
    return dense_kernel(2048, 2048, 2048)


def searched(task, seconds, limit=None):
    measurer = StandInMeasurer(seconds)
    run_searches([task], measurer, Budget(limit, clock=measurer.clock), progress=False)
    return measurer


@pytest.mark.parametrize("seed", range(4))
def test_the_stop_rule_returns_the_best_of_the_whole_space(kernel, seed):
    task = task_of(kernel)
    times = efficiencies(task.search.space, seed)
    measurer = searched(task, lambda f: times[parameters(f)])
    best = min(times.values())
    assert task.search.best_s == best
    assert times[parameters(task.search.variants[task.search.best])] == best
    assert task.search.certified
    assert measurer.measured <= len(times)


def test_the_bound_spares_most_of_a_large_space(large):
    task = task_of(large)
    space = task.search.space
    seconds = {}

    def near_the_bound(f):
        return seconds.setdefault(parameters(f), 1.02 * float(space.least_s[seen[parameters(f)]]))

    seen = {}
    for i in range(0, len(space), max(1, len(space) // 4000)):
        seen.setdefault(parameters(space.variant(i)), i)
    task = task_of(large, patience=40)
    measurer = searched(task, lambda f: near_the_bound(f) if parameters(f) in seen else 1.0)
    outcome = task.outcome
    assert outcome.pruned > 0.5 * outcome.points
    assert measurer.measured < 0.2 * outcome.points


def test_points_are_all_accounted_for(kernel):
    task = task_of(kernel, patience=10)
    times = efficiencies(task.search.space, 0)
    searched(task, lambda f: times[parameters(f)])
    o = task.outcome
    equal = o.points - o.measured - o.failed - o.pruned - o.unknown
    assert 0 <= equal < o.points
    assert o.measured == len(task.search.seconds) == len(set(task.programs.values()))
    assert [r.seconds for r in o.ranking] == sorted(task.search.seconds.values())[: len(o.ranking)]


def test_patience_ends_a_search_without_a_certificate(large):
    task = task_of(large, patience=5)
    measurer = searched(task, lambda f: 1.0)
    assert task.outcome.end == "settled"
    assert not task.outcome.certified
    assert 5 <= measurer.measured <= 5 + BATCH
    assert parameters(measurer.asked[0]) == parameters(large)


def test_a_time_below_its_bound_is_a_bug_and_certifies_nothing(kernel):
    task = task_of(kernel, patience=6)
    measurer = searched(task, lambda f: 1e-9)
    (first, *_) = found = violations_of(task, measurer)
    assert len(found) == measurer.measured > 1
    for part in ("bug in the bound", "ContractProblem", "ContractParameters", str(TARGET), kernel.name):
        assert part in first
    assert task.outcome.end == "settled"
    assert task.outcome.pruned == 0
    report = report_of([task], measurer, Budget(), Validation({}, {}), recalled=False)
    assert report["certified_kernels"] == 0.0
    assert report["violations"] == found


def test_noise_of_the_timer_is_no_bug(kernel):
    task = task_of(kernel, patience=3)
    space = task.search.space
    measurer = searched(task, lambda f: 0.99 * float(space.least_s.min()))
    assert violations_of(task, measurer) == []


def test_a_budget_holds_and_what_takes_time_gets_more_of_it(large, kernel):
    tasks = [task_of(large, name="slow"), task_of(kernel, name="quick")]
    measurer = StandInMeasurer(lambda f: 1.0)
    weights = {id(t): w for t, w in zip(tasks, (9, 1), strict=True)}
    for t in tasks:
        t.search.occurrences = weights[id(t)]
    run_searches(tasks, measurer, Budget(100.0, clock=measurer.clock), progress=False)
    slow, quick = (t.outcome for t in tasks)
    assert measurer.measured == 100
    assert slow.measured > 4 * quick.measured > 0
    assert slow.end == "budget"
    assert slow.unknown > 0


def test_nothing_is_measured_without_a_budget_left(kernel):
    task = task_of(kernel)
    measurer = searched(task, lambda f: 1.0, 0.0)
    assert measurer.measured == 0
    assert task.outcome.end == "budget"
    assert task.outcome.ranking == ()


def test_known_times_are_not_measured_again(kernel):
    task = task_of(kernel)
    times = efficiencies(task.search.space, 1)
    first = searched(task, lambda f: times[parameters(f)])
    again = task_of(kernel)
    measurer = StandInMeasurer(None, known=first.times)
    run_searches([again], measurer, Budget(), progress=False)
    assert measurer.measured == 0
    assert measurer.reused == again.reused == len(again.search.seconds)
    assert again.outcome.ranking[0] == task.outcome.ranking[0]


def test_an_interrupted_search_keeps_what_it_was_told(kernel):
    task = task_of(kernel)

    def seconds(f):
        if measurer.measured > 5:
            raise KeyboardInterrupt
        return 1.0

    measurer = StandInMeasurer(seconds)
    with pytest.raises(KeyboardInterrupt):
        run_searches([task], measurer, Budget(), progress=False)
    assert len(task.search.seconds) == 5
    assert outcome_of(task.search, task.programs).end == "budget"


def test_a_point_that_is_refused_is_left_out_and_on_record(kernel):
    task = task_of(kernel)
    times = efficiencies(task.search.space, 2)
    measurer = StandInMeasurer(lambda f: times[parameters(f)])
    refused = []

    def build(programs):
        (program,) = programs
        if parameters(program.kernel) != parameters(kernel) and len(refused) < 3:
            refused.append(program)
            raise UnsupportedError("too large")
        return programs

    measurer.build = build
    run_searches([task], measurer, Budget(), progress=False)
    assert task.outcome.failed == len(refused) == 3
    assert set(task.search.failed.values()) == {"too large"}
    measurer = StandInMeasurer(lambda f: 1.0)
    measurer.build = lambda programs: (_ for _ in ()).throw(UnsupportedError("the model's choice"))
    with pytest.raises(UnsupportedError, match="model"):
        run_searches([task_of(kernel)], measurer, Budget(), progress=False)


def test_a_record_gives_the_outcome_back_and_trusts_nothing(kernel):
    task = task_of(kernel)
    times = efficiencies(task.search.space, 3)
    searched(task, lambda f: times[parameters(f)])
    space = task.search.space
    record = record_of(task.outcome, space)
    assert outcome_in(record, space) == task.outcome
    assert outcome_in(record, search_space(dense_kernel(8, 16, 128), TARGET.hardware)) is None
    for old, new in (
        ('"end": "', '"end": "x'),
        ('"measured": ', '"measured": -'),
        ('"k_t": ', '"k_t": 7'),
        ('"seconds": ', '"seconds": -'),
        ('"staging": "shared"', '"staging": 3'),
        ('"ranking"', '"ranks"'),
    ):
        assert old in record
        assert outcome_in(record.replace(old, new, 1), space) is None
    assert outcome_in("[]", space) is None


def test_every_point_has_a_name_that_finds_it(kernel):
    space = search_space(kernel, TARGET.hardware)
    for i in (0, 1, len(space) // 2, len(space) - 1):
        assert space.point_named(space.named(i)) == i
    assert space.point_named({}) is None
    assert space.point_named({**space.named(0), "k_b": "64"}) is None
    # as an earlier version wrote it
    assert space.point_named({**space.named(0), "vec": 4}) is None
    assert np.all(space.least_s <= 1.02 * space.estimates_s.max())


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("60s", 60.0), ("5min", 300.0), (" 1.5h", 5400.0), ("90", 90.0), ("250ms", 0.25), (7, 7.0), (0, 0.0)],
)
def test_budgets_are_read(text, seconds):
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("bad", ["", "s", "-3s", "5 weeks", "1e3", True, -1, float("nan"), float("inf"), [5]])
def test_what_is_no_budget_is_said(bad):
    with pytest.raises(InputError, match="budget: expected a time such as 60s"):
        budget_seconds(bad)
    assert budget_seconds(None) is None


def test_both_engines_are_searched_where_tensor_cores_can():
    half = dense_kernel(256, 256, 256, dtype="f16")
    space = search_space(half, TARGET.hardware)
    engines = {str(space.named(i)["engine"]) for i in range(len(space))}
    assert engines == {"lanes", "tensor cores"}
    firsts = [str(space.named(i)["engine"]) for i in range(20)]
    assert "tensor cores" in firsts
    at = next(i for i in range(len(space)) if space.named(i)["engine"] == "tensor cores")
    assert template(space.variant(at)) == "matrix"
    assert space.point_named(space.named(at)) == at
    assert space.point_named({**space.named(at), "engine": "lanes"}) is None
    assert parameters(space.variant(0)) == parameters(half)
    assert len(search_space(dense_kernel(256, 256, 256), TARGET.hardware)) < len(space)


def test_other_kernels_have_the_neighbours_of_the_model_s_choice():
    module = tw.parse(
        "module @m { graph.func @main(%x: f32[64, 28, 28], %y: f32[64, 28])"
        " -> f32[64, 28, 28], f32[64, 28] {"
        " %0 = graph.exp(%x) : f32[64, 28, 28]"
        " %1 = graph.softmax(%y, axis = 1) : f32[64, 28]"
        " graph.return(%0, %1) } }"
    )
    found = []
    lower(module, TARGET, choose=lambda m: found.append(m) or m)
    spaces = [search_space(f, TARGET.hardware) for f in found[0].funcs if f.name != "main"]
    (space,) = (s for s in spaces if s is not None)  # none for rows
    assert 3 < len(space) <= 9
    assert space.variant(0) is space.kernel
    assert len({str(parameters(space.variant(i))) for i in range(len(space))}) == len(space)
    assert all(space.point_named(space.named(i)) == i for i in range(len(space)))
    assert space.point_named({"params": "other"}) is None
