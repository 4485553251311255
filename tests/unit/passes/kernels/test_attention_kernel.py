"""Attention in one kernel on tensor cores: results on the emulator against float64, resources, limits."""

import numpy as np
import pytest
from attention_samples import CHOSEN, attention, bert_block, masked
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import CTX, THREAD, source

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import Func, InputError, Module, Pairs, parse, walk
from tilewright.ir.types import storage_dtype
from tilewright.passes import Pipeline, pipelines, run_pipeline
from tilewright.passes.analysis.terms import Read
from tilewright.passes.kernels.attention.lowering import lower_attention
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.attention.view import attention_view, reach
from tilewright.passes.tensor.chains.attention_masks import with_computed_masks

pytestmark = pytest.mark.emulator
#: largest error of values up to 6: weights and results are rounded
ERRORS = {"f16": 4e-3, "bf16": 3e-2}


def lowered(kernel: Func, *plan: int) -> Func:
    """The thread-level kernel with a plan (rows, keys, warps, stages, ..), after the usual passes."""
    thread = lower_attention(with_template(kernel, "attention", AttentionParameters(*plan)))
    passes = THREAD.replace("thread-dce", "excess-precision, thread-dce")
    return run_pipeline(Module("m", (thread,)), Pipeline.parse(passes), CTX).funcs[0]


def drawn(kernel: Func) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(len(kernel.params))
    return {
        p.hint: (rng.standard_normal(p.tensor.shape) * 1.5).astype(storage_dtype(p.tensor.dtype))
        for p in kernel.params
    }


def emulated(kernel: Func, inputs: dict[str, np.ndarray], *plan: int) -> np.ndarray:
    (got,) = run(lowered(kernel, *plan), "emulator", list(inputs.values())).values()
    return got.astype(np.float64)


def softmax(scores: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True)


