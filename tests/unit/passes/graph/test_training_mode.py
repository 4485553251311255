"""training-mode: what dropout and batch norms compute and change, against NumPy and PyTorch's formulas."""

import numpy as np
import pytest

import tilewright as tw
from tests.samples.gradients import check_gradient
from tilewright.ir import Constants, InputError
from tilewright.ir.interpreter.lockstep import interpret_ranks
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.graph.forms.training_mode import kept_share, state_names

RNG = np.random.default_rng(0)


def run(module, pipeline):
    return run_pipeline(module, Pipeline.parse(f"infer-shapes, {pipeline}"), PassContext("opencl"))


def dropped(rate=0.5, shape=(4, 6), dtype="f32"):
    t = f"{dtype}[{', '.join(map(str, shape))}]"
    return tw.parse(f"""module @m {{
      graph.func @main(%x: {t}) -> {t} {{
        %0 = graph.dropout(%x, rate = {rate}) : {t}
        graph.return(%0)
      }}
    }}""")


def normalised(dtype="f32", uses=1, attrs=""):
    t = f"{dtype}[5, 3, 2, 2]"
    more = [
        f"%{k} = graph.batch_norm(%{k - 1}, %g, %b, %m, %v, axis = 1{attrs}) : {t}"
        for k in range(1, uses + 1)
    ]
    arrays = {"g": RNG.uniform(0.5, 2, 3), "b": RNG.normal(size=3)}
    arrays |= {"m": RNG.normal(size=3), "v": RNG.uniform(1, 2, 3)}
    storage = {"f32": np.float32, "f16": np.float16, "f64": np.float64}[dtype]
    text = f"""module @m(parameters = ["g", "b"]) {{
      graph.func @main(%x: {t}) -> {t} {{
        %g = graph.constant(name = "g") : {dtype}[3]
        %b = graph.constant(name = "b") : {dtype}[3]
        %m = graph.constant(name = "m") : {dtype}[3]
        %v = graph.constant(name = "v") : {dtype}[3]
        {more[0].replace("%0", "%x")}
        {" ".join(more[1:])}
        graph.return(%{uses})
      }}
    }}"""
    return tw.parse(text).with_constants(Constants({k: a.astype(storage) for k, a in arrays.items()}))


def initial(module):
    return {n: module.constants[n] for n in state_names(module)}


def stateless(module):
    """The module whose state is inputs and outputs like others, and its initial values."""
    return module.with_funcs((module.main.with_attrs(updates=()),)), list(initial(module).values())


def step(module, *inputs, state, **options):
    """Results of a run, and the state behind it."""
    out = tw.interpret(module, *inputs, *state.values(), **options)
    count = len(out) - len(state)
    return out[:count], dict(zip(state, out[count:], strict=True))


def test_dropout_keeps_a_share_and_scales_it():
    module = run(dropped(0.3, (300, 200)), "training-mode{seed=5}")
    tw.verify(module)
    state = initial(module)
    assert {n: a.tolist() for n, a in state.items()} == {"random.seed": [5, 0], "step": 0}
    (y,), after = step(module, np.ones((300, 200), np.float32), state=state)
    share = round(0.7 * 65536) / 65536
    assert set(np.unique(y)) == {np.float32(0), np.float32(1) / np.float32(share)}
    assert abs((y > 0).mean() - share) < 4.5 * np.sqrt(share * (1 - share) / y.size)
    assert after["step"] == 1
    assert np.array_equal(after["random.seed"], state["random.seed"])


def test_weights_of_attention_get_masks_of_words():
    """What a softmax gives is dropped by words of 32 elements, everything else by elements of a call."""
    module = tw.parse("""module @m {
      graph.func @main(%x: f32[2, 64, 64]) -> f32[2, 64, 64], f32[2, 64, 64] {
        %0 = graph.softmax(%x, axis = -1) : f32[2, 64, 64]
        %1 = graph.cast(%0, dtype = "f16") : f16[2, 64, 64]
        %2 = graph.dropout(%1, rate = 0.25) : f16[2, 64, 64]
        %3 = graph.cast(%2, dtype = "f32") : f32[2, 64, 64]
        %4 = graph.dropout(%x, rate = 0.25) : f32[2, 64, 64]
        graph.return(%3, %4)
      }
    }""")
    trained = run(module, "training-mode{seed=3}")
    drawn = [op for op in trained.main.body.ops if op.name.startswith("graph.random")]
    assert [(op.name, op.integer("stream")) for op in drawn] == [
        ("graph.random_mask", 0),
        ("graph.random_bits", 1),
    ]
    x = np.zeros((2, 64, 64), np.float32)
    (weights, _), _ = step(trained, x, state=initial(trained))
    assert set(np.unique(weights)) == {np.float32(0), np.float32(np.float16(1 / 64 / 0.75))}
    assert abs((weights > 0).mean() - 0.75) < 4.5 * np.sqrt(0.75 * 0.25 / weights.size)


