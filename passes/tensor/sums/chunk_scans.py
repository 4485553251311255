"""Pass chunk-scans: running folds along few long lines are cut into chunks that many threads fold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.costmodel import Hardware, load_hardware
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Level,
    Module,
    Op,
    Pairs,
    Sym,
    TensorType,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.expr import maximum, minimum, substitute
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor.ops import dims, reads
from tilewright.ir.types import FLOATS, itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.kernels.ordered.choose_chunks import choose_chunk
from tilewright.passes.kernels.rows.combiners import combiner, neutral
from tilewright.passes.rewriting.names import unused
from tilewright.passes.rewriting.rewrite import Pattern, Rewriter, rewrite_module


@register_pass(Level.TENSOR)
def chunk_scans(module: Module, ctx: PassContext) -> Module:
    """Fold chunks of long lines side by side, fold their totals, and join both.

    rewrite:  %y = tensor.scan(%x, par = (i: 1000), dim = "i") {add}
        -->   %p = tensor.scan(%x, par = (i_chunk: 16, i: 64), dim = "i", reads = [[i_chunk * 64 + i]]) {add};
              %t = tensor.scan(%p, par = (i_chunk: 16), reads = [[i_chunk, 63]], exclusive = true) {add};
              %y = tensor.map(%t, %p, par = (i: 1000), reads = [[i // 64], [i // 64, i % 64]]) {add}

    Only sums, products, extremes and the like: their parts may be combined in another order. The cost model
    says where that takes less time.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)

    def cut(op: Op, rewriter: Rewriter) -> Sequence[Value] | None:
        chunk = 0 if op["reverse"] or combiner(op) is None else _chunk(op, hardware)
        return [_Chunks(op, rewriter.builder, chunk).joined()] if chunk else None

    return rewrite_module(module, [Pattern("chunk-scan", frozenset({"tensor.scan"}), cut)], level="tensor")


def _chunk(op: Op, hardware: Hardware) -> int:
    par = dims(op, "par")
    length = par[str(op["dim"])]
    lines = prod(par.values()) // max(1, length)
    return choose_chunk(lines, length, itemsize(op.result.tensor.dtype), hardware) if lines else 0


class _Chunks:
    """One scan in the making, cut into chunks of `size` along its dimension."""

    def __init__(self, op: Op, b: Builder, size: int) -> None:
        self.op, self.b, self.size = op, b, size
        self.par, self.dim = dims(op, "par"), str(op["dim"])
        self.length = self.par[self.dim]
        self.count = -(-self.length // size)
        self.chunk = unused(f"{self.dim}_chunk", self.par)

    def joined(self) -> Value:
        """The whole fold: what comes before a chunk, and the fold within it; exclusive ones read one back."""
        within = self._within()
        before = self._before(within)
        place: Expr = Sym(self.dim)
        if self.op["exclusive"]:
            place = maximum(place - 1, 0)
        chunk, step = place // self.size, place % self.size
        body, (start, part) = scalar_body([self.op.result.tensor.dtype] * 2)
        both = body.value(str(combiner(self.op)), start, part)
        if self.op["exclusive"]:
            first = body.value("scalar.eq", body.index(Sym(self.dim)), body.const(0, "i32"))
            both = body.value("scalar.select", first, start, both)
        body.do("scalar.yield", both)
        (out,) = structured(
            self.b, "tensor.map", [before, within], par=self.par,
            reads=[self._at(chunk), self._at(chunk, step)],
            types=[self.op.result.type], body=body.block((start, part)),
        )  # fmt: skip
        return out

    def _within(self) -> Value:
        """The fold within each chunk; what stands behind the end of a line is of no use."""
        op = self.op
        place = Sym(self.chunk) * self.size + Sym(self.dim)
        if self.count * self.size > self.length:
            place = minimum(place, self.length - 1)
        where = tuple(tuple(substitute(e, {self.dim: place}) for e in at) for at in reads(op))
        start = neutral(op)
        if op.result.tensor.dtype in FLOATS:
            start = float(start)
        changed: dict[str, Attr] = {"reads": where, "init": start, "exclusive": False}
        par = self._domain({self.chunk: self.count, self.dim: self.size})
        return self._scan(op.operands[0], par, {**dict(op.attrs), **changed}, op.body)

    def _before(self, within: Value) -> Value:
        """The fold of all that stands before each chunk: of the last elements of the chunks before it."""
        dtype = self.op.result.tensor.dtype
        body, (total, held) = scalar_body([dtype, dtype])
        body.do("scalar.yield", body.value(str(combiner(self.op)), total, held))
        attrs: dict[str, Attr] = {
            "reads": (self._at(Sym(self.chunk), self.size - 1),),
            "dim": self.chunk,
            "init": self.op["init"],
            "exclusive": True,
        }
        return self._scan(within, self._domain({self.chunk: self.count}), attrs, body.block((total, held)))

    def _scan(self, x: Value, par: dict[str, int], attrs: dict[str, Attr], body: Block | None) -> Value:
        t = TensorType(self.op.result.tensor.dtype, tuple(par.values()))
        (out,) = self.b.emit("tensor.scan", [x], {**attrs, "par": Pairs.of(dict(par))}, types=[t], body=body)
        return out

    def _domain(self, along: dict[str, int]) -> dict[str, int]:
        """The parallel dimensions with others in the place of the one folded along."""
        return {k: v for d, n in self.par.items() for k, v in (along if d == self.dim else {d: n}).items()}

    def _at(self, *along: Expr) -> tuple[Expr, ...]:
        """The index at which a tensor over `_domain` is read at the current point."""
        return tuple(e for d in self.par for e in (along if d == self.dim else (Sym(d),)))
