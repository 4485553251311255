"""The in-memory cluster model against measured steps: rows, errors of the shipped knobs, fitting."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.costmodel.cluster.inputs.loading import load_cluster
from tilewright.costmodel.cluster.inputs.model import Transformer
from tilewright.costmodel.cluster.inputs.training import Training
from tilewright.costmodel.cluster.measured.best import memory_needed, predict_best
from tilewright.costmodel.cluster.measured.in_memory import A_PRIORI, step_time
from tilewright.costmodel.cluster.measured.rings import A100, V100, ring_table
from tilewright.costmodel.cluster.measured.rows import best_rates, citation, measured_rows, source_names
from tilewright.costmodel.cluster.measured.search import evaluate_in_memory, search_in_memory
from tilewright.costmodel.cluster.measured.validation import (
    BOUNDS,
    comparable_groups,
    fit_knobs,
    held_out_errors,
    planner_seconds,
    score,
    stack_named,
    stacks,
    validate,
)
from tilewright.costmodel.cluster.modes.search import evaluate
from tilewright.ir import InputError, UnsupportedError

ROWS = {
    "vtrain-single": 1440,
    "vtrain-multi": 109,
    "megatron-sc21-table1": 10,
    "megatron-sc21-table2": 6,
    "zero3-sc21-table2": 6,
    "korthikanti-table5": 8,
    "mt-nlg": 3,
    "bigscience": 23,
}
#: days that table 2 of Narayanan et al. 2021 prints for 300 billion tokens, in the order of the rows
DAYS = {
    "megatron-sc21-table2": [84, 43, 23, 156, 80, 42],
    "zero3-sc21-table2": [90, 74, 74, 169, 137, 140],
}


@pytest.fixture(scope="module")
def scores():
    return {s.source: s for s in validate(stacks())}


def test_all_rows_are_there_and_cited():
    assert {name: len(measured_rows(name).step_s) for name in source_names()} == ROWS
    for name in (*source_names(), *source_names("best"), *source_names("offload")):
        assert len(citation(name)) > 40
    with pytest.raises(
        InputError, match=r"expected a source of measured rows .*vtrain-single.* got 'vtrain'"
    ):
        measured_rows("vtrain")


def test_every_source_has_exactly_one_stack(scores):
    listed = [source for stack in stacks() for source in (*stack.fitted, *stack.transferred)]
    assert sorted(listed) == sorted(ROWS) == sorted(scores)


@pytest.mark.parametrize("source", DAYS)
def test_step_times_from_rates_agree_with_the_printed_days(source):
    rows = measured_rows(source)
    tokens = rows.runs.batch * rows.runs.sequence
    days = rows.step_s * 300e9 / tokens / 86400
    np.testing.assert_allclose(days, DAYS[source], rtol=0.03)


def test_the_largest_run_adds_up_to_its_printed_total():
    rows = measured_rows("megatron-sc21-table1")
    assert rows.runs.devices[-1] == 3072
    assert rows.runs.step_flops[-1] / rows.step_s[-1] == pytest.approx(502e15, rel=0.01)


def test_layers_devices_and_batches_are_whole():
    for name in source_names():
        runs = measured_rows(name).runs
        assert np.all(runs.micro_batches == np.round(runs.micro_batches)), name
        assert np.all(runs.hidden % runs.heads == 0), name
        assert np.all(runs.heads % runs.tensor == 0), name


def test_fitted_sources_meet_ten_percent_and_a_rank_correlation_of_nine_tenths(scores):
    for s in scores.values():
        if s.fitted:
            assert s.mean_absolute_error <= 0.10, s
            assert s.rank_correlation >= 0.9, s


def test_sources_that_took_no_part_in_a_fit_are_met_as_well(scores):
    limits = {"megatron-sc21-table1": 0.03, "megatron-sc21-table2": 0.05, "korthikanti-table5": 0.07}
    for source, limit in limits.items():
        s = scores[source]
        assert not s.fitted
        assert s.mean_absolute_error <= limit
        assert s.rank_correlation >= 0.98


def test_fitting_gains_over_data_sheets_alone(scores):
    for s in scores.values():
        assert s.mean_absolute_error < s.base_error, s.source
    multi = scores["vtrain-multi"]
    assert multi.held_out_model <= 0.092  # the best known before
    assert multi.mean_absolute_error <= multi.held_out_random <= multi.held_out_model


def test_the_models_first_choice_is_close_to_the_measured_best(scores):
    for source in ("vtrain-single", "vtrain-multi"):
        assert scores[source].regret < 0.05
        assert scores[source].rank_within > 0.7


def test_best_rates_on_another_device_are_found_without_naming_a_configuration():
    stack = stack_named("megatron-a100")
    for source in source_names("best"):
        found = predict_best(source, stack)
        assert [b.devices for b in found] == [1, 2, 4, 8, 16, 32, 64]
        assert all(b.tensor * b.pipeline * b.data == b.devices for b in found)
        assert np.mean([abs(b.error) for b in found]) < 0.1
    assert {row.machine.memory_bytes for row in best_rates("alpa")} == {16e9}


def test_the_search_with_fitted_knobs_prices_a_measured_run_as_the_validation_does():
    rows = measured_rows("megatron-sc21-table1")  # 145.6B: tensor 8, pipeline 8, data 24, interleave 2
    selene = replace(load_cluster("dgx-a100"), nodes=192)
    model = Transformer("145.6B", layers=80, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    training = Training("sc21", 2304, (2,), ("IM",), (True,), sharding=(0,), interleave=(2,))
    knobs = stack_named("megatron-a100").knobs
    found = evaluate_in_memory(selene, model, training, knobs)
    c = found.configurations
    (at,) = np.flatnonzero((c.tp == 8) & (c.p == 8) & (c.dp == 24))
    assert found.total_s[at] == pytest.approx(step_time(rows.runs, rows.machine, knobs).total[6])
    assert found.total_s[at] == pytest.approx(rows.step_s[6], rel=0.05)
    assert found.total_s[at] == pytest.approx(sum(column[at] for column in found.components_s.values()))
    best = search_in_memory(selene, model, training, knobs, top=1)
    assert best.best["total_s"] <= found.total_s[at]
    with pytest.raises(UnsupportedError, match="training with schedule IM, which streamed lacks"):
        evaluate_in_memory(selene, model, replace(training, name="streamed", schedules=("PR",)), knobs)


def test_the_planner_alone_ranks_configurations_of_different_models(scores):
    """Nothing is fitted there, so errors are told and not bounded tightly."""
    for source in ("megatron-sc21-table1", "megatron-sc21-table2", "korthikanti-table5"):
        assert scores[source].planner_rank >= 0.98
        assert scores[source].planner_error < 0.25


def test_planner_seconds_are_those_of_a_plan_of_the_same_run():
    rows = measured_rows("megatron-sc21-table1")
    training = Training("sc21", 2304, (2,), ("IM",), (True,), sharding=(0,), interleave=(2,))
    model = Transformer("145.6B", layers=80, hidden=12288, heads=96, sequence=2048, vocabulary=51200)
    found = evaluate(replace(load_cluster("dgx-a100"), nodes=192), model, training, "corrected")
    c = found.configurations
    (at,) = np.flatnonzero((c.tp == 8) & (c.p == 8) & (c.dp == 24))
    assert planner_seconds(rows)[6] == pytest.approx(found.total_s[at])


def test_memory_of_a_measured_run():
    rows = measured_rows("megatron-sc21-table1")
    assert np.all(memory_needed(rows.runs) < rows.machine.memory_bytes)  # they ran
    assert np.all(memory_needed(replace(rows.runs, tensor=rows.runs.tensor / 8))[5:] > 80e9)


def test_shipped_knobs_are_within_their_bounds():
    for stack in stacks():
        for name in stack.free:
            low, _, high = BOUNDS[name]
            assert low <= getattr(stack.knobs, name) <= high
    with pytest.raises(InputError, match=r"expected a software stack of megatron-a100, .* got 'x'"):
        stack_named("x")


def test_stacks_build_on_their_base():
    base, scaled = stack_named("megatron-a100"), stack_named("mt-nlg")
    assert scaled.knobs == replace(base.knobs, scale=scaled.knobs.scale)


def test_rings_against_the_tables_they_were_fitted_to():
    gib = 2.0**30
    assert A100.all_reduce_s(8, gib) == pytest.approx(8.193e-3, rel=0.02)
    assert A100.all_reduce_s(8, 2.0**20) == pytest.approx(92.8e-6, rel=0.1)
    assert V100.all_reduce_s(2, 2.0**20) == pytest.approx(70.1e-6, rel=0.02)
    assert A100.all_reduce_s(1, gib) == 0.0
    assert A100.all_reduce_s([2, 8, 16], gib).shape == (3,)
    assert A100.start_up_s(16) > A100.start_up_s(8)
    with pytest.raises(InputError, match="a ring table named a100 or v100, got 'h100'"):
        ring_table("h100")


def one_run(**changes):
    """Megatron's 7.5B run on 128 devices, 32 x 4 x 1, changed."""
    rows = measured_rows("megatron-sc21-table1")
    runs = rows.subset(np.arange(len(rows.step_s)) == 2).runs
    return replace(runs, **{name: np.array([float(value)]) for name, value in changes.items()}), rows.machine


