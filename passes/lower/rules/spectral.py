"""Fourier transforms as contractions with a table of cosines and sines, which a map computes once."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.spectral import frequencies
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    dim_names,
    lowering,
    mapped,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.scalars import Scalar, Scalars


def _angle(i: Scalars, row: Expr, column: Expr, period: int, most: int, dtype: str) -> Scalar:
    """2 pi row column / period, less whole turns so that it is exact to rounding; row * column <= most."""
    index = "i32" if most < 1 << 31 else "i64"
    turns = i.index(row, index) * i.index(column, index) % period
    return i.cast(turns, dtype) * (2 * math.pi / period)


@lowering("graph.dft")
def dft(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Both parts side by side, times [cos, -sin] for the real and [sin, cos] for the imaginary result."""
    t, acc = result_type(op), accumulated(result_type(op))
    n, dtype = t.shape[-1], acc.dtype
    inverse = bool(op["inverse"])
    names = dim_names(t.rank)

    def pick(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        first = i.index(Sym("part")).equals(0)
        return first.select(i.cast(p[0], dtype), i.cast(p[1], dtype))

    def table(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        angle = _angle(i, Sym("n"), Sym("k"), n, n * n, dtype)
        scale = i.const(1 / n if inverse else 1.0, dtype)
        sign = i.const(1.0 if inverse else -1.0, dtype)
        cos = angle.apply("cos") * scale
        sin = (angle * sign).apply("sin") * scale
        result, part = i.index(Sym("result")), i.index(Sym("part"))
        crossed = result.equals(0).select(-sin, sin)
        return result.equals(part).select(cos, crossed)

    lead = dict(zip(names[:-1], t.shape, strict=False))
    joined = TensorType(dtype, (*t.shape[:-1], 2, n))
    row = (*map(Sym, names[:-1]), Sym("k"))
    parts = mapped(b, x, joined, {**lead, "part": 2, "k": n}, [row, row], pick)
    basis = mapped(
        b, [], TensorType(dtype, (2, n, 2, n)), {"result": 2, "n": n, "part": 2, "k": n}, [], table
    )
    out = []
    for result in range(2):
        reads = [(*map(Sym, names[:-1]), Sym("part"), Sym("k")), (result, Sym("n"), Sym("part"), Sym("k"))]
        par, red = {**lead, "n": n}, {"part": 2, "k": n}
        sums = reduced(b, "tensor.contract", [parts, basis], acc, par, red, reads, multiply_add)
        out.append(converted(b, sums, t))
    return out


@lowering("graph.stft")
def stft(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Frames are read where they lie in the signal; window and scale go into the table."""
    t, acc = result_type(op), accumulated(result_type(op))
    length, size, hop = op.integer("win_length"), op.integer("n_fft"), op.integer("hop_length")
    rows, dtype = frequencies(op.attributes), acc.dtype
    scale = 1 / math.sqrt(size) if op["normalized"] else 1.0

    def table(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        angle = _angle(i, Sym("f"), Sym("w"), length, rows * length, dtype)
        first = i.index(Sym("part")).equals(0)
        sin = -angle.apply("sin")
        wave = first.select(angle.apply("cos"), sin)
        factor = i.cast(p[0], dtype) * scale
        return wave * factor

    par = {"part": 2, "f": rows, "w": length}
    basis = mapped(b, [x[1]], TensorType(dtype, tuple(par.values())), par, [(Sym("w"),)], table)
    signals: tuple[Expr, ...] = (Sym("s"),) if t.rank == 4 else ()
    sample = Sym("t") * hop + Sym("w")
    reads = [(*signals, sample), (Sym("part"), Sym("f"), Sym("w"))]
    names = (*(("s",) if signals else ()), "f", "t", "part")
    signal = converted(b, x[0], TensorType(dtype, x[0].tensor.shape))
    domain = dict(zip(names, t.shape, strict=True))
    sums = reduced(b, "tensor.contract", [signal, basis], acc, domain, {"w": length}, reads, multiply_add)
    return [converted(b, sums, t)]