def test_every_step_seed_and_dropout_has_a_mask_of_its_own():
    two = tw.parse("""module @m {
      graph.func @main(%x: f32[64, 64]) -> f32[64, 64], f32[64, 64] {
        %0 = graph.dropout(%x, rate = 0.5) : f32[64, 64]
        %1 = graph.dropout(%x, rate = 0.5) : f32[64, 64]
        graph.return(%0, %1)
      }
    }""")
    x = np.ones((64, 64), np.float32)
    module = run(two, "training-mode{seed=1}")
    other = run(two, "training-mode{seed=4294967297}")
    assert other.constants["random.seed"].tolist() == [1, 1]
    masks, state = [], initial(module)
    for _ in range(2):
        ys, state = step(module, x, state=state)
        masks += [y > 0 for y in ys]
    masks += [y > 0 for y in step(other, x, state=initial(other))[0]]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs((a == b).mean() - 0.5) < 0.05


def test_rates_of_nothing_and_of_all():
    x = RNG.normal(size=(4, 6)).astype(np.float32)
    for rate, expected in ((0.0, x), (1.0, np.zeros_like(x))):
        module = run(dropped(rate), "training-mode")
        assert state_names(module) == ()
        assert np.array_equal(tw.interpret(module, x)[0], expected)
    (gradient,) = tw.interpret(tw.grad(with_sum(run(dropped(1.0), "training-mode")), "x", value=False), x)
    assert not gradient.any()


def with_sum(module):
    """The module with the sum of its first result times fixed numbers in place of its results."""
    from tilewright.ir.graph_code import GraphWriter
    from tilewright.passes.graph.gradients.differentiate import with_results

    w = GraphWriter(module.constants)
    for op in module.main.body.ops[:-1]:
        w.builder.append(op)
    y = w.tensor(module.main.body.ops[-1].operands[0])
    weights = w.constant(np.linspace(-1, 1, y.size).reshape(y.shape).astype(np.float32), "weights")
    return with_results(module, w, [(y.cast("f32") * weights).sum().value])


@pytest.mark.parametrize(
    ("rate", "bits"), [(0.1, 8), (0.1, 16), (0.9, 32), (1e-6, 16), (1 - 1e-6, 16), (1e-12, 8)]
)
def test_shares_are_never_rounded_to_all_or_nothing(rate, bits):
    width, kept = kept_share(rate, bits)
    assert width == (bits if 2.0**-bits < min(rate, 1 - rate) else 32)
    assert 0 < kept < 1 << width
    assert abs(kept / 2**width - (1 - rate)) <= 2.0**-width


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16", "tf32"])
@pytest.mark.parametrize("target", ["opencl", "reference"])
def test_masks_are_those_of_the_interpreter_forward_and_backward(precision, target):
    module = run(dropped(0.4, (9, 37)), "training-mode{seed=3}")
    x = RNG.uniform(1, 2, (9, 37)).astype(np.float32)
    state = [*initial(module).values()]
    mask = tw.interpret(module, x, *state)[0] > 0
    assert 0.4 < mask.mean() < 0.8
    gradients = tw.grad(with_sum(module), "x", value=False)
    forward, _ = stateless(module)
    with tw.compile(forward, target, precision=precision) as exe:
        assert np.array_equal(exe(x, *state)[0] != 0, mask)
    with tw.compile(gradients, target, precision=precision) as exe:
        (dx,) = exe(x, *state)
    assert np.array_equal(dx != 0, mask)
    weights = np.linspace(-1, 1, x.size).reshape(x.shape) / (round(0.6 * 65536) / 65536)
    np.testing.assert_allclose(dx[mask], weights[mask], rtol=2e-2 if precision == "bf16" else 2e-3)


def test_the_gradient_of_dropout():
    module, state = stateless(run(dropped(0.3, (3, 5)), "training-mode"))
    check_gradient(module, [RNG.normal(size=(3, 5)), *state], ["x"])