def test_components_add_up_and_vanish_where_they_must():
    runs, machine = one_run()
    t = step_time(runs, machine, A_PRIORI)
    parts = ("compute", "tensor_parallel", "transfer", "bubble", "data_parallel", "optimizer", "overhead")
    assert t.total == pytest.approx(sum(getattr(t, name) for name in parts))
    assert t.bubble == t.transfer == t.overhead == 0.0
    alone, _ = one_run(tensor=1, data=1, batch=1, micro_batch=1)
    t = step_time(alone, machine, A_PRIORI)
    assert t.tensor_parallel == t.data_parallel == 0.0


def test_the_products_of_a_layer_by_hand():
    runs, machine = one_run(tensor=1, data=1, batch=4, micro_batch=4, vocabulary=0)
    knobs = replace(A_PRIORI, gemm_efficiency=0.5, memory_passes=0.0)
    d, s, layers = 4096.0, 2048.0, 36.0
    flops = layers * 4 * 24 * 4 * s * d**2 * (1 + s / (6 * d))  # forward, forward again, twice that backward
    assert step_time(runs, machine, knobs).compute == pytest.approx(flops / (0.5 * 312e12))


def test_interleaving_divides_the_bubble_but_not_its_transfers():
    shape = {"tensor": 1, "data": 1, "pipeline": 4, "batch": 32, "micro_batch": 1}
    plain, machine = one_run(**shape)
    woven, _ = one_run(**shape, interleave=3)
    a, b = step_time(plain, machine, A_PRIORI), step_time(woven, machine, A_PRIORI)
    assert b.transfer == pytest.approx(3 * a.transfer)
    # a bubble is three stages' work and transfers, a third of it with three chunks
    assert 3 * b.bubble - a.bubble == pytest.approx(3 * (b.transfer - a.transfer) / 32)


