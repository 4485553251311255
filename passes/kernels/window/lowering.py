"""Window kernels (pooling, depthwise convolution): a thread computes a few outputs, in a row or in a box."""

from __future__ import annotations

from contextlib import ExitStack
from math import prod

from tilewright.costmodel import WindowParameters
from tilewright.ir import Expr, Func, Op, Sizes, Sym, Value
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.window.runs import lower_window_runs, slides_inside
from tilewright.passes.kernels.window.tiles import lower_window_tiles
from tilewright.passes.kernels.writing.points import Points, store_results
from tilewright.passes.kernels.writing.writer import Index, Writer, anchor_of

#: window points unrolled in one body at most
UNROLLED_WINDOW_POINTS = 256


def lower_window(kernel: Func) -> Func:
    """The thread-level function of a kernel around one reduction that single threads do on their own.

    rewrite:  tensor.window + epilogue maps   -->   loops over the window with masked global reads
    """
    op = anchor_of(kernel, "tensor.window", "tensor.reduce", "tensor.contract")
    p = parameters_of(kernel, WindowParameters)
    threads, tile = p.threads, p.outputs
    if isinstance(tile, Sizes):
        if slides_inside(op) and tile.get(list(dims(op, "par"))[-1], 1) > 1:
            return lower_window_runs(kernel, op, threads, tile)
        return lower_window_tiles(kernel, op, threads, tile)
    return _Window(kernel, op, threads, tile).lower()


class _Window:
    def __init__(self, kernel: Func, op: Op, threads: int, outputs: int) -> None:
        self.op, self.outputs = op, outputs
        self.par = dims(op, "par")
        self.shape = tuple(self.par.values())
        last = self.shape[-1] if self.shape else 1
        self.groups = (*self.shape[:-1], -(-last // outputs))
        self.total = prod(self.groups)
        self.w = Writer(kernel, threads, (max(1, -(-self.total // threads)), 1, 1))
        self.linear = self.w.simple(Sym("bid.x") * threads + Sym("tid"))

    def lower(self) -> Func:
        w = self.w
        with w.b.at(self.op.loc), w.when(w.below(self.linear, self.total)):
            accs = [w.alloc((self.outputs,), r.tensor.dtype, "reg", "acc") for r in self.op.results]
            with w.loop("i", self.outputs, unroll=1) as item:
                for acc, init in zip(accs, self.op["init"], strict=True):  # type: ignore[arg-type]
                    w.store(w.b.const(init, acc.tensor.dtype), acc, (item,))  # type: ignore[arg-type]
            self._reduce(accs)
            with w.loop("i", self.outputs, unroll=1) as item:
                at = self._place(item)
                with w.when(w.bounds(at, self.shape)):
                    known = {r: w.load(acc, (item,)) for r, acc in zip(self.op.results, accs, strict=True)}
                    store_results(w, Points(w, known), at)
        return w.finish()

    def _place(self, item: Expr) -> Index:
        """Output index of one of this thread's items."""
        if not self.shape:
            return ()
        index = self.w.unravel(self.linear, self.groups)
        return (*index[:-1], self.w.simple(index[-1] * self.outputs + item))

    def _reduce(self, accs: list[Value]) -> None:
        w, red = self.w, dims(self.op, "red")
        body, unroll = self.outputs, {}
        for d in reversed(red):
            body *= red[d]
            unroll[d] = 1 if body <= UNROLLED_WINDOW_POINTS else 0
        with ExitStack() as stack:
            local = {d: stack.enter_context(w.loop(f"r_{d}", n, unroll=unroll[d])) for d, n in red.items()}
            item = stack.enter_context(w.loop("i", self.outputs, unroll=1))
            at = self._place(item)
            env = {**dict(zip(self.par, at, strict=True)), **local}
            values = Points(w).operands(self.op, env, w.bounds(at, self.shape))
            before = [w.load(acc, (item,)) for acc in accs]
            for acc, v in zip(accs, w.inline(self.op, [*values, *before], env), strict=True):
                w.store(v, acc, (item,))
