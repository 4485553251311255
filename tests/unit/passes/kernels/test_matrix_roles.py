"""Products by roles on the emulator against float64: chunks through a channel, grids that stay, two teams."""

import re
from dataclasses import replace

import numpy as np
import pytest
from codegen_samples import device, plan_of, run
from matrix_samples import (
    CAST,
    CTX,
    assert_close,
    convolution,
    convolved,
    gemm,
    inputs_of,
    matrix_parameters,
    planned,
    product,
    source,
    view_of,
)

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.compilation.kernel_builds import emit_kernels
from tilewright.devices.targets import resolve_target
from tilewright.ir import Block, Func, InputError, Module, Op, WorkError, walk
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import matrix_space_of, shared_bytes
from tilewright.passes.thread.place_barriers import place_barriers
from tilewright.runtime.errors import DeviceError

pytestmark = pytest.mark.emulator


#: a role that turns the second factor
TURNS = {"turners": 4}


def by_roles(kernel: Func, *tiles: int, raster: int = 1, **more: int | str) -> Func:
    """The thread-level kernel with a role that copies."""
    plan = matrix_parameters(*tiles, view_of(kernel).channel, raster=raster, engine="wgmma")
    plan = replace(plan, **({"copiers": 4} | more))
    return planned(kernel, plan)


def emulated(
    kernel: Func, inputs: list[np.ndarray], *tiles: int, seed: int = 1, **more: int | str
) -> np.ndarray:
    (got,) = run(by_roles(kernel, *tiles, **more), "emulator", inputs, seed=seed).values()
    return got.astype(np.float64)


@pytest.mark.parametrize(
    ("dtype", "size", "tiles", "more"),
    [
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 3), {}),
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 2), {"blocks": 3}),  # 4 tiles: one block takes two
        ("bf16", (130, 72, 136), (128, 32, 32, 8, 1, 4), {"blocks": 2, "raster": 2}),  # two warpgroups
        ("f16", (70, 100, 72), (64, 32, 32, 4, 1, 3), {"blocks": 1, "teams": 2}),  # 8 tiles in turn
        ("f16", (70, 40, 100), (64, 32, 64, 4, 1, 4), {"blocks": 3, "teams": 2}),  # a team without work
        ("f16", (60, 16, 64), (64, 16, 64, 4, 1, 2), {}),  # one chunk
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 3), {"transport": "engine"}),
        ("bf16", (130, 72, 136), (128, 32, 32, 8, 1, 4), {"blocks": 2, "transport": "engine"}),
        ("f16", (70, 100, 72), (64, 32, 32, 4, 1, 3), {"blocks": 1, "teams": 2, "transport": "engine"}),
        ("f16", (70, 40, 200), (64, 32, 64, 4, 1, 2), {"transport": "engine", "cluster": 2, "raster": 2}),
        (
            "bf16",
            (250, 70, 104),
            (64, 32, 32, 4, 1, 3),
            {"blocks": 4, "teams": 2, "transport": "engine", "cluster": 2, "raster": 4},
        ),
        (
            "f16",
            (70, 40, 200),
            (64, 64, 64, 4, 1, 3),
            {"transport": "engine", "stores": "engine", "blocks": 2},
        ),
        ("bf16", (130, 200, 72), (128, 128, 32, 8, 1, 3), {"stores": "engine", "blocks": 1}),
        ("f16", (140, 104, 72), (128, 96, 32, 4, 1, 3), {"stores": "engine", "blocks": 1, "teams": 2}),
    ],
)
def test_products(dtype, size, tiles, more):
    kernel = gemm(dtype, *size)
    a, b = inputs_of(kernel)
    want = a.astype(np.float64) @ b.astype(np.float64).T
    assert_close(emulated(kernel, [a, b], *tiles, **more), want, dtype)