def test_recomputation_and_sharding_cost_what_they_repeat():
    runs, machine = one_run(data=8, batch=128)
    kept, _ = one_run(data=8, batch=128, recompute=0)
    gathered, _ = one_run(data=8, batch=128, sharding=3)
    scattered, _ = one_run(data=8, batch=256, sharding=2)
    sharded, _ = one_run(data=8, batch=128, sharding=1)
    t = {
        n: step_time(r, machine, A_PRIORI)
        for n, r in zip("rkgs", (runs, kept, gathered, sharded), strict=True)
    }
    assert t["r"].tensor_parallel == pytest.approx(1.5 * t["k"].tensor_parallel)
    assert t["r"].compute > 1.25 * t["k"].compute
    assert t["g"].data_parallel == pytest.approx(1.5 * t["r"].data_parallel, rel=1e-3)  # one micro-batch
    t["2"] = step_time(scattered, machine, A_PRIORI)
    assert t["2"].data_parallel == pytest.approx(1.5 * t["r"].data_parallel, rel=1e-3)  # two
    assert t["s"].optimizer == pytest.approx(t["r"].optimizer / 8)


def test_small_layers_take_as_long_as_their_launches():
    runs, machine = one_run(hidden=256, heads=8, tensor=1, data=1, batch=1, micro_batch=1, vocabulary=0)
    knobs = replace(A_PRIORI, layer_floor_s=1e-3)
    assert step_time(runs, machine, knobs).compute == pytest.approx(36 * 4 * 1e-3)


