"""Recurrences in one cluster: what is found and what refused, emulated kernels against the interpreter."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from interpreted_kernels import interpreted, values_of
from matrix_samples import THREAD

from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo.recurrent import lstm_classifier
from tilewright.ir import Constants, Func, InputError, Level, Module, Op, interpret, parse
from tilewright.ir.thread.cluster_ops import GIVE
from tilewright.ir.thread.role_ops import MEET
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import decision_of, estimate_of
from tilewright.passes.kernels.resident.choice import choose_resident, resident_s
from tilewright.passes.kernels.resident.lowering import lower_resident
from tilewright.passes.kernels.resident.parameters import ResidentParameters
from tilewright.passes.kernels.resident.view import resident_view
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.joins.join_recurrences import joined
from tilewright.passes.tensor.joins.merge import joinable_kernels
from tilewright.passes.tensor.joins.recurrences import recurrences
from tilewright.passes.thread.cluster_order import check_clusters

H200 = load_hardware("H200")
CTX = PassContext(target="cuda:sm_90a", hardware=H200)
CPU = PassContext(target="opencl", hardware=load_hardware("cpu-opencl"))


@cache
def cut(**sizes: int) -> Module:
    """A network of LSTM cells as kernels, before its recurrences are joined."""
    module = lstm_classifier(0, layers=1, classes=3, **sizes)
    for _, pipeline in official_stages(Level.GRAPH, "cuda").until("join-recurrences"):
        module = run_pipeline(module, pipeline, CTX)
    return module


@cache
def steps(**sizes: int) -> Func:
    """The steps of its recurrence as one kernel."""
    module = cut(**sizes)
    kernels = joinable_kernels(module)
    (found,) = recurrences(module.main, kernels)
    return joined(found.calls, kernels, module.main)[0]


def lowered(kernel: Func, blocks: int, lanes: int) -> Func:
    thread = lower_resident(with_template(kernel, "resident", ResidentParameters(blocks, lanes)))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


def checked(kernel: Func, ops: tuple[Op, ...]) -> None:
    """Look whether blocks with these ops meet where they must."""
    check_clusters(kernel.with_body(kernel.body.with_ops(ops)))


def after(module: Module, options: str, ctx: PassContext = CTX) -> Module:
    return run_pipeline(module, Pipeline.parse(f"join-recurrences{options}"), ctx)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("sizes", "blocks", "lanes"),
    [
        ({"width": 32, "steps": 5, "batch": 1}, 4, 8),  # more lanes than blocks
        ({"width": 32, "steps": 4, "batch": 3}, 8, 8),  # rows of a batch
        ({"width": 64, "steps": 4, "batch": 1}, 8, 4),  # a lane gives the state to two blocks
        ({"width": 32, "steps": 4, "batch": 2}, 1, 16),  # barriers instead of meetings
        ({"width": 24, "steps": 4, "batch": 1}, 2, 8),  # sums that no vector of four divides
    ],
)
def test_emulated_steps_are_those_of_the_interpreter(sizes, blocks, lanes):
    kernel = steps(**sizes)
    inputs = values_of(kernel, 1.0)
    want = interpreted(kernel, inputs)
    first, again = (
        list(run(lowered(kernel, blocks, lanes), "emulator", inputs, seed=s).values()) for s in (1, 5)
    )
    assert len(first) == len(want)
    for got, other, expected in zip(first, again, want, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)
        np.testing.assert_array_equal(got, other)


def test_steps_are_found_with_all_that_lies_between():
    module = cut(width=32, steps=5, batch=1)
    (found,) = recurrences(module.main, joinable_kernels(module))
    assert len(found.products) == 4  # the first step has no state yet
    inside = set(found.calls)
    made = {r for c in found.calls for r in c.results}
    read = [op for op in module.main.body.ops if op not in inside and made.intersection(op.operands)]
    first = module.main.body.ops.index(found.calls[0])
    assert all(module.main.body.ops.index(op) > first for op in read)
    view = resident_view(steps(width=32, steps=5, batch=1))
    assert not isinstance(view, str)
    assert view.units == 32
    assert [len(p.sums) for p in view.products] == [4] * 4  # the gates of a unit
    assert len(view.weights) == 4  # rows that all steps share
    assert len(view.exchanged) == 4


def test_joined_steps_compute_what_they_did():
    module = cut(width=32, steps=5, batch=2)
    whole = after(module, "{when=always}")
    calls = [op for op in whole.main.body.ops if op.name == "tensor.call"]
    assert len(calls) < sum(op.name == "tensor.call" for op in module.main.body.ops)
    x = np.random.default_rng(3).standard_normal(module.main.params[0].tensor.shape).astype(np.float32)
    for got, want in zip(interpret(whole, x), interpret(module, x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert after(module, "{when=never}").main is module.main
    assert after(module, "", CPU).main is module.main


def test_the_model_takes_steps_that_pay_and_says_why_it_refuses_others():
    chosen = choose_resident(steps(width=128, steps=6, batch=1), H200)
    assert isinstance(chosen, Func)
    decision = decision_of(chosen)
    assert decision is not None
    assert decision.template == "resident"
    assert isinstance(choose_resident(steps(width=512, steps=4, batch=1), H200), str)
    refusal = choose_resident(steps(width=512, steps=4, batch=1), H200)
    assert refusal.startswith("weights of 4096 KB do not fit the registers")
    assert (
        choose_resident(steps(width=32, steps=4, batch=1), load_hardware("A100"))
        == "the device has no clusters"
    )


def test_meeting_costs_what_the_record_says():
    kernel = steps(width=64, steps=4, batch=1)
    view = resident_view(kernel)
    assert not isinstance(view, str)
    slow = replace(H200, matrix=replace(H200.matrix, meet_clk=H200.matrix.meet_clk + 1000))
    p = ResidentParameters(4, 8)
    more = resident_s(kernel, view, p, slow) - resident_s(kernel, view, p, H200)
    assert more == pytest.approx((len(view.exchanged) + 1) * 1000 / H200.clock_hz)
    assert estimate_of(choose_resident(kernel, slow)) >= estimate_of(choose_resident(kernel, H200))


def gated(line: str) -> str:
    """Three products of 16 values, each of what a map, in which {} is the product, made of the one before."""
    body = "^(%a: f32, %f: f32, %acc: f32) %s = scalar.fma(%a, %f, %acc) : f32 scalar.yield(%s)"
    text, state = [], "%h"
    for i in range(3):
        text.append(
            f"%p{i} = tensor.contract({state}, %w, par = (n: 16), red = (k: 16), reads = [[k], [n, k]]) "
            f": f32[16] {{ {body} }}"
        )
        text.append(f"%m{i} = {line.format(f'%p{i}')}")
        state = f"%m{i}"
    ops = "\n".join(text)
    return (f"module @m {{ tensor.func @k(%h: f32[16], %w: f32[16, 16]) -> f32[16] {{ {ops} "
            f"tensor.return({state}) }} }}")  # fmt: skip


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tensor.reduce({}, par = (n: 16), red = (j: 1), reads = [[n + j]]) : f32[16] "
         "{{ ^(%a: f32, %acc: f32) %s = scalar.add(%a, %acc) : f32 scalar.yield(%s) }}", "tensor.reduce"),
        ("tensor.map({}, par = (n: 16), reads = [[n + 4]], fill = [0.0]) : f32[16] "
         "{{ ^(%a: f32) scalar.yield(%a) }}", "a map reads outside"),
    ],
)  # fmt: skip
def test_what_is_no_recurrence_says_why(line, message):
    view = resident_view(parse(gated(line)).funcs[0])
    assert isinstance(view, str)
    assert message in view


@pytest.mark.emulator
def test_units_may_read_what_products_give_other_units():
    body = "^(%a: f32) %t = scalar.tanh(%a) : f32 scalar.yield(%t)"
    line = f"tensor.map({{}}, par = (n: 16), reads = [[15 - n]]) : f32[16] {{{{ {body} }}}}"
    kernel = parse(gated(line)).funcs[0]
    inputs = values_of(kernel, 1.0)
    (got,) = run(lowered(kernel, 4, 8), "emulator", inputs).values()
    np.testing.assert_allclose(got, interpreted(kernel, inputs)[0], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("number", "message"),
    [(0, "before they began"), (1, "before its writers have met"), (2, "before its writers have met")],
)
def test_blocks_that_do_not_meet_are_refused(number, message):
    kernel = lowered(steps(width=32, steps=4, batch=1), 4, 8)
    meetings = [i for i, op in enumerate(kernel.body.ops) if op.name == MEET]
    ops = tuple(op for i, op in enumerate(kernel.body.ops) if i != meetings[number])
    with pytest.raises(InputError, match=message):
        checked(kernel, ops)


def test_a_block_stays_while_others_may_give_it_something():
    kernel = lowered(steps(width=32, steps=4, batch=1), 4, 8)
    last = max(i for i, op in enumerate(kernel.body.ops) if op.name == GIVE)
    kept = kernel.body.ops[: last + 1]
    with pytest.raises(InputError, match="a block ends while others may still give it"):
        checked(kernel, (*kept, Op("thread.return")))


def test_inputs_are_stacked_where_a_cluster_keeps_the_rest():
    def products(ctx: PassContext, width: int, steps: int = 4) -> int:
        text = [f'%w = graph.constant(name = "w") : f32[{width}, {width + 8}]']
        state = "%h"
        for i in range(steps):
            text.append(f"%c{i} = graph.concatenate(%x{i}, {state}, axis = 1) : f32[1, {width + 8}]")
            text.append(f"%p{i} = graph.dense(%c{i}, %w) : f32[1, {width}]")
            text.append(f"%t{i} = graph.tanh(%p{i}) : f32[1, {width}]")
            state = f"%t{i}"
        inputs = ", ".join(f"%x{i}: f32[1, 8]" for i in range(steps))
        ops = "\n".join(text)
        module = parse(
            f"module @m {{ graph.func @main({inputs}, %h: f32[1, {width}]) -> f32[1, {width}] {{ {ops} "
            f"graph.return({state}) }} }}"
        ).with_constants(Constants({"w": np.ones((width, width + 8), np.float32)}))
        func = run_pipeline(module, Pipeline.parse("stack-rows"), ctx).main
        return sum(op.name == "graph.dense" for op in func.body.ops)

    assert products(CTX, 64) == 5  # the inputs, and the state of each step
    assert products(CTX, 1024) == 4  # 4 MB stay for each step
    assert products(CPU, 64) == 4
    assert products(PassContext(target="cuda:sm_80", hardware=load_hardware("A100")), 64) == 4