@pytest.mark.parametrize("pipeline", ["split-batch{%s}", "split-space{axis=batch, gather=late, %s}"])
def test_ranks_draw_what_one_device_draws(pipeline):
    given = tw.parse("""module @m {
      graph.func @main(%x: f32[7, 12]) -> f32[7, 5] {
        %w = graph.constant(name = "w") : f32[5, 12]
        %0 = graph.dense(%x, %w) : f32[7, 5]
        %1 = graph.dropout(%0, rate = 0.5) : f32[7, 5]
        graph.return(%1)
      }
    }""").with_constants(Constants({"w": RNG.normal(size=(5, 12)).astype(np.float32)}))
    module, state = stateless(run(given, "training-mode"))
    inputs = [RNG.normal(size=(7, 12)).astype(np.float32), *state]
    whole = tw.interpret(module, *inputs)
    parts = [run(module, pipeline % f"devices=3, rank={r}") for r in range(3)]
    assert {r.tensor.shape[0] for m in parts for op in m.main.body.ops if op.name == "graph.where"
            for r in op.results} == {2, 3}  # fmt: skip
    for got in interpret_ranks(parts, *inputs):
        for a, b in zip(got, whole, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
            assert np.array_equal(a == 0, b == 0)


def torch_batch_norm(x, state, gamma, beta, momentum=0.1, epsilon=1e-5):
    axes = (0, 2, 3)
    mean, var = x.mean(axes), x.var(axes)
    at = (None, slice(None), None, None)
    y = (x - mean[at]) / np.sqrt(var[at] + epsilon) * gamma[at] + beta[at]
    n = x.size // x.shape[1]
    return y, {
        "m": (1 - momentum) * state["m"] + momentum * mean,
        "v": (1 - momentum) * state["v"] + momentum * var * n / (n - 1),
    }


@pytest.mark.parametrize("momentum", [0.1, 0.01, 1.0])
def test_running_statistics_over_ten_steps(momentum):
    given = normalised()
    module = run(given, f"training-mode{{momentum={momentum}}}")
    assert state_names(module) == ("m", "v")
    assert module.get("parameters") == ("g", "b")
    state = initial(module)
    wanted = {n: a.astype(np.float64) for n, a in state.items()}
    gamma, beta = (given.constants[n].astype(np.float64) for n in "gb")
    for _ in range(10):
        x = RNG.normal(1, 3, (5, 3, 2, 2)).astype(np.float32)
        (y,), state = step(module, x, state=state)
        expected, wanted = torch_batch_norm(x.astype(np.float64), wanted, gamma, beta, momentum)
        np.testing.assert_allclose(y, expected, atol=5e-6)
    for n in "mv":
        np.testing.assert_allclose(state[n], wanted[n], rtol=2e-6)


def test_two_uses_of_one_norm_move_its_statistics_twice():
    module = run(normalised(uses=2), "training-mode")
    x = RNG.normal(size=(5, 3, 2, 2)).astype(np.float32)
    gamma, beta = (module.constants[n].astype(np.float64) for n in "gb")
    (y,), state = step(module, x, state=initial(module))
    first, wanted = torch_batch_norm(x.astype(np.float64), initial(module), gamma, beta)
    second, wanted = torch_batch_norm(first, wanted, gamma, beta)
    np.testing.assert_allclose(y, second, atol=1e-5)
    np.testing.assert_allclose(state["v"], wanted["v"], rtol=1e-5)


def test_running_statistics_may_stay_in_use():
    module = normalised()
    assert run(module, "training-mode{statistics=running}").main.updates == ()


def training_norm(attrs=""):
    return tw.parse(f"""module @m {{
      graph.func @main(%x: f64[4, 3, 5], %g: f64[3], %b: f64[3]) -> f64[4, 3, 5], f64[3], f64[3] {{
        %0, %1, %2 = graph.batch_norm_training(%x, %g, %b{attrs}) : f64[4, 3, 5], f64[3], f64[3]
        graph.return(%0, %1, %2)
      }}
    }}""")


@pytest.mark.parametrize("attrs", ["", ", scale = false", ", center = false", ", epsilon = 0.1"])
def test_the_gradient_of_a_batch_norm_in_training(attrs):
    inputs = [RNG.normal(size=(4, 3, 5)), RNG.normal(size=3), RNG.normal(size=3)]
    unused = {"": "", ", scale = false": "g", ", center = false": "b"}.get(attrs, "")
    wrt = [n for n in "xgb" if n != unused]
    check_gradient(training_norm(attrs), inputs, wrt)


def test_the_gradient_is_that_of_pytorchs_formula():
    x, gamma, beta, g = (RNG.normal(size=s) for s in ((5, 3, 2, 2), 3, 3, (5, 3, 2, 2)))
    module = tw.parse("""module @m {
      graph.func @main(%x: f64[5, 3, 2, 2], %g: f64[3], %b: f64[3], %c: f64[5, 3, 2, 2]) -> f64[] {
        %0, %1, %2 = graph.batch_norm_training(%x, %g, %b) : f64[5, 3, 2, 2], f64[3], f64[3]
        %3 = graph.multiply(%0, %c) : f64[5, 3, 2, 2]
        %4 = graph.sum(%3, axis = [0, 1, 2, 3], keepdims = false) : f64[]
        graph.return(%4)
      }
    }""")
    dx, dgamma, dbeta = tw.interpret(tw.grad(module, ["x", "g", "b"], value=False), x, gamma, beta, g)
    axes, at = (0, 2, 3), (None, slice(None), None, None)
    n = x.size // 3
    rstd = 1 / np.sqrt(x.var(axes) + 1e-5)
    centred = x - x.mean(axes)[at]
    dot = (centred * g).sum(axes)
    wanted = (g - g.mean(axes)[at] - centred * (dot * rstd * rstd / n)[at]) * (rstd * gamma)[at]
    np.testing.assert_allclose(dx, wanted, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(dgamma, dot * rstd, rtol=1e-12)
    np.testing.assert_allclose(dbeta, g.sum(axes), rtol=1e-12)


def test_moments_stay_float32_where_tensors_are_narrow():
    module = run(normalised(), "training-mode, mixed-precision{dtype=f16}")
    types = [str(r.type) for op in module.main.body.ops if "training" in op.name for r in op.results]
    assert types[1:] == ["f32[3]", "f32[3]"]
    module = run(normalised("f16"), "training-mode")
    tw.verify(module)
    x = (RNG.normal(size=(5, 3, 2, 2)) * 200).astype(np.float16)  # squares overflow 16 bits
    (y,), state = step(module, x, state=initial(module))
    assert np.isfinite(y.astype(np.float32)).all()
    assert state["v"].dtype == np.float16
    assert (state["v"] > 1000).all()


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_a_compiled_norm_agrees_with_float64(precision):
    module, state = stateless(run(normalised(), "training-mode"))
    inputs = [RNG.normal(2, 3, (5, 3, 2, 2)).astype(np.float32), *state]
    with tw.compile(module, "opencl", precision=precision) as exe:
        results = exe(*inputs)
    limit = {"fp32": 1e-5, "fp16": 2e-2, "bf16": 8e-2}[precision]
    for a, b in zip(results, tw.interpret(module, *inputs, precision="fp64"), strict=True):
        assert np.linalg.norm(a - b) <= limit * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (dropped(1.5), "", "expected a rate of dropout from 0 to 1, got 1.5"),
        (dropped(), "{bits=7}", "expected 8, 16 or 32 bits for dropout, got 7"),
        (dropped(), "{momentum=2.0}", "expected a momentum from 0 to 1, got 2.0"),
        (dropped(), "{statistics=none}", "expected statistics 'batch' or 'running', got 'none'"),
    ],
)
def test_bad_options_are_refused(module, options, message):
    with pytest.raises(InputError, match=message):
        run(module, f"training-mode{options}")


