"""Recurrences of a batch on tensor cores: what is taken, emulated kernels against the interpreter."""

from functools import cache

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from interpreted_kernels import assert_emulated, interpreted, values_of
from matrix_samples import THREAD

from tilewright.costmodel import load_hardware
from tilewright.frontends.zoo.recurrent import lstm_classifier
from tilewright.ir import Func, InputError, Level, Module, Op, interpret
from tilewright.ir.nodes import walk
from tilewright.ir.thread.cluster_ops import SHARE
from tilewright.ir.thread.role_ops import MEET
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.kernels.resident_tiles.choice import choose_resident_tiles, resident_tiles_s
from tilewright.passes.kernels.resident_tiles.lowering import lower_resident_tiles
from tilewright.passes.kernels.resident_tiles.parameters import TilesParameters
from tilewright.passes.kernels.resident_tiles.view import tiles_view
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.joins.join_recurrences import RECURRENCES, joined
from tilewright.passes.tensor.joins.merge import joinable_kernels
from tilewright.passes.tensor.joins.recurrences import parts_of, recurrences
from tilewright.passes.thread.cluster_order import check_clusters

H200 = load_hardware("H200")
CTX = PassContext(target="cuda:sm_90a", hardware=H200)


@cache
def cut(precision: str, **sizes: int) -> Module:
    """A network of LSTM cells as kernels, before its recurrences are joined."""
    module = lstm_classifier(0, layers=1, classes=3, **sizes)
    for _, pipeline in official_stages(Level.GRAPH, "cuda", precision).until("join-recurrences"):
        module = run_pipeline(module, pipeline, CTX)
    return module


@cache
def steps(precision: str = "bf16", **sizes: int) -> Func:
    """The steps of its recurrence as one kernel."""
    module = cut(precision, **sizes)
    kernels = joinable_kernels(module)
    (found,) = recurrences(module.main, kernels)
    return joined(found.calls, kernels, module.main)[0]


def lowered(kernel: Func, *parameters: int) -> Func:
    thread = lower_resident_tiles(with_template(kernel, "resident_tiles", TilesParameters(*parameters)))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("precision", "batch", "parameters"),
    [
        ("bf16", 32, (1, 2, 2)),  # two blocks share the state, two sets of warps the sums
        ("bf16", 32, (2, 2, 2)),  # clusters have rows of their own, sets half of a tile each
        ("fp16", 32, (2, 1, 1)),  # barriers instead of meetings
        ("bf16", 16, (1, 4, 1)),  # vectors of one unit group
    ],
)
def test_emulated_steps_are_those_of_the_interpreter(precision, batch, parameters):
    kernel = steps(precision, width=32, steps=4, batch=batch)
    assert_emulated(kernel, lowered(kernel, *parameters), rtol=3e-2, atol=1e-2)


@cache
def halves() -> tuple[Func, ...]:
    """The steps of a recurrence as two kernels, the second of which is given the state of the first."""
    module = cut("bf16", width=32, steps=8, batch=16)
    kernels = joinable_kernels(module)
    (found,) = recurrences(module.main, kernels)
    parts = parts_of(found, found.calls, module.main, 4)
    assert [len(set(p) & set(found.products)) for p in parts] == [3, 4]
    return tuple(joined(p, kernels, module.main)[0] for p in parts)


@pytest.mark.emulator
def test_a_part_begins_with_the_state_of_the_part_before():
    kernel = halves()[1]
    view = tiles_view(kernel)
    assert not isinstance(view, str)
    assert view.products[0].state in kernel.params
    inputs = values_of(kernel)
    got = run(lowered(kernel, 1, 4, 2), "emulator", inputs)
    for x, expected in zip(got.values(), interpreted(kernel, inputs), strict=True):
        np.testing.assert_allclose(x.astype(np.float32), expected.astype(np.float32), rtol=3e-2, atol=1e-2)


