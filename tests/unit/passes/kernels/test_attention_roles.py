"""Attention by roles on warpgroups: results on the emulator against float64, bands of keys, machine code."""

import re

import numpy as np
import pytest
import sass
from attention_samples import attention
from attention_training import emulated, exact, inputs_of, kernels_of, thread_form, training_attention
from codegen_samples import run
from decision_samples import with_template
from matrix_samples import CTX, THREAD

import tilewright as tw
from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.costmodel import load_hardware
from tilewright.ir import Block, Func, InputError, Level, Module, TensorType, Value, parse, walk
from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.types import storage_dtype
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.analysis.position_masks import BandMask, band_mask
from tilewright.passes.kernels.attention.bands import Band, Steps, banded_score
from tilewright.passes.kernels.attention.choice import attention_points
from tilewright.passes.kernels.attention.lowering import lower_attention
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.attention.role_work import RoleWork
from tilewright.passes.kernels.attention.roles import by_rows
from tilewright.passes.kernels.attention.view import attention_view
from tilewright.passes.kernels.decision import decision_of, with_decision, with_parameters

pytestmark = pytest.mark.emulator
ALWAYS = {"chain_kernels": "chain-kernels{attention=always}"}
#: largest error over the largest value
RESULT, LSE = {"f16": 1e-3, "bf16": 8e-3}, 1e-6


def is_attention(func) -> bool:
    decision = decision_of(func)
    return decision is not None and decision.template == "attention"


