"""Chains on tensor cores: every pattern with forced tiles against the interpreter, refusals, estimates."""

from dataclasses import replace

import chain_samples as samples
import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.lowering import lower
from tilewright.compilation.report_facts import chain_text
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Sizes, UnsupportedError, interpret, parse
from tilewright.passes.kernels.chain_tiles.choice import chain_tiles_variants, choose_chain_tiles
from tilewright.passes.kernels.chain_tiles.lowering import CopyOrder
from tilewright.passes.kernels.chain_tiles.parameters import ChainTilesParameters, warp_tiles
from tilewright.passes.kernels.chain_tiles.view import tiles_chain, unfit, walked_dim
from tilewright.passes.kernels.chain_tiles.work import (
    StageLoad,
    chain_tiles_work,
    estimate_chain_tiles,
    resident_blocks,
)
from tilewright.passes.kernels.decision import cost_of, estimate_of

H200 = resolve_target("cuda:sm_90a:h200").hardware

BLOCK = {"n": 1, "y": 6, "x": 6, "k": 24}
CASES = {
    "residual": (samples.inverted_residual(2, 12, 12, 24, 96, 24), BLOCK, 48, 4),
    "one step": (samples.inverted_residual(1, 12, 12, 24, 96, 24), BLOCK, 0, 4),
    "three steps": (
        samples.inverted_residual(1, 7, 7, 16, 144, 16), {"n": 1, "y": 7, "x": 7, "k": 16}, 48, 2
    ),
    "strided": (
        samples.inverted_residual(2, 13, 14, 24, 96, 40, stride=2, parts="ep"), BLOCK | {"k": 40}, 32, 4
    ),
    "wider windows": (samples.inverted_residual(1, 9, 10, 16, 64, 24, taps=5, parts="ep"), BLOCK, 16, 8),
    "tiles over edges": (
        samples.inverted_residual(2, 11, 13, 24, 64, 24), {"n": 2, "y": 4, "x": 8, "k": 24}, 32, 4
    ),
    "columns in tiles": (
        samples.inverted_residual(1, 8, 8, 32, 64, 48, parts="ep"), {"n": 1, "y": 8, "x": 4, "k": 16}, 32, 4
    ),
    "window and product": (samples.inverted_residual(2, 12, 12, 24, 96, 24, parts="p"), BLOCK, 48, 4),
    "product and window": (
        samples.inverted_residual(2, 12, 12, 24, 96, 24, parts="e"), BLOCK | {"k": 32}, 0, 4
    ),
    "strided product and window": (
        samples.inverted_residual(2, 13, 12, 24, 96, 24, stride=2, parts="e"), BLOCK | {"k": 48}, 0, 4
    ),
    "brain floats": (
        samples.inverted_residual(1, 8, 8, 16, 32, 16, dtype="bf16"), {"n": 1, "y": 4, "x": 8, "k": 16}, 16, 2
    ),
    "products": (samples.halves(48, 64, 96, 24), {"m": 32, "k": 24}, 32, 2),
    "bottleneck": (samples.bottleneck(2, 9, 10, 48, 32), {"n": 1, "y": 3, "x": 5, "k": 48}, 16, 4),
    "bottleneck, whole": (samples.bottleneck(1, 7, 7, 64, 32), {"n": 1, "y": 7, "x": 7, "k": 64}, 0, 8),
}  # fmt: skip


@pytest.mark.emulator
@pytest.mark.parametrize("name", list(CASES))
def test_results_in_the_emulator(name):
    kernel, block, part, warps = CASES[name]
    module = samples.chained_tiles(kernel, block, part, warps)
    limit = 1.2e-2 if name == "brain floats" else 2e-3
    assert samples.error(module, samples.called(kernel), "emulator") < limit


@pytest.mark.parametrize("name", list(CASES))
def test_cuda_text_compiles_without_spills(name):
    kernel, block, part, warps = CASES[name]
    lowered = lower(samples.chained_tiles(kernel, block, part, warps), resolve_target("cuda:sm_90a"))
    (source,) = lowered.sources.values()
    (resources,) = compile_cuda(source.source, arch="sm_90a").kernels.values()
    assert resources.spill_bytes == 0


def function(kernel: str):
    return parse("module @m { " + kernel + " }").funcs[0]


