"""The copy engine on the emulator against NumPy: tiles, windows, runs, stores; and the text for sm_90a."""

from __future__ import annotations

import numpy as np
import pytest
from codegen_samples import checked, run

from tilewright.codegen import emit_cuda
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.ir import InputError, parse, verify
from tilewright.runtime.errors import DeviceError

emulated = pytest.mark.emulator


def kernel(source: str, item: str, fill: str, maps: str, *, swizzled: bool = True, align: int = 1024) -> str:
    """One item of `rows` x `columns` of f16 is brought to shared memory and written to %y as it is read."""
    rows, columns = map(int, item.split("x"))
    swizzle = "swizzled = true, " if swizzled else ""
    return f"""module @m {{
  thread.func @k(%x: {source}, %y: f16[{rows}, {columns}], maps = [{maps}], grid = [1, 1, 1], block = 256) {{
    %tile = thread.alloc({swizzle}align = {align}) : f16[1, {rows}, {columns}] in shared
    %ring = thread.channel(%tile, slots = 1) : u64[2, 1] in shared
    thread.role(name = "copy", registers = 40) {{
      thread.acquire(%ring, item = 0)
      {fill}
      thread.publish(%ring, item = 0)
    }}
    thread.role(name = "read", registers = 232) {{
      thread.receive(%ring, item = 0)
      thread.loop(var = i, extent = {rows * columns // 128}) {{
        %0 = thread.load(%tile, at = [0, (i * 128 + tid) // {columns}, (i * 128 + tid) % {columns}]) : f16
        thread.store(%0, %y, at = [(i * 128 + tid) // {columns}, (i * 128 + tid) % {columns}])
      }}
      thread.release(%ring, item = 0)
    }}
    thread.return()
  }}
}}
"""


def tile_fill(at: str, tile: str, more: str = "") -> str:
    return f"thread.copy_tile(%x, %tile, map = 0, at = [{at}], dst = [0, 0, 0], tile = [{tile}]{more})"


def tile_map(dims: str, strides: str, box: str, swizzle: int, more: str = "") -> str:
    return (
        f'map<parameter: 0, dtype: "f16", dims: [{dims}], strides: [{strides}], box: [{box}], '
        f"swizzle: {swizzle}{more}>"
    )


def halves(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float16)


def box_of(
    a: np.ndarray, start: tuple[int, ...], count: tuple[int, ...], step: tuple[int, ...]
) -> np.ndarray:
    out = np.zeros(count, a.dtype)
    for at in np.ndindex(*count):
        place = tuple(s + i * k for s, i, k in zip(start, at, step, strict=True))
        if all(0 <= p < n for p, n in zip(place, a.shape, strict=True)):
            out[at] = a[place]
    return out


