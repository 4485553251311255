"""A training step cut into layers, run part by part in either order, is the step: float64, bit by bit."""

import numpy as np
import pytest
from training_parts import cut_at, cut_evenly, drawn, mlp, prepared, run_parts

import tilewright as tw
from tilewright.frontends import zoo
from tilewright.ir import UnsupportedError
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.passes.graph.distribute.pipeline.step_places import StepFlow, layers_of_cuts, place_step
from tilewright.streaming.parts.schedule import SCHEDULES
from tilewright.streaming.parts.training_forms import HostState
from tilewright.streaming.parts.training_visits import training_visits


def check(step, runs, layers):
    step = prepared(step)
    batches = drawn(step, 2 * runs)
    first = initial_state(step)
    wanted, states = [], [first]
    for batch in batches:
        results, state = interpret_step(step, batch, states[-1], precision="fp64")
        wanted.append(results)
        states.append(state)
    for schedule in SCHEDULES:
        got, state = [], first
        for at in (0, runs):
            cut = cut_evenly(step, runs, layers, state)
            results, state = run_parts(cut, batches[at : at + runs], state, schedule)
            got += results
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(a[0], b[0])
        for name, value in states[-1].items():
            np.testing.assert_array_equal(state[name], value, err_msg=f"{schedule}: {name}")
    return cut


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({}, 3),
        ({"accumulate": 3}, 1),
        ({"accumulate": 2, "clip_norm": 0.1, "on_nan": "skip"}, 3),
    ],
)
def test_parts_are_the_step(options, layers):
    optimizer = tw.optim.adamw(lr=tw.schedules.warm_up(2, tw.schedules.constant(1e-2)))
    check(tw.train_step(mlp(8, 2), "mse", optimizer, **options), options.get("accumulate", 1), layers)


def test_batch_statistics_dropout_and_weights_of_two_layers():
    network = zoo.build("digits{batch=2,width=2}")
    check(tw.train_step(network, "cross_entropy", "adamw", accumulate=2), 2, 3)
    tied = zoo.build("gpt{layers=1,width=8,heads=1,vocabulary=10,context=4,sequence=4}")
    cut = check(tw.train_step(tied, "cross_entropy", tw.optim.sgd(lr=0.1), accumulate=2), 2, 3)
    reading = [p.place for p in cut.parts[0].parts if "embed.tokens" in p.reads]
    assert {0, 2} <= set(reading)  # the first layer and the last


def test_the_backward_pass_of_a_layer_runs_where_its_state_is_at_hand():
    step = prepared(tw.train_step(mlp(), "mse", tw.optim.adamw(), accumulate=2))
    cut = cut_at(step, 2, [2, 4], initial_state(step))
    summing, updating = cut.parts
    assert [p.place for p in summing.parts] == [0, 1, 2, 3, 4]
    for part, own in zip(updating.parts, ("w0", "w1", "w2", "w1", "w0"), strict=True):
        assert {n.split(".")[0] for n in part.states} == {own}
    assert not any(p.writes & {"w0", "w1", "w2"} for p in summing.parts)
    assert updating.parts[4].writes == {"w0", "w0.m", "w0.v"}
    assert updating.local == {"w0.gradient", "w1.gradient", "w2.gradient"}


def test_updates_behind_the_norm_of_all_gradients_find_them_on_storage():
    step = prepared(tw.train_step(mlp(), "mse", tw.optim.sgd(lr=0.1), clip_norm=1.0))
    (form,) = cut_at(step, 1, [2, 4], initial_state(step)).parts
    assert sorted(form.kept) == ["%kept.0", "%kept.1"]  # the first layer's is at hand
    assert [p.place for p in form.parts if p.reads & set(form.kept)] == [6, 7]


def test_conditions_on_counters_are_decided_by_the_host():
    step = prepared(tw.train_step(mlp(), "mse", tw.optim.sgd(lr=0.1), accumulate=2))
    host = HostState(step)
    state = {n: a for n, a in initial_state(step).items() if n in host.names}
    state, summing = host.after(state)
    state, updating = host.after(state)
    assert state["step"] == 2
    assert (summing, updating) == ((False,), (True,))
    unchanged = StepFlow(host.decided(summing), host.names).new
    assert all(v is s for s, v in unchanged.items() if s.hint in ("w0", "w1", "w2"))


def test_an_order_that_reads_state_of_another_run_is_refused():
    step = prepared(tw.train_step(mlp(8, 2), "mse", tw.optim.sgd(lr=0.1)))
    cut = cut_evenly(step, 1, 2, initial_state(step))
    order = [t.spec.name for t in cut.tensors]
    ar = training_visits("activation-resident", cut.parts, [0, 0], order)
    assert len(ar) == 2 * len(cut.parts[0].parts)
    with pytest.raises(UnsupportedError, match="cannot keep the order of runs for the state 'w"):
        training_visits("parameter-resident", cut.parts, [0, 0], order)


def test_cuts_have_to_ascend():
    step = prepared(tw.train_step(mlp(8, 2), "mse", tw.optim.sgd(lr=0.1)))
    flow = StepFlow(step.main, HostState(step).names)
    with pytest.raises(tw.InputError, match="expected places of cuts that ascend"):
        layers_of_cuts(flow, [3, 3])
    layers = layers_of_cuts(flow, [2])
    places = place_step(flow, layers, flow.owners(layers))
    assert [places.layer(p) for p in range(5)] == [0, 1, 0, 0, 1]