def test_statistics_that_are_no_constants_are_refused():
    module = tw.parse("""module @m {
      graph.func @main(%x: f32[2, 3], %g: f32[3], %b: f32[3], %m: f32[3], %v: f32[3]) -> f32[2, 3] {
        %0 = graph.batch_norm(%x, %g, %b, %m, %v) : f32[2, 3] loc "norm"
        graph.return(%0)
      }
    }""")
    with pytest.raises(
        InputError, match=r"norm.*expected running statistics .* are constants.* got an input"
    ):
        run(module, "training-mode")


def test_one_value_per_channel_has_no_statistics():
    module = tw.parse("""module @m {
      graph.func @main(%x: f32[1, 3]) -> f32[1, 3] {
        %c = graph.constant(name = "c") : f32[3]
        %0 = graph.batch_norm(%x, %c, %c, %c, %c) : f32[1, 3]
        graph.return(%0)
      }
    }""")
    with pytest.raises(InputError, match=r"more than one value per channel .* got f32\[1, 3\]"):
        run(module, "training-mode")


def test_an_input_of_the_name_of_state_is_refused():
    module = tw.parse("""module @m {
      graph.func @main(%step: f32[4]) -> f32[4] {
        %0 = graph.dropout(%step, rate = 0.5) : f32[4]
        graph.return(%0)
      }
    }""")
    with pytest.raises(InputError, match="expected no input called 'step'"):
        run(module, "training-mode")


