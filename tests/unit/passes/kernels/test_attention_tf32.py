"""Attention in one kernel with factors that are rounded to TF32: results, resources, and who chooses it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_samples import as_tf32, attention, bert_block, masked
from cudnn_samples import FakeCudnn
from decision_samples import template, with_template
from library_samples import FakeLibraryDevice
from matrix_samples import source
from test_attention_choice import in_registers, kernels, sized
from test_attention_kernel import by_heads, drawn, emulated, lowered, plain, softmax
from test_library_attention import CudnnMeasurer, same_results

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.planning import library_kernels
from tilewright.costmodel import load_hardware
from tilewright.ir import Func, InputError, Module, TensorType, Value, parse, walk
from tilewright.ir.builder import Builder
from tilewright.ir.thread.shared_layout import swizzled_column
from tilewright.libraries.candidates import library_candidates
from tilewright.libraries.choice import LibraryChoice
from tilewright.libraries.fusion_groups import attention_groups
from tilewright.libraries.matching.attention import attentions_in
from tilewright.passes import pipelines
from tilewright.passes.kernels.attention.blocks import products_per_clk
from tilewright.passes.kernels.attention.choice import attention_points, attention_work, may_become_attention
from tilewright.passes.kernels.attention.parameters import AttentionParameters
from tilewright.passes.kernels.attention.view import attention_view, reach
from tilewright.passes.kernels.attention.work import bound_attention
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.weight_order import round_to_tf32
from tilewright.passes.tensor.chains.attention_masks import with_computed_masks
from tilewright.passes.tensor.chains.chain_kernels import choose_joined
from tilewright.runtime.libraries.cudnn import Cudnn
from tilewright.tuning.kernels.result_check import tolerance_of

__all__ = ["same_results"]

pytestmark = pytest.mark.emulator
H100 = load_hardware("cuda:sm_90a")
#: largest error of values up to 6 where factors are rounded as here: probabilities are rounded, too
ERROR = 2.5e-3


def rounded(inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Queries, keys and values by heads, as tensor cores take them."""
    return by_heads({n: round_to_tf32(a) for n, a in inputs.items() if n in "qkv"})


@pytest.mark.parametrize(
    ("m", "keys", "width", "plan"),
    [
        (6, 10, 16, (16, 16, 1, 1)),  # one tile of everything, none of it full
        (40, 75, 40, (32, 32, 1, 2)),  # two tiles of rows per warp; tails of rows, keys; five tiles of width
        (33, 75, 64, (16, 32, 1, 3, 1, 2)),  # two sets of warps, each with a half of every tile
    ],
)
def test_tiles_and_tails(m, keys, width, plan):
    kernel = as_tf32(plain(m, keys, width))
    inputs = drawn(kernel)
    q, k, v = rounded(inputs)
    want = softmax(q @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, *plan) - want).max() < ERROR
    loads = [op for op in walk(lowered(kernel, *plan).body) if op.name == "thread.load_fragment"]
    assert {op["rounding"] for op in loads} == {"tf32"}


def test_causal_masks_are_computed():
    m, plan = 50, (64, 32, 2, 2)
    text = {"scores": masked("f32", "m, k"), "last": "%s1"}
    kernel = as_tf32(plain(m, m, more=f", %mask: f32[{m}, {m}]", **text))
    inputs = drawn(kernel)
    mask = np.where(np.tri(m, dtype=bool), 0, -np.inf).astype(np.float32)
    shorter, _ = with_computed_masks(kernel, kernel.params, lambda v: mask if v.hint == "mask" else None)
    view = attention_view(shorter)
    assert view is not None
    assert reach(view) == 0
    inputs.pop("mask")
    q, k, v = rounded(inputs)
    want = softmax(q @ k.transpose(0, 2, 1) * 0.25 + mask) @ v
    assert np.abs(emulated(shorter, inputs, *plan) - want).max() < ERROR


def test_heads_of_one_product_and_a_mask_that_is_read():
    """Queries, keys and values side by side in one array, six heads of a batch."""
    kernel = as_tf32(attention(
        "%q: f16[20, 3, 6, 8], %mask: f16[20]", ("%q",) * 3, ("m, 0, h, c", "k, 1, h, c", "k, 2, h, e"),
        "h: 6, m: 20", "h: 6, m: 20, e: 8", 20, scores=masked("f32", "k"), last="%s1",
    ))  # fmt: skip
    inputs = drawn(kernel)
    q, k, v = (round_to_tf32(inputs["q"][:, i]).astype(np.float64).transpose(1, 0, 2) for i in range(3))
    want = softmax(q @ k.transpose(0, 2, 1) * 0.25 + inputs["mask"]) @ v
    assert np.abs(emulated(kernel, inputs, 16, 16, 1, 2) - want).max() < ERROR


