"""The kernels that a flat tensor program becomes, as far as they are known, and what each costs by the orders
of the values it touches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from tilewright.costmodel import Hardware
from tilewright.costmodel.selection.problem import Phase
from tilewright.ir import Block, Constants, Func, InputError, Level, Module, Op, UnsupportedError, Value
from tilewright.ir.tensor.ops import REDUCING, STRUCTURED
from tilewright.passes import PassContext
from tilewright.passes.analysis.backward_pass import forward_ops
from tilewright.passes.analysis.index_sets import identity_read, is_view
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.tensor.layouts.axes import Order, rewritten
from tilewright.passes.tensor.layouts.cost import scattered_s

#: what the origin of an op is called while pieces are looked for
_MARK = "piece."


@dataclass(frozen=True)
class Piece:
    """Ops that become one kernel, or kernels that are priced together, and what of them others read.

    Ops that are computed again in several kernels are in each of their pieces; views are in those of their
    readers.
    """

    name: str
    ops: tuple[Op, ...]
    results: tuple[Value, ...]
    phase: Phase

    @property
    def is_chain(self) -> bool:
        """Return whether it multiplies and reduces what is no array between: attention, for one."""
        anchors = [op.name for op in self.ops if op.name in REDUCING]
        return len(anchors) > 1 and "tensor.contract" in anchors

    @property
    def inputs(self) -> tuple[Value, ...]:
        """What it reads of other pieces, parameters and constants, in order."""
        made = {r for op in self.ops for r in op.results}
        return tuple(dict.fromkeys(v for op in self.ops for v in op.operands if v not in made))


def pieces_of(func: Func, constants: Constants, ctx: PassContext, partitioner: str = "rules") -> list[Piece]:
    """The pieces of a flat tensor function in its present orders, in program order.

    The passes from here to the chains of kernels run on a copy whose ops carry their number as origin; what
    has the same kernel afterwards is a piece.
    """
    ops = func.body.ops[:-1]
    marked = func.with_body(
        Block(func.params, (*(replace(op, loc=f"{_MARK}{i}") for i, op in enumerate(ops)), func.body.ops[-1]))
    )
    module = Module("pieces", (marked,), constants=constants)
    kernels = ctx.estimator.grouped(module, ctx, partitioner=partitioner)
    sets = [{_number(op) for op in f.body.ops[:-1]} - {None} for f in kernels.funcs if f.name != "main"]
    groups = [frozenset(n for n in s if n is not None) for s in sets if s]
    known = {n for group in groups for n in group}
    alone = [frozenset((i,)) for i, op in enumerate(ops) if i not in known and op.name not in _NOT_KERNELS]
    maker = {r: i for i, op in enumerate(ops) for r in op.results}
    views = {i for group in alone for i in group if ops[i].name == "tensor.map"}
    groups += [group for group in alone if not group & views]
    return _as_pieces(func, _with_views(groups, views, ops, maker), maker)


_NOT_KERNELS = frozenset({"tensor.constant"})


def _number(op: Op) -> int | None:
    name = op.loc.partition("#")[0]
    return int(name.removeprefix(_MARK)) if name.startswith(_MARK) else None


def _with_views(
    groups: Sequence[frozenset[int]], views: set[int], ops: Sequence[Op], maker: Mapping[Value, int]
) -> list[frozenset[int]]:
    """Groups with the views that they read; those that nobody reads are groups of their own."""
    out = []
    taken: set[int] = set()
    for group in groups:
        line = list(group)
        inside = set(group)
        while line:
            for v in ops[line.pop()].operands:
                i = maker.get(v)
                if i in views and i not in inside:
                    inside.add(i)
                    line.append(i)
        taken |= inside
        out.append(frozenset(inside))
    out += [frozenset((i,)) for i in sorted(views - taken)]
    return sorted(out, key=max)


def _as_pieces(func: Func, groups: Sequence[frozenset[int]], maker: Mapping[Value, int]) -> list[Piece]:
    ops = func.body.ops[:-1]
    forward = forward_ops(func)
    needed = set(func.body.ops[-1].operands)
    for group in groups:
        needed |= {v for i in group for v in ops[i].operands if maker.get(v, -1) not in group}
    pieces: list[Piece] = []
    stored: set[Value] = set()
    for group in groups:
        inside = [ops[i] for i in sorted(group)]
        results = [r for op in inside for r in op.results if r in needed and r not in stored]
        if not results:
            continue
        stored.update(results)
        name = next((op.loc for op in inside if op.loc), inside[0].name)
        phase: Phase = "backward" if forward and not set(inside) & forward else "forward"
        pieces.append(Piece(f"{len(pieces)} {name}", tuple(inside), tuple(results), phase))
    return pieces


@dataclass(frozen=True)
class PieceCosts:
    """Seconds of pieces by the orders of what they touch; the estimator remembers them by text."""

    hardware: Hardware
    ctx: PassContext
    partitioner: str = "rules"

    def seconds(self, piece: Piece, orders: Mapping[Value, Order]) -> float:
        """Seconds of the kernels that the piece becomes, and what their families' estimates do not see of
        scattered accesses; inf where a kernel has no parameters that fit.

        Chains of kernels copy rows of the innermost dimension: they take the same time in all orders that
        keep it, and with another one they count as kernels of their own.

        orders: of the results and inputs of the piece; values inside take the order of the first result of
        their shape that they feed point by point.
        """
        chains = piece.is_chain and all(_keeps_innermost(v, order) for v, order in orders.items())
        program = _program(piece, {} if chains else {**inner_orders(piece, orders), **orders})
        question = (
            "orders of a piece",
            self.hardware,
            self.ctx.target,
            self.partitioner,
            kernel_text(program),
        )
        return self.ctx.estimator.remembered(question, lambda: self._evaluated(program, chains))

    def _evaluated(self, program: Func, chains: bool) -> float:
        if len(program.body.ops) == 1:
            return 0.0
        ctx = replace(self.ctx, hardware=self.hardware, instruments=(), verify_each=False)
        ctx = replace(ctx, reproducer_folder=None)
        try:
            module = ctx.estimator.laid_out(
                Module("piece", (program,), constants=Constants({})),
                ctx,
                chains=chains,
                partitioner=self.partitioner,
            )
        except (InputError, UnsupportedError):
            return inf
        kernels = [f for f in module.funcs if f.name != "main"]
        return sum(estimate_of(f) + scattered_s(f, self.hardware) for f in kernels)


def program_s(
    func: Func,
    constants: Constants,
    orders: Mapping[Value, Order],
    hardware: Hardware,
    ctx: PassContext,
    partitioner: str = "rules",
) -> float:
    """Seconds of all kernels of a flat program in these orders, cut and chosen within the whole program."""
    quiet = replace(ctx, hardware=hardware, instruments=(), verify_each=False, reproducer_folder=None)
    program = Module("program", (rewritten(func, orders),), constants=constants)
    flat = quiet.estimator.inlined(program, quiet, partitioner=partitioner)
    try:
        module = quiet.estimator.laid_out(flat, quiet, chains=True, partitioner=partitioner)
    except (InputError, UnsupportedError):
        return inf
    return sum(estimate_of(f) + scattered_s(f, hardware) for f in module.funcs if f.name != "main")


def _keeps_innermost(v: Value, order: Order) -> bool:
    wide = [axis for axis, n in enumerate(v.tensor.shape) if n > 1]
    return not wide or [axis for axis in order if axis in wide][-1] == wide[-1]


def inner_orders(piece: Piece, orders: Mapping[Value, Order]) -> dict[Value, Order]:
    """Orders of values inside: those of the results that maps make of them point by point."""
    made = {r for op in piece.ops for r in op.results}
    out: dict[Value, Order] = {}
    for op in reversed(piece.ops):
        order = next((o for r in op.results if (o := orders.get(r, out.get(r))) is not None), None)
        for r in op.results:
            if order is not None and r not in orders:
                out.setdefault(r, order)
        if order is None or op.name != "tensor.map":
            continue
        for i, v in enumerate(op.operands):
            if v in made and v not in orders and identity_read(op, i):
                out.setdefault(v, order)
    return out


def _program(piece: Piece, orders: Mapping[Value, Order]) -> Func:
    """The piece as a flat program whose parameters, values and results have these orders."""
    body = Block(piece.inputs, (*piece.ops, Op("tensor.return", piece.results)))
    func = Func(Level.TENSOR, "main", body, tuple(v.type for v in piece.results))
    moved = {v: o for v, o in orders.items() if o != tuple(range(len(o)))}
    if moved:
        func = rewritten(func, moved)
    views: set[Value] = set(func.params)  # what lies where a parameter lies is no result to store
    for op in func.body.ops[:-1]:
        if is_view(op) and op.operands[0] in views:
            views.update(op.results)
    stored = tuple(v for v in func.body.ops[-1].operands if v not in views)
    body = func.body.with_ops((*func.body.ops[:-1], Op("tensor.return", stored)))
    return replace(func, body=replace(body, ops=live_ops(body)), result_types=tuple(v.type for v in stored))


def touched(piece: Piece) -> tuple[Value, ...]:
    """Values that the piece reads or makes and whose orders its seconds may depend on."""
    read = {v for op in piece.ops if op.name in STRUCTURED for v in op.operands}
    return tuple(dict.fromkeys((*(v for v in piece.inputs if v in read), *piece.results)))
