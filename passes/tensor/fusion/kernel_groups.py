"""Partition of a flat tensor function into kernels, decided from read and write index sets.

A map joins the kernel that produces one of its operands when each point reads only what the same thread wrote
(identity reads: register level). Ops over the rows of one reduction join at block level. A cheap map whose
only reader is a reduction becomes its prologue. The quotient graph stays acyclic throughout. Communications
are groups of their own and keep their order, which must be that of the other ranks. Maps that only lead to
new values of state share a kernel where they share its domain: state is read and written once. Sums over the
same points of what they both read do, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import prod

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.hardware_facts import LINE_BYTES
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import REDUCING, dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.backward_pass import RECOMPUTED, ops_before_boundary
from tilewright.passes.analysis.index_sets import POINTWISE, identity_read, is_view, reads_of
from tilewright.passes.analysis.row_groups import rows_of
from tilewright.passes.analysis.second_results import CACHED_ARRAY_BYTES
from tilewright.passes.tensor.fusion.legality import (
    MAX_PROLOGUE_COST,
    ORDERED,
    prologue_cost,
)
from tilewright.passes.tensor.layouts.cost import on_tensor_cores

#: bytes of a value of state up to which its update shares a kernel with others of its shape, and the values
#: that such a kernel may name
SMALL_STATE_BYTES, MAX_ARGUMENTS = 1 << 17, 192
#: elements of maps that take less time than a launch, and the values that a kernel of them may name
SMALL_MAP, MAX_MAP_ARGUMENTS = 1 << 16, 48
#: bytes that a map or a gather reads and writes in a fraction of the time of a launch, out of any L2 cache
SMALL_MAP_BYTES = 1 << 21
#: bytes of the longest row that one block keeps: the registers of a multiprocessor
MAX_ROW_BYTES = 256 << 10
#: rows that are fewer than the multiprocessors of a large GPU by far
FEW_ROWS = 64
#: bytes that tensor cores read of a factor, up to which computing it on the way takes less than a launch, and
#: rows or columns of a block, about
COMPUTED_BYTES, TILE = 1 << 20, 128
#: bytes of an array that any kernel writes faster than a launch takes, and of one that few blocks walk
#: through as fast as many; bytes of neighbouring rows that are lines for each of the 128 multiprocessors or
#: so of a large GPU
SMALL_BYTES, WALKED_BYTES, LINES_ACROSS_BYTES = 1 << 16, 1 << 20, 128 * LINE_BYTES


@dataclass
class KernelGroup:
    """Ops of one kernel, in program order; `anchor` is the op that shapes it."""

    number: int
    anchor: Op
    ops: list[Op]
    before: int = 0  # bit set of all groups that must run earlier

    @property
    def rows(self) -> bool:
        return self.anchor.name == "tensor.reduce"

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(dims(self.anchor, "par").values())


@dataclass
class Partition:
    """Groups in a valid execution order, and what each view stands for.

    spared: stored values that one product could compute where it reads them, which storing them saves time.
    """

    groups: list[KernelGroup]
    views: dict[Value, Value]
    source: dict[Value, KernelGroup] = field(default_factory=dict)
    spared: dict[Value, None] = field(default_factory=dict)

    def resolve(self, v: Value) -> Value:
        """The value whose buffer holds `v`."""
        while v in self.views:
            v = self.views[v]
        return v


def partition(
    func: Func, *, fuse: bool = True, prologues: bool = True, unstored: Collection[Value] = ()
) -> Partition:
    """Group the structured ops of `func`; without `fuse` each op that computes gets a kernel of its own.

    prologues: whether a large map of a value that is stored anyway is left to the product that reads it.
    unstored: members of `Partition.spared` that their products compute, too.
    """
    builder = _Builder(func, fuse, prologues, unstored)
    for op in func.body.ops:
        if op.name in ("tensor.constant", "tensor.return", "tensor.call"):
            continue
        if is_view(op) and op.result not in builder.returned:
            builder.result.views[op.result] = op.operands[0]
        else:
            builder.place(op)
    return builder.finish()


class _Builder:
    def __init__(self, func: Func, fuse: bool, prologues: bool, unstored: Collection[Value]) -> None:
        self.fuse, self.prologues, self.unstored = fuse, prologues, unstored
        self.result = Partition([], {})
        self.readers: dict[Value, list[Op]] = {}
        for op in func.body.ops:
            for v in op.operands:
                self.readers.setdefault(v, []).append(op)
        self.returned = set(func.body.ops[-1].operands)
        self.updating = _updating(func, self.readers)
        self.training = bool(func.updates)
        self.recomputed = func.get(RECOMPUTED) is not None
        self.forward = ops_before_boundary(func)
        self.communicated: KernelGroup | None = None  # the latest communication
        self.sums: dict[object, list[KernelGroup]] = {}  # those of sums of one result, by points
        self.wide_reads: dict[Op, list[tuple[Value, tuple[Expr, ...]]]] = {}  # see `_wide_reads`
        #: groups of maps that are computed again for one product, the product, and its group where that may
        #: compute them
        self.copies: list[tuple[KernelGroup, Op, KernelGroup | None]] = []

    def group_of(self, v: Value) -> KernelGroup | None:
        return self.result.source.get(self.result.resolve(v))

    def place(self, op: Op) -> None:
        updates = self.fuse and op in self.updating
        if updates:
            host = self._update(op) if op.name == "tensor.map" else None
        else:
            host = self._host(op) if self.fuse else None
        if host is None and self.fuse:
            host = self._beside(op)
        if host is None:
            host = KernelGroup(len(self.result.groups), op, [])
            self.result.groups.append(host)
            if host.rows and len(op.results) == 1:
                self.sums.setdefault(_extents(op), []).append(host)
        self._add(op, host)
        if op.name == COMMUNICATE:
            self.communicated = host
        if op.name in REDUCING and self.fuse:
            self._absorb_prologues(op, host)
        elif op.name == "tensor.scatter" and self.training:
            self._absorb_initial(op, host)
        elif self.fuse and not updates and all(o.name in POINTWISE for o in host.ops):
            self._absorb_operands(op, host)

    def _add(self, op: Op, host: KernelGroup) -> None:
        if op.name == "tensor.reduce" and not any(r in op.operands for o in host.ops for r in o.results):
            last = max((i for i, o in enumerate(host.ops) if o.name in REDUCING), default=-1)
            host.ops.insert(last + 1, op)  # beside the sums, before what depends on them
        else:
            host.ops.append(op)
        for r in op.results:
            self.result.source[r] = host
        needed = self._needs(op, host)
        if needed & ~host.before:
            host.before |= needed
            if host.number + 1 == len(self.result.groups) and len(host.ops) == 1:
                return  # a new group, which no other waits for
            bit = 1 << host.number
            for g in self.result.groups:
                if g.before & bit:
                    g.before |= host.before

    def _needs(self, op: Op, host: KernelGroup | None) -> int:
        needed = 0
        for v in op.operands:
            g = self.group_of(v)
            if g is not None and g is not host:
                needed |= g.before | (1 << g.number)
        if op.name == COMMUNICATE and self.communicated not in (None, host):
            needed |= self.communicated.before | (1 << self.communicated.number)
        return needed

    def _host(self, op: Op) -> KernelGroup | None:
        """The latest group this op may join."""
        if self.prologues and self._starts_prologue(op):
            return None
        candidates = {g.number: g for v in op.operands if (g := self.group_of(v)) is not None}
        for number in sorted(candidates, reverse=True):
            g = candidates[number]
            acyclic = not self._needs(op, g) & (1 << number)
            if acyclic and self._fits(op, g):
                return g
        return None

    def _beside(self, op: Op) -> KernelGroup | None:
        """The latest group of a sum over the same points that reads, of one source at least, what this does.

        A source is a large value, or in training steps what a kernel makes: parts of sums that one kernel
        makes are added up by one kernel.
        """
        if op.name != "tensor.reduce" or len(op.results) != 1:
            return None
        points = _extents(op)
        alike = self.sums.get(points, ())
        if not alike:
            return None
        sources = self._sources(op)
        for g in reversed(alike):
            if not g.ops:
                continue
            phase = (g.anchor in self.forward) == (op in self.forward)
            shared = phase and sources & self._sources(g.anchor)
            if shared and not self._needs(op, g) & (1 << g.number):
                return g
        return None

    def _sources(self, op: Op) -> set[tuple[object, tuple[Expr, ...]]]:
        """What an op reads that is as large as its domain, and where, by the places of its dimensions."""
        if op not in self.wide_reads:
            self.wide_reads[op] = _wide_reads(op)
        out: set[tuple[object, tuple[Expr, ...]]] = set()
        for v, at in self.wide_reads[op]:
            g = self.group_of(v)
            small = self.training and g is not None and v.tensor.nbytes <= SMALL_BYTES
            out.add((g.number if g is not None and small else self.result.resolve(v), at))
        return out

    def _update(self, op: Op) -> KernelGroup | None:
        """The group of the state that this map updates, with all groups that the map reads of joined to it.

        Where one of these waits for another, because it reads that one's result at other places, the map
        joins the one that waits, and no group joins another.
        """
        inside = [i for i, v in enumerate(op.operands) if self.result.source.get(v) is not None]
        hosts: list[KernelGroup] = []
        for i in inside:
            g = self.result.source[op.operands[i]]
            shaped = g.anchor in self.updating and g.shape == tuple(dims(op, "par").values())
            if shaped and g not in hosts and identity_read(op, i) and fills(op)[i] is None:
                hosts.append(g)
        if not hosts:
            return None
        host, *others = sorted(hosts, key=lambda g: g.number)
        if any(self._wait(g, h) for g in hosts for h in hosts):
            return next(g for g in hosts if not any(h.before >> g.number & 1 for h in hosts))
        for g in others:
            self._merge(g, host)
        return host

    def _wait(self, g: KernelGroup, h: KernelGroup) -> bool:
        """Return whether one of two groups waits for the other."""
        return bool((g.before >> h.number | h.before >> g.number) & 1)

    def _join_small_updates(self) -> None:
        """Updates of small state of one shape share kernels: a launch takes longer than they do.

        One may wait for another where a map reads what another one gives at other places, such as reversed.
        """
        joined: dict[tuple[int, ...], KernelGroup] = {}
        for g in self.result.groups:
            if (
                not g.ops
                or g.anchor not in self.updating
                or g.anchor.result.tensor.nbytes > SMALL_STATE_BYTES
            ):
                continue
            host = joined.get(g.shape)
            if host is None or self._wait(g, host) or len(_arguments([*host.ops, *g.ops])) > MAX_ARGUMENTS:
                joined[g.shape] = g
            else:
                self._merge(g, host)

    def _starts_prologue(self, op: Op) -> bool:
        """Return whether this map is better computed where its result is read than where its operand is made.

        The operand must be stored anyway, because something else reads it; the result is large, and read by
        one product alone, element by element, through maps that bring no other operands along. Then the
        epilogue would write a second array, as large, that the prologue never stores. A product that makes
        more than it reads would compute the prologue too often; one on tensor cores has its factors copied
        asynchronously, which cannot compute. What only its size or tensor cores keep stored is `spared`.
        """
        made = [v for v in op.operands if self.group_of(v) is not None]
        if op.name != "tensor.map" or len(made) != 1 or len(self.readers[made[0]]) < 2:
            return False
        cost = 0
        while op.name == "tensor.map" and all(self.group_of(v) is None for v in op.operands if v not in made):
            cost += prologue_cost(op)
            if not all(identity_read(op, i) for i, v in enumerate(op.operands) if v in made):
                return False
            read_by = self.readers.get(op.results[0], [])
            if len(op.results) != 1 or len(read_by) != 1 or self.returned & set(op.results):
                return False
            made, op = list(op.results), read_by[0]
        if op.name != "tensor.contract" or cost > MAX_PROLOGUE_COST or made[0] not in op.operands:
            return False
        if made[0].tensor.nbytes < op.result.tensor.nbytes:
            return False
        ranges = ranges_of(op)
        indices = [simplify(e, ranges) for at in reads_of(op, made[0]) for e in at]
        if not all(isinstance(e, Sym | int) for e in indices):
            return False
        if made[0] in self.unstored:
            return True
        pays = made[0].tensor.nbytes >= CACHED_ARRAY_BYTES and not on_tensor_cores(op)
        if not pays:
            self.result.spared[made[0]] = None
        return pays

    def _fits(self, op: Op, g: KernelGroup) -> bool:
        if (op in self.forward) != (g.anchor in self.forward):
            return False  # what is computed again would be stored where it was computed first
        inside = [i for i, v in enumerate(op.operands) if self.group_of(v) is g]
        if any(op.operands[i] in self.result.views for i in inside):
            return False  # reading a reinterpreted buffer needs the whole buffer
        if op.name == "tensor.gather":
            return self._gather_fits(op, g, inside)
        if g.rows:
            return _fits_rows(op, g) and not (self.training and _has_few_rows(op, g))
        if op.name != "tensor.map" or g.anchor.name in ORDERED or tuple(dims(op, "par").values()) != g.shape:
            return False
        return all(identity_read(op, i) and fills(op)[i] is None for i in inside)

    def _gather_fits(self, op: Op, g: KernelGroup, inside: list[int]) -> bool:
        """A gather whose indices the same thread computes; its data must be in memory."""
        if g.rows or g.anchor.name in ORDERED or tuple(dims(op, "par").values()) != g.shape:
            return False
        return all(_reads_its_point(op, i) for i in inside)

    def _absorb_prologues(self, op: Op, host: KernelGroup) -> None:
        for v in op.operands:
            g = self.result.source.get(v)
            if g is None or g is host or any(o.name not in POINTWISE for o in g.ops):
                continue
            if not self._read_only_by(op, g):
                continue
            if host.number == g.number:
                continue
            cheap = sum(map(prologue_cost, g.ops)) <= MAX_PROLOGUE_COST and not self._slows(op, g)
            if self._is_copy_of_large(g):
                self.copies.append((g, op, host if cheap else None))
            elif cheap:
                self._merge(g, host)

    def _slows(self, op: Op, g: KernelGroup) -> bool:
        """Return whether a product takes longer to compute a large factor than a kernel takes to store it.

        On tensor cores it does: what is copied asynchronously cannot be computed on the way. A factor is the
        larger the more often its elements are read: by each tap of a convolution, and by each tile of a
        block in the dimensions that the other factor alone has.
        """
        if not self.training or not on_tensor_cores(op):
            return False
        par, extents = dims(op, "par"), domain(op)
        read_bytes = 0
        for v, at in zip(op.operands, reads(op), strict=True):
            if self.result.source.get(v) is g:
                met = {name for e in at for name in symbols(e)}
                tiles = -(-prod(n for name, n in par.items() if name not in met) // TILE)
                read_bytes += tiles * prod(extents[name] for name in met) * itemsize(v.tensor.dtype)
        return read_bytes > COMPUTED_BYTES

    def _is_copy_of_large(self, g: KernelGroup) -> bool:
        """Return whether a group of maps makes a large array of what the forward pass has stored."""
        return (
            self.recomputed
            and g.anchor not in self.forward
            and all(o.name == "tensor.map" for o in g.ops)
            and any(r.tensor.nbytes > CACHED_ARRAY_BYTES for r in g.ops[-1].results)
            and all(h.anchor in self.forward for h in self.result.groups if g.before >> h.number & 1)
        )

    def _place_copies(self) -> None:
        """Arrays that are computed again for a product are written by maps that read the same array.

        As what follows a norm, by the kernel that gives the gradient of the norm's operand: it reads this
        operand too. Where no kernel of maps does, the product computes the array itself.
        """
        for g, op, host in self.copies:
            if not g.ops or not self._read_only_by(op, g):
                continue
            reader = next((h for h in self.result.groups if self._may_write(h, g)), None)
            if reader is not None:
                self._merge(g, reader)
            elif host is not None and host.ops:
                self._merge(g, host)

    def _may_write(self, h: KernelGroup, g: KernelGroup) -> bool:
        """Return whether a kernel of maps reads what the maps of a group do, and may run them as well."""
        if h is g or not h.ops or any(o.name != "tensor.map" for o in h.ops) or h.shape != g.shape:
            return False
        if h.anchor in self.forward or h.anchor in self.updating or h.before >> g.number & 1:
            return False
        return bool(self._large_reads(g)) and self._large_reads(g) <= self._large_reads(h)

    def _large_reads(self, g: KernelGroup) -> set[Value]:
        """Large arrays of other kernels that all maps of a group which read them read at their own points."""
        large: set[Value] = set()
        elsewhere: set[Value] = set()
        for op in g.ops:
            for i, v in enumerate(op.operands):
                if self.group_of(v) is g or v.tensor.nbytes <= CACHED_ARRAY_BYTES:
                    continue
                own = identity_read(op, i) and fills(op)[i] is None
                (large if own else elsewhere).add(self.result.resolve(v))
        return large - elsewhere

    def _absorb_initial(self, op: Op, host: KernelGroup) -> None:
        """Maps that make, of little data, what a scatter updates and nothing else reads: zeros, as a rule."""
        g = self.result.source.get(op.operands[0])
        if g is None or g is host or any(o.name != "tensor.map" for o in g.ops):
            return
        made = {r for o in g.ops for r in o.results}
        read = sum(v.tensor.nbytes for v in {v for o in g.ops for v in o.operands} - made)
        cheap = read <= SMALL_BYTES and sum(map(prologue_cost, g.ops)) <= MAX_PROLOGUE_COST
        if cheap and self._read_only_by(op, g) and op.operands[0] not in op.operands[1:]:
            self._merge(g, host)

    def _read_only_by(self, op: Op, g: KernelGroup) -> bool:
        """Return whether what a group makes leaves it for this op alone."""
        outputs = [r for o in g.ops for r in o.results]
        outside = [x for r in outputs for x in self.readers.get(r, []) if x not in g.ops]
        return all(x is op for x in outside) and not self.returned & set(outputs)

    def _absorb_operands(self, op: Op, host: KernelGroup) -> None:
        """Maps and gathers of other groups that make, point by point, what this one alone reads of them."""
        if op.name != "tensor.map":
            return
        for v in op.operands:
            g = self.result.source.get(v)
            if g is None or g is host or any(o.name not in POINTWISE for o in g.ops) or g.shape != host.shape:
                continue
            # Also where it reads a value twice: another thread's element would be computed anew.
            of_group = [i for i, x in enumerate(op.operands) if self.result.source.get(x) is g]
            if not all(identity_read(op, i) and fills(op)[i] is None for i in of_group):
                continue
            if self._read_only_by(op, g) and not g.before >> host.number & 1:
                self._merge(g, host)

    def _merge(self, g: KernelGroup, host: KernelGroup, *, behind: bool = False) -> None:
        """Give a group's ops to another one, before its own or `behind` them: what waited for either waits.

        Neither may wait for the other through a third group.
        """
        bits = 1 << g.number | 1 << host.number
        waiting = [h for h in self.result.groups if h.before & bits and h is not host]
        host.ops = host.ops + g.ops if behind else g.ops + host.ops
        for o in g.ops:
            for r in o.results:
                self.result.source[r] = host
        host.before = (host.before | g.before) & ~bits
        for h in waiting:
            h.before = h.before & ~bits | 1 << host.number | host.before
        g.ops = []

    def _join_small_maps(self) -> None:
        """Small maps over the same points share a kernel where none of them waits for more than before.

        As those of the gates of a cell: each reads its part of one product, and a later one what they give.
        Where one needs no more groups than the other and perhaps that one itself, no chain becomes longer.
        """
        groups = [g for g in self.result.groups if g.ops and self._is_small_map(g)]
        small = {g.number for g in groups}
        latest: dict[object, KernelGroup] = {}
        for g in sorted(groups, key=lambda g: (g.before.bit_count(), g.number)):
            if self._is_gather(g):  # each has a table of its own, so that no value says which are near
                if (other := latest.get(g.shape)) is not None and self._may_share(other, g, small):
                    self._merge(other, g)
                latest[g.shape] = g
                continue
            read = [v for v in _arguments(g.ops) if self.group_of(v) is not g]
            near = {id(h): h for v in read if (h := self.group_of(v)) is not None}
            near |= {id(h): h for v in read if (h := latest.get(self.result.resolve(v))) is not None}
            for other in sorted(near.values(), key=lambda h: -h.number):
                if other is not g and self._may_share(other, g, small):
                    self._merge(other, g)
            latest |= {self.result.resolve(v): g for v in read}

    def _is_small_map(self, g: KernelGroup) -> bool:
        maps = self._is_gather(g) or all(op.name == "tensor.map" for op in g.ops)
        if not maps or g.anchor in self.updating or any(r in self.result.views for r in _made(g)):
            return False
        if not self._is_gather(g) and prod(g.shape) <= SMALL_MAP:
            return True
        # A point reads one element of every operand, however large that is.
        moved = sum(itemsize(v.tensor.dtype) for v in _arguments(g.ops))
        return moved * prod(g.shape) <= SMALL_MAP_BYTES

    def _is_gather(self, g: KernelGroup) -> bool:
        """Return whether a kernel gathers alone: rows of tables, as look-ups of embeddings."""
        return all(op.name == "tensor.gather" for op in g.ops)

    def _may_share(self, g: KernelGroup, host: KernelGroup, small: Set[int]) -> bool:
        """Return whether a group may be computed by another one, which may read what it makes."""
        alike = g.ops and g.number in small and g.shape == host.shape
        if not alike or (g.anchor in self.forward) != (host.anchor in self.forward):
            return False
        if host.before & ~(g.before | 1 << g.number) or g.before >> host.number & 1:
            return False
        if self._is_gather(g) != self._is_gather(host):
            return False
        limit = MAX_ARGUMENTS if self._is_gather(g) else MAX_MAP_ARGUMENTS
        if len(_arguments([*g.ops, *host.ops])) > limit:
            return False
        made = _made(g)
        return all(
            v in made and _reads_its_point(op, i)
            for op in host.ops
            for i, v in enumerate(op.operands)
            if self.group_of(v) is g
        )

    def _join_epilogues(self) -> None:
        """Kernels of maps end the kernels that make, point by point, what they read: the latest that can."""
        for g in tuple(self.result.groups):
            if not g.ops or any(o.name != "tensor.map" for o in g.ops) or g.anchor in self.updating:
                continue
            makers = {h.number: h for o in g.ops for v in o.operands if (h := self.group_of(v)) is not None}
            for number in sorted(makers.keys() - {g.number}, reverse=True):
                if self._ends(g, makers[number]):
                    if self.recomputed and makers[number].anchor.name == "tensor.contract":
                        self._split_copies(g, makers[number])
                    self._merge(g, makers[number], behind=True)
                    break

    def _split_copies(self, g: KernelGroup, host: KernelGroup) -> None:
        """Give ops a kernel of their own that need nothing of a product and make large arrays for others.

        As a value that is computed again for the gradient of a weight, while the gradient at hand is masked
        by it: stored beside the sums of the product it would cost more than its traffic
        (`second_results.py`). The rest reads what they make, which must be little more than what they store.
        """
        waiting: list[Op] = []
        for op in g.ops:
            makers = (self.result.source.get(v) for v in op.operands)
            if host in makers or any(v in o.results for o in waiting for v in op.operands):
                waiting.append(op)
        free = [op for op in g.ops if op not in waiting]
        outside = {
            r
            for op in free
            for r in op.results
            if r in self.returned or any(x not in g.ops for x in self.readers.get(r, ()))
        }
        if not any(r.tensor.nbytes > CACHED_ARRAY_BYTES for r in outside):
            return
        for op in free[::-1]:  # masks are computed from what is stored
            made = {r for o in free for r in o.results}
            needed = outside | {v for o in free for v in o.operands}
            if needed.isdisjoint(op.results) and outside.issuperset(made & set(op.operands)):
                free.remove(op)
                waiting.insert(0, op)
        handed = {v for op in waiting for v in op.operands if any(v in o.results for o in free)} - outside
        if 2 * sum(v.tensor.nbytes for v in handed) > sum(r.tensor.nbytes for r in outside):
            return
        own = KernelGroup(len(self.result.groups), free[0], [])
        self.result.groups.append(own)
        g.ops, g.anchor = waiting, waiting[0]
        for op in free:
            self._add(op, own)
        for other in self.result.groups:
            if other is host or other is g or other.before & (1 << g.number):
                other.before |= own.before | 1 << own.number

    def _ends(self, g: KernelGroup, host: KernelGroup) -> bool:
        """Return whether all of a kernel of maps may run at the end of another kernel."""
        others = 0
        for op in g.ops:
            if host.rows or not self._fits(op, host):
                return False
            for v in op.operands:
                h = self.group_of(v)
                if h is not None and h is not host and h is not g:
                    others |= h.before | (1 << h.number)
        return not others >> host.number & 1

    def finish(self) -> Partition:
        if self.fuse and self.training:
            self._join_epilogues()
            self._place_copies()
        self._join_small_updates()
        if self.fuse:
            self._join_small_maps()
        self.result.groups = in_order([g for g in self.result.groups if g.ops], self.group_of)
        return self.result


def _arguments(ops: Sequence[Op]) -> set[Value]:
    """What a kernel of these ops reads and may write: no more than its arguments."""
    made = {r for op in ops for r in op.results}
    return {v for op in ops for v in op.operands if v not in made} | made


def _reads_its_point(op: Op, operand: int) -> bool:
    """Return whether a map or a gather reads an operand where it is itself.

    What a gather takes elements from must be in memory.
    """
    if op.name == "tensor.gather":
        return operand > 0 and reads(op)[operand - 1] == tuple(map(Sym, dims(op, "par")))
    return identity_read(op, operand) and fills(op)[operand] is None


def _made(g: KernelGroup) -> set[Value]:
    """What the ops of a group give."""
    return {r for op in g.ops for r in op.results}


def _updating(func: Func, readers: Mapping[Value, Sequence[Op]]) -> set[Op]:
    """Maps and gathers of several elements whose results become state and are read on the way there only."""
    ops = func.body.ops
    state = {ops[-1].operands[r] for _, r in func.updates}
    results = [v for i, v in enumerate(ops[-1].operands) if i not in {r for _, r in func.updates}]
    out: set[Op] = set()
    for op in reversed(ops[:-1] if state else ()):
        if op.name not in POINTWISE or len(op.results) != 1 or op.result.tensor.size == 1:
            continue
        if op.result in results:
            continue
        read_by = [x for x in readers.get(op.result, ()) if x is not ops[-1]]
        # What a gather reads must be in memory: groups would wait for each other.
        if all(x in out and x.name == "tensor.map" for x in read_by) and (read_by or op.result in state):
            out.add(op)
    return out


def in_order(groups: list[KernelGroup], group_of: Callable[[Value], KernelGroup | None]) -> list[KernelGroup]:
    """Groups in the order of the longest chain that leads to each; numbers break ties.

    Communications have ascending numbers in program order and keep it.
    """
    waits_for: dict[int, set[int]] = {}
    for g in groups:
        sources = [s for op in g.ops for v in op.operands if (s := group_of(v)) is not None]
        waits_for[g.number] = {s.number for s in sources if s is not g}
    communications = sorted(g.number for g in groups if g.anchor.name == COMMUNICATE)
    for earlier, later in pairwise(communications):
        waits_for[later].add(earlier)
    depth: dict[int, int] = {}
    try:
        for number in TopologicalSorter(waits_for).static_order():
            depth[number] = 1 + max((depth[n] for n in waits_for[number]), default=0)
    except CycleError as e:
        raise AssertionError("kernel groups depend on each other") from e
    return sorted(groups, key=lambda g: (depth[g.number], g.number))


def _fits_rows(op: Op, g: KernelGroup) -> bool:
    """An op over the rows of a reduction: whatever it reads of the group belongs to its own row.

    One that walks along a row which no block can keep would read it again as a kernel of its own does, which
    has more blocks than there are rows: as in the normalisation of a batch per channel. So does one whose
    rows lie across memory, so that neighbours belong to other rows, unless it walks where the reductions did
    and is small, or has rows for many blocks.
    """
    if op.name not in ("tensor.map", "tensor.reduce"):
        return False
    rows = rows_of([*g.ops, op], g.anchor)
    if rows is None or op not in rows:
        return False
    columns = {d: n for d, n in domain(op).items() if d not in rows[op]}
    widest = max((itemsize(v.tensor.dtype) for v in op.operands), default=0)
    if widest * prod(columns.values()) > MAX_ROW_BYTES:
        return False
    size = widest * prod(domain(op).values())
    if size <= SMALL_BYTES or not _lies_across(op, columns):
        return True
    few = size > WALKED_BYTES and size // prod(columns.values()) < LINES_ACROSS_BYTES
    return not few and any(
        _wide(dims(o, "red")) == _wide(columns) for o in g.ops if o.name == "tensor.reduce"
    )


def _has_few_rows(op: Op, g: KernelGroup) -> bool:
    """Return whether a map writes a large array along rows that are fewer than blocks run at once.

    As the normalisation of a batch of images per colour: its sums may be cut into parts, the map may not.
    """
    size = sum(r.tensor.nbytes for r in op.results)
    return op.name == "tensor.map" and prod(g.shape) < FEW_ROWS and size > WALKED_BYTES // 4


def _extents(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(dims(op, "par").values()), _wide(dims(op, "red"))


def _wide_reads(op: Op) -> list[tuple[Value, tuple[Expr, ...]]]:
    """Operands that a structured op reads along all of its domain, and where, by the places of dimensions."""
    wide = [d for d, n in domain(op).items() if n > 1]
    place: dict[str, Expr] = {d: Sym(f"d{i}") for i, d in enumerate(wide)}
    ranges = ranges_of(op)
    out = []
    for v, indices in zip(op.operands, reads(op), strict=True):
        at = [simplify(e, ranges) for e in indices]
        if {d for e in at for d in symbols(e)} == set(wide):
            out.append((v, tuple(substitute(e, place) for e in at)))
    return out


def _lies_across(op: Op, columns: Mapping[str, int]) -> bool:
    """Return whether neighbours in what a map writes along columns belong to different rows."""
    wide = [d for d, n in dims(op, "par").items() if n > 1]
    return op.name == "tensor.map" and prod(columns.values()) > 1 and wide[-1] not in columns


def _wide(extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(n for n in extents.values() if n > 1)


def readers(part: Partition, func: Func) -> dict[Value, set[int]]:
    """The ops (by id) that read each buffer, named by the value that fills it; views read nothing."""
    read_by: dict[Value, set[int]] = {}
    for op in func.body.ops:
        if not (len(op.results) == 1 and op.results[0] in part.views):
            for v in op.operands:
                read_by.setdefault(part.resolve(v), set()).add(id(op))
    return read_by


def used_outside(g: KernelGroup, read_by: dict[Value, set[int]]) -> list[Value]:
    """Results of the group that another kernel, or the caller, reads; in program order.

    read_by: from `readers`.
    """
    inside = set(map(id, g.ops))
    return [r for op in g.ops for r in op.results if not read_by.get(r, set()) <= inside]
