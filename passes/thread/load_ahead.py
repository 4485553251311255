"""Pass load-ahead: a warpgroup loads what its results need from global memory while it still multiplies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from math import prod

from tilewright.ir.expr import Expr, Sym, substitute, symbols
from tilewright.ir.hardware_facts import WARP
from tilewright.ir.nodes import Block, Func, Level, Op, Value, walk
from tilewright.ir.thread.launch_ops import overwrites
from tilewright.ir.thread.role_ops import ROLE
from tilewright.ir.types import ScalarType, TensorType, itemsize
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.kept_values import alloc_kept, keep, kept_at, kept_buffer, read_kept
from tilewright.passes.thread.scopes import extent_of, loop_variable, map_indices

#: registers that a thread needs besides its sums and what it loads ahead: addresses, counters, values
_OTHER_REGISTERS = 64
#: scopes that may stand around a load that is moved
_SCOPES = frozenset({"thread.loop", "thread.if"})


@register_pass(Level.THREAD)
def load_ahead(func: Func, ctx: PassContext) -> Func:
    """Load what unrolled nests of a role read of global memory element by element one step early.

    The first nest's elements are loaded before the loop that stands before it, each other nest's in the nest
    before, into the registers that this one has just read.

    rewrite:  loop(k) { ... }; loop(j, unroll = 1) { %a = load(%x, at = [j]); ... };
              loop(i, unroll = 1) { %b = load(%x, at = [8 + i]); ... }
        -->   loop(j, unroll = 1) { %a = load(%x, at = [j]); store(%a, %ahead, at = [j]) }; loop(k) { ... };
              loop(j, unroll = 1) { %a = load(%ahead, at = [j]); ...;
                                    %b = load(%x, at = [8 + j]); store(%b, %ahead, at = [j]) };
              loop(i, unroll = 1) { %b = load(%ahead, at = [i]); ... }

    A role has one or two warps on each scheduler, so nothing hides a wait for memory but the role's own work,
    and fences between the nests keep the compiler of the kernel's text from moving loads itself. What all
    iterations of a loop have in common stays where it is, as does what the role has no registers for. The
    kernel must only read such parameters. Results are bit for bit the same.
    """
    shared = {i for pair in overwrites(func) for i in pair}
    given = {v for i, v in enumerate(func.params) if i not in shared and v.tensor.space == "global"}
    only_read = given - {v for op in walk(func.body) if op.name != "thread.load" for v in op.operands}
    return func.with_body(_roles(func.body, only_read)) if only_read else func


def _roles(block: Block, only_read: set[Value]) -> Block:
    """The block with loads moved in its roles, which stand at any depth."""
    out = []
    for op in block.ops:
        if op.body is None:
            out.append(op)
        elif op.name == ROLE and op.integer("registers"):
            allocs = [o.result.tensor for o in walk(op.body) if o.name == "thread.alloc"]
            sums = sum(map(_fragment_registers, allocs))
            room = op.integer("registers") - sums - _OTHER_REGISTERS
            body = _moved(op.body, only_read, room)
            out.append(op if body is op.body else replace(op, body=body))
        else:
            body = _roles(op.body, only_read)
            out.append(op if body is op.body else replace(op, body=body))
    return block.with_ops(tuple(out))


def _fragment_registers(t: TensorType) -> int:
    """Registers of a thread for the elements of fragments."""
    return prod(t.shape) * itemsize(t.dtype) // (4 * WARP) if t.space == "frag" else 0


def _moved(block: Block, only_read: set[Value], room: int) -> Block:
    """The block with loads of its own unrolled nests moved; blocks inside of others come first."""
    ops = list(block.ops)
    nests = [_Nest.of(op, only_read, room) for op in ops]
    for i, op in enumerate(ops):
        if op.body is not None and nests[i] is None:
            body = _moved(op.body, only_read, room)
            ops[i] = op if body is op.body else replace(op, body=body)
    runs = _runs([(i, nest) for i, nest in enumerate(nests) if nest is not None])
    if not runs:
        return block.with_ops(tuple(ops))
    before: dict[int, list[Op]] = {}
    for run in runs:
        first, start = run[0]
        place = _latest_loop(ops, first)
        needed = sum(load.registers for load in start.loads)
        if needed > room or (len(run) == 1 and place == first):
            continue  # no registers besides those of the runs before, or nothing to load it behind
        room -= needed
        buffers = [start.buffer(load) for load in start.loads]
        before.setdefault(place, []).extend((*map(alloc_kept, buffers), start.loading(buffers)))
        for k, (i, nest) in enumerate(run):
            following = run[k + 1][1] if k + 1 < len(run) else None
            ops[i] = nest.reading(buffers, following)
    return block.with_ops(tuple(o for i, op in enumerate(ops) for o in (*before.get(i, ()), op)))


def _latest_loop(ops: Sequence[Op], before: int) -> int:
    """The position of the last loop that is not unrolled before an op; that of the op where there is none."""
    loops = [i for i in range(before) if ops[i].name == "thread.loop" and ops[i].integer("unroll") != 1]
    return loops[-1] if loops else before


def _runs(nests: Sequence[tuple[int, _Nest]]) -> list[list[tuple[int, _Nest]]]:
    """Nests that follow each other and have the same loops and loads, which take turns in registers."""
    return [list(run) for _, run in groupby(nests, key=lambda n: n[1].form)]


@dataclass(frozen=True)
class _Load:
    """A load, and the loops and conditions around it inside its nest."""

    op: Op
    around: tuple[Op, ...]

    @property
    def loops(self) -> list[Op]:
        """The loops around it, outermost first."""
        return [o for o in self.around if o.name == "thread.loop"]

    @property
    def registers(self) -> int:
        """Registers that a thread needs for all that it loads."""
        value = self.op.results[0].type
        assert isinstance(value, ScalarType)
        return prod(map(extent_of, self.loops)) * -(-value.lanes * itemsize(value.dtype) // 4)


@dataclass(frozen=True)
class _Nest:
    """An unrolled loop, or several around each other, with the loads in it that are worth moving."""

    op: Op
    loads: tuple[_Load, ...]

    @staticmethod
    def of(op: Op, only_read: set[Value], room: int) -> _Nest | None:
        """The nest of an op; None where it is none, or nothing in it can be moved."""
        if op.name != "thread.loop" or op.body is None:
            return None
        loops = [o for o in (op, *walk(op.body)) if o.name == "thread.loop"]
        if any(o.integer("unroll") != 1 or o.operands for o in loops):
            return None
        chosen: list[_Load] = []
        kept = {o.operands[0] for o in walk(op.body) if _keeps(o)}  # ahead already
        found = [x for x in _loads(op, ()) if _movable(x, only_read) and x.op.results[0] not in kept]
        for load in sorted(found, key=lambda x: -x.registers):
            if load.registers <= room:
                chosen.append(load)
                room -= load.registers
        return _Nest(op, tuple(load for load in found if load in chosen)) if chosen else None

    @property
    def form(self) -> tuple[object, ...]:
        """What two nests have in common whose loads may take turns in the same registers."""
        loops = tuple(extent_of(o) for o in (self.op, *_only_loops(self.op)))
        return loops, tuple(
            (x.op.operands[0], x.op.results[0].type, tuple((o.name, o.get("extent")) for o in x.around))
            for x in self.loads
        )

    def buffer(self, load: _Load) -> Value:
        """Registers for what a load gives in all iterations."""
        return kept_buffer(
            load.op.result, load.op.operands[0].tensor.dtype, map(extent_of, load.loops), "ahead"
        )

    def loading(self, buffers: Sequence[Value]) -> Op:
        """The nest with nothing but its loads, whose values are kept."""
        kept = {load.op: buffer for load, buffer in zip(self.loads, buffers, strict=True)}
        return _pruned(self.op, kept, ())[0]

    def reading(self, buffers: Sequence[Value], following: _Nest | None) -> Op:
        """The nest with registers in place of global memory; the loads of the following one stand in the
        innermost of the loops that hold nothing but each other, behind all that this one reads there.
        """
        kept = {load.op: buffer for load, buffer in zip(self.loads, buffers, strict=True)}
        op = _with_registers(self.op, kept, ())
        if following is None:
            return op
        loops = [following.op, *_only_loops(following.op)]
        inner = loops[-1].body
        assert inner is not None
        later = {load.op: buffer for load, buffer in zip(following.loads, buffers, strict=True)}
        loads = [o for x in inner.ops for o in _pruned(x, later, tuple(loops))]
        own = [loop_variable(o) for o in (self.op, *_only_loops(self.op))]
        names: dict[str, Expr] = {loop_variable(o): Sym(name) for o, name in zip(loops, own, strict=True)}
        return _appended(op, len(loops), [_renamed(o, names) for o in loads])


def _only_loops(op: Op) -> list[Op]:
    """The loops inside a loop that each are all that the one around holds, outermost first."""
    assert op.body is not None
    inside = [o for o in op.body.ops if o.name != "thread.yield"]
    if len(inside) == 1 and inside[0].name == "thread.loop":
        return [inside[0], *_only_loops(inside[0])]
    return []


def _loads(op: Op, around: tuple[Op, ...]) -> Iterator[_Load]:
    """The loads in a nest of loops and conditions on indices."""
    assert op.body is not None
    around = (*around, op)
    for o in op.body.ops:
        if o.name in _SCOPES and not o.operands:
            yield from _loads(o, around)
        elif o.name == "thread.load":
            yield _Load(o, around)


def _movable(load: _Load, only_read: set[Value]) -> bool:
    """Return whether a load takes another element of a parameter that is only read in each iteration."""
    if load.op.operands[0] not in only_read:
        return False
    used = {name for e in load.op["at"] for name in symbols(e)}  # type: ignore[union-attr, arg-type]
    return all(loop_variable(o) in used for o in load.loops if extent_of(o) > 1)


def _keeps(op: Op) -> bool:
    """Return whether an op stores a value in registers."""
    return op.name == "thread.store" and op.operands[1].tensor.space == "reg"


def _place(around: Sequence[Op]) -> tuple[Expr, ...]:
    return kept_at(loop_variable(o) for o in around if o.name == "thread.loop")


def _pruned(op: Op, kept: Mapping[Op, Value], around: tuple[Op, ...]) -> list[Op]:
    """An op of a nest with nothing but loads that are kept; nothing where it has none."""
    if op in kept:
        value = Value(op.result.type, op.result.hint)
        return [replace(op, results=(value,)), keep(value, kept[op], _place(around), op.loc)]
    if op.name not in _SCOPES or op.body is None or not any(o in kept for o in walk(op.body)):
        return []
    inside = [n for o in op.body.ops for n in _pruned(o, kept, (*around, op))]
    inside += [o for o in op.body.ops if o.name == "thread.yield"]
    return [replace(op, body=op.body.with_ops(tuple(inside)))]


def _with_registers(op: Op, kept: Mapping[Op, Value], around: tuple[Op, ...]) -> Op:
    """An op of a nest whose loads take what was kept."""
    if op in kept:
        return read_kept(op.result, kept[op], _place(around), op.loc)
    if op.body is None or op.name not in _SCOPES:
        return op
    inner = (*around, op)
    return replace(op, body=op.body.with_ops(tuple(_with_registers(o, kept, inner) for o in op.body.ops)))


def _appended(op: Op, depth: int, ops: Sequence[Op]) -> Op:
    """A nest with ops at the end of the body at a depth, before what the body yields."""
    assert op.body is not None
    if depth > 1:
        inside = tuple(_appended(o, depth - 1, ops) if o.name == "thread.loop" else o for o in op.body.ops)
    else:
        own = [o for o in op.body.ops if o.name != "thread.yield"]
        inside = (*own, *ops, *op.body.ops[len(own) :])
    return replace(op, body=op.body.with_ops(inside))


def _renamed(op: Op, names: Mapping[str, Expr]) -> Op:
    op = map_indices(op, lambda e: substitute(e, names))
    if op.body is None:
        return op
    return replace(op, body=op.body.with_ops(tuple(_renamed(o, names) for o in op.body.ops)))
