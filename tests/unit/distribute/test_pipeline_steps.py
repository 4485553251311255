"""Training steps as pipelines: all ranks together give the bits of the step, in both orders."""

import json
from pathlib import Path

import numpy as np
import pytest
from training_parts import drawn, mlp, prepared

import tilewright as tw
from tilewright.distributed.launcher import find_mpirun
from tilewright.frontends import zoo
from tilewright.ir import WorkError
from tilewright.ir.interpreter.rank_steps import interpret_rank_steps
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.ir.modules.divisions import divisions_of
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.graph.distribute.pipeline.step_stages import StepRuns, task_order
from tilewright.passes.rewriting.run_conditions import decided_conditions
from tilewright.tools.cli import main


def divided(step, devices, runs, order="1f1b", more=""):
    options = f"devices={devices}, micro_batches={runs}, order={order}{more}"
    passes = [f"split-pipeline{{{options}, rank={rank}}}" for rank in range(devices)]
    return [run_pipeline(step, Pipeline.parse(p), PassContext()) for p in passes]


def check(step, devices, runs):
    step = prepared(step)
    names = [p.hint for p in step.main.params if p.hint not in set(step.state_names)]
    batches = drawn(step, 2 * runs)
    for order in ("1f1b", "gpipe"):
        modules = divided(step, devices, runs, order)
        state = wanted = initial_state(step)
        for at in (0, runs):
            own = batches[at : at + runs]
            inputs = {n: np.concatenate([b[k] for b in own]) for k, n in enumerate(names)}
            results, state = interpret_rank_steps(modules, inputs, state, precision="fp64")
            losses = []
            for batch in own:
                (loss,), wanted = interpret_step(step, batch, wanted, precision="fp64")
                losses.append(loss)
            for found in results:
                assert found[0] == pytest.approx(np.mean(losses), rel=1e-14)
        assert state.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_array_equal(state[name], value, err_msg=name)
    return modules


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({}, 2),
        ({"accumulate": 3}, 3),
        ({"accumulate": 2, "clip_norm": 0.1, "on_nan": "skip"}, 2),
    ],
)
def test_stages_are_the_step(options, devices):
    step = tw.train_step(mlp(8, 2), "mse", tw.optim.adam(lr=0.01), **options)
    modules = check(step, devices, options.get("accumulate", 1))
    kept = [{n for n in m.state_names if n.startswith("w")} for m in modules]
    assert all(kept)
    assert not set.intersection(*kept)  # every weight, and its moments, on one rank
    assert {d.kind for m in modules for d in divisions_of(m).values()} == {"owner"}


def test_weights_of_two_stages_and_statistics_of_batches():
    tied = zoo.build("gpt{layers=1,width=8,heads=1,vocabulary=10,context=4,sequence=4}")
    check(tw.train_step(tied, "cross_entropy", tw.optim.sgd(lr=0.1), accumulate=2), 2, 2)
    network = zoo.build("digits{batch=2,width=2}")
    check(tw.train_step(network, "cross_entropy", "adamw"), 3, 1)


def test_1f1b_has_few_micro_batches_under_way():
    step = prepared(tw.train_step(mlp(8, 2), "mse", tw.optim.sgd(lr=0.1), accumulate=6))
    runs = StepRuns(step, 6, [2, 4])

    def most(order, rank):
        live = top = 0
        for task in task_order(runs, order):
            if runs.stage(task) == rank:
                live += {rank: 1, 4 - rank: -1}.get(task.place, 0)
                top = max(top, live)
        return top

    assert [most("1f1b", rank) for rank in (0, 1)] == [3, 2]
    assert [most("gpipe", rank) for rank in (0, 1)] == [6, 6]


def test_conditions_on_counters_are_decided_by_proof():
    step = prepared(tw.train_step(mlp(8, 2), "mse", tw.optim.sgd(lr=0.1), accumulate=2))
    assert [list(decided_conditions(step, 4, run).values()) for run in range(4)] == [
        [False], [True], [False], [True]
    ]  # fmt: skip
    assert list(decided_conditions(step, 3, 0).values()) == []  # runs 3, 6, ... differ


def test_what_cannot_be_divided_so_says_it():
    step = prepared(tw.train_step(mlp(8, 2), "mse", tw.optim.sgd(lr=0.1)))
    with pytest.raises(tw.InputError, match="expected a step of 40 ops or more before its loss, got 11"):
        divided(step, 40, 1)
    with pytest.raises(tw.InputError, match="expected places of cuts that ascend between 0 and 11"):
        divided(step, 3, 1, more=', cuts="3,3"')


def test_two_processes_train_as_a_pipeline(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    try:
        find_mpirun()
    except WorkError:
        pytest.skip("no mpirun")
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.random((24, 5), np.float32), y=rng.integers(0, 3, 24).astype(np.int32))
    command = ["train", "zoo:linear_classifier{batch=6,features=5,classes=3}", "--data"]
    command += [f"npz:{tmp_path / 'd.npz'}", "--lr", "0.1", "--steps", "2", "--json"]

    def losses(*more: str) -> list[float]:
        code = main([*command, *more])
        told = capfd.readouterr()
        assert code == 0, told.err
        rows = list(map(json.loads, told.out.splitlines()))
        return [rows[-1]["loss"], rows[-1]["held_out"]["loss"]]

    ranks = ["--target", "opencl", "--devices", "2", "--mode", "pipeline", "--micro-batches", "2"]
    assert losses(*ranks) == pytest.approx(losses("--target", "reference"), rel=1e-5)