def test_factors_that_run_along_tokens():
    """Memory runs along queries and keys: fragments are loaded element by element."""
    kernel = as_tf32(attention(
        "%q: f16[2, 8, 24], %k: f16[2, 8, 40], %v: f16[2, 16, 40]", at=("h, c, m", "h, c, k", "h, e, k"),
        rows="h: 2, m: 24", out="h: 2, m: 24, e: 16", keys=40,
    ))  # fmt: skip
    inputs = drawn(kernel)
    q, k, v = (round_to_tf32(inputs[name]).astype(np.float64).transpose(0, 2, 1) for name in "qkv")
    want = softmax(q @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, 32, 16, 1, 3) - want).max() < ERROR
    copies = [op for op in walk(lowered(kernel, 32, 16, 1, 3).body) if op.name == "thread.copy_async"]
    assert {op["lanes"] for op in copies} == {4}


def test_queries_are_computed():
    scaled = """%qs = tensor.map(%q, par = (m: 6, h: 2, c: 8), reads = [[m, h, c]]) : f32[6, 2, 8] {
      ^(%a: f32) %n = scalar.const(value = 0.3, dtype = "f32") : f32 %r = scalar.mul(%a, %n) : f32
      scalar.yield(%r) }
    %s0 ="""
    text = tw.show(Module("m", (as_tf32(attention()),))).replace(
        "tensor.contract(%q,", "tensor.contract(%qs,", 1
    )
    kernel = parse(text.replace("%s0 =", scaled, 1))["k"]
    assert attention_view(kernel) is not None
    inputs = drawn(kernel)
    q, k, v = rounded(inputs | {"q": inputs["q"] * np.float32(0.3)})
    want = softmax(q @ k.transpose(0, 2, 1)) @ v
    assert np.abs(emulated(kernel, inputs, 16, 16, 1, 1) - want).max() < ERROR


def bert64() -> Func:
    """Of BERT-base at batch 64, without a mask."""
    kernel = attention(
        "%q: f16[128, 768, 64], %k: f16[128, 768, 64], %v: f16[128, 768, 64]",
        rows="h: 768, m: 128", out="h: 768, m: 128, e: 64", keys=128,
    )  # fmt: skip
    text = tw.show(Module("m", (as_tf32(kernel),)))
    return parse(text.replace("red = (c: 8)", "red = (c: 64)"))["k"]


def test_bert_at_batch_64_spills_nothing():
    """The point of the model's choice, and one with registers for four blocks per multiprocessor."""
    points = attention_points(bert64(), H100)
    limited = next(p for p in points if p.plan.resident == 4)
    for p in (points[0], limited):
        plan = p.plan
        more = (plan.rows, plan.keys, plan.warps, plan.stages, plan.resident, plan.sets)
        text = source(lowered(bert64(), *more))
        used = compile_cuda(text, arch="sm_90a").kernels["k"]
        assert used.spill_bytes == 0
        assert used.static_shared_bytes == p.work.shared_bytes == (64 + 2 * 2 * 32) * 64 * 4
        assert used.registers <= (128 if plan.resident == 4 else 240)
    assert all(name in text for name in ("m16n8k8", "ldmatrix", "cp.async", "cvt.rna.tf32"))


def test_bert_is_faster_than_in_three_kernels():
    """Estimated at most at half of what three kernels take on an H100, and at more than with 16 bits."""
    chosen, narrow = choose_joined(bert64(), H100), choose_joined(sized(768, 128, 64), H100)
    assert chosen is not None
    assert narrow is not None
    assert template(chosen) == "attention"
    assert 1.5 * estimate_of(narrow) < estimate_of(chosen) < 60e-6
    for p in attention_points(bert64(), H100):
        assert bound_attention(p.work, H100).seconds <= p.estimate_s
        assert p.work.shared_bytes <= H100.smem_per_block_max_bytes
        assert p.work.copied == (16, 16, 16)