RESIDUAL = function(samples.inverted_residual(2, 12, 12, 24, 96, 24))


def test_only_a_part_of_the_walked_channels_is_kept_with_its_halo():
    tiles = tiles_chain(RESIDUAL, BLOCK, 48)
    assert walked_dim(RESIDUAL) == "c"
    extents = [[s.extent for s in kept.box] for kept in tiles.chain.kept.values()]
    assert sorted(extents) == [[1, 6, 6, 48], [1, 8, 8, 48]]
    assert all(kept.box[-1].terms == (("c", 1),) for kept in tiles.chain.kept.values())
    assert [tiles.walks(i) for i in range(3)] == [True, True, False]
    assert tiles.steps == 2


def test_stages_that_do_not_move_are_computed_once():
    tiles = tiles_chain(function(samples.bottleneck(2, 9, 10, 48, 32)), {"n": 1, "y": 3, "x": 5, "k": 48}, 16)
    assert [tiles.walks(i) for i in range(3)] == [False, True, False]
    dense = tiles.products[1]
    assert (dense.rows, dense.pixels) == (2 * 7 + 5, 5 * 7)  # rows of the halo between those of the tile
    assert dense.taps == {"r": 7, "s": 1}


def test_weights_are_asked_for_behind_their_last_use():
    residual = CopyOrder.of(tiles_chain(RESIDUAL, BLOCK, 48))
    assert residual.first == (0,)
    assert residual.refills == {1: ((0, 1),), 0: ((2, 0),)}
    assert residual.waits == {0: 0, 2: 1, 1: 0}
    once = CopyOrder.of(tiles_chain(RESIDUAL, BLOCK, 0))
    assert (once.first, once.refills) == ((0, 2), {})


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (samples.two_products(16, 32, 48, 24), "no factors of 16 bits"),
        (samples.inverted_residual(1, 8, 8, 20, 64, 16), "do not lie in vectors of 16 bytes"),
        (samples.attention(2, 16, 16, 16, 16), "where 2 to 3 are expected"),
        (samples.convolution_pool(3, 8, 12, 12), "no factors of 16 bits"),
        (samples.squeeze_excite(16, 8, 7, 7), "reductions other than products and windows"),
        (samples.halves(16, 12, 24, 16), "do not lie in vectors of 16 bytes"),
    ],
)
def test_reasons_of_refusals(kernel, words):
    assert words in unfit(function(kernel))
    assert words in choose_chain_tiles(function(kernel), H200)


@pytest.mark.parametrize(
    ("kernel", "block", "part", "words"),
    [
        (samples.inverted_residual(2, 12, 12, 24, 96, 24), BLOCK, 40, "do not divide 96"),
        (samples.inverted_residual(2, 12, 12, 24, 96, 24), BLOCK, 24, "multiples of 16"),
        (samples.inverted_residual(2, 12, 12, 24, 96, 24), BLOCK | {"k": 12}, 48, "whole tiles of 8 columns"),
        (samples.inverted_residual(2, 12, 12, 24, 96, 24, parts="e"), BLOCK, 16, "nothing can be walked"),
        (samples.halves(48, 64, 96, 24), {"m": 32, "k": 24}, 36, "do not divide"),
    ],
)
def test_tiles_that_are_not_legal(kernel, block, part, words):
    with pytest.raises(UnsupportedError, match=words):
        tiles_chain(function(kernel), block, part)


def test_dense_windows_that_step_are_refused():
    text = samples.bottleneck(1, 8, 8, 32, 32).replace("y + r - 1, x + s - 1", "y * 2 + r - 1, x * 2 + s - 1")
    with pytest.raises(UnsupportedError, match="step over rows"):
        tiles_chain(function(text), {"n": 1, "y": 4, "x": 4, "k": 32}, 16)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"block": {"n": 1}}, "a tile for each of"),
        ({"warps": 64}, "at most 1024 threads"),
        ({"part": 40}, "do not divide"),
    ],
)
def test_impossible_parameters_are_named(change, words):
    given = {"block": BLOCK, "part": 48, "warps": 4, **change}
    with pytest.raises(InputError, match=words):
        lower(
            samples.chained_tiles(samples.inverted_residual(2, 12, 12, 24, 96, 24), **given),
            resolve_target("cuda:sm_90a"),
        )


