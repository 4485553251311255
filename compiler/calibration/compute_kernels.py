"""Micro-benchmarks of arithmetic and of what kernels cost to start, as thread-level functions."""

from __future__ import annotations

from tilewright.calibration.kernel_parts import BLOCK, TID, array, kernel, repeat
from tilewright.ir import Builder, Func, TensorType, Value
from tilewright.ir.hardware_facts import MMA_K_BYTES, MMA_M, MMA_N, WARP

#: what the multiply-add chains start from, multiply by and add: they stay finite for any length
START, FACTOR, TERM = 1.0, 0.5, 1.0
_FRAGMENT = 0.5
#: iterations of a chain in one piece of code: nothing hides the end of a loop from a single warp
LONG_UNROLL = 64


def empty(*, waits: bool, releases: bool = False) -> Func:
    """A kernel that does nothing.

    waits: it may start while the kernels before it still run. releases: it lets those after it start at once.
    """
    b = Builder()
    if releases:
        b.do("thread.release_dependents")
    if waits:
        b.do("thread.wait_for_launches")
    return kernel("empty", b, (array("y", 1),), blocks=1, threads=WARP)


def groups(count: int) -> Func:
    """y[i] = i by work-groups of one work-item."""
    y, b = array("y", count), Builder()
    b.do("thread.store", b.index(BLOCK, "f32"), y, at=(BLOCK,))
    return kernel("groups", b, (y,), blocks=count, threads=1)


def factors() -> Func:
    """factors = [factor, term] of the chains of `multiply_add`."""
    y, b = array("factors", 2), Builder()
    for i, value in enumerate((FACTOR, TERM)):
        b.do("thread.store", b.const(value, "f32"), y, at=(i,), mask=((TID, 0, 1),))
    return kernel("fill_factors", b, (y,), blocks=1, threads=WARP)


def multiply_add(chains: int, steps: int, lanes: int, *, blocks: int, threads: int) -> Func:
    """v = v * factor + term over and over, in `chains` independent vectors of `lanes` per thread.

    sums: what they add up to, one vector per thread. 2 chains lanes steps operations per thread.
    """
    x, y, b = array("factors", 2), array("sums", blocks * threads * lanes), Builder()
    factor, term = (
        b.value("scalar.broadcast", b.value("thread.load", x, at=(i,)), lanes=lanes) for i in (0, 1)
    )
    starts = [
        b.value("scalar.broadcast", b.const(START + i, "f32"), lanes=lanes, hint="chain")
        for i in range(chains)
    ]

    def step(inner: Builder, sums: tuple[Value, ...]) -> list[Value]:
        return [inner.value("scalar.fma", h, factor, term) for h in sums]

    sums = repeat(b, "i", steps, starts, step, unroll=16 if chains > 1 else LONG_UNROLL)
    whole = sums[0]
    for v in sums[1:]:
        whole = b.value("scalar.add", whole, v)
    b.do("thread.store", whole, y, at=((BLOCK * threads + TID) * lanes,))
    return kernel("multiply_add", b, (x, y), blocks=blocks, threads=threads)


def matrix_depth(dtype: str) -> int:
    """Elements that one tensor-core instruction sums over."""
    return MMA_K_BYTES // (4 if dtype == "f32" else 2)


def matrix(dtype: str, tiles: int, steps: int, *, blocks: int, threads: int) -> Func:
    """c += a @ b in the tensor cores: every warp sums into `tiles` tiles in turn, `steps` times.

    products: rows of 16 per warp, columns of 8 per tile. 2 * 16 * 8 * depth operations per instruction.
    """
    depth, warps = matrix_depth(dtype), threads // WARP
    y = Value(TensorType("f32", (blocks * warps * MMA_M, tiles * MMA_N)), "products")
    b = Builder()
    shapes = {
        "a": (dtype, (MMA_M, depth)),
        "b": (dtype, (depth, MMA_N)),
        "c": ("f32", (tiles, MMA_M, MMA_N)),
    }
    fragments = {
        name: b.emit("thread.alloc", (), {}, types=[TensorType(t, shape, "frag")], hint=name)[0]
        for name, (t, shape) in shapes.items()
    }
    for name, value in (("a", _FRAGMENT), ("b", _FRAGMENT), ("c", 0.0)):
        b.do("thread.fill_fragment", fragments[name], value=value)
    with b.loop("i", steps, unroll=4 if tiles > 1 else LONG_UNROLL) as inner:
        for tile in range(tiles):
            inner.do(
                "thread.mma",
                *fragments.values(),
                shape=(MMA_M, MMA_N, depth),
                c_item=(tile,),
                rounded=dtype == "f32",
            )
        inner.do("thread.yield")
    row = (BLOCK * warps + TID // WARP) * MMA_M
    for tile in range(tiles):
        b.do("thread.store_fragment", fragments["c"], y, at=(row, tile * MMA_N), item=(tile,))
    return kernel(f"matrix_{dtype}", b, (y,), blocks=blocks, threads=threads)


def barriers(steps: int, threads: int) -> Func:
    """`steps` barriers of one block, one after the other."""
    y, b = array("y", threads), Builder()
    with b.loop("i", steps, unroll=LONG_UNROLL) as inner:
        inner.do("thread.barrier")
        inner.do("thread.yield")
    b.do("thread.store", b.index(TID, "f32"), y, at=(TID,))
    return kernel("barriers", b, (y,), blocks=1, threads=threads)
