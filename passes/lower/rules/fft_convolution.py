"""FFT convolution on overlap-save tiles: transforms are products with the matrices of the real DFT.

Every tile of `length` rows and columns yields `valid` results each way. Complex numbers are pairs along an
axis (real, imaginary); of the frequencies along the last dimension only the half is kept that a real signal
needs. All steps but the first read and the last write are contractions or maps over whole tiles:

  lines[g,e,c,n,y,d]      = sum_j      x[n,c,y,valid*d+j-before] wave[j,g,e]
  tiles[g,f,e,c,n,a,d]    = sum_u,i    lines[g,u,c,n,valid*a+i-before,d] wave[u,i,f,e]
  products[g,f,e,k,n,a,d] = sum_u,c    tiles[g,f,u,c,n,a,d] kernel[g,f,u,c,e,k]
  columns[g,e,i,k,n,a,d]  = sum_u,f    products[g,f,u,k,n,a,d] wave[u,f,e,i]
  pixels[j,i,k,n,a,d]     = sum_g,u    columns[g,u,i,k,n,a,d] wave[g,u,j]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.convolution import ConvolutionGeometry, convolution_of
from tilewright.passes.lower.convolution_algorithms import algorithm
from tilewright.passes.lower.lowering import accumulated, mapped, multiply_add, reduced, result_type
from tilewright.passes.lower.rules.fft_tiling import Tiling, fft_tiling, too_large
from tilewright.passes.lower.scalars import Scalar, Scalars
from tilewright.passes.lower.tables import wave_table

G, F, E, U, V = (Sym(d) for d in "gfeuv")


def _obstacle(g: ConvolutionGeometry) -> str:
    if g.groups > 1 and g.channels > 1:
        return f"expected one group or one channel per group, got {g.groups} of {g.channels} channels"
    return too_large(g)


@dataclass(frozen=True)
class _Steps:
    """Extents by name of dimension, and the dtype that transformed values are held in."""

    g: ConvolutionGeometry
    tiling: Tiling
    sizes: Mapping[str, int]
    dtype: str

    @classmethod
    def of(cls, g: ConvolutionGeometry, dtype: str) -> _Steps:
        t = fft_tiling(g)
        sizes = {
            "e": 2, "u": 2, "v": 2, "f": t.length[0], "g": t.frequencies, "n": g.batch,
            "c": g.groups * g.channels, "k": g.groups * g.filters,
            "a": t.count[0], "d": t.count[1], "y": g.windows[0].size,
        }  # fmt: skip
        return cls(g, t, sizes, dtype)

    def extents(self, names: str, **more: int) -> dict[str, int]:
        """Extents of dimensions named by single letters; `more` gives those that differ from step to step."""
        return {d: more.get(d) or self.sizes[d] for d in names}

    def contract(
        self, b: Builder, operands: Sequence[Value], reads: Sequence[Sequence[Expr]],
        par: Mapping[str, int], red: Mapping[str, int], fill: float | None = None,
    ) -> Value:  # fmt: skip
        """A sum of products over `red`; `fill` is what the first operand has outside its bounds."""
        result = TensorType(self.dtype, tuple(par.values()))
        name = "tensor.contract"
        return reduced(b, name, operands, result, par, red, reads, multiply_add, fill=(fill, None))

    def wave(
        self, b: Builder, par: Mapping[str, int], turns: Expr, period: int, quarters: Expr, share: float = 1.0
    ) -> Value:
        """A table of cosines times `share`."""
        return wave_table(b, par, self.dtype, turns, period, quarters, lambda i, p: i.const(share, "f64"))


@algorithm("fft", _obstacle)
def fft_convolution(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """Transform tiles of the data, multiply by the transformed kernel, transform back, drop the overlap."""
    data, weight = x
    g = convolution_of(data.tensor, weight.tensor, op.attributes, 2)
    result = result_type(op)
    s = _Steps.of(g, accumulated(result).dtype)
    layout = str(op["data_layout"])
    tiles = _columns_forward(b, s, _lines_forward(b, s, data, layout))
    kernel = _kernel(b, s, weight, str(op["kernel_layout"]))
    products = _dense(b, s, tiles, kernel) if g.groups == 1 else _depthwise(b, s, tiles, kernel)
    pixels = _lines_back(b, s, _columns_back(b, s, products))
    down, across = s.tiling.valid
    at: dict[str, Expr] = {
        "j": Sym("x") % across, "i": Sym("y") % down, "k": Sym("k"), "n": Sym("n"),
        "a": Sym("y") // down, "d": Sym("x") // across,
    }  # fmt: skip
    names = {"N": "n", "C": "k", "H": "y", "W": "x"}
    par = {names[d]: n for d, n in zip(layout, result.shape, strict=True)}
    read = tuple(at[d] for d in "jiknad")
    return [mapped(b, [pixels], result, par, [read], lambda i, p: i.cast(p[0], result.dtype))]


def _lines_forward(b: Builder, s: _Steps, data: Value, layout: str) -> Value:
    """Real DFT of every line of every tile column."""
    length, valid = s.tiling.length[1], s.tiling.valid[1]
    j = {"j": length}
    wave = s.wave(b, {**j, **s.extents("ge")}, G * Sym("j"), length, E * 3)
    column = Sym("d") * valid + Sym("j")
    where: dict[str, Expr] = {
        "N": Sym("n"), "C": Sym("c"), "H": Sym("y"), "W": column - s.g.windows[1].before
    }  # fmt: skip
    reads = [tuple(where[d] for d in layout), (Sym("j"), G, E)]
    return s.contract(b, [data, wave], reads, s.extents("gecnyd"), j, 0.0)


def _columns_forward(b: Builder, s: _Steps, lines: Value) -> Value:
    """Complex DFT down the columns of every tile."""
    length, valid = s.tiling.length[0], s.tiling.valid[0]
    red = {"u": 2, "i": length}
    quarters = U + E * 3
    wave = s.wave(b, {**red, **s.extents("fe")}, F * Sym("i"), length, quarters)
    row = Sym("a") * valid + Sym("i") - s.g.windows[0].before
    reads = [(G, U, Sym("c"), Sym("n"), row, Sym("d")), (U, Sym("i"), F, E)]
    return s.contract(b, [lines, wave], reads, s.extents("gfecnad"), red, 0.0)


def _kernel(b: Builder, s: _Steps, weight: Value, layout: str) -> Value:
    """The conjugate transform of the kernel as the real 2 x 2 matrices [u, e] of complex multiplication.

    For depthwise convolutions c has extent 1.
    """
    down, across = s.tiling.length
    rows, columns = (w.kernel for w in s.g.windows)
    r, t, c, k = {"r": rows}, {"t": columns}, Sym("c"), Sym("k")
    inner = s.extents("c", c=s.g.channels)
    wave = s.wave(b, {**s.extents("gv"), **t}, G * Sym("t"), across, V)
    taps: dict[str, Expr] = {"O": k, "I": c, "H": Sym("r"), "W": Sym("t")}
    if s.g.multiplier_in_kernel:
        taps |= {"O": k // s.g.filters, "I": k % s.g.filters}
    lines = s.contract(
        b, [weight, wave], [tuple(taps[d] for d in layout), (G, V, Sym("t"))],
        {**s.extents("gv"), **inner, **s.extents("k"), **r}, t,
    )  # fmt: skip
    quarters = V * 3 + E + U * 3
    wave = s.wave(b, {**s.extents("fuev"), **r}, F * Sym("r"), down, quarters)
    return s.contract(
        b, [lines, wave], [(G, V, c, k, Sym("r")), (F, U, E, V, Sym("r"))],
        {**s.extents("gfu"), **inner, **s.extents("ek")}, {"v": 2, **r},
    )  # fmt: skip


def _dense(b: Builder, s: _Steps, tiles: Value, kernel: Value) -> Value:
    """Sum over channels of complex products, per frequency."""
    reads = [tuple(map(Sym, "gfucnad")), tuple(map(Sym, "gfucek"))]
    return s.contract(b, [tiles, kernel], reads, s.extents("gfeknad"), s.extents("uc"))


def _depthwise(b: Builder, s: _Steps, tiles: Value, kernel: Value) -> Value:
    """Complex products, per frequency and channel."""
    channel = Sym("k") // s.g.filters
    reads: list[tuple[Expr, ...]] = []
    for u in (0, 1):
        reads += [(G, F, u, channel, *map(Sym, "nad")), (G, F, u, 0, E, Sym("k"))]

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return p[2].fma(p[3], p[0] * p[1])

    par = s.extents("gfeknad")
    result = TensorType(s.dtype, tuple(par.values()))
    return mapped(b, [tiles, kernel] * 2, result, par, reads, body)


def _columns_back(b: Builder, s: _Steps, products: Value) -> Value:
    """Inverse complex DFT down the columns, at the valid rows."""
    length, valid = s.tiling.length[0], s.tiling.valid[0]
    red = s.extents("fu")
    rows = {"i": valid}
    quarters = U * 3 + E
    wave = s.wave(b, {**red, **s.extents("e"), **rows}, F * Sym("i"), length, quarters, 1 / length)
    reads = [tuple(map(Sym, "gfuknad")), (F, U, E, Sym("i"))]
    return s.contract(b, [products, wave], reads, {**s.extents("ge"), **rows, **s.extents("knad")}, red)


def _lines_back(b: Builder, s: _Steps, columns: Value) -> Value:
    """Inverse DFT of every line to real values; frequencies kept once count twice, but the outermost."""
    length, (down, across) = s.tiling.length[1], s.tiling.valid
    red = s.extents("gu")

    def share(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        edge = i.index(G % (length // 2)).equals(0)
        return edge.select(i.const(1 / length, "f64"), i.const(2 / length, "f64"))

    wave = wave_table(b, {**red, "j": across}, s.dtype, G * Sym("j"), length, U * 3, share)
    reads = [(G, U, Sym("i"), *map(Sym, "knad")), (G, U, Sym("j"))]
    par = {"j": across, "i": down, **s.extents("knad")}
    return s.contract(b, [columns, wave], reads, par, red)
