"""The phases of a kernel that walks along its rows, what each reads, and the values several of them need."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import coefficients, linear
from tilewright.ir.tensor.ops import REDUCING, dims, fills, reads
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.index_sets import recompute_cost, row_major_offset, run_along
from tilewright.passes.analysis.row_groups import row_dims

#: additions from which a value is kept rather than computed again
KEPT_COST = 16


@dataclass(frozen=True)
class Phase:
    """One walk along the rows: a reduction, or a map whose result is stored."""

    op: Op
    rows: tuple[str, ...]
    columns: tuple[str, ...]

    def extents(self) -> tuple[int, ...]:
        """Extents of the columns."""
        sizes = {**dims(self.op, "par"), **dims(self.op, "red")}
        return tuple(sizes[d] for d in self.columns)

    def row_extents(self) -> tuple[int, ...]:
        """Extents of the dimensions that name a row."""
        sizes = dims(self.op, "par")
        return tuple(sizes[d] for d in self.rows)

    def row_bytes(self) -> int:
        """Bytes of one row in the widest type that is read along it."""
        widest = max((itemsize(v.tensor.dtype) for v in self.op.operands), default=0)
        return widest * prod(self.extents())


@dataclass
class Uses:
    """Reads of one value by the phases: indices in terms of `row.k` and `col.k`, and numbers of phases."""

    indices: set[tuple[Expr, ...]] = field(default_factory=set)
    phases: list[int] = field(default_factory=list)
    filled: bool = False


@dataclass(frozen=True)
class RowPhases:
    """The phases of a row kernel and what they read of parameters and maps.

    walks: numbers of the phases in order; those of sums of which none depends on another are walked together,
    with stores of what they add up. maps: results of maps that take fewer registers, from one walk to the
    next, than what they are computed from. kept_uses: `uses` where phases after the first that computes such
    a result find it in registers, and so read nothing of what it is computed from.
    """

    phases: tuple[Phase, ...]
    uses: Mapping[Value, Uses]
    walks: tuple[tuple[int, ...], ...]
    maps: tuple[Value, ...] = ()
    kept_uses: Mapping[Value, Uses] = field(default_factory=dict)

    @property
    def walked(self) -> Phase:
        """The first phase that walks along columns; a kernel of rows has one."""
        return next(p for p in self.phases if p.columns)

    @property
    def alike(self) -> bool:
        """Return whether all phases with columns walk along the same ones."""
        return len({p.extents() for p in self.phases if p.columns}) == 1

    @property
    def stores_while_summing(self) -> bool:
        """Return whether some walk stores what it adds up."""
        return any(len({self.phases[n].op.name in REDUCING for n in walk}) > 1 for walk in self.walks)

    def kept(self, kernel: Func) -> tuple[Value, ...]:
        """Values worth registers: what several walks read at the column they are at (see `kept_uses`)."""
        if not self.alike:
            return ()
        return tuple(
            v
            for v, u in self.kept_uses.items()
            if (v in kernel.params or v in self.maps or _expensive(kernel, v))
            and _read_at_column(u, self.phases)
            and len(_walks_of(u, self.walks)) > 1
        )

    def kept_words(self, kernel: Func) -> float:
        """Registers (4 bytes) per element of a row that these values take."""
        return sum(map(_words, self.kept(kernel)))

    def inner(self, kernel: Func) -> str:
        """The dimension along which the largest parameter is contiguous: `row.k`, `col.k`; '' if unclear."""
        inner, run = self.run(kernel)
        return inner if inner and run > self._ranges()[inner][1] else ""

    def run(self, kernel: Func) -> tuple[str, int]:
        """The dimension `inner`, and how many elements along it lie one after the other: all that it has, or
        as many as divide it where it is cut into pieces that lie apart; 0 where that is unclear.
        """
        params = [v for v in self.uses if v in kernel.params]
        if not params:
            return "", 0
        largest = max(params, key=lambda v: v.tensor.nbytes)
        for at in self.uses[largest].indices:
            last = next((e for e, n in zip(at[::-1], largest.tensor.shape[::-1], strict=True) if n > 1), 0)
            found = last if isinstance(last, Sym) else self._unit(at, largest.tensor.shape)
            if found is not None:
                return found.name, self._ranges()[found.name][1] + 1
            columns = max(len(p.columns) for p in self.phases)
            inner = f"col.{columns - 1}"
            place = row_major_offset(at, largest.tensor.shape)
            if columns and (run := run_along(place, inner, self._ranges())) > 1:
                return inner, run
        return "", 0

    def piece(self, kernel: Func) -> int:
        """Elements of a row of the largest parameter that lie one after the other, those of others behind.

        0 where all of a row does, or where no index is a sum of multiples of dimensions.
        """
        params = [v for v in self.uses if v in kernel.params]
        if not params:
            return 0
        largest = max(params, key=lambda v: v.tensor.nbytes)
        columns = {f"col.{k}": n for k, n in enumerate(self.walked.extents())}
        places = (row_major_offset(at, largest.tensor.shape) for at in self.uses[largest].indices)
        forms = (coefficients(place, columns, self._ranges()) for place in places)
        longest = max((_piece(form[0], columns) for form in forms if form is not None), default=0)
        return 0 if longest == prod(columns.values()) else longest

    def _ranges(self) -> dict[str, tuple[int, int]]:
        """The ranges of the dimensions of rows and columns."""
        first = self.phases[0]
        sizes = dims(first.op, "par")
        ranges = {f"row.{k}": (0, sizes[d] - 1) for k, d in enumerate(first.rows)}
        for phase in self.phases:
            ranges |= {f"col.{k}": (0, n - 1) for k, n in enumerate(phase.extents())}
        return ranges

    def _unit(self, at: tuple[Expr, ...], shape: tuple[int, ...]) -> Sym | None:
        """The dimension whose next index is the next element, where several indices are cut from one."""
        terms = linear(row_major_offset(at, shape), self._ranges()).terms
        found = [atom for atom, step in terms if step == 1 and isinstance(atom, Sym)]
        if len(found) != 1:
            return None
        again = any(found[0].name in symbols(atom) for atom, _ in terms if atom is not found[0])
        return None if again else found[0]


def _piece(steps: Mapping[str, int], columns: Mapping[str, int]) -> int:
    """Elements that lie one after the other along columns whose next indices are so many elements away."""
    piece = 1
    for step, extent in sorted((steps.get(d, 0), n) for d, n in columns.items() if n > 1):
        if step != piece:
            break
        piece *= extent
    return piece


def whole_rows(kernel: Func, rows: RowPhases) -> Value | None:
    """The parameter whose memory is the kernel's rows one after the other, each read along all its columns.

    None where there is none, or where phases walk along different columns.
    """
    if not rows.alike:
        return None
    walked = [p for p in rows.phases if p.columns]
    first = rows.phases[0]
    extents = [*first.row_extents(), *walked[0].extents()]
    names = [f"row.{k}" for k in range(len(first.rows))] + [f"col.{k}" for k in range(len(walked[0].columns))]
    in_order = [n for n, extent in zip(names, extents, strict=True) if extent > 1]
    for v, uses in rows.uses.items():
        if v not in kernel.params or not v.tensor.dense or uses.filled or len(uses.indices) != 1:
            continue
        (at,) = uses.indices
        read = [e.name for e, n in zip(at, v.tensor.shape, strict=True) if n > 1 and isinstance(e, Sym)]
        if read == in_order and v.tensor.size == prod(extents):
            return v
    return None


def rewritten_rows(kernel: Func, rows: RowPhases, source: Value) -> Value | None:
    """The result that the last phase may write over the rows of `source` (see `whole_rows`), one by one.

    None unless that phase alone stores along columns, and what it stores lies as those rows do.
    """
    outputs = set(kernel.body.ops[-1].operands)
    walked = [p for p in rows.phases if p.columns]
    stored = [(p, r) for p in walked for r in p.op.results if r in outputs and p.op.name not in REDUCING]
    if len(stored) != 1 or stored[0][0] is not rows.phases[-1]:
        return None
    phase, result = stored[0]
    alike = result.tensor.dtype == source.tensor.dtype and result.tensor.size == source.tensor.size
    in_order = tuple(dims(phase.op, "par")) == (*phase.rows, *phase.columns)
    return result if alike and in_order and result.tensor.dense else None


def _expensive(kernel: Func, v: Value) -> bool:
    op = next((op for op in kernel.body.ops if v in op.results), None)
    return op is not None and recompute_cost(op) >= KEPT_COST and itemsize(v.tensor.dtype) <= 4


def row_phases(kernel: Func) -> RowPhases | None:
    """The phases of a kernel around reductions over the same rows; None where some map crosses rows."""
    ops = [op for op in kernel.body.ops if op.name != "tensor.return"]
    anchor = next(op for op in ops if op.name in REDUCING)
    outputs = set(kernel.body.ops[-1].operands)
    phases: list[Phase] = []
    for op in ops:
        if op.name in REDUCING:
            phases.append(Phase(op, tuple(dims(op, "par")), tuple(dims(op, "red"))))
        elif outputs & set(op.results):
            rows = row_dims(op, ops, anchor)
            if rows is None:
                return None
            phases.append(Phase(op, tuple(rows), tuple(d for d in dims(op, "par") if d not in rows)))
    return phases_of(phases, ops, stores=True)


def phases_of(phases: Sequence[Phase], ops: Sequence[Op], *, stores: bool = False) -> RowPhases:
    """The phases with what they read, and how they share walks; ops: of the kernel, in their order.

    stores: whether maps that are stored and that sums read share the walk of these sums.
    """
    producers = {r: op for op in ops for r in op.results}
    walks = _walks(phases, ops, _summed(ops) if stores else set())
    uses = _uses(phases, walks, producers, ())
    maps = _kept_maps(phases, walks, producers)
    kept_uses = _uses(phases, walks, producers, maps) if maps else uses
    return RowPhases(tuple(phases), uses, walks, maps, kept_uses)


def _uses(
    phases: Sequence[Phase],
    walks: Sequence[Sequence[int]],
    producers: Mapping[Value, Op],
    kept: Collection[Value],
) -> dict[Value, Uses]:
    """What the phases read, where those after the first one that computes a value of `kept` read that alone.

    A value of `kept` that a phase stores counts among what this phase reads.
    """
    uses: dict[Value, Uses] = {}
    for number in (number for walk in walks for number in walk):
        phase = phases[number]
        env: dict[str, Expr] = {d: Sym(f"row.{k}") for k, d in enumerate(phase.rows)}
        env |= {d: Sym(f"col.{k}") for k, d in enumerate(phase.columns)}
        computed = {v: producers[v] for v in producers if v not in kept or v not in uses}
        for r in phase.op.results if phase.op.name not in REDUCING else ():
            if r in kept:
                _note(r, tuple(env[d] for d in dims(phase.op, "par")), number, uses)
        _trace(phase.op, env, number, computed, uses)
    return uses


def _kept_maps(
    phases: Sequence[Phase], walks: Sequence[Sequence[int]], producers: Mapping[Value, Op]
) -> tuple[Value, ...]:
    """Results of maps that take fewer registers between walks than the parameters that they are made of.

    One result after the other, as long as that saves registers: the one that saves the most.
    """
    taken: tuple[Value, ...] = ()
    uses = _uses(phases, walks, producers, taken)
    least = _words_between(uses, phases, walks, producers, taken)
    while least > 1.0:  # what a map gives takes a register at least
        options = [
            (_words_between(new, phases, walks, producers, kept), kept, new)
            for v, u in uses.items()
            if v in producers
            and v not in taken
            and producers[v].name == "tensor.map"
            and _read_at_column(u, phases)
            and len(_walks_of(u, walks)) > 1
            for kept in [(*taken, v)]
            for new in [_uses(phases, walks, producers, kept)]
        ]
        words, kept, new = min(options, key=lambda option: option[0], default=(least, taken, uses))
        if words >= least:
            break
        least, taken = words, tuple(v for v in kept if len(_walks_of(new[v], walks)) > 1)
        uses = new if taken == kept else _uses(phases, walks, producers, taken)
    return taken


def _words_between(
    uses: Mapping[Value, Uses],
    phases: Sequence[Phase],
    walks: Sequence[Sequence[int]],
    producers: Mapping[Value, Op],
    kept: Collection[Value],
) -> float:
    """Registers per element that hold what several walks read along columns, each element read counted."""
    columns = _column_names(phases)
    return sum(
        _words(v) * sum(1 for at in u.indices if columns & {s for e in at for s in symbols(e)})
        for v, u in uses.items()
        if (v not in producers or v in kept) and len(_walks_of(u, walks)) > 1
    )


def _words(v: Value) -> float:
    return max(1.0, itemsize(v.tensor.dtype) / 4)


def _walks_of(uses: Uses, walks: Sequence[Sequence[int]]) -> set[int]:
    """Numbers of the walks that read a value."""
    return {i for i, numbers in enumerate(walks) if any(number in uses.phases for number in numbers)}


def _column_names(phases: Sequence[Phase]) -> set[str]:
    return {f"col.{k}" for p in phases for k in range(len(p.columns))}


def _read_at_column(uses: Uses, phases: Sequence[Phase]) -> bool:
    """Return whether a value is read at one place, which moves with the last column, and never outside it."""
    last = f"col.{max(len(p.columns) for p in phases) - 1}"
    return (
        len(uses.indices) == 1
        and not uses.filled
        and any(last in symbols(e) for at in uses.indices for e in at)
    )


def _walks(phases: Sequence[Phase], ops: Sequence[Op], summed: set[Op]) -> tuple[tuple[int, ...], ...]:
    """Sums side by side over the same columns, of which none depends on another, share a walk, and with them
    stores of the maps `summed`."""
    walks: list[tuple[int, ...]] = []
    after: set[Value] = set()  # what depends on the sums of the latest walk
    number = {p.op: i for i, p in enumerate(phases)}
    for op in ops:
        i = number.get(op)
        depends = any(v in after for v in op.operands)
        if i is not None:
            last = phases[walks[-1][0]] if walks else phases[i]
            together = all(_sums(x) or x in summed for x in (op, last.op))
            alike = together and last.extents() == phases[i].extents()
            if walks and alike and not depends:
                walks[-1] = (*walks[-1], i)
            else:
                walks.append((i,))
                after = set()
        if (i is not None and op not in summed) or depends:
            after.update(op.results)
    return tuple(walks)


def _summed(ops: Sequence[Op]) -> set[Op]:
    """Maps that depend on no reduction and that sums read, directly or through such maps."""
    bound: set[Value] = set()
    for op in ops:
        if op.name in REDUCING or any(v in bound for v in op.operands):
            bound.update(op.results)
    read: set[Value] = set()
    out: set[Op] = set()
    for op in reversed(ops):
        free = op.name == "tensor.map" and bound.isdisjoint(op.results) and not read.isdisjoint(op.results)
        if free:
            out.add(op)
        if free or _sums(op):
            read.update(op.operands)
    return out


def _sums(op: Op) -> bool:
    """Return whether an op is a reduction whose last step is an addition."""
    ops = op.body.ops if op.name in REDUCING and op.body is not None else ()
    return len(ops) > 1 and ops[-2].name in ("scalar.add", "scalar.fma")


def _trace(
    op: Op, env: Mapping[str, Expr], phase: int, producers: Mapping[Value, Op], uses: dict[Value, Uses]
) -> None:
    """Note everything that one point of `op` reads, through maps and up to parameters and row values."""
    if op.name not in REDUCING and op.name != "tensor.map":
        return
    for v, at, fill in zip(op.operands, reads(op), fills(op), strict=True):
        producer = producers.get(v)
        if producer is not None and producer.name in REDUCING:
            continue
        index = tuple(substitute(e, env) for e in at)
        use = _note(v, index, phase, uses)
        use.filled |= fill is not None or (producer is not None and producer.name != "tensor.map")
        if producer is not None:
            _trace(producer, dict(zip(dims(producer, "par"), index, strict=True)), phase, producers, uses)


def _note(v: Value, index: tuple[Expr, ...], phase: int, uses: dict[Value, Uses]) -> Uses:
    """Note that a phase reads a value at an index."""
    use = uses.setdefault(v, Uses())
    use.indices.add(index)
    if phase not in use.phases:
        use.phases.append(phase)
    return use
