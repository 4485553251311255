"""Masks of attention as words of bits: read once for all pairs of a thread in them, drawn once for a word."""

from dataclasses import replace

import numpy as np
import pytest
from attention_training import (
    callee,
    emulated,
    exact,
    inputs_of,
    kernels_of,
    templates,
    thread_form,
    training_attention,
)
from sass import SERIALISED, machine_code, nvdisasm

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import Sym
from tilewright.passes.kernels.decision import decision_of, with_parameters
from tilewright.passes.kernels.writing.common_reads import distinct, run_of

ALWAYS = {
    "chain_kernels": "chain-kernels{attention=always}",
    "fuse_attention_backward": "fuse-attention-backward{when=always}",
    "pack_masks": "pack-masks{when=always}",
}
BYTES = {"pack_masks": "dce"}
#: parameters of roles, but for their tiles
ROLES = {"resident": 1, "engine": "wgmma"}


def with_plan(module, template, **plan):
    """The module with parameters of the kernels of a template."""
    return module.with_funcs(
        tuple(
            with_parameters(f, **plan) if (d := decision_of(f)) and d.template == template else f
            for f in module.funcs
        )
    )


def words_read(module):
    """The kernels of attention that read words of bits, by template."""
    return sorted(
        str(decision_of(f).template)
        for f in module.funcs
        if decision_of(f) and any(p.tensor.dtype == "u32" and len(p.tensor.shape) > 2 for p in f.params)
    )


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("how", "plans"),
    [
        # tiles that words of keys end within, a mask by position, rows that are cut
        (
            {"queries": 75, "keys": 96, "causal": True, "window": 20},
            {"attention": {"rows": 64, "keys": 48, "warps": 4, "stages": 2, "sets": 1, **ROLES},
             "pair_sums": {"rows": 64, "tile": 48, "warps": 4, "stages": 2, "held": False, "ahead": True,
                           "spread": False, **ROLES}},
        ),
        # two tiles of rows per warp; the forward kernel as the model has it
        (
            {"queries": 40, "keys": 64, "heads": (2,)},
            {"pair_sums": {"rows": 32, "tile": 32, "warps": 1, "stages": 2, "held": False, "ahead": False,
                           "spread": False, "resident": 1, "engine": "mma"}},
        ),
    ],
)  # fmt: skip
def test_attention_reads_words(how, plans):
    module = training_attention(dropout=True, **how)
    kernels = kernels_of(module, **ALWAYS)
    assert words_read(kernels) == ["attention", "pair_sums", "pair_sums"]
    for template, plan in plans.items():
        kernels = with_plan(kernels, template, **plan)
    inputs = inputs_of(module)
    pairs = zip(emulated(kernels, inputs), exact(module, inputs), strict=True)
    assert max(np.abs(a.astype(np.float64) - b).max() / np.abs(b).max() for a, b in pairs) < 2e-3


@pytest.mark.emulator
def test_the_bits_of_a_word_are_the_elements_of_the_mask():
    """As drawn: for each element of the mask the bit at its place."""
    module = training_attention(dropout=True, heads=(3,), queries=5, keys=64)
    drawn = []
    for more in (BYTES, {"pack_masks": "pack-masks{when=always}"}):
        kernels = kernels_of(module, **{**ALWAYS, **more})
        maker = next(op for op in kernels.main.body.ops if op.name == "tensor.call"
                     and op.result.tensor.dtype in ("bool", "u32"))  # fmt: skip
        main = kernels.main
        before = [op for op in main.body.ops[:-1] if op is maker or op.name != "tensor.call"]
        body = main.body.with_ops((*before, main.body.ops[-1].with_operands(maker.results)))
        alone = replace(main, body=body, result_types=(maker.result.type,))
        alone = alone.with_attrs(**{name: () for name, _ in main.attrs if name == "updates"})
        (array,) = emulated(kernels.with_funcs((alone, kernels[callee(maker)])), inputs_of(module))
        drawn.append(array)
    mask, words = drawn
    bits = words[..., None] >> np.arange(32, dtype=np.uint32) & 1
    assert words.dtype == np.uint32
    assert np.array_equal(bits.reshape(mask.shape).astype(bool), mask)
    assert 0.6 < mask.mean() < 0.9


