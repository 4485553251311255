"""Pass place-barriers: barriers for all shared-memory hazards, as few as the order of accesses allows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir.errors import InputError
from tilewright.ir.expr import BinOp, Expr, Sym, binary, substitute, symbols
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value
from tilewright.ir.simplify import Ranges, interval, linear, simplify
from tilewright.ir.types import TensorType
from tilewright.passes.context import PassContext
from tilewright.passes.definition import register_pass
from tilewright.passes.invariants import register_invariant
from tilewright.passes.thread.scopes import Mask, launch_ranges, loop_ranges, mask_of

#: per op, the operand that is the buffer and the attribute that says where; None: anywhere in the buffer
_READS: dict[str, tuple[int, str | None]] = {
    "thread.load": (0, "at"),
    "thread.load_fragment": (1, None),
    "thread.gather": (0, None),
    "thread.atomic_add": (1, None),
}
_WRITES: dict[str, tuple[int, str | None]] = {
    "thread.store": (1, "at"),
    "thread.store_fragment": (1, None),
    "thread.scatter": (1, None),
    "thread.copy_async": (1, None),
    "thread.atomic_add": (1, None),
}


@dataclass(frozen=True)
class Access:
    """One access to shared memory: at which index (None: anywhere), under which mask and symbol ranges."""

    buffer: Value
    write: bool
    at: tuple[Expr, ...] | None
    lanes: int
    mask: Mask
    ranges: Ranges
    asynchronous: bool


@register_pass(Level.THREAD, establishes={"barriers-placed"})
def place_barriers(func: Func, ctx: PassContext) -> Func:
    """Insert barriers between accesses of different threads to the same shared memory, one of them a write.

    rewrite:  store shared; load shared   -->   store shared; barrier; load shared

    Barriers stand in uniform control only: before the loop or condition that holds the second access, and
    at the end of a loop body whose end conflicts with its beginning. Existing barriers count. Accesses that
    provably touch only the thread's own elements, or disjoint ones, need none. Raises InputError for a hazard
    inside divergent control, or one with an asynchronous copy that nothing waits for.
    """
    return _placed(func)


def _placed(func: Func) -> Func:
    if func["block"] == 1:
        return func
    block, _, _ = _Placer().block(func.body, [], launch_ranges(func))
    return func.with_body(block)


@register_invariant("barriers-placed")
def barriers_placed(module: Module) -> list[str]:
    """No shared-memory hazard of any kernel is left without a barrier."""
    kernels = [f for f in module.funcs if f.level is Level.THREAD]
    return [f"@{f.name} needs a barrier" for f in kernels if _placed(f) is not f]


class _Placer:
    def block(
        self, block: Block, pending: list[Access], ranges: Ranges
    ) -> tuple[Block, list[Access], tuple[list[Access], bool]]:
        """The block with barriers, what is pending after it, and the accesses before its first barrier."""
        out: list[Op] = []
        head: list[Access] = []
        in_head = True
        for op in block.ops:
            if op.name == "thread.barrier":
                self.waited(pending, op)
                pending, in_head = [], False
                out.append(op)
                continue
            if op.name == "thread.async_wait":
                pending = [replace(a, asynchronous=False) for a in pending] if op["pending"] == 0 else pending
            new_op, inside, after, cut = self.op(op, ranges)
            if any(_conflict(p, a) for p in pending for a in inside):
                self.waited(pending, op)
                out.append(Op("thread.barrier", loc=op.loc))
                pending, in_head = [], False
            out.append(new_op)
            if in_head:
                head += inside
                in_head = not cut
            pending = after if cut else pending + after
        return block.with_ops(tuple(out)), pending, (head, in_head)

    def waited(self, pending: Sequence[Access], op: Op) -> None:
        """A barrier makes only finished copies visible."""
        if any(a.asynchronous for a in pending):
            raise InputError(
                "expected thread.async_wait between an asynchronous copy and its use", where=op.loc
            )

    def op(self, op: Op, ranges: Ranges) -> tuple[Op, list[Access], list[Access], bool]:
        """The op, the accesses before its first barrier, those after its last, and whether it has one."""
        if op.name == "thread.loop":
            return self.loop(op, ranges)
        if op.name == "thread.if":
            inside = list(_accesses(op, ranges, ()))
            self.check_divergent(op, inside)
            return op, inside, inside, False
        found = list(_own_accesses(op, ranges, ()))
        return op, found, found, False

    def loop(self, op: Op, ranges: Ranges) -> tuple[Op, list[Access], list[Access], bool]:
        assert op.body is not None
        inner = loop_ranges(op, ranges)
        body, pending, (head, open_) = self.block(op.body, [], inner)
        if any(_conflict(p, a) for p in pending for a in head):
            ops = list(body.ops)
            at = len(ops) - 1 if ops and ops[-1].name == "thread.yield" else len(ops)
            self.waited(pending, op)
            ops.insert(at, Op("thread.barrier", loc=op.loc))
            body, pending, open_ = body.with_ops(tuple(ops)), [], False
        new_op = op if body is op.body else replace(op, body=body)
        return new_op, head, pending, not open_

    def check_divergent(self, op: Op, inside: Sequence[Access]) -> None:
        if any(_conflict(a, b) for i, a in enumerate(inside) for b in inside[i + 1 :]):
            raise InputError("a hazard inside a condition cannot be separated by a barrier", where=op.loc)


def _accesses(op: Op, ranges: Ranges, mask: Mask) -> Iterable[Access]:
    """All shared-memory accesses of an op and its body."""
    yield from _own_accesses(op, ranges, mask)
    if op.body is not None:
        inner = loop_ranges(op, ranges) if op.name == "thread.loop" else ranges
        inside = (*mask, *mask_of(op)) if op.name == "thread.if" else mask
        for o in op.body.ops:
            yield from _accesses(o, inner, inside)


def _own_accesses(op: Op, ranges: Ranges, mask: Mask) -> Iterable[Access]:
    for table, write in ((_READS, False), (_WRITES, True)):
        if op.name not in table:
            continue
        position, key = table[op.name]
        buffer = op.operands[position]
        if isinstance(buffer.type, TensorType) and buffer.type.space == "shared":
            where: Any = op[key] if key is not None else None
            at = tuple(where) if where is not None else None
            lanes = int(op.get("lanes", 1)) if not write else getattr(op.operands[0].type, "lanes", 1)  # type: ignore[arg-type]
            whole = (*mask, *mask_of(op))
            yield Access(buffer, write, at, lanes, whole, ranges, op.name == "thread.copy_async")


def _conflict(a: Access, b: Access) -> bool:
    """Whether different threads may touch the same element, one of them writing."""
    if a.buffer is not b.buffer or not (a.write or b.write):
        return False
    if a.at is None or b.at is None:
        return True
    return not (_own_elements(a, b) or _disjoint(a, b))


def _own_elements(a: Access, b: Access) -> bool:
    """Both name their element in the same way, and no two threads (or iterations) name the same one."""
    if a.lanes != b.lanes:
        return False
    at, ranges = _positional(a)
    other, other_ranges = _positional(b)
    return at == other and ranges == other_ranges and _injective(at, ranges, a.lanes)


def _positional(a: Access) -> tuple[tuple[Expr, ...], dict[str, tuple[int, int]]]:
    """The index with loop variables named by order of appearance, and the ranges of what varies."""
    assert a.at is not None
    names: dict[str, Expr] = {}
    ranges: dict[str, tuple[int, int]] = {}
    for e in a.at:
        for n in symbols(e):
            if n not in names and not n.startswith("bid."):
                name = n if n == "tid" else f"loop.{len(names)}"
                names[n] = Sym(name)
                ranges[name] = a.ranges[n]
    return tuple(substitute(e, names) for e in a.at), ranges


def _injective(at: Sequence[Expr], ranges: Ranges, lanes: int) -> bool:
    """Different values of the symbols give disjoint groups of `lanes` elements.

    The index, read as one number with just enough room per dimension, is a mixed-radix number of the symbols.
    """
    if "tid" not in ranges:
        return False
    number: Expr = 0
    for i, e in enumerate(at):
        low, high = interval(e, ranges)
        if low < 0 or high == float("inf"):
            return False
        number = binary("+", binary("*", number, int(high) + (lanes if i == len(at) - 1 else 1)), e)
    form = linear(simplify(number, ranges), ranges)
    room = lanes
    seen: set[str] = set()
    digits: list[tuple[int, int]] = []
    for atom, c in sorted(form.terms, key=lambda t: t[1]):
        if c < room:
            return False
        if isinstance(atom, Sym):
            seen.add(atom.name)
        elif (digit := _thread_digit(atom, ranges)) is not None:
            digits.append(digit)
        else:
            return False
        room += c * int(interval(atom, ranges)[1])
    if digits and _make_up(digits, ranges["tid"][1] + 1):
        seen.add("tid")
    return seen == {n for n, (_, high) in ranges.items() if high > 0}


def _thread_digit(e: Expr, ranges: Ranges) -> tuple[int, int] | None:
    """(step, extent) where `e` is the digit tid // step % extent of the thread number."""
    extent = None
    if isinstance(e, BinOp) and e.op == "%" and isinstance(e.rhs, int):
        e, extent = e.lhs, e.rhs
    step = 1
    if isinstance(e, BinOp) and e.op == "//" and isinstance(e.rhs, int):
        e, step = e.lhs, e.rhs
    if e != Sym("tid"):
        return None
    return step, extent if extent is not None else ranges["tid"][1] // step + 1


