"""Micro-benchmarks of memory as thread-level functions: copies, reads, chains of dependent loads."""

from __future__ import annotations

from tilewright.calibration.kernel_parts import (
    BLOCK,
    TID,
    VECTOR,
    array,
    kernel,
    load_vector,
    repeat,
    total,
    zero_vector,
)
from tilewright.ir import Builder, Func, TensorType, Value
from tilewright.ir.expr import Sym
from tilewright.ir.hardware_facts import WARP

#: vectors of one thread that are on their way together
AT_ONCE = 4
#: values that arrays are filled with: small whole numbers, whose sums are exact
PERIOD = 8
#: blocks skipped from one pass over a cached array to the next, so that no multiprocessor meets its own data
STRIDE = 37
_FILL_THREADS = 256
#: loads of a chain in one piece of code: nothing hides the end of a loop from a single warp
_CHAIN_UNROLL = 32


def fill(name: str, words: int) -> Func:
    """name[i] = i mod 8 in f32; words: a multiple of 256."""
    y, b = array(name, words), Builder()
    place = BLOCK * _FILL_THREADS + TID
    b.do("thread.store", b.index(place % PERIOD, "f32"), y, at=(place,))
    blocks = words // _FILL_THREADS
    return kernel(f"fill_{name}", b, (y,), blocks=blocks, threads=_FILL_THREADS)


def ring(name: str, words: int, stride: int) -> Func:
    """name[i] = (i + stride) mod words in i32: a chain of places; words: a multiple of 256."""
    y, b = array(name, words, "i32"), Builder()
    place = BLOCK * _FILL_THREADS + TID
    b.do("thread.store", b.index((place + stride) % words), y, at=(place,))
    blocks = words // _FILL_THREADS
    return kernel(f"fill_{name}", b, (y,), blocks=blocks, threads=_FILL_THREADS)


def start_chain(name: str) -> Func:
    """name[0] = 0 in i32."""
    y, b = array(name, 1, "i32"), Builder()
    b.do("thread.store", b.const(0, "i32"), y, at=(0,), mask=((TID, 0, 1),))
    return kernel(f"start_{name}", b, (y,), blocks=1, threads=WARP)


def copy(words: int, threads: int) -> Func:
    """y = x in 16-byte vectors, four per thread on their way at a time.

    words: f32, a multiple of 16 threads.
    """
    x, y, b = array("x", words), array("y", words), Builder()
    places = [(BLOCK * AT_ONCE + i) * (threads * VECTOR) + TID * VECTOR for i in range(AT_ONCE)]
    values = [load_vector(b, x, at) for at in places]
    for value, at in zip(values, places, strict=True):
        b.do("thread.store", value, y, at=(at,))
    return kernel("copy", b, (x, y), blocks=words // (threads * VECTOR * AT_ONCE), threads=threads)


def read(words: int, threads: int) -> Func:
    """sums[t] = the sum of the sixteen values that thread t reads of x, in four vectors."""
    blocks = words // (threads * VECTOR * AT_ONCE)
    x, y, b = array("x", words), array("sums", blocks * threads), Builder()
    places = [(BLOCK * AT_ONCE + i) * (threads * VECTOR) + TID * VECTOR for i in range(AT_ONCE)]
    sums = total(b, [load_vector(b, x, at) for at in places])
    b.do("thread.store", sums, y, at=(BLOCK * threads + TID,))
    return kernel("read", b, (x, y), blocks=blocks, threads=threads)


def read_again(words: int, blocks: int, threads: int, passes: int) -> Func:
    """sums[t] = the sum of what thread t reads of x, which all blocks together read many times.

    A block reads another chunk of 16 threads values in every pass, so that what it reads comes from the
    second-level cache, not from its own first-level one.
    """
    chunk = threads * VECTOR * AT_ONCE
    x, y, b = array("x", words), array("sums", blocks * threads), Builder()
    base = (BLOCK + Sym("p") * STRIDE) % (words // chunk) * chunk

    def step(inner: Builder, sums: tuple[Value, ...]) -> list[Value]:
        places = [base + i * (threads * VECTOR) + TID * VECTOR for i in range(AT_ONCE)]
        values = [load_vector(inner, x, at) for at in places]
        return [inner.value("scalar.add", h, v) for h, v in zip(sums, values, strict=True)]

    sums = repeat(b, "p", passes, [zero_vector(b)] * AT_ONCE, step, unroll=2)
    b.do("thread.store", total(b, sums), y, at=(BLOCK * threads + TID,))
    return kernel("read_again", b, (x, y), blocks=blocks, threads=threads)


def read_shared(blocks: int, threads: int, passes: int) -> Func:
    """sums[t] = the sum of what thread t reads of a tile in shared memory, 16 bytes at a time."""
    vectors = 4 * threads
    y, b = array("sums", blocks * threads), Builder()
    tile = b.emit(
        "thread.alloc", (), {}, types=[TensorType("f32", (vectors * VECTOR,), "shared")], hint="tile"
    )[0]
    with b.loop("i", vectors * VECTOR // threads) as inner:
        place = Sym("i") * threads + TID
        inner.do("thread.store", inner.index(place % PERIOD, "f32"), tile, at=(place,))
        inner.do("thread.yield")
    b.do("thread.barrier")

    def step(inner: Builder, sums: tuple[Value, ...]) -> list[Value]:
        places = [(TID + Sym("p") + i * STRIDE) % vectors * VECTOR for i in range(2 * AT_ONCE)]
        values = [load_vector(inner, tile, at) for at in places]
        return [
            inner.value("scalar.add", inner.value("scalar.add", h, values[i]), values[i + AT_ONCE])
            for i, h in enumerate(sums)
        ]

    sums = repeat(b, "p", passes, [zero_vector(b)] * AT_ONCE, step)
    b.do("thread.store", total(b, sums), y, at=(BLOCK * threads + TID,))
    return kernel("read_shared", b, (y,), blocks=blocks, threads=threads)


def chase(name: str, words: int, steps: int) -> Func:
    """Follow a ring (see `ring`) from where the last launch ended: every load gives the place of the next."""
    x, cursor, b = array(name, words, "i32"), array("cursor", 1, "i32"), Builder()
    start = b.value("thread.load", cursor, at=(0,))
    (end,) = repeat(
        b,
        "i",
        steps,
        [start],
        lambda inner, held: [inner.value("thread.gather", x, held[0])],
        unroll=_CHAIN_UNROLL,
    )
    b.do("thread.store", end, cursor, at=(0,), mask=((TID, 0, 1),))
    return kernel(f"chase_{name}", b, (x, cursor), blocks=1, threads=WARP)


def chase_shared(words: int, stride: int, steps: int) -> Func:
    """The same in shared memory, from place 0 on; words: a multiple of 32."""
    y, b = array("end", 1, "i32"), Builder()
    tile = b.emit("thread.alloc", (), {}, types=[TensorType("i32", (words,), "shared")], hint="tile")[0]
    with b.loop("i", words // WARP) as inner:
        place = Sym("i") * WARP + TID
        inner.do("thread.store", inner.index((place + stride) % words), tile, at=(place,))
        inner.do("thread.yield")
    b.do("thread.barrier")
    start = b.const(0, "i32")
    (end,) = repeat(
        b,
        "p",
        steps,
        [start],
        lambda inner, held: [inner.value("thread.gather", tile, held[0])],
        unroll=_CHAIN_UNROLL,
    )
    b.do("thread.store", end, y, at=(0,), mask=((TID, 0, 1),))
    return kernel("chase_shared", b, (y,), blocks=1, threads=WARP)