def test_a_step_draws_and_tracks_and_its_inference_does_not():
    arrays = {"w": (3, 4), "g": (3,), "b": (3,), "m": (3,), "v": (3,)}
    network = tw.parse("""module @m(parameters = ["w", "g", "b", "m", "v"]) {
      graph.func @main(%x: f32[6, 4]) -> f32[6, 3] {
        %w = graph.constant(name = "w") : f32[3, 4]
        %g = graph.constant(name = "g") : f32[3]
        %b = graph.constant(name = "b") : f32[3]
        %m = graph.constant(name = "m") : f32[3]
        %v = graph.constant(name = "v") : f32[3]
        %0 = graph.dropout(%x, rate = 0.5) : f32[6, 4]
        %1 = graph.dense(%0, %w) : f32[6, 3]
        %2 = graph.batch_norm(%1, %g, %b, %m, %v) : f32[6, 3]
        graph.return(%2)
      }
    }""").with_constants(Constants({n: RNG.uniform(1, 2, s).astype(np.float32) for n, s in arrays.items()}))
    x, y = RNG.normal(size=(6, 4)).astype(np.float32), RNG.normal(size=(6, 3)).astype(np.float32)
    s = tw.train_step(network, "mse", tw.optim.sgd(lr=0.1), seed=9)
    tw.verify(s)
    assert s.parameters == ("w", "g", "b")
    state = initial(s)
    assert state["random.seed"].tolist() == [9, 0]
    losses = []
    for _ in range(3):
        (loss,), state = step(s, x, y, state=state)
        losses.append(float(loss))
    assert len(set(losses)) == 3
    assert state["step"] == 3
    assert not np.allclose(state["m"], network.constants["m"])
    everything = tw.train_step(network, "mse", tw.optim.sgd(lr=0.1), trainable="*", seed=9)
    assert everything.parameters == s.parameters
    assert [op.name for op in s.inference().main.body.ops if "dropout" in op.name] == ["graph.dropout"]


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_compiled_step_draws_and_tracks_what_the_interpreter_does(precision):
    shapes = {"k": (4, 1, 3, 3), "w": (3, 4), "g": (4,), "b": (4,), "m": (4,), "v": (4,)}
    constants = "".join(
        f'%{n} = graph.constant(name = "{n}") : f32[{", ".join(map(str, s))}]\n' for n, s in shapes.items()
    )
    network = tw.parse(f"""module @m(parameters = ["k", "w", "g", "b"]) {{
      graph.func @main(%x: f32[8, 1, 6, 6]) -> f32[8, 3] {{
        {constants}
        %1 = graph.conv2d(%x, %k) : f32[8, 4, 4, 4]
        %2 = graph.batch_norm(%1, %g, %b, %m, %v) : f32[8, 4, 4, 4]
        %3 = graph.relu(%2) : f32[8, 4, 4, 4]
        %4 = graph.dropout(%3, rate = 0.5) : f32[8, 4, 4, 4]
        %5 = graph.mean(%4, axis = [2, 3], keepdims = false) : f32[8, 4]
        %6 = graph.dense(%5, %w) : f32[8, 3]
        graph.return(%6)
      }}
    }}""").with_constants(Constants({n: RNG.uniform(1, 2, s).astype(np.float32) for n, s in shapes.items()}))
    s = tw.train_step(network, "cross_entropy", tw.optim.sgd(lr=0.1), loss_scale=None, seed=9)
    state = initial(s)
    limit = {"fp32": 1e-5, "fp16": 2e-2}[precision]
    with tw.compile(s, "opencl", precision=precision) as exe:
        for _ in range(3):
            x = RNG.normal(size=(8, 1, 6, 6)).astype(np.float32)
            labels = RNG.integers(0, 3, 8).astype(np.int32)
            (wanted,), state = step(s, x, labels, state=state)
            np.testing.assert_allclose(np.asarray(exe.step(x, labels)), wanted, rtol=limit)
        for name, value in state.items():
            np.testing.assert_allclose(exe.state[name], value, rtol=limit, atol=limit)
