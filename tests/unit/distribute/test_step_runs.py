"""Several runs of a step in one of its ranks' modules: gradients are added up over the ranks once."""

import numpy as np
import pytest
from test_distribute_steps import example, messages, prepared, text
from thread_ranks import ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.frontends import zoo
from tilewright.ir.errors import InputError
from tilewright.ir.interpreter.rank_steps import interpret_rank_steps
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.ir.modules.divisions import divisions_of
from tilewright.passes.graph.distribute.split_batch import split_batch
from tilewright.tools.cli import main


def images(accumulate, **options):
    network = zoo.build("digits{batch=4,width=2}")
    return tw.train_step(network, "cross_entropy", "adamw", accumulate=accumulate, **options)


def classifier(accumulate, **options):
    network = zoo.build("linear_classifier{batch=4,features=16,classes=8}")
    return tw.train_step(
        network, "cross_entropy", tw.optim.sgd(lr=0.1, momentum=0.9), accumulate=accumulate, **options
    )


def inputs_of(step):
    return [p.hint for p in step.main.params if p.hint not in set(step.state_names)]


def check(step, runs, devices, **options):
    """The modules of all ranks, a run of which does what `runs` runs of the step do."""
    step = prepared(step)
    names = inputs_of(step)
    modules = [
        split_batch(devices=devices, rank=r, micro_batches=runs, **options)(step) for r in range(devices)
    ]
    state = wanted = initial_state(step)
    for group in range(2):
        batches = [example(step, 10 * group + i) for i in range(runs)]
        inputs = {n: np.concatenate([b[n] for b in batches]) for n in names}
        results, state = interpret_rank_steps(modules, inputs, state, precision="fp64")
        losses = []
        for batch in batches:
            (loss, *_), wanted = interpret_step(step, [batch[n] for n in names], wanted, precision="fp64")
            losses.append(loss)
        for found in results:
            assert found[0] == pytest.approx(np.mean(losses), rel=1e-7)
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(state[name], value, rtol=1e-7, atol=1e-9, err_msg=name)
    return modules


def moved_bytes(module, *kinds):
    ops = (op for op in module.main.body.ops if op.name.removeprefix("graph.") in kinds)
    return sum(op.operands[0].tensor.nbytes for op in ops)


@pytest.mark.parametrize(
    ("options", "devices", "speeds"),
    [({}, 2, ""), ({"clip_norm": 0.5}, 3, "1,0,2"), ({"on_nan": "raise", "loss_scale": "dynamic"}, 2, "")],
)
def test_runs_are_those_of_the_step(options, devices, speeds):
    check(classifier(3, **options), 3, devices, speeds=speeds)


def test_an_update_in_every_run_and_labels_that_do_not_count():
    check(classifier(1), 2, 2)
    check(text(), 2, 2)


def test_gradients_are_added_up_once():
    """As many bytes of gradients as one run sends; with ZeRO-1 as many are scattered and gathered."""
    step = prepared(classifier(3))
    gradients = sum(p.tensor.nbytes for p in step.main.params if p.hint in step.parameters)
    one = split_batch(devices=2, join="never")(step)
    rest = moved_bytes(one, "all_reduce") - gradients  # the losses, in every run
    assert 0 < rest < gradients
    three = split_batch(devices=2, join="never", micro_batches=3)(step)
    assert moved_bytes(three, "all_reduce") == gradients + 3 * rest
    step = prepared(images(3))
    apart = {"devices": 2, "zero": 1, "min_bytes": 64, "join": "never"}
    one, three = (split_batch(**apart, micro_batches=n)(step) for n in (1, 3))
    assert messages(three)["reduce_scatter"] == messages(one)["reduce_scatter"] > 0
    assert moved_bytes(three, "reduce_scatter") == moved_bytes(one, "reduce_scatter")
    check(images(2), 2, 2, zero=1, min_bytes=64)


def test_inputs_of_all_runs_are_one():
    modules = check(classifier(3), 3, 2)
    names = inputs_of(prepared(classifier(3)))
    for module in modules:
        assert module.input_names[: len(names)] == tuple(names)
        held = divisions_of(module)
        assert [held[n].shape[0] for n in names] == [12, 12]
        assert {held[n].outer for n in names} == {3}


def test_ranks_run_them():
    step = classifier(2)
    batches = [example(step, i) for i in range(2)]
    names = inputs_of(step)
    with tw.compile(step, target="opencl") as exe:
        expected = np.mean([float(exe.step(*(b[n] for n in names))) for b in batches])
        weights = {n: np.array(exe.state[n]) for n in step.parameters}
    joined = [np.concatenate([b[n] for b in batches]) for n in names]

    def rank(communicator):
        given = {"communicator": communicator, "target": "opencl", "options": "micro_batches=2"}
        with distributed.compile(step, mode="batch", **given) as exe:
            assert [t.shape[0] for t in exe.input_types] == [8, 8]
            loss = float(exe.step(*joined))
            return loss, {n: np.array(exe.state[n]) for n in step.parameters}

    for loss, state in ThreadWorld(2, timeout_s=60).run(rank):
        assert loss == pytest.approx(expected, rel=1e-5)
        for name, value in weights.items():
            np.testing.assert_allclose(state[name], value, rtol=1e-3, atol=3e-5)


def test_what_has_no_runs(capsys):
    with pytest.raises(InputError, match="expects at least 1, got 0"):
        split_batch(devices=2, micro_batches=0)(prepared(images(2)))
    with pytest.raises(InputError, match="divides the runs of a training step; this network has none"):
        split_batch(devices=2, micro_batches=2)(prepared(zoo.build("digits{batch=4,width=2}")))
    arguments = ("train", "zoo:digits{batch=4,width=2}", "--data", "digits", "--micro-batches", "2")
    assert main([*arguments]) == 2
    assert "--micro-batches: expected --memory-cap or --devices or --mode" in capsys.readouterr().err
    assert main([*arguments, "--devices", "2", "--mode", "weights"]) == 2
    assert "--micro-batches: expected --mode batch or pipeline, got weights" in capsys.readouterr().err
