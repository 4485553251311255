"""Training steps divided among ranks equal the undivided step, in float64, run after run."""

import itertools
from collections import Counter

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import training_step
from tilewright.costmodel.links import Link
from tilewright.costmodel.op_work import Rates
from tilewright.frontends import zoo
from tilewright.ir.errors import InputError
from tilewright.ir.facts import Elements
from tilewright.ir.interpreter.rank_steps import interpret_rank_steps
from tilewright.ir.interpreter.step import initial_state
from tilewright.ir.modules.divisions import divisions_of
from tilewright.ir.opdef import facts_of
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.graph.distribute.sharding.messages import scheduled
from tilewright.passes.graph.distribute.split_batch import split_batch
from tilewright.passes.graph.distribute.split_weights import split_weights
from tilewright.passes.pipelines import GRAPH


def classifier():
    return tw.train_step(
        zoo.build("linear_classifier{batch=6,features=5,classes=7}"), "cross_entropy", "lion"
    )


def images():
    """Batch norms, dropout, a metric, a bound on all gradients together."""
    network = zoo.build("digits{batch=4,width=2}")
    return tw.train_step(
        network, "cross_entropy", "adamw", clip_norm=0.5, metrics=[tw.losses.accuracy()], on_nan="skip"
    )


def text():
    """Labels that do not count, other ones on every rank; the loss scaled; two runs per update."""
    network = zoo.build("gpt{sequence=4,batch=4,width=8,layers=1,heads=2,vocabulary=11}")
    loss = tw.losses.cross_entropy(ignore_index=3)
    return tw.train_step(network, loss, "adamw", loss_scale="dynamic", accumulate=2)


def recurrent():
    network = zoo.build("lstm_classifier{batch=4,steps=2,width=8,classes=5,layers=1}")
    return tw.train_step(network, "cross_entropy", tw.optim.sgd(0.1, momentum=0.9))


def recommendation():
    network = zoo.build("dlrm{batch=6,tables=2,rows=9,width=4,hidden=8,lookups=2}")
    return tw.train_step(network, "bce", tw.optim.adagrad(0.1), sparse=["table0*"])


def deep():
    """State that is held in pieces before all weights are decided on: trials number decisions alike."""
    network = zoo.build("gpt{sequence=2,batch=2,width=8,layers=4,heads=2,vocabulary=11}")
    return tw.train_step(network, "cross_entropy", tw.optim.sgd(0.1, momentum=0.9))


STEPS = {f.__name__: f for f in (classifier, images, text, recurrent, recommendation, deep)}
MESSAGES = ("graph.all_gather", "graph.all_reduce", "graph.reduce_scatter")


def prepared(step):
    return run_pipeline(training_step(step, "fp16", PassContext()), GRAPH, PassContext())


def example(step, seed):
    """Inputs by name: labels within their range, other numbers from 0 to 1."""
    rng, ranges = np.random.default_rng(seed), {r[0]: r[1:3] for r in step.get("ranges") or ()}
    state = set(step.state_names)
    return {
        p.hint: rng.integers(*ranges.get(p.hint, (0, 9)), p.tensor.shape).astype(np.int32)
        if p.tensor.dtype == "i32"
        else rng.random(p.tensor.shape).astype(np.float32)
        for p in step.main.params
        if p.hint not in state
    }


def check(step, split, devices, runs=2, **options):
    """The modules of all ranks, which together do what the step does."""
    step = prepared(step)
    modules = [split(devices=devices, rank=r, **options)(step) for r in range(devices)]
    state = apart = initial_state(step)
    for seed in range(runs):
        inputs = example(step, seed)
        expected, state = tw.interpret_step(step, list(inputs.values()), state, precision="fp64")
        results, apart = interpret_rank_steps(modules, inputs, apart, precision="fp64")
        for rank in results:
            for x, y in zip(expected, rank, strict=True):
                np.testing.assert_allclose(y, x, rtol=1e-9, atol=1e-12)
        for name, x in state.items():
            np.testing.assert_allclose(apart[name], x, rtol=1e-7, atol=1e-9, err_msg=name)
    return modules


def messages(module):
    return Counter(op.name.removeprefix("graph.") for op in module.main.body.ops if op.name in MESSAGES)


