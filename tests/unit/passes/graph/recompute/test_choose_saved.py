"""choose-saved: same bits, no slower by the model, less memory within a budget, and refusals."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower, pass_context
from tilewright.devices.targets import resolve_target
from tilewright.ir import Block, Constants, Func, InputError, Level, Module, TensorType, Value
from tilewright.ir.graph_code import GraphWriter
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.analysis.second_results import CACHED_ARRAY_BYTES
from tilewright.passes.graph.recompute.boundary import Boundary
from tilewright.passes.graph.recompute.choose_saved import ESTIMATE_ERROR, TIME_WORTH
from tilewright.passes.graph.recompute.copies import with_copies
from tilewright.passes.graph.recompute.kernel_view import kernel_view
from tilewright.passes.graph.recompute.saved_values import saved_values
from tilewright.passes.pipelines import GRAPH

H100 = pass_context(resolve_target("cuda:sm_90a"))
CPU = pass_context(resolve_target("opencl"))


def perceptron(layers: int, width: int, batch: int) -> Module:
    """Dense layers with an activation of several elementwise ops, and the mean of squares behind them."""
    rng = np.random.default_rng(0)
    w = GraphWriter()
    x = Value(TensorType("f32", (batch, width)), "x")
    h = w.tensor(x)
    names = [f"w{i}" for i in range(layers)]
    for i, name in enumerate(names):
        weight = rng.standard_normal((width, width)) / np.sqrt(width)
        with w.at(f"layer{i}"):
            h = w.op("dense", h, w.constant(weight.astype(np.float32), name))
            h = h * ((h * 0.75 + h * h * h * 0.04).tanh() + 1.0) * 0.5
    loss = (h * h).mean()
    w.builder.emit("graph.return", [loss.value], types=())
    main = Func(Level.GRAPH, "main", Block((x,), w.ops), (loss.value.type,))
    return Module("perceptron", (main,), (("parameters", tuple(names)),), w.constants)


def gradients(layers=4, width=8, batch=256) -> Module:
    module = tw.grad(perceptron(layers, width, batch))
    return run_pipeline(module, GRAPH, CPU)


def chosen(module: Module, context=CPU, **options) -> Module:
    text = ", ".join(f"{k}={v}" for k, v in options.items())
    out = run_pipeline(module, Pipeline.parse(f"choose-saved{{{text}}}"), context)
    tw.verify(out)
    return out


def view(module: Module, context=CPU):
    return kernel_view(module.main, context.hardware, context)


def test_the_forward_pass_is_what_the_loss_depends_on():
    module = gradients(2)
    forward = forward_ops(module.main)
    assert {op.loc.endswith("'") for op in forward if op.loc} == {False}
    assert {op.loc.endswith("'") for op in module.main.body.ops if op.loc and op not in forward} == {True}


def test_the_default_takes_far_less_memory_and_about_as_long_where_activations_are_wide():
    module = gradients(3, 1024, 4096)
    out = chosen(module, H100)
    assert out.main["recomputed"] > 0
    before, after = view(module, H100), view(out, H100)
    assert after.seconds < 1.05 * before.seconds
    assert after.peak_bytes < 0.7 * before.peak_bytes


@pytest.mark.parametrize(("width", "batch"), [(8, 4), (64, 64), (256, 2048)])
def test_the_default_is_slower_than_saving_everything_only_for_as_much_less_memory(width, batch):
    module = gradients(2, width, batch)
    for context in (CPU, H100):
        after, before = view(chosen(module, context), context), view(module, context)
        assert after.seconds <= (1 + ESTIMATE_ERROR) * before.seconds
        worth = before.seconds**TIME_WORTH * before.peak_bytes
        assert after.seconds**TIME_WORTH * after.peak_bytes <= worth


def test_results_are_the_same_bits():
    module = gradients()
    out = chosen(module, checkpoint="blocks")
    assert out.main["recomputed"] > 10
    x = np.random.default_rng(1).standard_normal((256, 8)).astype(np.float32)
    for a, b in zip(tw.interpret(module, x), tw.interpret(out, x), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_computed_again_stays_so():
    """Neither equal ops nor kernels that store two results bring it back."""
    module = chosen(gradients(), checkpoint="blocks")
    again = run_pipeline(module, Pipeline.parse("cse, dce"), CPU)
    assert len(again.main.body.ops) == len(module.main.body.ops)
    assert str(chosen(module, checkpoint="none")) == str(module)
    assert view(module).peak_bytes < 0.6 * view(gradients()).peak_bytes


def test_a_smaller_budget_takes_less_memory_and_more_seconds():
    module = gradients(4, 1024, 4096)
    fastest = chosen(module, H100, memory_budget=1 << 60)
    most, least = (view(m, H100).peak_bytes for m in (fastest, chosen(module, H100, checkpoint="blocks")))
    seconds = [view(fastest, H100).seconds]
    for share in (0.5, 0.0):
        budget = int(least + share * (most - least))
        out = view(chosen(module, H100, memory_budget=budget), H100)
        assert out.peak_bytes <= budget
        seconds.append(out.seconds)
    assert seconds == sorted(seconds)
    assert seconds[-1] > seconds[0]


def test_plans_keep_to_a_budget():
    """The arena that is placed, and not an estimate of it, with all inputs and constants."""
    module = gradients(6, 16, 1024)
    sizes = {}
    for attributes in ({"checkpoint": "none"}, {"memory_budget": 680_000}):
        step = module.with_funcs((module.main.with_attrs(**attributes),))
        with tw.compile(step, target="opencl") as exe:
            fixed = sum(b.nbytes for b in exe.plan.buffers if b.kind in ("input", "constant"))
            sizes[tuple(attributes)] = exe.plan.arena_bytes + fixed
    assert sizes["memory_budget",] <= 680_000 < sizes["checkpoint",]


def test_compiled_gradients_agree_within_a_budget():
    module = gradients(3, 16, 32)
    x = np.random.default_rng(2).standard_normal((32, 16)).astype(np.float32)
    exact = tw.interpret(module, x, precision="fp64")
    for checkpoint in ("auto", "blocks"):
        step = module.with_funcs((module.main.with_attrs(checkpoint=checkpoint),))
        with tw.compile(step, target="opencl") as exe:
            for got, expected in zip(exe(x), exact, strict=True):
                assert np.linalg.norm(got - expected) <= 1e-5 * np.linalg.norm(expected)


def test_a_budget_that_cannot_be_met_says_the_least():
    module = gradients()
    with pytest.raises(InputError, match=r"memory budget of at least \d+ bytes \(.* MiB\).*, got 1000") as e:
        chosen(module, memory_budget=1000)
    least = int(str(e.value).split("at least ")[1].split()[0])
    assert view(chosen(module, memory_budget=least)).peak_bytes <= least


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"checkpoint": "some"}, "expected checkpoint auto, none or blocks, got 'some'"),
        ({"memory_budget": -1}, "expected memory_budget in bytes, got -1"),
        ({"memory_budget": "8GiB"}, "expected memory_budget in bytes, got '8GiB'"),
    ],
)
def test_bad_attributes(attributes, message):
    module = gradients(1)
    with pytest.raises(InputError, match=message):
        chosen(module.with_funcs((module.main.with_attrs(**attributes),)))


def test_networks_without_a_backward_pass_stay():
    module = perceptron(2, 8, 4)
    assert chosen(module, checkpoint="blocks") is module
    assert "loss" not in str(tw.grad(module, value=False))


def test_a_loss_must_be_a_result():
    module = gradients(1)
    with pytest.raises(InputError, match=r"expected loss to be positions among 2 results, got 7"):
        tw.verify(module.with_funcs((module.main.with_attrs(loss=7),)))


def test_constants_are_shared_by_both_passes():
    lowered = lower(chosen(gradients(), checkpoint="blocks"), resolve_target("opencl"))
    names = [op["name"] for op in lowered.tensor.main.body.ops if op.name == "tensor.constant"]
    assert len(names) == len(set(names))
    assert isinstance(lowered.graph.constants, Constants)


def step_inputs(step: Module) -> list[np.ndarray]:
    """Random inputs, labels within their range, and the first values of the state."""
    rng = np.random.default_rng(3)
    out = []
    for name, t in zip(step.input_names, step.input_types, strict=True):
        if name in step.constants:
            out.append(step.constants[name])
        elif np.dtype(t.dtype).kind in "iu":
            out.append(rng.integers(0, 10, t.shape).astype(t.dtype))
        else:
            out.append(rng.standard_normal(t.shape).astype(t.dtype))
    return out


def test_steps_with_batch_norms_and_dropout_have_the_same_bits():
    """What is standardised is computed from its moments, and masks are drawn again."""
    step = tw.train_step(tw.frontends.zoo.digits(batch=8), optimizer=tw.optim.sgd(lr=0.1))
    module = run_pipeline(step, GRAPH, CPU)
    out = chosen(module.with_funcs((module.main,)), checkpoint="blocks")
    backward = [op.name for op in out.main.body.ops if op not in forward_ops(out.main)]
    assert out.main["recomputed"] > 10
    assert {"graph.batch_norm", "graph.random_bits"} <= set(backward)
    inputs = step_inputs(module)
    for a, b in zip(tw.interpret(module, *inputs), tw.interpret(out, *inputs), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_is_saved_and_computed_again_is_told():
    module = gradients(3, 1024, 4096)
    saved, recomputed = saved_values(module.main, H100.hardware, H100)
    assert recomputed == []
    nbytes = sum(s.value.tensor.nbytes for s in saved)
    out = chosen(module, H100)
    saved, recomputed = saved_values(out.main, H100.hardware, H100)
    assert len(recomputed) == out.main["recomputed"]
    assert sum(s.value.tensor.nbytes for s in saved) < nbytes
    assert saved_values(perceptron(1, 8, 4).main, H100.hardware, H100) == ([], [])


def test_products_store_no_copy_beside_their_sums():
    """What is computed again for the gradient of a weight has a kernel of its own, which the mask reads."""
    w = GraphWriter()
    x = Value(TensorType("f32", (4096, 1024)), "x")
    h = w.tensor(x)
    names = ["w0", "w1", "w2"]
    for name in names:
        with w.at(name):
            h = w.op("dense", h, w.constant(np.zeros((1024, 1024), np.float32), name))
            h = w.op("relu", h + h * h)
    w.builder.emit("graph.return", [h.value], types=())
    main = Func(Level.GRAPH, "main", Block((x,), w.ops), (h.value.type,))
    network = Module("net", (main,), (("parameters", tuple(names)),), w.constants)
    step = tw.train_step(network, loss="mse", optimizer=tw.optim.sgd(lr=0.1))
    func = run_pipeline(step, GRAPH, H100).main
    boundary = Boundary.of(func)
    maps = [op for op in boundary.ops if op.name in ("graph.add", "graph.multiply", "graph.relu")]
    func, originals = with_copies(func, boundary, maps)
    assert originals
    kernels = H100.estimator.stored_kernels(Module("kernels", (func,)), H100)
    products = [f for f in kernels.funcs if any(op.name == "tensor.contract" for op in f.body.ops)]
    backward = [f for f in products if all(op.loc.endswith("'") for op in f.body.ops if op.loc)]
    assert len(backward) == 2
    assert all(sum(t.nbytes > CACHED_ARRAY_BYTES for t in f.result_types) <= 1 for f in backward)