def rounded(factor: np.ndarray) -> np.ndarray:
    """A factor as the copy engine rounds it to TF32: ties to even; in float64."""
    bits = np.ascontiguousarray(factor).view(np.uint32)
    nearest = bits + np.uint32(0xFFF) + (bits >> np.uint32(13) & np.uint32(1))
    return (nearest & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)


@pytest.mark.parametrize(
    ("orders", "size", "tiles", "more"),
    [
        (("mc", "nc"), (70, 40, 200), (64, 32, 32, 4, 1, 3), {"blocks": 3}),
        (("cm", "nc"), (136, 72, 136), (128, 32, 32, 8, 1, 4), {"blocks": 2}),  # two warpgroups
        (("cm", "nc"), (136, 72, 136), (128, 32, 32, 4, 1, 4), {"blocks": 1, "teams": 2}),
        (("mc", "cn"), (72, 136, 72), (128, 32, 32, 4, 1, 3), {"blocks": 2, "exchanged": True}),
        (("cm", "nc"), (64, 40, 24), (64, 32, 32, 4, 1, 2), {"stores": "engine"}),  # a single chunk
        # the second factor is turned: ragged everywhere, two warpgroups, teams, more columns than panels
        (("cm", "cn"), (72, 40, 200), (64, 32, 32, 4, 1, 3), TURNS | {"blocks": 3}),
        (("cm", "cn"), (136, 72, 136), (128, 32, 32, 8, 1, 5), TURNS | {"blocks": 2}),
        (("cm", "cn"), (136, 104, 140), (128, 48, 32, 8, 1, 2), TURNS | {"blocks": 2}),
        (("cm", "cn"), (136, 100, 136), (128, 64, 32, 4, 1, 4), TURNS | {"blocks": 1, "teams": 2}),
        (("cm", "cn"), (64, 40, 24), (64, 32, 32, 4, 1, 3), TURNS | {"stores": "engine"}),
        (("cm", "cn"), (72, 136, 72), (128, 32, 32, 4, 1, 3), TURNS | {"blocks": 2, "exchanged": True}),
    ],
)
def test_factors_that_the_engine_rounds_to_tf32(orders, size, tiles, more):
    """Products of what the engine rounded, which tensor cores add up as float32."""
    kernel = gemm("f32", *size, *orders)
    a, b = inputs_of(kernel)
    first, second = (a.T if orders[0] == "cm" else a), (b.T if orders[1] == "cn" else b)
    got = emulated(kernel, [a, b], *tiles, transport="engine", **more)
    want = rounded(first) @ rounded(second).T
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-6 * np.abs(want).max())
    assert_close(got, first.astype(np.float64) @ second.astype(np.float64).T, "f32")


RELU = """%y = tensor.map(%p, %bias, par = (b: 2, m: 72, n: 68), reads = [[b, m, n], [n]]) : f32[2, 72, 68] {
  ^(%1: f32, %2: f32)
  %3 = scalar.add(%1, %2) : f32
  %4 = scalar.const(value = 0.0, dtype = "f32") : f32
  %5 = scalar.max(%3, %4) : f32
  scalar.yield(%5)
}"""


@pytest.mark.parametrize("more", [{"blocks": 3}, {"blocks": 2, "teams": 2}, {"parts": 2}])
def test_turned_factors_of_small_integers_are_multiplied_exactly(more):
    """Batches, ragged edges of all three extents, a bias and a maximum, in several orders of threads."""
    kernel = gemm("f32", 72, 68, 132, "cm", "cn", batch=2, epilogue=RELU, extra=["%bias: f32[68]"])
    rng = np.random.default_rng(5)
    a, b, bias = (rng.integers(-9, 10, p.tensor.shape).astype(np.float32) for p in kernel.params)
    func = by_roles(kernel, 64, 48, 32, 4, 1, 3, transport="engine", **TURNS, **more)
    want = np.maximum(a.swapaxes(1, 2).astype(np.float64) @ b.astype(np.float64) + bias, 0.0)
    for seed in (0, 3):
        (got,) = run(func, "emulator", [a, b, bias], seed=seed).values()
        np.testing.assert_array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("seed", [0, 2, 3])
