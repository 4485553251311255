"""Training steps: networks that learn, state, scales and bounds of gradients, accumulation, and bad input."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from training_steps import MLP, first_state, interpreted, mlp

import tilewright as tw
from tilewright.frontends import zoo
from tilewright.ir import Module, equal, interpret
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.running.stateful import executable_of

NETWORKS = {
    "mlp": lambda: mlp(),
    "gpt": lambda: zoo.gpt(layers=1, width=16, heads=2, vocabulary=20, context=8, sequence=8, batch=2),
    "digits": lambda: zoo.build("digits{batch=8,width=4}"),
    "lstm": lambda: zoo.build("lstm_classifier{layers=1,width=8,steps=6,classes=5,batch=4}"),
}


def batch(step: Module, seed: int = 0, scale: float = 1.0) -> list[np.ndarray]:
    """One array per input of a step; integers are labels or tokens."""
    rng = np.random.default_rng(seed)
    most = min((r[2] for r in step.get("ranges", ())), default=20)
    types = [
        (t, n) for t, n in zip(step.input_types, step.input_names, strict=True) if n not in step.state_names
    ]
    return [
        rng.integers(0, most, t.shape).astype(t.dtype)
        if "int" in t.dtype
        else (rng.standard_normal(t.shape) * scale).astype(t.dtype)
        for t, _ in types
    ]


def same_state(a, b) -> bool:
    return list(a) == list(b) and all(np.array_equal(a[n], b[n]) for n in a)


@pytest.fixture(scope="module")
def compiled():
    """A step of each network, and an executable of it, which is to be left as it is."""

    @cache
    def of(name: str):
        optimizer = tw.optim.sgd(0.1, momentum=0.9)
        step = tw.train_step(NETWORKS[name](), "cross_entropy", optimizer, clip_norm=1.0)
        return step, tw.compile(step, "opencl")

    return of


@pytest.mark.parametrize("name", NETWORKS)
def test_a_compiled_step_follows_the_interpreter(compiled, name):
    step, made = compiled(name)
    inputs = batch(step)
    with executable_of(made.artifact, made.target) as exe, tw.compile(step, "reference") as oracle:
        losses = [float(exe.step(*inputs)) for _ in range(20)]
        np.testing.assert_allclose(losses, [float(oracle.step(*inputs)) for _ in range(20)], rtol=1e-5)
        for key, value in oracle.state.items():
            np.testing.assert_allclose(exe.state[key], value, rtol=1e-4, atol=1e-5)
    assert losses[-1] < 0.75 * losses[0]


@pytest.fixture(scope="module")
def adamw_step():
    return tw.train_step(mlp(), "cross_entropy", tw.optim.adamw(1e-2))


@pytest.fixture(scope="module")
def exact_losses(adamw_step):
    inputs = batch(adamw_step)
    with tw.compile(adamw_step, "opencl") as exact:
        return [float(exact.step(*inputs)) for _ in range(20)]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
def test_state_stays_float32_in_every_precision(adamw_step, exact_losses, precision):
    inputs = batch(adamw_step)
    with tw.compile(adamw_step, "opencl", precision=precision) as exe:
        assert all(a.dtype in (np.float32, np.uint32) for a in exe.state.values())
        losses = [float(exe.step(*inputs)) for _ in range(20)]
        assert int(exe.state["good_updates"]) == (20 if precision == "fp16" else 0)
    np.testing.assert_allclose(losses, exact_losses, rtol=5e-2)
    assert all(np.diff(losses) < 0)


def test_losses_and_updates_are_wide_in_16_bits():
    step = tw.train_step(mlp(), "cross_entropy", tw.optim.sgd(0.1), clip_norm=1.0, loss_scale=None)
    narrow = run_pipeline(step, Pipeline.parse("infer-shapes, mixed-precision{dtype=f16}"), PassContext())
    ops = [op for op in narrow.main.body.ops if op.loc in ("loss", "optimizer")]
    computing = [op for op in ops if op.name not in ("graph.cast", "graph.constant")]
    assert {r.tensor.dtype for op in computing for r in op.results} <= {"f32", "i32", "u32", "bool"}
    products = [op for op in narrow.main.body.ops if op.name in ("graph.dense", "graph.matmul")]
    assert {op.operands[0].tensor.dtype for op in products} == {"f16"}
    # Both layers, the gradient of what lies between them, and those of the weights, which stay sums.
    assert [op.result.tensor.dtype for op in products] == ["f16", "f16", "f16", "f32", "f32"]


def test_a_step_is_a_module_like_any_other():
    step = tw.train_step(NETWORKS["digits"](), "cross_entropy", "adamw", accumulate=2, on_nan="skip")
    tw.verify(step)
    assert equal(
        tw.parse(
            tw.show(step),
        ).with_constants(step.constants),
        step,
    )
    inputs = batch(step)
    ((narrow,), *_), _ = interpreted(step, [inputs])
    ((exact,), *_), state = interpreted(step, [inputs], precision="fp64")
    assert exact.dtype == np.float64
    assert state["conv1.kernel"].dtype == np.float64
    np.testing.assert_allclose(narrow, exact, rtol=1e-5)


def test_state_in_its_order():
    step = tw.train_step(mlp(), "mse", tw.optim.sgd(0.1, momentum=0.9), loss_scale="dynamic")
    assert list(first_state(step)) == [
        "w1", "b1", "w2", "w1.momentum", "b1.momentum", "w2.momentum",
        "step", "updates", "lr", "loss_scale", "good_updates",
    ]  # fmt: skip
    assert step.input_names[:2] == ("x", "targets")
    assert list(first_state(tw.train_step(mlp(), "mse", tw.optim.sgd(0.1), loss_scale=None))) == [
        "w1", "b1", "w2", "step", "lr",
    ]  # fmt: skip


def test_only_what_is_trainable_changes():
    step = tw.train_step(mlp(), "mse", tw.optim.sgd(0.1), trainable="w*", loss_scale=None)
    assert step.parameters == ("w1", "w2")
    assert "b1" not in first_state(step)


def test_batches_that_accumulate_are_one_batch():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 6)).astype(np.float32), rng.standard_normal((8, 3)).astype(np.float32)
    text = MLP.replace("[8, ", "[2, ")
    for scale in (None, "dynamic"):
        whole = tw.train_step(mlp(), "mse", tw.optim.adamw(1e-2), clip_norm=0.5, loss_scale=scale)
        parts = tw.train_step(
            mlp(text=text), "mse", tw.optim.adamw(1e-2), clip_norm=0.5, loss_scale=scale, accumulate=4
        )
        pieces = [(x[i : i + 2], y[i : i + 2]) for i in range(0, 8, 2)]
        losses, state = interpreted(whole, [(x, y)] * 5, precision="fp64")
        parted, own = interpreted(parts, pieces * 5, precision="fp64")
        for name in ("w1", "b1", "w2", "w1.m", "w2.v"):
            np.testing.assert_allclose(own[name], state[name], rtol=1e-7, atol=1e-9)
        means = np.reshape([float(p[0]) for p in parted], (5, 4)).mean(1)
        np.testing.assert_allclose(means, [float(q[0]) for q in losses], rtol=1e-7)
        assert (own["step"], own["updates"]) == (20, 5)
        assert not own["w1.gradient"].any()


def test_the_scale_of_the_loss_is_that_of_pytorch():
    """A model of torch.amp.GradScaler beside the step, over runs of which some overflow."""
    step = tw.train_step(mlp(), "mse", tw.optim.sgd(1e-4), loss_scale="dynamic")
    x, y = batch(step)
    state = first_state(step)
    state["good_updates"] = np.asarray(1997, np.uint32)
    scale, good, updates = 65536.0, 1997, 0
    for run in range(9):
        overflows = run in (1, 6, 7)
        inputs = [x, y * np.float32(1e25 if overflows else 1)]
        before = state
        _, state = interpreted(step, [inputs], before)
        if overflows:
            scale, good = scale / 2, 0
            assert all(np.array_equal(before[n], state[n]) for n in ("w1", "b1", "w2"))
        else:
            good, updates = good + 1, updates + 1
            assert not np.array_equal(before["w1"], state["w1"])
            if good == 2000:
                scale, good = scale * 2, 0
        assert (state["loss_scale"], state["good_updates"], state["updates"]) == (scale, good, updates)
        if run == 1:
            state["good_updates"], good = np.asarray(1998, np.uint32), 1998
    assert state["step"] == 9


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_fixed_scale_changes_nothing_but_rounding(accumulate):
    plain, scaled, automatic = (
        tw.train_step(mlp(), "mse", "adamw", clip_norm=1.0, loss_scale=s, accumulate=accumulate)
        for s in (None, 1024.0, "auto")
    )
    fixed = run_pipeline(automatic, Pipeline.parse("fix-loss-scale"), PassContext(verify_each=True))
    inputs = [batch(plain)] * 6
    _, wanted = interpreted(plain, inputs)
    for step in (scaled, automatic, fixed):
        _, state = interpreted(step, inputs)
        np.testing.assert_array_equal(state["w1"], wanted["w1"])
    assert not any(op.name == "graph.isfinite" for op in fixed.main.body.ops)


def test_a_batch_of_nan_changes_nothing_where_asked():
    x, y = batch(tw.train_step(mlp(), "mse", "adamw"))
    for on_nan, scale in [("skip", None), ("ignore", "dynamic"), ("raise", None)]:
        step = tw.train_step(mlp(), "mse", "adamw", on_nan=on_nan, loss_scale=scale)
        _, before = interpreted(step, [(x, y)])
        _, after = interpreted(step, [(x * np.nan, y)], before)
        for name in ("w1", "w2.v", "b1.m", "lr") + (("step",) if on_nan == "raise" else ()):
            np.testing.assert_array_equal(before[name], after[name])
    step = tw.train_step(mlp(), "mse", "adamw", loss_scale=None)
    assert np.isnan(interpreted(step, [(x * np.nan, y)])[1]["w1"]).all()


def test_statistics_of_a_batch_of_nan_are_not_kept():
    step = tw.train_step(NETWORKS["digits"](), "cross_entropy", tw.optim.sgd(0.1), on_nan="skip")
    x, labels = batch(step)
    before = first_state(step)
    _, after = interpreted(step, [(x * np.nan, labels)])
    changed = [n for n in before if not np.array_equal(before[n], after[n])]
    assert changed == ["step", "loss_scale"]


def only_decay(optimizer: tw.optim.Optimizer, **options) -> Module:
    """A step whose gradients are zero."""
    return tw.train_step(
        mlp(), lambda p, t: (p * 0).sum() + (t * 0).sum(), optimizer, loss_scale=None, **options
    )


def test_schedules():
    steps = 12
    s = tw.schedules
    t = np.arange(steps, dtype=np.float64)
    half = np.minimum(t / 8, 1)
    for schedule, wanted in [
        (s.constant(0.5), np.full(steps, 0.5)),
        (s.cosine(0.5, 8, end=0.125), 0.125 + 0.375 * (1 + np.cos(np.pi * half)) / 2),
        (s.step(0.5, 3, factor=0.5), 0.5 * 0.5 ** (t // 3)),
        (s.polynomial(0.5, 8, end=0.125), 0.5 - 0.375 * half),
        (s.polynomial(0.5, 8, power=2), 0.5 * (1 - half) ** 2),
        (s.exponential(0.5, 0.75), 0.5 * 0.75**t),
        (s.warm_up(4, 0.5), 0.5 * np.minimum(t / 4, 1)),
        (s.warm_up(4, s.polynomial(0.5, 4), start=0.25), np.where(
            t < 4, 0.5 * (0.25 + 0.75 * t / 4), 0.5 * (1 - np.clip((t - 4) / 4, 0, 1)))),
        (lambda step: step * 0.25, 0.25 * t),
    ]:  # fmt: skip
        step = only_decay(tw.optim.sgd(schedule, weight_decay=1.0), trainable="b1")
        state, rates = first_state(step), []
        for _ in range(steps):
            before = state["b1"].astype(np.float64)
            _, state = interpreted(step, [batch(step)], state, precision="fp64")
            rates.append(1 - (state["b1"] / before).mean())
            state["b1"] = first_state(step)["b1"]
        np.testing.assert_allclose(rates, wanted, rtol=1e-6, atol=1e-7)


def test_groups_have_options_of_their_own():
    decay = tw.optim.group(tw.optim.vectors, weight_decay=0.0)
    slow = tw.optim.group("w2", lr=0.05)
    step = only_decay(tw.optim.sgd(0.5, weight_decay=0.5, groups=[decay, slow]))
    _, state = interpreted(step, [batch(step)])
    first = first_state(step)
    np.testing.assert_array_equal(state["b1"], first["b1"])
    np.testing.assert_allclose(state["w1"], 0.75 * first["w1"], rtol=1e-6)
    np.testing.assert_allclose(state["w2"], 0.975 * first["w2"], rtol=1e-6)


def test_own_optimizers_are_graph_code():
    def update(p, g, slots, options):
        speed = slots["speed"] * 0.5 + g
        return p - speed * options["lr"] / options["step"], {"speed": speed}

    own = tw.optim.Optimizer("own", update, {"lr": 0.25}, lambda shape, o: tw.optim.zeros(shape, "speed"))
    step = tw.train_step(mlp(), "mse", own, loss_scale=None)
    sgd = tw.train_step(mlp(), "mse", tw.optim.sgd(0.25), loss_scale=None)
    inputs = batch(step)
    np.testing.assert_array_equal(interpreted(step, [inputs])[1]["w1"], interpreted(sgd, [inputs])[1]["w1"])
    assert "w1.speed" in first_state(step)
    bad = tw.optim.Optimizer("own", lambda p, g, s, o: (g.sum(), {}), {"lr": 0.25})
    with pytest.raises(tw.InputError, match=r"expected the update of own to give f32\[5, 6\]"):
        tw.train_step(mlp(), "mse", bad)


def test_metrics_come_behind_the_loss():
    step = tw.train_step(mlp(), "cross_entropy", "adamw", metrics=[tw.losses.accuracy()])
    x, labels = batch(step)
    ((loss, share),), _ = interpreted(step, [(x, labels)])
    (logits,) = interpret(mlp(), x)
    assert loss.shape == ()
    assert share == np.mean(logits.argmax(1) == labels)


def test_the_network_of_a_step(compiled):
    step, made = compiled("digits")
    assert equal(step.inference().with_attrs(parameters=()), NETWORKS["digits"]().with_attrs(parameters=()))
    x, labels = batch(step)
    with executable_of(made.artifact, made.target) as exe:
        exe.network = made.network
        exe.step(x, labels)
        with exe.inference() as net:
            (first,) = net(x)
            exe.step(x, labels)
            (second,) = net(x)
        assert not np.array_equal(first, second)
        (wanted,) = interpret(step.inference(exe.state), x)
        np.testing.assert_allclose(second, wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(tw.InputError, match="expected a training step, which has a function @inference"):
        mlp().inference()


def test_a_run_that_is_resumed_is_the_same_bit_by_bit(compiled, tmp_path):
    step, made = compiled("digits")
    batches = [batch(step, seed) for seed in range(6)]
    with executable_of(made.artifact, made.target) as exe:
        for inputs in batches[:3]:
            exe.step(*inputs)
        exe.save_state(tmp_path / "half.safetensors")
        losses = [float(exe.step(*inputs)) for inputs in batches[3:]]
        final = dict(exe.state)
    with executable_of(exe.artifact, exe.target) as again:
        again.load_state(tmp_path / "half.safetensors")
        assert [float(again.step(*inputs)) for inputs in batches[3:]] == losses
        assert same_state(final, dict(again.state))


@pytest.mark.parametrize("target", ["reference", "opencl"])
def test_bad_batches_leave_the_state(target, tmp_path):
    step = tw.train_step(
        mlp(), tw.losses.cross_entropy(ignore_index=-100), tw.optim.sgd(0.1, momentum=0.9), on_nan="raise"
    )
    x, labels = batch(step)
    with tw.compile(step, target) as exe:
        exe.step(x, labels)
        before = dict(exe.state)
        labels[3] = 3
        with pytest.raises(
            tw.InputError, match=r"'labels': expected numbers of 0 to 2, or -100, got 3 at \[3\]"
        ):
            exe.step(x, labels)
        labels[3] = -100
        with pytest.raises(tw.InputError, match=r"expected a batch with a finite loss .* got the loss nan"):
            exe.step(x * np.nan, labels)
        with pytest.raises(tw.InputError, match="got the loss"):
            exe(x * np.float32(np.inf), labels)
        with pytest.raises(tw.InputError, match="expected"):
            exe.step(x[:4], labels)
        (tmp_path / "bad").write_bytes(b"no tensors")
        with pytest.raises(tw.InputError, match="expected a file of saved state"):
            exe.load_state(tmp_path / "bad")
        assert same_state(before, dict(exe.state))
        exe.step(x, labels, lr=0.0)
        assert exe.state["lr"] == 0
        np.testing.assert_array_equal(exe.state["w1"], before["w1"])


def test_a_rate_by_schedule_is_not_given_by_hand():
    step = tw.train_step(mlp(), "mse", tw.optim.sgd(tw.schedules.constant(0.1)))
    with pytest.raises(tw.InputError, match=r"expected no lr, .*: a schedule gives it"):
        tw.compile(step, "reference").step(*batch(step), lr=0.1)


def refused(sentence: str, network: Module | None = None, **options) -> None:
    options = {"loss": "mse", "optimizer": "adamw", **options}
    with pytest.raises(tw.InputError, match=sentence):
        tw.train_step(network or mlp(), **options)


def test_what_is_refused():
    refused("expected an optimizer among sgd, .*, got 'adamx' .did you mean", optimizer="adamx")
    refused("expected sgd with a learning rate", optimizer="sgd")
    refused("expected a positive clip_norm, got -1", clip_norm=-1)
    refused("expected loss_scale auto, dynamic, None or a positive number, got 0", loss_scale=0)
    refused("expected to accumulate 1 or more batches, got 0", accumulate=0)
    refused("expected on_nan ignore, skip or raise, got 'stop'", on_nan="stop")
    refused("expected names of constants to train, got 'w3'", trainable="w3")
    refused("expected a learning rate of 0 or more, or a schedule, got -0.1", optimizer=tw.optim.adam(-0.1))
    refused("expected the schedule of lr to give", optimizer=tw.optim.adam(lambda step: step.broadcast_to(2)))
    refused("expected 'targets' to be like f32.8, 3., got f32.8, 4.", targets={"targets": "f32[8, 4]"})
    refused("expected the type of target 't' as text such as i32.64., got 3", targets={"t": 3})
    refused(
        "expected a network that names its parameters",
        network=mlp(text=MLP.replace('["w1", "b1", "w2"]', "[]")),
    )
    refused("expected a network, got a step", network=tw.train_step(mlp(), "mse", "adamw"))
    with pytest.raises(
        tw.InputError, match=r"expected options of sgd .* in a group, got 'weight_decy' .did you"
    ):
        tw.optim.sgd(0.1, groups=[tw.optim.group("*", weight_decy=0.1)])
    with pytest.raises(tw.InputError, match="expected a momentum and no dampening with nesterov"):
        tw.optim.sgd(0.1, nesterov=True)
    with pytest.raises(tw.InputError, match=r"expected betas from 0 to less than 1, got 1.5"):
        tw.optim.adam(betas=(0.9, 1.5))
    with pytest.raises(TypeError, match="beta"):
        tw.optim.adam(beta=0.9)


def test_a_parameter_that_never_meets_the_loss_is_named():
    apart = MLP.replace("graph.bias_add(%0, %b1, axis = 1)", "graph.tanh(%0)")
    refused(
        "expected a loss that depends on all parameters, it does not on b1; leave", network=mlp(text=apart)
    )
    step = tw.train_step(mlp(text=apart), "mse", "adamw", unused="keep")
    _, state = interpreted(step, [batch(step)])
    np.testing.assert_array_equal(state["b1"], first_state(step)["b1"])


def test_an_op_without_a_derivative_on_the_way_is_named():
    text = MLP.replace("graph.tanh(%1) : f32[8, 5]", "graph.round(%1) : f32[8, 5]")
    refused("it does not on w1, b1", network=mlp(text=text))


def test_documentation_is_true(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[4] / "docs" / "training.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, space)
    assert capsys.readouterr().out.endswith("14.0 [2. 4. 6.]\n")