def by_heads(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Queries, keys and values as [heads, tokens, size]."""
    return [inputs[name].astype(np.float64).transpose(1, 0, 2) for name in "qkv"]


def plain(m: int, keys: int, width: int = 16, more: str = "", **how: str) -> Func:
    params = f"%q: f16[{m}, 2, 8], %k: f16[{keys}, 2, 8], %v: f16[{keys}, 2, {width}]"
    return attention(params + more, keys=keys, rows=f"h: 2, m: {m}", out=f"h: 2, m: {m}, e: {width}", **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("m", "keys", "width", "plan"),
    [
        (6, 10, 16, (16, 16, 1, 1)),  # one tile of everything, none of it full
        (40, 75, 24, (32, 32, 1, 2)),  # two tiles of rows per warp; tails of rows, keys; three tiles of width
        (33, 75, 40, (16, 32, 1, 3, 1, 2)),  # two sets of warps, each with a half of every tile
        (20, 70, 8, (64, 32, 2, 3, 1, 2)),  # all tiles of keys fit the ring at once; warps without rows
    ],
)
def test_tiles_and_tails(m, keys, width, plan):
    kernel = plain(m, keys, width)
    inputs = drawn(kernel)
    q, k, v = by_heads(inputs)
    want = softmax(q @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, *plan) - want).max() < ERRORS["f16"]


@pytest.mark.parametrize("kind", ["query", "f32", "chosen"])
def test_maps_of_scores(kind):
    """Scaled and masked by query and key, in float32 the other way round, and by choice of a tensor."""
    m, keys = 20, 40
    inputs_of = {
        "query": (f", %mask: f16[{m}, {keys}]", masked("f16", "m, k"), "%s1"),
        "f32": (f", %mask: f32[{keys}, {m}]", masked("f32", "k, m"), "%s1"),
        "chosen": (f", %seen: bool[{m}, {keys}]", SCALED_CHOSEN, "%s1"),
    }
    more, scores, last = inputs_of[kind]
    kernel = plain(m, keys, more=more, scores=scores, last=last)
    inputs = drawn(kernel)
    if kind == "chosen":
        inputs["seen"] = np.tril(np.ones((m, keys), bool), keys - m)
    q, k, v = by_heads(inputs)
    raw = q @ k.transpose(0, 2, 1) * 0.25
    mask = inputs["seen" if kind == "chosen" else "mask"]
    if kind == "chosen":
        raw = np.where(mask, raw, -1e30)
    else:
        raw = raw + (mask.T if kind == "f32" else mask).astype(np.float64)
    assert np.abs(emulated(kernel, inputs, 16, 16, 1, 2) - softmax(raw) @ v).max() < ERRORS["f16"]


SCALED_CHOSEN = masked("f16", "k").split("\n")[0] + "\n" + CHOSEN


def test_rows_where_all_or_the_first_keys_are_masked():
    """Not a number where the softmax is not defined, as without the kernel; tiles before a row's first key
    count nothing; a mask of large finite numbers gives the mean of all values.
    """
    m, keys = 18, 48
    kernel = plain(m, keys, more=f", %mask: f32[{m}, {keys}]", scores=masked("f32", "m, k"), last="%s1")
    inputs = drawn(kernel)
    mask = np.zeros((m, keys), np.float32)
    mask[3], mask[5, :40], mask[7] = -np.inf, -np.inf, -1e30
    inputs["mask"] = mask
    q, k, v = by_heads(inputs)
    raw = (q @ k.transpose(0, 2, 1) * 0.25).astype(np.float32) + mask
    want = softmax(raw) @ v
    got = emulated(kernel, inputs, 16, 32, 1, 2, 1, 2)
    assert np.isnan(want[:, 3]).all()
    assert np.isnan(got[:, 3]).all()
    rest = np.arange(m) != 3
    assert np.abs(got[:, rest] - want[:, rest]).max() < ERRORS["f16"]
    assert np.abs(got[:, 7] - v.mean(1)).max() < ERRORS["f16"]


def test_causal_by_positions():
    text = (
        "%s1 = tensor.map(%s0, {s}, reads = [[{at}]]) : {t} {{ ^(%a: f32) "
        '%i = scalar.index(at = m, dtype = "i64") : i64 %j = scalar.index(at = k, dtype = "i64") : i64 '
        "%b = scalar.le(%j, %i) : bool "
        '%n = scalar.const(value = -inf, dtype = "f32") : f32 %r = scalar.select(%b, %a, %n) : f32 '
        "scalar.yield(%r) }}"
    )
    kernel = plain(40, 40, scores=text, last="%s1")
    inputs = drawn(kernel)
    q, k, v = by_heads(inputs)
    raw = np.where(np.tril(np.ones((40, 40), bool)), q @ k.transpose(0, 2, 1), -np.inf)
    assert np.abs(emulated(kernel, inputs, 32, 16, 2, 2) - softmax(raw) @ v).max() < ERRORS["f16"]


def test_parts_of_one_array_and_bf16():
    """Queries, keys and values side by side in one array; tokens next to tokens in another one."""
    kernel = attention(
        "%q: f16[20, 3, 2, 8]", ("%q", "%q", "%q"), ("m, 0, h, c", "k, 1, h, c", "k, 2, h, e"),
        "h: 2, m: 20", "h: 2, m: 20, e: 8", 20,
    )  # fmt: skip
    kernel = bf16(kernel)
    inputs = drawn(kernel)
    q, k, v = (inputs["q"][:, i].astype(np.float64).transpose(1, 0, 2) for i in range(3))
    want = softmax(q @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, 16, 16, 1, 2) - want).max() < ERRORS["bf16"]


def bf16(kernel: Func) -> Func:
    text = tw.show(Module("m", (kernel,)))
    return parse(text.replace("f16", "bf16"))[kernel.name]


def test_factors_that_run_along_tokens():
    """Memory runs along queries and keys: tiles stay as they are, and are loaded transposed."""
    kernel = attention(
        "%q: f16[2, 8, 24], %k: f16[2, 8, 40], %v: f16[2, 16, 40]", at=("h, c, m", "h, c, k", "h, e, k"),
        rows="h: 2, m: 24", out="h: 2, m: 24, e: 16", keys=40,
    )  # fmt: skip
    inputs = drawn(kernel)
    q, k, v = (inputs[name].astype(np.float64).transpose(0, 2, 1) for name in "qkv")
    want = softmax(q @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, 32, 16, 1, 3) - want).max() < ERRORS["f16"]
    copies = [op for op in walk(lowered(kernel, 32, 16, 1, 3).body) if op.name == "thread.copy_async"]
    assert {op["lanes"] for op in copies} == {8}


def mapped(op: str, name: str, at: str, number: float) -> str:
    """A map of a factor as text: `op` of an element and a number."""
    names, sizes = (", ".join(d.split(": ")[i] for d in at.split(", ")) for i in (0, 1))
    return f"""%{name}s = tensor.map(%{name}, par = ({at}), reads = [[{names}]]) : f16[{sizes}] {{
      ^(%a: f16) %n = scalar.const(value = {number}, dtype = "f16") : f16 %r = scalar.{op}(%a, %n) : f16
      scalar.yield(%r) }}
    """


def test_queries_are_computed_and_unaligned_factors_copied_one_by_one():
    text = tw.show(Module("m", (attention(at=("m, h, c", "k, h, c", "k, h, e")),)))
    params = "%q: f16[6, 2, 8], %k: f16[10, 2, 9], %v: f16[10, 2, 17]"
    text = text.replace("%q: f16[6, 2, 8], %k: f16[10, 2, 8], %v: f16[10, 2, 16]", params)
    shifted = mapped("add", "q", "m: 6, h: 2, c: 8", 0.5)
    text = text.replace("%s0 =", shifted + "%s0 =", 1).replace(
        "tensor.contract(%q,", "tensor.contract(%qs,", 1
    )
    kernel = parse(text)["k"]
    view = attention_view(kernel)
    assert view is not None
    inputs = drawn(kernel)
    q, k, v = by_heads({"q": inputs["q"], "k": inputs["k"][..., :8], "v": inputs["v"][..., :16]})
    want = softmax((q + 0.5) @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, 16, 16, 1, 1) - want).max() < ERRORS["f16"]
    assert not any(op.name == "thread.copy_async" for op in walk(lowered(kernel, 16, 16, 1, 1).body))


BIASED = (
    "%s1 = tensor.map(%s0, %bias, {s}, reads = [[{at}], [h, m, k]]) : {t} {{ ^(%a: f32, %b: f16) "
    '%w = scalar.cast(%b, dtype = "f32") : f32 %r = scalar.add(%a, %w) : f32 scalar.yield(%r) }}'
)


@pytest.mark.parametrize(
    ("by", "biased", "kept"),
    [
        ((0.5, 0.25), False, (0.125, True)),
        ((0.5, 0.25), True, (1.0, True)),
        ((0.5, -0.25), False, (0.5, False)),
    ],
)
def test_constants_that_scale_queries_and_keys_scale_scores(by, biased, kept):
    """Where a bias is added, the product alone is scaled; a sign stays where it is."""
    params = "%q: f16[6, 2, 8], %k: f16[10, 2, 8], %v: f16[10, 2, 16], %bias: f16[2, 6, 10]"
    more = {"scores": BIASED, "last": "%s1"} if biased else {}
    text = tw.show(Module("m", (attention(params, at=("m, h, c", "k, h, c", "k, h, e"), **more),)))
    scaled = mapped("mul", "q", "m: 6, h: 2, c: 8", by[0]) + mapped("mul", "k", "k: 10, h: 2, c: 8", by[1])
    text = text.replace("%s0 =", scaled + "%s0 =", 1)
    kernel = parse(text.replace("tensor.contract(%q, %k,", "tensor.contract(%qs, %ks,", 1))["k"]
    view = attention_view(kernel)
    assert view is not None
    assert isinstance(view.q, Read)
    assert (view.scale, isinstance(view.k, Read)) == kept
    inputs = drawn(kernel)
    q, k, v = by_heads({name: inputs[name] for name in "qkv"})
    scores = by[0] * by[1] * q @ k.transpose(0, 2, 1) + biased * inputs["bias"].astype(np.float64)
    assert np.abs(emulated(kernel, inputs, 16, 16, 1, 1) - softmax(scores) @ v).max() < ERRORS["f16"]


def test_no_intermediate_leaves_registers():
    """Of BERT's shape nothing spills, and shared memory holds factors and the result alone."""
    kernel = bert_shape(12, 128, 64)
    text = source(lowered(kernel, 64, 64, 4, 2))
    used = compile_cuda(text, arch="sm_90a").kernels["k"]
    assert used.spill_bytes == 0
    assert used.registers <= 170
    limited = source(lowered(kernel, 64, 128, 4, 1, 3))
    assert "__launch_bounds__(128, 3)" in limited
    used_of_three = compile_cuda(limited, arch="sm_80").kernels["k"]
    assert used_of_three.spill_bytes == 0
    assert used_of_three.registers <= 168
    assert used.static_shared_bytes == (64 + 2 * 2 * 64) * 64 * 2
    assert all(name in text for name in ("cp.async", "ldmatrix", "mma.sync", "ex2.approx"))


def bert_shape(heads: int, tokens: int, size: int) -> Func:
    kernel = attention(
        f"%q: f16[{tokens}, {heads}, {size}], %k: f16[{tokens}, {heads}, {size}], "
        f"%v: f16[{tokens}, {heads}, {size}], %mask: f16[{tokens}, {tokens}]",
        rows=f"h: {heads}, m: {tokens}", out=f"h: {heads}, m: {tokens}, e: {size}", keys=tokens,
        scores=masked("f16", "m, k"), last="%s1",
    )  # fmt: skip
    return parse(tw.show(Module("m", (kernel,))).replace("red = (c: 8)", f"red = (c: {size})"))["k"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"rows": 24, "keys": 16, "warps": 1, "stages": 1}, "multiples of 16 per warp"),
        ({"rows": 16, "keys": 24, "warps": 1, "stages": 1}, "keys in multiples of 16"),
        ({"rows": 16, "keys": 48, "warps": 1, "stages": 1, "sets": 2}, "keys in multiples of 16 per set"),
        ({"rows": 16, "keys": 16, "warps": 1}, "stages"),
        ({"rows": 16, "keys": 16, "warps": 1, "stages": 9}, "at most 6 stages"),
    ],
)
def test_impossible_parameters_are_named(params, message):
    with pytest.raises(InputError, match=message):
        lower_attention(with_template(attention(), "attention", Pairs.of(params)))
    many = plain(16, 64)
    with pytest.raises(InputError, match="at least 2 stages"):
        lower_attention(with_template(many, "attention", AttentionParameters(16, 16, 1, 1)))