def test_any_order_of_threads(seed):
    kernel = gemm("f16", 70, 40, 200)
    a, b = inputs_of(kernel)
    got = emulated(kernel, [a, b], 64, 32, 64, 4, 1, 2, blocks=1, teams=2, seed=seed)
    assert_close(got, a.astype(np.float64) @ b.astype(np.float64).T, "f16")


@pytest.mark.parametrize(
    ("shape", "tiles", "more"),
    [
        ((2, (7, 7), 24, 40, 3, 1, "NHWC"), (64, 64, 16, 4, 1, 3), {"blocks": 1}),
        ((1, (9, 8), 64, 16, 3, 2, "NHWC"), (64, 16, 64, 4, 1, 4), {}),
        ((2, (7, 7), 24, 40, 3, 1, "NHWC"), (64, 64, 16, 4, 1, 3), {"blocks": 1, "transport": "engine"}),
        ((3, (9, 8), 72, 16, 3, 2, "NHWC"), (64, 16, 64, 4, 1, 4), {"transport": "engine"}),
        ((3, (9, 8), 72, 16, 1, 2, "NHWC"), (64, 16, 64, 4, 1, 4), {"transport": "engine"}),
        ((2, (8, 9), 64, 16, 5, 1, "NHWC"), (128, 16, 64, 8, 1, 3), {"blocks": 1, "transport": "engine"}),
        ((2, (7, 7), 24, 40, 3, 1, "NHWC"), (64, 64, 16, 4, 1, 3), {"blocks": 1, "stores": "engine"}),
        ((2, (7, 7), 40, 24, 3, 1, "NHWC"), (64, 32, 32, 4, 1, 3), {"transport": "engine", "dtype": "f32"}),
    ],
)
def test_convolutions_with_epilogues(shape, tiles, more):
    dtype = more.get("dtype", "f16")
    kernel = convolution(dtype, *shape)
    inputs = inputs_of(kernel)
    plan = {key: value for key, value in more.items() if key != "dtype"}
    assert_close(emulated(kernel, inputs, *tiles, **plan), convolved(*inputs, *shape[4:]), dtype)


def test_filters_in_columns_by_windows_in_rows():
    """The gradient by an image: columns of turned filters, in registers, by windows."""
    kernel = product(
        "f32", ("2, 6, 7, 40", "3, 3, 40, 24"), "n: 2, y: 6, x: 7, c: 24", "r: 3, s: 3, k: 40",
        ("[n, y + r - 1, x + s - 1, k]", "[r, s, k, c]"), fill="[0.0, none]",
    )  # fmt: skip
    image, filters = (v.astype(np.float64) for v in inputs_of(kernel))
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1), (0, 0)))
    want = sum(padded[:, r : r + 6, s : s + 7] @ filters[r, s] for r in range(3) for s in range(3))
    func = by_roles(kernel, 64, 64, 32, 4, 1, 3, blocks=1, transport="engine", exchanged=True)
    assert "thread.copy_window" in [op.name for op in walk(func.body)]
    (got,) = run(func, "emulator", inputs_of(kernel)).values()
    assert_close(got.astype(np.float64), want, "f32")


def test_batches_and_results_in_columns():
    kernel = gemm("f16", 40, 70, 64, batch=2)
    a, b = inputs_of(kernel)
    want = a.astype(np.float64) @ b.astype(np.float64).transpose(0, 2, 1)
    assert_close(emulated(kernel, [a, b], 64, 64, 32, 4, 1, 3, blocks=3), want, "f16")
    turned = product("f16", ("40, 64", "72, 64"), "n: 72, m: 40", "c: 64", ("[m, c]", "[n, c]"))
    a, b = inputs_of(turned)
    want = b.astype(np.float64) @ a.astype(np.float64).T
    assert_close(emulated(turned, [a, b], 64, 64, 32, 4, 1, 3), want, "f16")