def test_many_configurations_at_once_equal_each_alone():
    rows = measured_rows("vtrain-multi")
    together = step_time(rows.runs, rows.machine, A_PRIORI).total
    for i in (0, 40, 108):
        alone = rows.subset(np.arange(109) == i)
        assert step_time(alone.runs, alone.machine, A_PRIORI).total == pytest.approx(together[i])


def synthetic(models):
    """A few rows of each model whose measured times the model itself made with known knobs."""
    rows = measured_rows("vtrain-multi")
    chosen = np.isin(rows.models, models) & (np.arange(109) % 3 == 0)
    rows = rows.subset(chosen)
    truth = replace(A_PRIORI, gemm_efficiency=0.8, memory_passes=9.0)
    return replace(rows, step_s=step_time(rows.runs, rows.machine, truth).total)


def test_fitting_finds_the_knobs_that_made_the_times_in_spite_of_an_outlier():
    rows = synthetic(["18.4B", "39.1B"])
    rows = replace(rows, step_s=np.where(np.arange(len(rows.step_s)) == 1, 2 * rows.step_s, rows.step_s))
    knobs = fit_knobs([rows], ("gemm_efficiency", "memory_passes"), A_PRIORI)
    assert knobs.gemm_efficiency == pytest.approx(0.8, rel=0.02)
    assert knobs.memory_passes == pytest.approx(9.0, rel=0.1)
    assert replace(knobs, gemm_efficiency=0.62, memory_passes=4.0) == A_PRIORI


@pytest.mark.parametrize("fold", ["random", "model"])
def test_held_out_errors_cover_every_row_and_vanish_for_times_of_the_model(fold):
    rows = synthetic(["18.4B", "39.1B"])
    errors = held_out_errors([rows], ("gemm_efficiency", "memory_passes"), A_PRIORI, fold)["vtrain-multi"]
    assert errors.shape == rows.step_s.shape
    assert np.max(np.abs(errors)) < 1e-3


def test_a_source_left_out_is_predicted_by_the_others_alone():
    rows = synthetic(["18.4B", "39.1B"])
    slow = replace(rows, source="slow", step_s=2 * rows.step_s)
    free = ("gemm_efficiency", "memory_passes", "scale")
    errors = held_out_errors([rows, slow], free, A_PRIORI, "source")
    np.testing.assert_allclose(errors["vtrain-multi"], 1.0, atol=1e-2)
    np.testing.assert_allclose(errors["slow"], -0.5, atol=1e-2)
    assert held_out_errors([rows], free, A_PRIORI, "source") == {}


def test_fitting_refuses_unknown_knobs_and_no_rows():
    with pytest.raises(InputError, match=r"expected knobs of gemm_efficiency, .* got warp_size"):
        fit_knobs([synthetic(["3.6B"])], ("warp_size",), A_PRIORI)
    with pytest.raises(InputError, match="measured rows of at least one source"):
        fit_knobs([], ("scale",), A_PRIORI)


def test_groups_hold_rows_of_one_task():
    groups = comparable_groups(measured_rows("vtrain-multi"))
    assert [int(g.sum()) for g in groups] == [26, 15, 47, 21]
    assert comparable_groups(measured_rows("megatron-sc21-table1")) == []
    assert score(stack_named("megatron-a100"), "megatron-sc21-table1").as_json()["regret"] is None


def test_the_page_tells_the_errors_of_today(scores):
    page = (Path(__file__).parents[3] / "docs" / "cluster-validation.md").read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if line.startswith("| `") and " % |" in line]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    told = {row[0].strip("`"): row[2:] for row in cells if len(row) == 9}
    assert list(told) == list(scores)
    for source, s in scores.items():
        shares = (s.mean_absolute_error, s.median_absolute_error, s.largest_error, s.bias)
        assert told[source][:5] == [
            *(f"{round(100 * x, 1) + 0.0:.1f} %" for x in shares),
            f"{s.rank_correlation:.3f}",
        ]
    left_out = {row[0].strip("`"): row[1:] for row in cells if len(row) == 6}
    for source, row in left_out.items():
        s = scores[source]
        numbers = (s.held_out_random, s.held_out_model, s.held_out_source, s.base_error, s.base_bias)
        assert row == ["" if x != x else f"{100 * x:.1f} %" for x in numbers]
    assert set(left_out) == {source for source, s in scores.items() if s.fitted}