def test_a_unit_needs_a_column_of_each_gate():
    view = tiles_view(steps(width=32, steps=4, batch=32))
    assert not isinstance(view, str)
    assert (view.units, view.rows, view.length, view.dtype) == (32, 32, 32, "bf16")
    assert [len(p.sums) for p in view.products] == [4] * 3
    assert len(view.gates) == 4  # all steps share them


@pytest.mark.parametrize(
    ("precision", "batch", "reason"),
    [
        ("fp32", 32, "a product is not of bfloat16 or float16"),
        ("bf16", 8, "the state bf16[8, 32] is no matrix of whole tiles of 16 x 16 in every step"),
    ],
)
def test_what_tensor_cores_cannot_take_is_refused(precision, batch, reason):
    kernel = steps(precision, width=32, steps=4, batch=batch)
    assert choose_resident_tiles(kernel, H200) == reason


def test_parameters_that_divide_nothing_are_refused():
    kernel = steps(width=32, steps=4, batch=32)
    for parameters, clause in (
        ((1, 3, 1), "expected blocks that divide 32 units by 8, got 3"),
        ((3, 1, 1), "expected clusters that divide 32 rows by 16, got 3"),
        ((1, 1, 4), "expected sets that divide 32 terms and 2 tiles of rows, or the halves of one, got 4"),
    ):
        with pytest.raises(InputError, match=clause):
            lowered(kernel, *parameters)


def test_the_model_takes_more_clusters_for_more_rows_and_says_what_does_not_fit():
    chosen = choose_resident_tiles(steps(width=128, steps=4, batch=32), H200)
    assert isinstance(chosen, Func)
    decision = decision_of(chosen)
    assert decision is not None
    assert decision.parameters.clusters == 2
    kernel = steps(width=128, steps=4, batch=32)
    view = tiles_view(kernel)
    assert not isinstance(view, str)
    one, two = (resident_tiles_s(view, TilesParameters(n, 8, 2), H200) for n in (1, 2))
    assert two < one
    wide = choose_resident_tiles(steps(width=1024, steps=4, batch=16), H200)
    assert wide == "weights of 8192 KB do not fit the registers of at most 16 blocks"
    assert choose_resident_tiles(kernel, load_hardware("A100")) == "the device has no clusters"


def test_joined_parts_compute_what_the_steps_did():
    module = cut("bf16", width=32, steps=20, batch=16)
    whole = run_pipeline(module, Pipeline.parse("join-recurrences{when=always}"), CTX)
    facts = whole.main.get(RECURRENCES)
    assert [f["products"] for f in facts] == [15, 4]  # no kernel's text has more than 16 steps
    x = np.random.default_rng(3).standard_normal(module.main.params[0].tensor.shape).astype(np.float32)
    for got, want in zip(interpret(whole, x), interpret(module, x), strict=True):
        np.testing.assert_array_equal(got, want)
    by_estimate = run_pipeline(module, Pipeline.parse("join-recurrences"), CTX)
    assert len(by_estimate.main.body.ops) < len(module.main.body.ops)


def test_blocks_share_the_state_between_meetings():
    kernel = lowered(steps(width=32, steps=4, batch=32), 1, 2, 2)
    ops = list(kernel.body.ops)
    meetings = [i for i, op in enumerate(ops) if op.name == MEET]
    shares = [i for i, op in enumerate(ops) if SHARE in {o.name for o in (op, *inner(op))}]
    assert len(shares) == 3
    with pytest.raises(InputError, match="before they began"):
        checked(kernel, ops[: meetings[0]] + ops[meetings[0] + 1 :])
    second = next(i for i in meetings if i > shares[0])
    with pytest.raises(InputError, match="reads state before its writers have met"):
        checked(kernel, ops[:second] + ops[second + 1 :])


def inner(op: Op) -> tuple[Op, ...]:
    return tuple(walk(op.body)) if op.body is not None else ()


def checked(kernel: Func, ops: list[Op]) -> None:
    """Look whether blocks with these ops meet where they must."""
    check_clusters(kernel.with_body(kernel.body.with_ops(tuple(ops))))