def _make_up(digits: Sequence[tuple[int, int]], threads: int) -> bool:
    """Whether the digits together tell every thread number below `threads`."""
    known = 1
    for step, extent in sorted(digits):
        if step > known:
            return False
        known = max(known, step * extent)
    return known >= threads


def _disjoint(a: Access, b: Access) -> bool:
    """Some dimension's index ranges do not meet."""
    assert a.at is not None
    assert b.at is not None
    last = len(a.at) - 1
    for i, (x, y) in enumerate(zip(a.at, b.at, strict=True)):
        (al, ah), (bl, bh) = _reach(x, a), _reach(y, b)
        if i == last:
            ah, bh = ah + a.lanes - 1, bh + b.lanes - 1
        if ah < bl or bh < al:
            return True
    return False


def _reach(e: Expr, a: Access) -> tuple[float, float]:
    """Bounds of an index, with what the mask says of its parts."""
    ranges = dict(a.ranges)
    for k, (part, low, high) in enumerate(a.mask):
        if isinstance(low, int) and isinstance(high, int) and not isinstance(part, int):
            name = f"mask.{k}"
            e = _replace_part(e, part, Sym(name))
            ranges[name] = (low, high - 1)
    return interval(e, ranges)


def _replace_part(e: Expr, part: Expr, by: Sym) -> Expr:
    if e == part:
        return by
    if isinstance(e, BinOp):
        return binary(e.op, _replace_part(e.lhs, part, by), _replace_part(e.rhs, part, by))
    return e