UNEQUAL = {"devices": 3, "speeds": "1,2,1"}
IN_PARTS = {"devices": 2, "zero": 1, "min_bytes": 64}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("classifier", {**UNEQUAL, "devices": 4, "speeds": "1,0,2,4"}),
        ("images", UNEQUAL),
        ("text", UNEQUAL),
        ("recommendation", UNEQUAL),
        ("images", IN_PARTS),
        ("recurrent", IN_PARTS),
        ("text", {**IN_PARTS, "devices": 4}),
    ],
)
def test_samples_over_ranks(name, options):
    modules = check(STEPS[name](), split_batch, **options)
    assert not (messages(modules[0])["reduce_scatter"] and not options.get("zero"))


@pytest.mark.parametrize("name", ["images", "text", "recurrent", "deep"])
def test_weights_over_ranks(name):
    modules = check(STEPS[name](), split_weights, 2, min_bytes=64)
    held = divisions_of(modules[0])
    assert {d.kind for d in held.values()} == {"cut"}
    bytes_held = [sum(p.tensor.nbytes for p in m.main.params) for m in modules]
    whole = sum(p.tensor.nbytes for p in prepared(STEPS[name]()).main.params)
    assert max(bytes_held) < 0.75 * whole


def test_one_message_per_gradient_and_moments_of_a_norm():
    step = prepared(images())
    norms = sum(op.name == "graph.batch_norm_training" for op in step.main.body.ops)
    gradients = len(step.parameters)
    got = messages(split_batch(devices=2, rank=1, join="never")(step))
    # beside gradients: the loss, the metric, and nothing more, as those of a norm are its sums
    assert got == {"all_reduce": gradients + 2, "all_gather": norms}
    # small gradients share a message; the two sums of a norm have one, as what comes after waits for them
    assert messages(split_batch(devices=2, rank=1)(step)) == {"all_reduce": 1 + norms, "all_gather": norms}


def test_messages_end_as_soon_as_any_consecutive_ones():
    """Against all ways to cut the sums that wait into messages; sooner than all of them in one."""
    network = zoo.build("gpt{sequence=32,batch=8,width=64,layers=2,heads=2}")
    step = prepared(tw.train_step(network, "cross_entropy", tw.optim.sgd(0.1)))
    main = split_batch(devices=2, rank=0, join="never")(step).main
    rates, link = Rates(2e12, 2e11, 1e10, 2e-5), Link(1e10, 2e-5)
    schedule = scheduled(main, rates, link)
    ops = main.body.ops
    sums = [op for op in ops if op.name == "graph.all_reduce"]
    begins = np.cumsum([0.0, *(0.0 if is_free(op) else rates.compute_s(op) for op in ops)])
    there = dict.fromkeys(main.params, -1)
    for i, op in enumerate(ops):
        last = max((there[v] for v in op.operands), default=-1)
        there |= dict.fromkeys(op.results, last if is_free(op) or not op.operands else i)
    ready = [there[op.operands[0]] for op in sums]
    order = sorted(range(len(sums)), key=lambda n: (ready[n], n))

    def end_of(cuts):
        end = 0.0
        for a, b in itertools.pairwise([0, *cuts, len(order)]):
            nbytes = sum(sums[n].operands[0].tensor.nbytes for n in order[a:b])
            took = link.ring_s("all_reduce", 2, nbytes) + (4 * nbytes / rates.bytes_per_s if b - a > 1 else 0)
            end = max(end, begins[ready[order[b - 1]] + 1]) + took
        return end

    alone, together = end_of(range(1, len(order))), end_of([])
    places = range(1, len(order))
    best = min(end_of(c) for k in range(3) for c in itertools.combinations(places, k))
    backward = begins[max(ready) + 1]
    assert 1 < len(schedule.groups) < len(sums)
    assert schedule.exposed_s + backward <= min(best, alone, together) * (1 + 1e-12)
    assert schedule.exposed_s < schedule.messages_s


def is_free(op):
    free = ("MAPS", "RESHAPES", "CUTS", "JOINS", "KEEPS", "COMMUNICATES")
    return facts_of(op.name).elements in [Elements[name] for name in free]


def test_optimizer_state_in_parts():
    """zero=1: a gradient is scattered to those who update it, but for rows of an embedding, all gathered."""
    step = prepared(text())
    apart = {"devices": 2, "zero": 1, "min_bytes": 64, "join": "never"}
    modules = [split_batch(**apart, rank=r)(step) for r in range(2)]
    held = divisions_of(modules[0])
    large = [n for n in step.parameters if n in held]
    assert {n.rpartition(".")[0] for n in held if n.endswith(".m")} == set(large)
    assert messages(modules[0])["reduce_scatter"] == len(large) - 1
    assert [modules[r].constants[f"{large[0]}.m"].shape for r in range(2)] == [
        p.tensor.shape for m in modules for p in m.main.params if p.hint == f"{large[0]}.m"
    ]


