"""Pass delay-stores: unrolled loops load everything before they write anything, where pointers may alias."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.costmodel.kernels.relays import starts_early
from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Block, Func, Level, Op, Value, walk
from tilewright.ir.types import itemsize
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.kept_values import alloc_kept, keep, kept_at, kept_buffer, read_kept
from tilewright.passes.thread.scopes import extent_of, loop_variable, map_indices

#: registers (4 bytes) one loop nest may hold back; more would cost occupancy or spill
MAX_REGISTERS = 64
_PLAIN = frozenset(
    {"thread.load", "thread.gather", "thread.store", "thread.yield", "thread.loop", "thread.if"}
)


@register_pass(Level.THREAD)
def delay_stores(func: Func, ctx: PassContext) -> Func:
    """Split unrolled loops that read and write global memory: all that they compute, then the stores.

    rewrite:  loop(i, unroll = 1) { %a = load(%x, at = [i]); store(%a, %y, at = [i]) }
        -->   loop(i, unroll = 1) { %a = load(%x, at = [i]); store(%a, %kept, at = [i]) };
              loop(i, unroll = 1) { %b = load(%kept, at = [i]); store(%b, %y, at = [i]) }

    A loop unrolled in part becomes one over the groups that are unrolled together, each of them split.

    For targets of `overlap-launches` alone: there the compiler may not assume that a load through one
    parameter misses a store through another, and each iteration would wait for its own loads.
    """
    return func.with_body(_delayed(func.body)) if starts_early(ctx.target) else func


def _delayed(block: Block) -> Block:
    out: list[Op] = []
    for op in block.ops:
        grouped = _grouped(op)
        if _splits(op):
            split = _StoreSplitter()
            computing = split.computing(op, ())
            out += [*split.allocs, computing, split.storing(op)]
        elif grouped is not None:
            out.append(grouped)
        elif op.body is not None:
            body = _delayed(op.body)
            out.append(op if body is op.body else replace(op, body=body))
        else:
            out.append(op)
    return block.with_ops(tuple(out))


def _grouped(op: Op) -> Op | None:
    """A loop unrolled in part as a loop over its groups, each of them split; None where that does not go."""
    if op.name != "thread.loop" or op.body is None or op.operands:
        return None
    at_once, extent, name = op.integer("unroll"), extent_of(op), loop_variable(op)
    if at_once < 2 or extent % at_once:
        return None
    inner = f"{name}_in"
    index = Sym(name) * at_once + Sym(inner)
    body = _with_index(op.body, {name: index})
    group = replace(op.with_attrs(var=Sym(inner), extent=at_once, unroll=1), body=body)
    if not _splits(group):
        return None
    groups = op.with_attrs(extent=extent // at_once, unroll=0)
    return replace(groups, body=_delayed(op.body.with_ops((group,))))


def _with_index(block: Block, index: Mapping[str, Expr]) -> Block:
    """The block with symbols replaced in all index expressions."""

    def mapped(op: Op) -> Op:
        op = map_indices(op, lambda e: substitute(e, index))
        return op if op.body is None else replace(op, body=_with_index(op.body, index))

    return block.with_ops(tuple(map(mapped, block.ops)))


def _splits(op: Op) -> bool:
    """True when a loop is unrolled as a whole, reads nothing that it writes, and has few values to hold."""
    if op.name != "thread.loop" or op.body is None:
        return False
    inside = [op, *walk(op.body)]
    loops = [o for o in inside if o.name == "thread.loop"]
    if any(o["unroll"] != 1 or o.operands for o in loops):
        return False
    if not all(o.name in _PLAIN or o.level == "scalar" for o in inside):
        return False
    if any(o.name == "thread.if" and o.operands for o in inside):
        return False  # what it depends on is computed before the stores
    reads = {o.operands[0] for o in inside if o.name in ("thread.load", "thread.gather")}
    written = {o.operands[1] for o in inside if _writes_global(o)}
    apart = any(v.tensor.space == "global" for v in reads) and not written & reads
    return apart and _stores(op) > 1 and _registers(op) <= MAX_REGISTERS


def _writes_global(op: Op) -> bool:
    return op.name == "thread.store" and op.operands[1].tensor.space == "global"


def _stores(op: Op) -> int:
    """The number of stores to global memory that one thread executes."""
    if op.body is None:
        return int(_writes_global(op))
    return _times(op) * sum(map(_stores, op.body.ops))


def _registers(op: Op) -> int:
    """Registers for all the values it stores to global memory."""
    if op.body is None:
        return _words(op.operands[0]) if _writes_global(op) else 0
    return _times(op) * sum(map(_registers, op.body.ops))


def _words(value: Value) -> int:
    return int(getattr(value.type, "lanes", 1)) * -(-itemsize(value.type.dtype) // 4)


def _times(op: Op) -> int:
    return extent_of(op) if op.name == "thread.loop" else 1


@dataclass(frozen=True)
class _StoreRegisters:
    """The register buffer of one store: an element per iteration and lane."""

    buffer: Value
    at: tuple[Expr, ...]


class _StoreSplitter:
    def __init__(self) -> None:
        self.allocs: list[Op] = []
        self.registers: dict[Op, _StoreRegisters] = {}

    def computing(self, op: Op, around: tuple[Op, ...]) -> Op:
        """The loop or condition (inside the loops `around`) with registers in place of global memory."""
        assert op.body is not None
        loops = (*around, op) if op.name == "thread.loop" else around
        return replace(op, body=op.body.with_ops(tuple(self._keeping(o, loops) for o in op.body.ops)))

    def _keeping(self, op: Op, around: tuple[Op, ...]) -> Op:
        if op.body is not None:
            return self.computing(op, around)
        if not _writes_global(op):
            return op
        value, target = op.operands
        buffer = kept_buffer(value, target.tensor.dtype, map(extent_of, around), "kept")
        at = kept_at(map(loop_variable, around))
        self.allocs.append(alloc_kept(buffer, op.loc))
        self.registers[op] = _StoreRegisters(buffer, at)
        return keep(value, buffer, at, op.loc)

    def storing(self, op: Op) -> Op:
        """The loop or condition with nothing but its stores, of the values kept."""
        assert op.body is not None
        out: list[Op] = []
        for o in op.body.ops:
            if o in self.registers:
                out += self._store(o)
            elif o.body is not None and any(inner in self.registers for inner in walk(o.body)):
                out.append(self.storing(o))
            elif o.name == "thread.yield":
                out.append(o)
        return replace(op, body=op.body.with_ops(tuple(out)))

    def _store(self, op: Op) -> list[Op]:
        delayed = self.registers[op]
        value = Value(op.operands[0].type, op.operands[0].hint)
        load = read_kept(value, delayed.buffer, delayed.at, op.loc)
        return [load, op.with_operands((value, op.operands[1]))]