@pytest.mark.parametrize(("first", "second"), [("cm", "cn"), ("mc", "cn"), ("cm", "nc")])
def test_factors_in_either_order_by_the_copy_engine(first, second):
    kernel = gemm("f16", 72, 136, 200, first, second, batch=2)
    func = by_roles(kernel, 64, 128, 64, 4, 1, 3, blocks=3, transport="engine")
    names = [op.name for op in walk(func.body)]
    assert "thread.copy_tile" in names
    assert "thread.copy_async" not in names
    a, b = (v.astype(np.float64) for v in inputs_of(kernel))
    a, b = (a.swapaxes(1, 2) if first == "cm" else a), (b.swapaxes(1, 2) if second == "cn" else b)
    (got,) = run(func, "emulator", inputs_of(kernel)).values()
    assert_close(got.astype(np.float64), a @ b.swapaxes(1, 2), "f16")


@pytest.mark.parametrize(("channels", "brought"), [(24, True), (20, False)])
def test_the_engine_brings_what_it_can(channels, brought):
    """Windows and, with their taps as dimensions of a map, weights; threads copy rows off 16 bytes."""
    kernel = convolution("f16", 2, (7, 7), channels, 40, 3, 1, "NHWC")
    inputs = inputs_of(kernel)
    func = by_roles(kernel, 64, 64, 16, 4, 1, 3, blocks=1, transport="engine")
    names = [op.name for op in walk(func.body)]
    assert ("thread.copy_window" in names) is brought
    assert ("thread.copy_tile" in names) is brought
    assert ("thread.copy_async" in names) is not brought
    (got,) = run(func, "emulator", inputs).values()
    assert_close(got.astype(np.float64), convolved(*inputs, 3, 1, "NHWC"), "f16")


@pytest.mark.parametrize(("columns", "written"), [(40, True), (42, False)])
def test_the_engine_writes_results_whose_rows_it_can(columns, written):
    """Rows of 168 bytes are no multiple of 16: threads write them."""
    kernel = gemm("f16", 70, columns, 64)
    func = by_roles(kernel, 64, 32, 64, 4, 1, 3, stores="engine")
    names = [op.name for op in walk(func.body)]
    assert ("thread.store_tile" in names) is written
    assert ("thread.bulk_wait" in names) is written
    a, b = inputs_of(kernel)
    (got,) = run(func, "emulator", [a, b], seed=2).values()
    assert_close(got.astype(np.float64), a.astype(np.float64) @ b.astype(np.float64).T, "f16")


@pytest.mark.parametrize("columns", [96, 144, 240])
@pytest.mark.parametrize("par", ["m: 256, n: 720", "n: 720, m: 256"])
def test_the_model_counts_what_a_block_by_roles_has_in_shared_memory(columns, par):
    """Rows of results are as long as a multiple of the columns allows, in either order of the results."""
    kernel = product("bf16", ("512, 256", "512, 720"), par, "c: 512", ("[c, m]", "[c, n]"))
    func = by_roles(kernel, 128, columns, 64, 8, 1, 3, blocks=132, transport="engine")
    plan = replace(matrix_parameters(128, columns, 64, 8, 1, 3, engine="wgmma"), copiers=4, blocks=132)
    counted = shared_bytes(matrix_problem(kernel, view_of(kernel)), matrix_space_of(plan))[0]
    assert 0.95 * counted < emit_cuda(func).shared_bytes_dynamic <= counted