def test_parts_of_state_share_messages():
    """What is scattered and gathered goes together where that ends sooner, along whichever dimension."""
    step = recurrent()
    alone = check(step, split_batch, **IN_PARTS, join="never")
    assert messages(alone[0]) == {"all_gather": 4, "reduce_scatter": 4, "all_reduce": 3}
    together = check(step, split_batch, **IN_PARTS)
    assert messages(together[0]) == {"all_gather": 1, "reduce_scatter": 1, "all_reduce": 2}
    # a link without calls and latencies gains nothing by copies
    free = split_batch(**IN_PARTS, latency_us=0.0)(prepared(step))
    assert messages(free)["reduce_scatter"] == 4
    network = zoo.build("linear_classifier{batch=6,features=9,classes=1}")
    columns = tw.train_step(network, "mse", tw.optim.adam(lr=0.01))
    modules = check(columns, split_batch, 2, zero=1, min_bytes=4)
    assert {d.axis for n, d in divisions_of(modules[0]).items() if n in step.state_names or "." in n} == {1}


@pytest.mark.parametrize(("groups", "devices"), [(2, 2), (4, 2)])
def test_replicas_with_moments_of_their_own(groups, devices):
    """What one device does with so many groups, without a message for a norm; one message in all."""
    network = zoo.build("digits{batch=8,width=2}")
    step = tw.train_step(network, "cross_entropy", tw.optim.sgd(0.1), batch_norm_groups=groups)
    modules = check(step, split_batch, devices)
    assert messages(modules[0]) == {"all_reduce": 1}


def test_groups_of_a_batch_norm_are_batches_of_their_own():
    network = zoo.build("digits{batch=8,width=2,dropout=false}")
    step = tw.train_step(network, "cross_entropy", tw.optim.sgd(0.1), batch_norm_groups=2)
    half = zoo.build("digits{batch=4,width=2,dropout=false}")
    half = tw.train_step(half, "cross_entropy", tw.optim.sgd(0.1))
    inputs = example(step, 0)
    (loss,), state = tw.interpret_step(step, list(inputs.values()), precision="fp64")
    parts = [[x[:4] for x in inputs.values()], [x[4:] for x in inputs.values()]]
    losses, states = zip(*(tw.interpret_step(half, p, precision="fp64") for p in parts), strict=True)
    assert loss == pytest.approx(np.mean([x[0] for x in losses]), rel=1e-12)
    for name in (n for n in state if state[n].ndim):
        np.testing.assert_allclose(state[name], np.mean([s[name] for s in states], axis=0), rtol=1e-9)


def test_a_batch_without_equal_groups():
    with pytest.raises(InputError, match="expected a batch of 3 equal groups"):
        tw.train_step(zoo.build("digits{batch=8,width=2}"), batch_norm_groups=3)


def test_random_bits_of_a_rank_are_those_of_its_samples():
    module = split_batch(devices=2, rank=1)(prepared(images()))
    (bits, *_) = (op for op in module.main.body.ops if op.name == "graph.random_bits")
    assert bits["whole"] == (2 * bits.result.tensor.shape[0], *bits.result.tensor.shape[1:])
    assert bits["origin"][0] == bits.result.tensor.shape[0]


def test_state_of_an_own_module_is_held_as_it_is_made():
    """State with samples, such as the hidden state of a recurrent network, is cut as they are."""
    module = tw.parse("""
module @m {
  graph.func @main(%x: f32[4, 3], %h: f32[4, 3], updates = [[1, 1]]) -> f32[4, 3], f32[4, 3] {
    %0 = graph.add(%x, %h) : f32[4, 3]
    graph.return(%0, %0)
  }
}""").with_constants(tw.ir.Constants({"h": np.arange(12, dtype=np.float32).reshape(4, 3)}))
    part = split_batch(devices=2, rank=1)(module)
    assert {n: d.parts for n, d in divisions_of(part).items()} == dict.fromkeys(("x", "h"), ((0, 2), (2, 4)))
    assert part.constants["h"].tolist() == [[6, 7, 8], [9, 10, 11]]


def test_zero_needs_state():
    with pytest.raises(InputError, match="training step"):
        split_batch(devices=2, zero=1)(zoo.build("linear_classifier{batch=6}"))