TILES = {
    **{
        f"swizzle {s}": (
            kernel("f16[40, 200]", f"32x{s // 2 or 64}", tile_fill("{}, {}", f"32, {s // 2 or 64}"),
                   tile_map("40, 200", "400", f"32, {s // 2 or 64}", s), swizzled=s > 0), (32, s // 2 or 64))
        for s in (0, 32, 64, 128)
    },
}  # fmt: skip


@emulated
@pytest.mark.parametrize("swizzle", [0, 32, 64, 128])
def test_boxes_arrive_swizzled_and_zero_outside(swizzle):
    text, count = TILES[f"swizzle {swizzle}"]
    x = halves(40, 200)
    for start in ((16, 200 - count[1] // 2), (-3, -8)):
        source = checked(parse(text.replace("{}, {}", f"{start[0]}, {start[1]}")))
        got = run(source, "emulator", [x], seed=3)["y"]
        np.testing.assert_array_equal(got, box_of(x, start, count, (1, 1)))


@emulated
def test_steps_take_every_second_row_of_several():
    text = kernel("f16[4, 20, 64]", "16x64", tile_fill("1, 3, 0", "2, 8, 64", ', hint = "evict_last"'),
                  tile_map("4, 20, 64", "2560, 128", "2, 16, 64", 128, ", steps: [1, 2, 1]"))  # fmt: skip
    x = halves(4, 20, 64)
    got = run(checked(parse(text)), "emulator", [x])["y"]
    np.testing.assert_array_equal(got, box_of(x, (1, 3, 0), (2, 8, 64), (1, 2, 1)).reshape(16, 64))


@emulated
def test_rows_may_overlap_and_a_run_is_what_it_is():
    x = halves(8 * 40 + 32)
    text = kernel("f16[352]", "32x32", tile_fill("5, 0", "32, 32"), tile_map("41, 32", "16", "32, 32", 64))
    got = run(checked(parse(text)), "emulator", [x])["y"]
    np.testing.assert_array_equal(got, np.stack([x[8 * (5 + r) :][:32] for r in range(32)]))
    fill = "thread.copy_run(%x, %tile, src = [16], dst = [0, 0, 0], tile = [256])"
    got = run(checked(parse(kernel("f16[352]", "8x32", fill, "", swizzled=False))), "emulator", [x])["y"]
    np.testing.assert_array_equal(got, x[16:272].reshape(8, 32))


def windows(
    x: np.ndarray, pad: int, stride: int, dilation: int, taps: int, tap: tuple[int, int]
) -> np.ndarray:
    """[output pixels, channels] that a tap of a filter reads of an image [n, h, w, c]."""
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    reach = (taps - 1) * dilation
    rows, columns = (padded.shape[i] - reach for i in (1, 2))
    part = padded[:, tap[0] : tap[0] + rows : stride, tap[1] : tap[1] + columns : stride]
    return part.reshape(-1, x.shape[3])


CONVOLUTIONS = {
    "1x1": (0, 1, 1, 1),
    "3x3, padded": (1, 1, 1, 3),
    "3x3, stride 2": (1, 2, 1, 3),
    "3x3, dilation 2": (2, 1, 2, 3),
    "5x5, stride 3, no padding": (0, 3, 1, 5),
}


@emulated
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_windows_are_the_rows_of_a_convolution(case):
    pad, stride, dilation, taps = CONVOLUTIONS[case]
    x = halves(3, 9, 8, 72)
    height, width = ((n + 2 * pad - (taps - 1) * dilation - 1) // stride + 1 for n in x.shape[1:3])
    first, tap = min(width + 2, height * width - 1), (taps // 2 * dilation, (taps - 1) * dilation)
    image, row, column = first // (height * width), first // width % height, first % width
    upper = pad - (taps - 1) * dilation
    maps = (
        'map<parameter: 0, dtype: "f16", dims: [3, 9, 8, 72], strides: [10368, 1152, 144], '
        f"steps: [1, {stride}, {stride}, 1], swizzle: 128, lower: [-{pad}, -{pad}], "
        f"upper: [{upper}, {upper}], channels: 64, pixels: 64>"
    )
    at = f"{image}, {row * stride - pad}, {column * stride - pad}, 8"
    fill = (
        f"thread.copy_window(%x, %tile, map = 0, at = [{at}], offsets = [{tap[0]}, {tap[1]}], "
        "dst = [0, 0, 0], tile = [64, 64])"
    )
    got = run(checked(parse(kernel("f16[3, 9, 8, 72]", "64x64", fill, maps))), "emulator", [x])["y"]
    expected = windows(x, pad, stride, dilation, taps, tap)[first : first + 64, 8:]
    expected = np.concatenate([expected, np.zeros((64 - len(expected), 64), x.dtype)])
    np.testing.assert_array_equal(got, expected)


CLUSTER = """module @m {
  thread.func @k(%x: f16[256, 64], %y: f16[2, 4, 64, 64], maps = [map<parameter: 0, dtype: "f16",
      dims: [256, 64], strides: [128], box: [32, 64], swizzle: 128>], grid = [2, 1, 1], block = 256,
      cluster = [2, 1, 1]) {
    %tile = thread.alloc(swizzled = true, align = 1024) : f16[2, 64, 64] in shared
    %ring = thread.channel(%tile, slots = 2, scope = "cluster") : u64[2, 2] in shared
    thread.role(name = "copy", registers = 40) {
      thread.loop(var = i, extent = 4) {
        thread.acquire(%ring, item = i)
        thread.copy_tile(%x, %tile, map = 0, at = [i * 64 + rank * 32, 0], dst = [i % 2, rank * 32, 0],
          tile = [32, 64], to = [0, 1])
        thread.publish(%ring, item = i)
      }
    }
    thread.role(name = "read", registers = 232) {
      thread.loop(var = i, extent = 4) {
        thread.receive(%ring, item = i)
        thread.loop(var = e, extent = 32) {
          %0 = thread.load(%tile, at = [i % 2, e * 2 + tid // 64, tid % 64]) : f16
          thread.store(%0, %y, at = [bid.x, i, e * 2 + tid // 64, tid % 64])
        }
        thread.release(%ring, item = i)
      }
    }
    thread.return()
  }
}
"""


@emulated
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_blocks_of_a_cluster_bring_a_half_each_to_both(seed):
    x = halves(256, 64)
    got = run(checked(parse(CLUSTER)), "emulator", [x], seed=seed)["y"]
    np.testing.assert_array_equal(got, np.stack([x.reshape(4, 64, 64)] * 2))


@emulated
def test_blocks_of_a_cluster_may_copy_each_for_itself():
    with pytest.raises(InputError, match="expected the tile"):
        checked(parse(CLUSTER.replace("tile = [32, 64], to", "tile = [64, 64], to")))
    half = CLUSTER.replace(", to = [0, 1]", "").replace("[32, 64]", "[64, 64]").replace("rank * 32", "0")
    x = halves(256, 64)
    np.testing.assert_array_equal(run(checked(parse(half)), "emulator", [x])["y"][1], x.reshape(4, 64, 64))


@pytest.mark.parametrize(
    ("old", "new", "clause"),
    [
        ("to = [0, 1]", "to = [0, 2]", "expected ranks of a cluster of 2 blocks, got [0, 2]"),
        (
            'scope = "cluster"',
            'scope = "block"',
            "expected scope cluster of channel ring, which other",
        ),
    ],
)
def test_faults_between_blocks_are_refused(old, new, clause):
    assert old in CLUSTER
    with pytest.raises(InputError) as error:
        verify(parse(CLUSTER.replace(old, new)))
    assert clause in str(error.value)


STORE = """module @m {{
  thread.func @k(%x: f32[32, 32], %y: f32[40, 48], maps = [map<parameter: 1, dtype: "f32", dims: [40, 48],
      strides: [192], box: [32, 32], swizzle: 128>], grid = [1, 1, 1], block = 128) {{
    %tile = thread.alloc(swizzled = true, align = 1024) : f32[1, 32, 32] in shared
    thread.loop(var = i, extent = 15) {{
      thread.store(1.0, %y, at = [(i * 128 + tid) // 48, (i * 128 + tid) % 48])
    }}
    thread.loop(var = i, extent = 8) {{
      %0 = thread.load(%x, at = [(i * 128 + tid) // 32, tid % 32]) : f32
      thread.store(%0, %tile, at = [0, (i * 128 + tid) // 32, tid % 32])
    }}
    thread.fence_async_proxy()
    thread.barrier()
    thread.store_tile(%tile, %y, map = 0, src = [0, 0, 0], at = [16, 24], tile = [32, 32], add = {add})
    thread.bulk_commit()
    {wait}
    thread.return()
  }}
}}
"""


def storing(add: bool = False, wait: str = "thread.bulk_wait()") -> str:
    one = '%one = scalar.const(value = 1.0, dtype = "f32") : f32\n    thread.loop(var = i, extent = 15)'
    text = STORE.format(add=str(add).lower(), wait=wait)
    return text.replace("thread.loop(var = i, extent = 15)", one).replace("store(1.0", "store(%one")


@emulated
@pytest.mark.parametrize("add", [False, True])
def test_tiles_are_stored_or_added_within_the_parameter(add):
    x = np.random.default_rng(0).standard_normal((32, 32)).astype(np.float32)
    expected = np.ones((40, 48), np.float32)
    expected[16:40, 24:48] = x[:24, :24] + (1 if add else 0)
    got = run(checked(parse(storing(add))), "emulator", [x])["y"]
    np.testing.assert_array_equal(got, expected)


@emulated
def test_a_kernel_waits_for_the_reads_of_its_stores():
    with pytest.raises(DeviceError, match="ends while stores of tiles still read shared memory"):
        run(checked(parse(storing(wait=""))), "emulator", [np.ones((32, 32), np.float32)])


TEXT, _ = TILES["swizzle 128"]
TEXT = TEXT.replace("{}, {}", "0, 0")


@pytest.mark.parametrize(
    ("old", "new", "clause"),
    [
        ("map = 0", "map = 1", "expected a map among 1 of @k, got 1"),
        ("copy_tile(%x", "copy_tile(%y", "map 0 is of parameter x, which this op does not name"),
        ("at = [0, 0]", "at = [0, 0, 0]", "expected 2 coordinates, got 3"),
        ("tile = [32, 64]", "tile = [64, 64]", "expected the tile [32, 64] of map 0, got [64, 64]"),
        ("swizzled = true, ", "", "expected swizzled rows of 128 bytes, got rows of 128"),
        ("align = 1024", "align = 128", "expected a buffer aligned to 1024 bytes, got 128"),
        ("tile = [32, 64])", "tile = [32, 64], to = [1, 0])", "expected to as ascending ranks, got [1, 0]"),
        ("tile = [32, 64])", 'tile = [32, 64], hint = "x")', "expected hint to be one of"),
        ("1, 32, 64] in shared", "1, 32, 32] in shared", "expected rows of 64 elements as the map"),
    ],
)  # fmt: skip
def test_ops_that_are_not_what_their_map_says_are_refused(old, new, clause):
    assert old in TEXT
    with pytest.raises(InputError) as error:
        verify(parse(TEXT.replace(old, new)))
    assert clause in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "clause"),
    [
        ("dst = [0, 0, 0]", "dst = [0, 4, 0]", "begins with a row, at a multiple of 1024 bytes"),
        ("dst = [0, 0, 0]", "dst = [0, 0, 8]", "begins with a row, at a multiple of 1024 bytes"),
        (
            "dst = [0, 0, 0]",
            "dst = [0, 8, 0]",
            "expected a tile within a slot of 2048 elements, it ends at 2560",
        ),
        (
            "at = [0, 0]",
            "at = [3, 100]",
            "expected a last coordinate at a multiple of 16 bytes, got 100 of elements of 2",
        ),
    ],
)
def test_tiles_that_leave_their_place_are_refused(old, new, clause):
    with pytest.raises(InputError, match=clause):
        emit_cuda(parse(TEXT.replace(old, new)).funcs[0])


def test_the_text_of_every_op_compiles():
    """One kernel of each kind; multicast in a cluster of two, whose blocks bring a half each."""
    both = TEXT.replace("block = 256", "block = 256, cluster = [2, 1, 1]").replace("grid = [1,", "grid = [2,")
    both = both.replace("slots = 1)", 'slots = 1, scope = "cluster")')
    both = both.replace("1, 32, 64] in", "1, 64, 64] in").replace(
        "dst = [0, 0, 0]", "dst = [0, 32 * rank, 0]"
    )
    both = both.replace("tile = [32, 64])", 'tile = [32, 64], to = [0, 1], hint = "evict_first")')
    emitted = emit_cuda(parse(both).funcs[0])
    assert "x_map, &ring[0][0], 0, 0, 3, 0x12f0000000000000ull)" in emitted.source
    assert "tw_copy_tile_2d_to_hint(&tile[0][rank * 32][0]" in emitted.source
    assert emitted.cluster == (2, 1, 1)
    for text in (both, CLUSTER, storing(), storing(add=True)):
        source = emit_cuda(parse(text).funcs[0]).source
        assert not compile_cuda(source).log