@pytest.mark.parametrize(
    ("tiles", "more"),
    [
        ((256, 128, 32, 8, 1, 3), {"blocks": 132}),
        ((128, 144, 32, 8, 1, 5), {"blocks": 132}),
        ((128, 128, 32, 8, 1, 3), {"parts": 2}),  # sums find no room where the first factor was
        ((128, 96, 32, 8, 1, 5), {"parts": 2}),
    ],
)
def test_the_model_counts_the_slots_of_a_factor_that_is_turned(tiles, more):
    kernel = gemm("f32", 256, 720, 2048, "cm", "cn")
    func = by_roles(kernel, *tiles, transport="engine", **TURNS, **more)
    plan = replace(matrix_parameters(*tiles, engine="wgmma"), copiers=4, turners=4, **more)
    counted = shared_bytes(matrix_problem(kernel, view_of(kernel)), matrix_space_of(plan))[0]
    assert 0.95 * counted < emit_cuda(func).shared_bytes_dynamic <= counted


def test_blocks_with_more_shared_memory_than_there_is_are_refused():
    """128 x 144 with five slots: 233,552 bytes where a block can have 232,448."""
    func = by_roles(
        gemm("bf16", 256, 288, 512, "cm", "cn"), 128, 144, 64, 8, 1, 5, blocks=132, transport="engine"
    )
    module = Module("m", (func,))
    with pytest.raises(
        WorkError, match=r"kernel 'k': expected at most 232448 bytes of shared memory for a block, got 233552"
    ):
        emit_kernels(module, resolve_target("cuda:sm_90a"))
    assert emit_kernels(module, resolve_target("emulator"))["k"].shared_bytes_dynamic == 233552


def test_computed_factors_are_stored_to_slots():
    kernel = product(
        "f16", ("24, 64", "40, 64"), "m: 24, n: 40", "c: 64", ("[m, c]", "[n, c]"),
        before=CAST, given="f32[24, 64]",
    )  # fmt: skip
    a, w = inputs_of(kernel)
    want = a.astype(np.float16).astype(np.float64) @ w.astype(np.float64).T
    assert_close(emulated(kernel, [a, w], 64, 32, 16, 4, 1, 3), want, "f16")


@pytest.mark.parametrize(
    ("tiles", "more"),
    [
        ((128, 256, 64, 8, 1, 4), {"blocks": 132}),
        ((128, 128, 64, 4, 1, 6), {"blocks": 132, "teams": 2, "transport": "engine"}),
    ],
)
def test_large_tiles_stay_in_registers(tiles, more):
    func = by_roles(gemm("bf16", 4096, 4096, 4096), *tiles, raster=8, **more)
    text = source(func)
    built = compile_cuda(text, arch="sm_90a")
    assert built.kernels["k"].spill_bytes == 0
    assert "serialized" not in built.log
    assert not any(op.name == "thread.barrier" for op in walk(func.body))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"copiers": 2}, "whole warpgroups"),
        ({"copiers": 0, "teams": 2}, "with a role that copies"),
        ({"transport": "engine", "cluster": 2}, "in multiples of clusters of 2, got 1, 1 and 0"),
        ({"teams": 2}, "a tile per block for each of 2 teams, got 1"),
    ],
)
def test_impossible_roles_are_refused(more, message):
    with pytest.raises(InputError, match=message):
        by_roles(gemm("f16", 64, 64, 64), 64, 32, 64, 4, 1, 3, **more)


@pytest.mark.parametrize(
    ("orders", "more", "message"),
    [
        (("cm", "nc"), {}, "the copy engine for TF32 factors in columns"),
        (("mc", "cn"), {"transport": "engine"}, "in rows of the channel for warpgroups"),
        (("cm", "cn"), {"transport": "engine"}, "4 warps that turn .* columns of the channel, got 0"),
        (("cm", "nc"), {"transport": "engine"} | TURNS, "0 warps that turn .* rows of the channel, got 4"),
        (("cm", "cn"), {"transport": "engine", "cluster": 2} | TURNS, "no clusters that share copies"),
    ],
)
def test_tf32_factors_in_columns_are_refused_where_nothing_takes_them(orders, more, message):
    with pytest.raises(InputError, match=message):
        by_roles(gemm("f32", 64, 64, 64, *orders), 64, 32, 32, 4, 1, 3, **more)