def test_a_block_of_bert(monkeypatch):
    """Through the whole compiler: heads are split and merged by reshape and transpose."""
    forced = "chain-kernels{only=contract-reduce+reduce-reduce, attention=always}"
    monkeypatch.setattr(pipelines, "TENSOR", pipelines.TENSOR.replace("chain-kernels", forced))
    block = bert_block(2, 24, 2, 16)
    given = np.random.default_rng(2).standard_normal(block.main.params[0].tensor.shape).astype(np.float32)
    (want,) = tw.interpret(block, given)
    with tw.compile(block, "emulator", precision="fp16", libraries=False, progress=False) as exe:
        assert "attention" in {k["template"] for k in exe.report()["kernels"]}
        got = np.asarray(exe(given), np.float64)
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()


@pytest.mark.parametrize("plan", [(32, 16, 2, 3), (64, 32, 2, 2, 1, 2)])
def test_tiles_that_no_query_sees_are_left_out(plan):
    """A causal mask is a choice by position; the same results, and of one parameter less."""
    m = 50
    more = f", %mask: f16[{m}, {m}]"
    kernel = plain(m, m, more=more, scores=masked("f16", "m, k"), last="%s1")
    inputs = drawn(kernel)
    mask = np.where(np.tri(m, dtype=bool), 0, -np.inf).astype(np.float16)
    shorter, arguments = with_computed_masks(
        kernel, kernel.params, lambda v: mask if v.hint == "mask" else None
    )
    assert [v.hint for v in arguments] == [p.hint for p in shorter.params] == ["q", "k", "v"]
    view = attention_view(shorter)
    assert view is not None
    assert reach(view) == 0
    inputs.pop("mask")
    q, k, v = by_heads(inputs)
    want = softmax(q @ k.transpose(0, 2, 1) * 0.25 + mask.astype(np.float64)) @ v
    assert np.abs(emulated(shorter, inputs, *plan) - want).max() < ERRORS["f16"]
    guards = [op for op in walk(lowered(shorter, *plan).body) if op.name == "thread.if"]
    assert any(inner.name == "thread.mma" for op in guards for inner in walk(op.body))


def test_masks_of_one_number_are_not_read():
    kernel = plain(6, 10, more=", %mask: f16[10]", scores=masked("f16", "k"), last="%s1")
    zeros, arguments = with_computed_masks(kernel, kernel.params, lambda v: np.zeros(10, np.float16))
    assert len(arguments) == 3
    view = attention_view(zeros)
    assert view is not None
    assert view.score_reads == ()
    assert reach(view) is None
    for other in (np.arange(10, dtype=np.float16), None):
        assert with_computed_masks(kernel, kernel.params, lambda v, o=other: o)[0] is kernel
