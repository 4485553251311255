"""Products with gates of units: what is taken, emulated kernels against the interpreter."""

import numpy as np
import pytest
from codegen_samples import run
from decision_samples import with_template
from gates_samples import CTX, H200, cut, forward_and_backward, product, step_behind_a_join
from interpreted_kernels import assert_emulated, interpreted, values_of
from matrix_samples import THREAD

import tilewright as tw
from tilewright.costmodel.kernels.relays import Footprint
from tilewright.frontends.zoo.recurrent import lstm_classifier
from tilewright.ir import Func, InputError, Level, Module, parse
from tilewright.ir.nodes import walk
from tilewright.ir.thread.launch_ops import EARLY_FACTORS, WAIT
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.kernels.gated.choice import choose_gated
from tilewright.passes.kernels.gated.division import arrival_clk
from tilewright.passes.kernels.gated.lowering import lower_gated
from tilewright.passes.kernels.gated.parameters import GatedParameters
from tilewright.passes.kernels.gated.view import gated_view
from tilewright.passes.kernels.resident_tiles.view import TilesView
from tilewright.passes.pipelines import official_stages


def view_of(kernel: Func) -> TilesView:
    view = gated_view(kernel)
    assert not isinstance(view, str)
    return view


def lowered(kernel: Func, *parameters: int) -> Func:
    thread = lower_gated(with_template(kernel, "product_gates", GatedParameters(*parameters)))
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(THREAD), CTX).funcs[0]


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("network", "precision", "backward", "parameters", "batch"),
    [
        ("lstm", "bf16", False, (16, 8, 2), 32),  # two blocks of rows, each thread has several elements
        ("lstm", "fp16", False, (32, 16, 1), 32),  # a warp has two tiles of rows, and the whole sum
        ("lstm", "bf16", True, (16, 8, 8), 32),  # more threads than elements: the others only multiply
        ("lstm", "bf16", True, (32, 32, 4), 32),
        ("gru", "bf16", False, (16, 16, 2), 32),
        ("gru", "bf16", True, (32, 8, 2), 32),
        ("lstm", "tf32", False, (16, 8, 2), 32),
        ("lstm", "tf32", True, (32, 16, 4), 32),
        ("gru", "tf32", False, (16, 16, 2), 32),
        ("gru", "tf32", True, (32, 8, 1), 32),
        ("lstm", "tf32", False, (8, 8, 2), 8),  # half a tile of rows
        ("gru", "bf16", True, (20, 8, 2), 20),  # a quarter of the second one
    ],
)
def test_emulated_kernels_are_those_of_the_interpreter(network, precision, backward, parameters, batch):
    kernel = forward_and_backward(network, precision, gated_view, batch)[backward]
    assert_emulated(kernel, lowered(kernel, *parameters), rtol=3e-2, atol=1e-2)


def test_a_unit_needs_a_column_of_each_gate_forward_and_one_backward():
    step, gradient = map(view_of, forward_and_backward("lstm", "bf16", gated_view))
    assert (step.units, step.length, step.most_sums) == (32, 32, 4)
    assert (gradient.units, gradient.length, gradient.most_sums) == (32, 128, 1)
    step, gradient = map(view_of, forward_and_backward("gru", "bf16", gated_view))
    assert (step.most_sums, gradient.length) == (3, 192)


@pytest.mark.parametrize("network", ["lstm", "gru"])
def test_joined_steps_compute_what_the_kernels_did(network):
    module = cut(network)
    joined = run_pipeline(module, Pipeline.parse("join-gates{when=always}"), CTX)
    assert len(joined.main.body.ops) < len(module.main.body.ops)
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 3, module.main.params[1].tensor.shape).astype(np.int32)
    x = rng.standard_normal(module.main.params[0].tensor.shape).astype(np.float32)
    (before,), _ = tw.interpret_step(module, [x, labels])
    (after,), _ = tw.interpret_step(joined, [x, labels])
    np.testing.assert_array_equal(before, after)


def test_steps_are_joined_where_the_model_finds_them_faster():
    module = lstm_classifier(0, layers=1, width=512, steps=4, classes=3, batch=32)
    module = tw.train_step(module, "cross_entropy", "adam")
    for _, pipeline in official_stages(Level.GRAPH, "cuda", "bf16").until("fuse-attention-backward"):
        module = run_pipeline(module, pipeline, CTX)
    taken = [f for f in module.funcs if (d := decision_of(f)) is not None and d.template == "product_gates"]
    views = [view_of(f.with_attrs(decision=None)) for f in taken]
    assert {v.most_sums for v in views} == {1, 4}
    assert run_pipeline(module, Pipeline.parse("join-gates"), CTX).main is module.main