def faulty(old: str, new: str) -> np.ndarray:
    """The result of a product by roles on the emulator, after its C text was changed on purpose."""
    kernel = gemm("f16", 70, 40, 200)
    return changed(kernel, by_roles(kernel, 64, 32, 64, 4, 1, 2, blocks=1), old, new)


def changed(kernel: Func, func: Func, old: str, new: str) -> np.ndarray:
    emitted = emit_cuda(func)
    assert old in emitted.source
    plan = plan_of(replace(emitted, source=emitted.source.replace(old, new)))
    with device("emulator").load(plan, {}) as loaded:
        (got,) = loaded.run(inputs_of(kernel))
    return got


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tw_publish_shared();", "", "reads what thread \\d+ copied with no fence between"),
        ("tw_mbarrier_wait(&ring[1]", "tw_mbarrier_wait(&ring[0]", "stuck|arrivals"),
        ("tw_mbarrier_arrive_copies(&ring[0]", "tw_mbarrier_arrive(&ring[0]", ""),
        ("tw_mbarrier_arrive_warpgroup(&ring[1]", "(void)(&ring[1]", "stuck: role copy"),
    ],
    ids=["no fence", "another barrier", "copies not waited for", "a release dropped"],
)
def test_faults_of_emitted_text_are_found(old, new, message):
    if not message:
        assert np.isnan(faulty(old, new)).any()
        return
    with pytest.raises(DeviceError, match=message):
        faulty(old, new)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("tw_mbarrier_arrive_warp(&columns[1]", "(void)(&columns[1]", "stuck: role copy"),
        (
            "tw_mbarrier_arrive_warpgroup(&turned[1]",
            "(void)(&turned[1]",
            "role turn waits to acquire",
        ),
    ],
    ids=["columns kept", "rows kept"],
)
def test_faults_of_a_role_that_turns_are_found(old, new, message):
    kernel = gemm("f32", 72, 40, 200, "cm", "cn")
    func = by_roles(kernel, 64, 32, 32, 4, 1, 3, blocks=1, transport="engine", **TURNS)
    text = emit_cuda(func).source
    # the emulator sees no plain stores: the fence behind these stands in the text
    assert re.search(r"tw_publish_shared\(\);\s+tw_mbarrier_arrive\(&turned\[0\]", text)
    with pytest.raises(DeviceError, match=message):
        changed(kernel, func, old, new)


def without(block: Block, dropped: Op) -> Block:
    """The block without an op, wherever in it that stands."""
    ops = (
        op if op.body is None else replace(op, body=without(op.body, dropped))
        for op in block.ops
        if op is not dropped
    )
    return block.with_ops(tuple(ops))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("thread.receive", "role turn reads slot 0 of b_tiles, which holds no item of channel columns"),
        ("thread.acquire", "role turn fills slot 0 of b_rows, which holds no item of channel turned"),
    ],
)
def test_chunks_that_are_turned_without_waiting_are_refused(name, message):
    kernel = gemm("f32", 72, 40, 200, "cm", "cn")
    func = by_roles(kernel, 64, 32, 32, 4, 1, 3, blocks=1, transport="engine", **TURNS)
    turn = next(op for op in func.body.ops if op.get("name") == "turn")
    waits = next(op for op in walk(turn.body) if op.name == name)
    with pytest.raises(InputError, match=message):
        place_barriers.run(func.with_body(without(func.body, waits)), CTX)


def test_too_few_slots_are_refused():
    """A chunk is given back when the next one has been received, which takes a second slot."""
    with pytest.raises(InputError, match=r"role multiply waits to receive item 1 .* holds all 1 slots"):
        by_roles(gemm("f16", 70, 40, 200), 64, 32, 64, 4, 1, 1)