def test_the_model_stores_words_where_three_kernels_read_a_mask(tmp_path):
    """For causal rows with dropout; no kernel spills, reads bytes, or waits in its products."""
    module = training_attention(heads=(8, 16), queries=512, keys=512, size=64, causal=True, dropout=True)
    kernels, bytes_ = kernels_of(module), kernels_of(module, **BYTES)
    assert words_read(kernels) == ["attention", "pair_sums", "pair_sums"]
    assert words_read(bytes_) == []
    assert seconds(kernels) < 0.8 * seconds(bytes_)
    for f in kernels.funcs:
        if (d := decision_of(f)) is None or d.template not in ("attention", "pair_sums"):
            continue
        binary = compile_cuda(emit_cuda(thread_form(kernels, f)).source, arch="sm_90a")
        assert not SERIALISED.search(binary.log)
        assert not any(k.spill_bytes for k in binary.kernels.values())
        if nvdisasm() is not None:
            code = machine_code(binary, tmp_path).instructions
            assert not any("LDG.E.U8" in x for x in code)


@pytest.mark.parametrize("op", ["random_mask", "random_bits"])
def test_words_that_are_drawn_as_words_are_not_put_together(op):
    module = training_attention(heads=(8, 16), queries=512, keys=512, size=64, dropout=True, draw=op)
    kernels = kernels_of(module)
    assert words_read(kernels) == ["attention", "pair_sums", "pair_sums"]
    maker = next(
        c for c in kernels.main.body.ops if c.name == "tensor.call" and c.result.tensor.dtype == "u32"
    )
    (drawn,) = kernels[callee(maker)].body.ops[:-1]
    chosen = [o for o in drawn.body.ops if o.name == "scalar.select"]
    assert len(chosen) == (0 if op == "random_mask" else 32)


def test_causal_weights_ask_only_where_pairs_end():
    """Whole tiles need no bounds of others, and constants of weights are in the results of the sums."""
    module = training_attention(heads=(8, 16), queries=512, keys=512, size=64, causal=True, dropout=True)
    kernels = kernels_of(module)
    for f in kernels.funcs:
        if (d := decision_of(f)) is None or d.template != "pair_sums":
            continue
        source = emit_cuda(thread_form(kernels, f)).source
        body = source[source.index("__global__") :]
        assert "< 512" not in body


def seconds(module):
    """Of all kernels, by the model."""
    found = {f.name: d.cost.estimate_s for f in module.funcs if (d := decision_of(f)) and d.cost}
    return sum(found[callee(op)] for op in module.main.body.ops if op.name == "tensor.call")


def test_masks_that_a_network_has_as_parameters_stay():
    module = training_attention(stored=True, heads=(4,), queries=64, keys=64)
    assert words_read(kernels_of(module, **ALWAYS)) == []
    assert templates(kernels_of(module, **ALWAYS))


SIZES = {"h": 2, "m": 96, "k": 64, "b": 5}


@pytest.mark.parametrize(
    ("at", "across", "extents"),
    [
        ((Sym("m"), Sym("k")), 1, (2, 8, 2, 2)),
        ((Sym("m"), Sym("k") // 32), 32, (2, 2, 2, 1)),
        ((Sym("m") // 32, Sym("k")), 1, (2, 8, 1, 2)),
        ((Sym("h"), Sym("m") // 8), 0, (2, 1, 2, 1)),
        ((Sym("k") // 4,), 4, (1, 8, 1, 2)),  # shorter than a tile of 8 columns
        ((Sym("k") // 24,), 1, (1, 8, 1, 2)),  # the last run would be cut
    ],
)
def test_elements_that_a_thread_has_in_common(at, across, extents):
    assert run_of(at, ("k",), SIZES) == across
    assert distinct(at, (2, 8, 2, 2), ("h", "m"), ("k",), SIZES, (64,)) == extents


def test_tiles_that_start_within_a_word():
    assert distinct((Sym("k") // 32,), (1, 6, 2, 2), ("m",), ("k",), SIZES, (48,)) == (1, 3, 1, 1)