def test_rates_and_shared_memory_are_those_of_tf32():
    """Products take as much longer as tensor cores are slower; tiles are twice as large."""
    points = attention_points(sized(256, 1024, 64), H100)
    narrow = next(p for p in points if not p.plan.by_roles).work
    wide = replace(narrow, dtype="f32")
    slower = bound_attention(wide, H100).seconds / bound_attention(narrow, H100).seconds
    assert slower == pytest.approx(products_per_clk("f16", H100) / products_per_clk("f32", H100))
    views = [attention_view(f) for f in (sized(12, 128, 64), as_tf32(sized(12, 128, 64)))]
    works = [attention_work(v, AttentionParameters(64, 64, 4, 2), 0, None) for v in views if v is not None]
    assert [w.shared_bytes for w in works] == [40960, 81920]
    assert [w.multiplies for w in works] == [64, 128]
    assert attention_points(as_tf32(sized(12, 128, 64)), load_hardware("cuda:sm_70")) == []


def test_rounding_has_to_be_allowed():
    """Of float32 that keeps its precision nothing is recognised; both products must allow it."""
    kernel = as_tf32(attention())
    assert attention_view(kernel) is not None
    for number in (0, 1):
        contracts = [op for op in kernel.body.ops if op.name == "tensor.contract"]
        exact = contracts[number].with_attrs(factors="")
        ops = tuple(exact if op is contracts[number] else op for op in kernel.body.ops)
        assert attention_view(kernel.with_body(kernel.body.with_ops(ops))) is None
    rest = kernel.with_body(kernel.body.with_ops(kernel.body.ops[1:]))
    assert may_become_attention(rest)


def test_what_others_measure_allows_for_rounding():
    kernel = as_tf32(attention())
    assert tolerance_of(with_template(kernel, "attention")) > 10 * tolerance_of(kernel)


@pytest.fixture(scope="module")
def bert() -> Module:
    return kernels(bert_block(), "always", "tf32")


def test_libraries_are_asked_for_the_other_products(bert, same_results):
    """cuDNN has no attention of float32; what is compared beside it stays as it was."""
    (kernel,) = in_registers(bert)
    assert attentions_in(kernel) == []
    assert attention_groups(bert) == []
    device = FakeLibraryDevice(Cudnn(FakeCudnn()))
    assert list(library_candidates(kernel, H100, device, missing={})) == []
    choice = LibraryChoice(CudnnMeasurer(5e-5), progress=False)  # type: ignore[arg-type]
    chosen = choice.choose(bert)
    assert in_registers(chosen) == [kernel]
    assert {k.operation for k in library_kernels(chosen).values()} == {"norm", "convolution"}


def test_a_block_of_bert(monkeypatch):
    """Through the whole compiler, against results in float32."""
    forced = "chain-kernels{only=contract-reduce+reduce-reduce, attention=always}"
    monkeypatch.setattr(pipelines, "TENSOR", pipelines.TENSOR.replace("chain-kernels", forced))
    block = bert_block(2, 24, 2, 16)
    given = np.random.default_rng(2).standard_normal(block.main.params[0].tensor.shape).astype(np.float32)
    (want,) = tw.interpret(block, given)
    with tw.compile(block, "emulator", precision="tf32", libraries=False, progress=False) as exe:
        assert "attention" in {k["template"] for k in exe.report()["kernels"]}
        got = np.asarray(exe(given), np.float64)
    assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()


@pytest.mark.parametrize("pitch", [32, 64, 96])
def test_values_meet_all_banks(pitch):
    """Each of the two rows that a lane loads of a pair, in every tile of columns."""
    tile = TensorType("f32", (16, pitch))
    for first in range(0, pitch, 8):
        for row in (0, 1):
            places = ((2 * (lane % 4) + row, first + lane // 4) for lane in range(32))
            banks = {(r * pitch + swizzled_column(tile, r, c)) % 32 for r, c in places}
            assert len(banks) == 32


def test_wrong_fragments_are_named():
    b = Builder()
    sums, narrow, memory = (
        Value(TensorType(dtype, shape, space=space))
        for dtype, shape, space in (
            ("f32", (4, 16, 8), "frag"), ("f16", (16, 8), "frag"), ("f16", (16, 8), "shared"),
        )
    )  # fmt: skip
    wide = Value(TensorType("f32", (16, 16), space="frag"))
    with pytest.raises(InputError, match=r"expected tiles \[\.\.\., 16, 8\] in frag"):
        b.do("thread.pack_fragment", sums, wide, item=(0,), to=())
    with pytest.raises(InputError, match="pairs along the sum of factors of f32"):
        b.do("thread.load_fragment", narrow, memory, at=(0, 0), role="b", paired=True)
