"""Runs of a step that accumulates, one by one: those without an update send none of its messages."""

import numpy as np
import pytest
from test_distribute_steps import example, messages, prepared
from test_step_runs import classifier, images, inputs_of, moved_bytes
from thread_ranks import ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.ir.errors import InputError
from tilewright.ir.interpreter.rank_steps import interpret_rank_steps
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.ir.modules.divisions import divisions_of
from tilewright.passes.graph.distribute.decide_run import decide_run
from tilewright.passes.graph.distribute.split_batch import split_batch
from tilewright.passes.rewriting.run_forms import run_forms


def parts(step, run, devices, **options):
    decided = decide_run(run=run)(step)
    return [split_batch(devices=devices, rank=r, **options)(decided) for r in range(devices)]


@pytest.mark.parametrize(
    ("options", "devices", "division"),
    [
        ({}, 2, {}),
        ({"clip_norm": 0.5}, 3, {"speeds": "1,0,2"}),
        ({"on_nan": "skip", "loss_scale": "dynamic"}, 2, {}),
        ({}, 2, {"zero": 1, "min_bytes": 64}),
    ],
)
def test_runs_are_those_of_the_step(options, devices, division):
    step = prepared(classifier(3, **options))
    forms = run_forms(step)
    assert forms.forms == (0, 0, 2)
    state = wanted = initial_state(step)
    for i in range(7):
        given = example(step, i)
        modules = parts(step, forms.form(int(state[forms.counter])), devices, **division)
        (loss, *_), wanted = interpret_step(
            step, [given[n] for n in inputs_of(step)], wanted, precision="fp64"
        )
        results, state = interpret_rank_steps(modules, given, state, precision="fp64")
        for found in results:
            assert found[0] == pytest.approx(loss, rel=1e-7)
        assert state.keys() == wanted.keys()
        for name, value in wanted.items():
            np.testing.assert_allclose(state[name], value, rtol=1e-7, atol=1e-9, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.5}, {"on_nan": "skip", "loss_scale": "dynamic"}])
def test_only_updates_send_gradients(options):
    step = prepared(classifier(3, **options))
    gradients = sum(p.tensor.nbytes for p in step.main.params if p.hint in step.parameters)
    every = split_batch(devices=2, join="never")(step)
    first, last = (parts(step, run, 2, join="never")[0] for run in (0, 2))
    assert messages(first) == {"all_reduce": 1}  # the loss
    assert messages(last) == messages(every)
    rest = moved_bytes(first, "all_reduce")
    assert moved_bytes(last, "all_reduce") == moved_bytes(every, "all_reduce") == gradients + rest
    assert divisions_of(first) == divisions_of(last)
    summed = {d.name for d in divisions_of(first).values() if d.kind == "sum"}
    assert summed == {f"{n}.gradient" for n in step.parameters}


def test_parts_of_optimizers_scatter_once():
    step = prepared(images(3))
    apart = {"zero": 1, "min_bytes": 64, "join": "never"}
    every = split_batch(devices=2, **apart)(step)
    first, last = (parts(step, run, 2, **apart)[0] for run in (0, 2))
    assert messages(every)["reduce_scatter"] == messages(last)["reduce_scatter"] > 0
    assert messages(first)["reduce_scatter"] == 0


def test_gradients_that_a_pass_needs_whole_stay_whole():
    """A norm's parameters have gradients that its backward pass adds up anyway: no run sends them twice."""
    step = prepared(images(3))
    every = split_batch(devices=2, join="never")(step)
    last = parts(step, 2, 2, join="never")[0]
    assert messages(last) == messages(every)
    whole = [n for n in step.parameters if f"{n}.gradient" not in divisions_of(last)]
    assert 0 < len(whole) < len(step.parameters)


def test_what_has_no_forms():
    assert run_forms(prepared(classifier(1))) is None
    # A run that is refused is not counted: the number of a run follows from its numbers.
    assert run_forms(prepared(classifier(3, on_nan="raise"))) is None
    step = prepared(classifier(1))
    assert decide_run(run=0)(step) is step
    with pytest.raises(InputError, match="option 'run' expects 0 to 2, got 3"):
        decide_run(run=3)(prepared(classifier(3)))


def test_ranks_run_them(tmp_path):
    """Losses and state of one device, also in the middle of a period, from a file and in one plan."""
    step = classifier(3)
    batches = [list(example(step, i).values()) for i in range(8)]
    with tw.compile(step, target="opencl") as exe:
        losses = [float(exe.step(*b)) for b in batches[:4]]
        middle = {n: np.array(exe.state[n]) for n in exe.state}
        exe.save_state(tmp_path / "one.safetensors")
        losses += [float(exe.step(*b)) for b in batches[4:]]
        wanted = {n: np.array(exe.state[n]) for n in exe.state}

    def rank(communicator):
        given = {"communicator": communicator, "target": "opencl", "mode": "batch"}
        with distributed.compile(step, **given) as exe:
            found = [float(exe.step(*b)) for b in batches[:4]]
            half = {n: np.array(exe.state[n]) for n in exe.state}
            exe.load_state(tmp_path / "one.safetensors")
            found += [float(exe(*b)[0]) for b in batches[4:]]
            end = {n: np.array(exe.state[n]) for n in exe.state}
            facts = exe.report()["distributed"]["forms"]
            exe.save(tmp_path / f"rank{communicator.rank}.tw")
        with tw.load(tmp_path / f"rank{communicator.rank}.tw") as saved:
            saved._communicator = communicator
            assert int(saved.state["step"]) == 8
            saved.step(*batches[0])
            one = np.array(saved.state[step.parameters[0]])
        return found, half, end, facts, one

    for found, half, end, facts, one in ThreadWorld(2, timeout_s=60).run(rank):
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        for name in wanted:
            np.testing.assert_allclose(half[name], middle[name], rtol=1e-3, atol=3e-5, err_msg=name)
            np.testing.assert_allclose(end[name], wanted[name], rtol=1e-3, atol=3e-5, err_msg=name)
        between, update = facts
        assert (between["runs"], update["runs"]) == (2, 1)
        assert 0 < between["bytes_communicated"] < 0.1 * update["bytes_communicated"]
        assert one.shape == wanted[step.parameters[0]].shape