@pytest.mark.parametrize("warps", [1, 4, 8, 16])
@pytest.mark.parametrize("shape", [(1, 1), (13, 3), (16, 6), (4, 20), (7, 13)])
def test_warps_share_all_tiles(shape, warps):
    t = warp_tiles(*shape, warps)
    assert t.warps_m * t.warps_n == warps
    assert t.warps_m * t.tiles_m >= shape[0]
    assert t.warps_n * t.tiles_n >= shape[1]


@pytest.mark.parametrize("parts", ["epr", "ep", "p", "e"])
def test_estimates_lie_above_bounds_and_grow_with_the_work(parts):
    small, large = (
        choose_chain_tiles(function(samples.inverted_residual(n, 28, 28, 32, 192, 32, parts=parts)), H200)
        for n in (8, 64)
    )
    for chosen in (small, large):
        cost = cost_of(chosen)
        assert cost.bound_s <= cost.estimate_s
        assert cost.warm_bound_s <= cost.bound_s
    assert estimate_of(large) > 2 * estimate_of(small)
    assert all(estimate_of(v) >= estimate_of(large) for v in chain_tiles_variants(large, H200))


def test_more_of_anything_takes_longer():
    plan = ChainTilesParameters(Sizes(BLOCK), 48, 4)
    work = chain_tiles_work(tiles_chain(RESIDUAL, BLOCK, 48), plan, H200)
    least = estimate_chain_tiles(work, H200)
    heavy = StageLoad(1e4, 1e4, 1e4, 1e4)
    for more in (
        {"blocks": 100 * work.blocks}, {"steps": 10 * work.steps}, {"end": heavy}, {"before": (heavy,)},
        {"each": (*work.each, heavy)}, {"row_bytes": 1e7}, {"compulsory_bytes": 10**9},
    ):  # fmt: skip
        assert estimate_chain_tiles(replace(work, **more), H200) > least
    assert not resident_blocks(replace(work, shared_bytes=233000), H200)
    assert estimate_chain_tiles(replace(work, registers=300), H200) == float("inf")


def compiled(kernel: str, when: str, target: str = "emulator", weights: tuple[str, ...] = ()):
    """The executable of a program whose kernels are cut by the passes, and the program."""
    module = samples.flat(kernel)
    if weights:
        module = samples.with_constants(module, weights)
    passes = [f"tensor: chain-tiles{{when={when}}}"]
    return tw.compile(module, target, passes=passes, progress=False), module


@pytest.mark.emulator
def test_the_pass_joins_three_kernels_and_says_so():
    kernel = samples.inverted_residual(2, 9, 9, 16, 64, 16)
    exe, module = compiled(kernel, "always")
    with exe:
        assert len(exe.plan.launches) == 1
        facts = exe.artifact.facts["chains"]
        given = samples.inputs_of(module)
        got = np.asarray(exe(*given)[0], np.float64)
    (taken,) = (f for f in facts if f["taken"])
    assert taken["kernels"].count(">") == 2
    assert "one kernel" in chain_text(facts)
    (wanted,) = interpret(module, *given)
    assert np.abs(got - wanted).max() < 2e-3 * np.abs(wanted).max()


@pytest.mark.emulator
def test_constant_weights_of_dense_windows_are_packed():
    kernel = samples.bottleneck(1, 6, 7, 32, 16).replace("f16[3, 3, 16, 16]", "f16[16, 16, 3, 3]")
    kernel = kernel.replace("[r, s, k, c]", "[k, c, r, s]")
    exe, module = compiled(kernel, "always", weights=("w2",))
    with exe:
        assert len(exe.plan.launches) == 1
        given = samples.inputs_of(module)
        got = np.asarray(exe(*given)[0], np.float64)
    (wanted,) = interpret(module, *given)
    assert np.abs(got - wanted).max() < 2e-3 * np.abs(wanted).max()


def test_the_model_joins_by_default_unless_it_is_not_wanted():
    kernel = samples.inverted_residual(2, 9, 9, 16, 64, 16)
    exe, module = compiled(kernel, "never", "cuda:sm_90a")
    assert len(exe.plan.launches) == 3
    assert len(tw.compile(module, "cuda:sm_90a", progress=False).plan.launches) < 3