def with_roles(module, rows: int, keys: int, **more):
    """The kernels of a graph, those of attention with warpgroups."""
    kernels = kernels_of(module, **ALWAYS)
    plan = {"rows": rows, "keys": keys, "warps": rows // 16, "engine": "wgmma", "sets": 1, "stages": 2}
    plan |= {"resident": 1} | more
    assert sum(map(is_attention, kernels.funcs)) == 1
    return kernels.with_funcs(
        tuple(with_parameters(f, **plan) if is_attention(f) else f for f in kernels.funcs)
    )


CASES = [
    # tails of rows, keys and width; a bias that is read; two panels, the second one not full
    ({"queries": 70, "keys": 70, "size": 80, "bias": True}, {"rows": 64, "keys": 32}),
    # grouped keys, and what dropout keeps
    (
        {"heads": (2, 2), "queries": 40, "keys": 40, "shared": 1, "causal": True, "dropout": True},
        {"rows": 64, "keys": 16},
    ),
    # a sliding window
    ({"queries": 128, "keys": 128, "causal": True, "window": 40}, {"rows": 64, "keys": 32, "teams": 1}),
    # blocks that stay take a long and a short tile in turn
    (
        {"heads": (3,), "queries": 256, "keys": 256, "causal": True, "dtype": "bf16"},
        {"rows": 64, "keys": 32, "blocks": 2, "stages": 3},
    ),
    # as many keys for all; teams; more slots than tiles
    ({"heads": (5,), "queries": 128, "keys": 32}, {"rows": 128, "keys": 32, "blocks": 3, "teams": 2}),
]


@pytest.mark.parametrize(("how", "plan"), CASES)
def test_results_and_logarithms(how, plan):
    module = training_attention(backward=False, **how)
    inputs = inputs_of(module)
    got = emulated(with_roles(module, **plan), inputs)
    result, lse = (
        np.abs(a.astype(np.float64) - b).max() / np.abs(b).max()
        for a, b in zip(got, exact(module, inputs), strict=True)
    )
    assert result < RESULT[how.get("dtype", "f16")]
    assert lse < LSE


@pytest.mark.parametrize("hidden", [-1e30, -3e38, -1e9])
def test_rows_whose_first_tile_is_hidden_by_a_number(hidden):
    """The last keys of a block of rows are met first; 32 of its rows see none of a tile of 32 keys."""
    w = GraphWriter()
    params = tuple(Value(TensorType("f16", (2, 128, 64)), name) for name in "qkv")
    q, k, v = map(w.tensor, params)
    places = w.op("arange", stop=128, dtype="i32")
    scores = q.matmul(k, transpose_b=True).cast("f32") * 0.125
    seen = (places <= places.reshape(128, 1)).where(scores, hidden)
    result = w.op("softmax", seen, axis=-1).cast("f16").matmul(v)
    w.builder.emit("graph.return", [result.value], types=())
    func = Func(Level.GRAPH, "main", Block(params, w.ops), (result.value.type,))
    module = Module("hidden", (func,), (), w.constants)
    (view,) = (attention_view(f) for f in kernels_of(module, **ALWAYS).funcs if is_attention(f))
    assert view is not None
    assert view.scale == (0.125 if hidden > -1e38 else 1.0)  # -3e38 times 8 is no number
    inputs = inputs_of(module)
    (got,) = emulated(with_roles(module, 64, 32), inputs)
    (expected,) = exact(module, inputs)
    assert np.abs(got.astype(np.float64) - expected).max() < RESULT["f16"] * np.abs(expected).max()


def test_a_causal_score_is_a_band():
    module = kernels_of(training_attention(backward=False, queries=40, keys=40, causal=True), **ALWAYS)
    (kernel,) = filter(is_attention, module.funcs)
    view = attention_view(kernel)
    assert view is not None
    score = banded_score(by_rows(view))
    assert score.band == Band(high=0)
    assert score.inner == view.product  # tiles inside of the band need no mask


def test_steps_meet_every_pair_of_the_band_and_mask_the_others():
    queries, keys = 100, 90
    row, key = np.arange(queries)[:, None], np.arange(keys)[None, :]
    for band in (Band(high=-3 + 3), Band(high=7), Band(low=-20, high=0), Band(low=-31), Band()):
        for rows, tile in ((64, 16), (32, 48), (64, 64)):
            steps = Steps(band, rows, tile, -(-queries // rows), -(-keys // tile))
            low, high = band.low, band.high
            seen = (key - row >= (low if low is not None else -keys - queries)) & (
                key - row <= (high if high is not None else keys + queries)
            )
            for r in range(steps.row_tiles):
                first, last = steps.first(r), steps.last(r)
                met = np.zeros(keys, bool)
                met[first * tile : (last + 1) * tile] = True
                own = seen[r * rows : (r + 1) * rows]
                assert not own[:, ~met].any()
                for step in range(steps.masked, last - first + 1):
                    t = last - step
                    inside = own[:, t * tile : (t + 1) * tile]
                    beyond = (
                        (key - row > high)[r * rows : (r + 1) * rows] if high is not None else ~own & False
                    )
                    assert not beyond[:, t * tile : (t + 1) * tile].any(), (band, rows, tile, r, step, inside)


def test_constant_masks_that_are_bands():
    apart = np.arange(7)[None, :] - np.arange(5)[:, None]
    for low, high in ((None, 0), (-2, 0), (-1, None), (None, 3)):
        seen = (apart >= (-9 if low is None else low)) & (apart <= (9 if high is None else high))
        mask = np.where(seen, 0.0, -np.inf)
        assert band_mask(mask[None]) == BandMask(0.0, -np.inf, low, high)
        odd = mask.copy()
        odd[2, 2] = -odd[2, 2] - 1  # a third number, or one in the wrong place
        assert band_mask(odd) is None
        assert band_mask(seen) == BandMask(True, False, low, high)
    assert band_mask(np.zeros((3, 3))) is None


def test_blocks_stay_only_where_they_can_count_items():
    module = training_attention(backward=False, queries=192, keys=192, causal=True)
    with pytest.raises(InputError, match="equally many tiles of keys"):
        emulated(with_roles(module, 64, 64, blocks=2), inputs_of(module))


@pytest.mark.parametrize(
    ("network", "stays"),
    [
        ({"heads": (384,), "queries": 128, "keys": 128, "size": 64, "dropout": True}, True),
        ({"heads": (8,), "queries": 512, "keys": 512, "size": 128, "stored": True}, False),
    ],
)
def test_what_the_model_admits_with_least_to_spare_is_not_serialised(network, stays):
    (kernel,) = filter(
        is_attention, kernels_of(training_attention(backward=False, **network), **ALWAYS).funcs
    )
    points = attention_points(kernel, load_hardware("H200"))
    roles = [p for p in points if isinstance(p.work, RoleWork) and bool(p.plan.blocks) == stays]
    tight = min(roles, key=lambda p: (p.work.registers - p.work.least_registers, p.estimate_s))
    assert tight.work.registers - tight.work.least_registers < 16
    lowered = thread_form(Module("m", (kernel,)), with_decision(kernel, parameters=tight.plan))
    binary = compile_cuda(emit_cuda(lowered).source, arch="sm_90a")
    assert not binary.serialised
    assert all(r.spill_bytes == 0 for r in binary.kernels.values())


@pytest.mark.skipif(sass.nvdisasm() is None, reason="needs nvdisasm")
def test_loops_multiply_without_waits_and_spills(tmp_path):
    module = with_roles(
        training_attention(backward=False, heads=(2,), queries=512, keys=512, size=128, causal=True), 128, 128
    )
    (kernel,) = filter(is_attention, module.funcs)
    binary = compile_cuda(emit_cuda(thread_form(module, kernel)).source, arch="sm_90a")
    code = sass.machine_code(binary, tmp_path)
    assert not sass.faults(code, binary.log)
    assert all(r.spill_bytes == 0 for r in binary.kernels.values())
    # a step takes its exponentials, one per score, before it waits for the mix
    (loop, *_) = sorted((x for x in code.loops if code.count(re.compile("MUFU"), x) > 64), key=len)
    places = {
        name: [i for i in sorted(loop) if name in code.instructions[i]]
        for name in ("MUFU", "WARPGROUP.DEPBAR")
    }
    assert places["MUFU"][-1] < places["WARPGROUP.DEPBAR"][-1]


ROTATED = """%{out} = tensor.map(%{x}, %{x}, %cos, %sin, par = (m: {n}, h: 2, c: 8),
    reads = [[m, h, c], [m, h, (c + 4) % 8], [m, c], [m, c]]) : f16[{n}, 2, 8]
    {{ ^(%{out}a: f16, %{out}b: f16, %{out}p: f32, %{out}q: f32)
    %{out}u = scalar.cast(%{out}a, dtype = "f32") : f32 %{out}w = scalar.cast(%{out}b, dtype = "f32") : f32
    %{out}z = scalar.mul(%{out}w, %{out}q) : f32 %{out}s = scalar.fma(%{out}u, %{out}p, %{out}z) : f32
    %{out}r = scalar.cast(%{out}s, dtype = "f16") : f16 scalar.yield(%{out}r) }}
    """


def test_queries_and_keys_are_rotated_by_the_role_that_copies():
    """Rotary embedding: what is computed is stored to the channel by threads, values come by the engine."""
    n = 70
    kernel = attention(
        f"%q: f16[{n}, 2, 8], %k: f16[{n}, 2, 8], %v: f16[{n}, 2, 16], %cos: f32[{n}, 8], %sin: f32[{n}, 8]",
        keys=n, rows=f"h: 2, m: {n}", out=f"h: 2, m: {n}, e: 16",
    )  # fmt: skip
    text = tw.show(Module("m", (kernel,)))
    (product,) = (line for line in text.splitlines() if "tensor.contract(%q, %k," in line)
    maps = ROTATED.format(out="qr", x="q", n=n) + ROTATED.format(out="kr", x="k", n=n)
    kernel = parse(text.replace(product, maps + product.replace("(%q, %k,", "(%qr, %kr,")))["k"]
    plan = AttentionParameters(64, 32, 4, 2, engine="wgmma")
    thread = run_pipeline(
        Module("m", (lower_attention(with_template(kernel, "attention", plan)),)), Pipeline.parse(THREAD), CTX
    ).funcs[0]
    filled = [op.name for op in walk(thread.body) if op.name in ("thread.copy_tile", "thread.copy_async")]
    assert filled == ["thread.copy_tile"] * 2  # values: of the steps, and of the last one
    rng = np.random.default_rng(3)
    inputs = {p.hint: rng.standard_normal(p.tensor.shape) for p in kernel.params}
    given = [inputs[p.hint].astype(storage_dtype(p.tensor.dtype)) for p in kernel.params]
    (got,) = run(thread, "emulator", given).values()
    q, k, v, cos, sin = (a.astype(np.float64) for a in given)
    q, k = ((a * cos[:, None] + np.roll(a, -4, -1) * sin[:, None]).transpose(1, 0, 2) for a in (q, k))
    scores = np.exp(q @ k.transpose(0, 2, 1))
    want = scores / scores.sum(-1, keepdims=True) @ v.transpose(1, 0, 2)
    assert np.abs(got - want).max() < 1e-2 * np.abs(want).max()