@pytest.mark.parametrize("trained", [False, True])
def test_the_faster_way_of_one_launch_is_taken(trained):
    """Columns of constant weights may be interleaved, which the model finds faster for these gates."""
    module = lstm_classifier(0, layers=1, width=384, steps=3, classes=3, batch=64)
    if trained:
        module = tw.train_step(module, "cross_entropy", "adam")
    kernels = tw.compile(module, "cuda:sm_90a:h200", precision="tf32").report()["kernels"]
    steps = {k["template"] for k in kernels if "_gates_" in k["name"] or "_interleaved_" in k["name"]}
    assert steps == {"product_gates" if trained else "matrix"}


@pytest.mark.emulator
def test_states_may_be_boxes_of_arrays_of_all_steps():
    for state in ("f16[1, 32, 32]", "f16[1, 32, 32] by [32, 64, 1]"):
        view = view_of(step_behind_a_join(state))
        assert (view.rows, view.units, view.most_sums) == (32, 32, 2)
    kernel = step_behind_a_join("f16[1, 32, 32]")
    inputs = values_of(kernel)
    (got,) = run(lowered(kernel, 16, 8, 2), "emulator", inputs, seed=2).values()
    (want,) = interpreted(kernel, inputs)
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=3e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        (
            step_behind_a_join("f16[2, 32, 32]"),
            "the state f16[2, 32, 32] is no parameter that is a matrix",
        ),
        (
            step_behind_a_join("f16[1, 32, 32] by [32, 36, 1]"),
            "rows of the state f16[1, 32, 32] by [32, 36, 1] do not begin at multiples of 16 bytes",
        ),
        (product(16, 40, 32), "rows of the state bf16[16, 40] have no multiple of 16 elements"),
        (product(16, 32, 36), "16 rows of 36 units cannot be divided over blocks"),
        (product(16, 48, 32), "rows of the state bf16[16, 48] have no 32, 64 or a multiple of 128 bytes"),
        (product(16, 32, 32, "f32"), "a product is not of bfloat16 or float16"),
    ],
)
def test_what_no_block_can_have_is_refused(kernel, reason):
    assert choose_gated(kernel, H200) == reason


def test_parameters_that_divide_nothing_are_refused():
    for parameters, clause in (
        ((24, 8, 1), "expected rows by 16 that divide 32, got 24"),
        ((16, 12, 1), "expected units by 8 that divide 32, got 12"),
        ((16, 24, 1), "expected units by 8 that divide 32, got 24"),
        ((16, 8, 3), "expected sets that divide 32 terms by 16, got 3"),
    ):
        with pytest.raises(InputError, match=clause):
            lowered(product(32, 32, 32), *parameters)


def test_weights_are_asked_for_before_the_wait():
    kernel = lowered(product(32, 32, 32), 16, 8, 2)
    assert kernel.get(EARLY_FACTORS)
    main = parse("""module @m {
  tensor.func @main(%x: f32[32, 32]) -> f32[32, 32] {
    %w = tensor.call(%x, callee = @round) : bf16[32, 32]
    %h = tensor.call(%w, callee = @round) : bf16[32, 32]
    %0 = tensor.call(%h, %w, callee = @k) : f32[32, 32]
    tensor.return(%0)
  }
}""").main
    module = run_pipeline(Module("m", (main, kernel)), Pipeline.parse("overlap-launches"), CTX)
    (func,) = (f for f in module.funcs if f.name == "k")
    wait = next(i for i, op in enumerate(func.body.ops) if op.name == WAIT)
    copied = [
        {o.operands[0] for o in (op, *(walk(op.body) if op.body else ())) if o.name == "thread.copy_async"}
        for op in func.body.ops
    ]
    assert set().union(*copied[:wait]) == {func.params[1]}
    assert set().union(*copied[wait:]) == {func.params[0]}


def test_weights_come_early_where_launches_take_turns():
    half = H200.smem_per_sm_bytes // 2
    alone, beside = (Footprint(128, 128, half + extra) for extra in (1, -4096))
    state, weights = 32 << 10, 96 << 10
    late, early = (arrival_clk(f, state, weights, H200) for f in (beside, alone))
    assert late - early == pytest.approx(H200.relay.turn_weights_s * H200.clock_hz)
    # however early, the state comes behind the wait
    assert arrival_clk(alone, state, 0, H200) == arrival_clk(beside, state, 0, H200)
    assert arrival_clk(alone, state, 1024, H200) == pytest.approx(arrival_clk(alone, state, 0, H200))
