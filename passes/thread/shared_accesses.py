"""Accesses to shared memory: what each op touches, and whether two of them need a barrier between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any, Literal

import numpy as np

from tilewright.ir.expr import BinOp, Expr, Sym, binary, evaluate, substitute, symbols
from tilewright.ir.float_pieces import PIECES
from tilewright.ir.hardware_facts import WARP
from tilewright.ir.nodes import Block, Op, Value
from tilewright.ir.simplify import Ranges, interval, linear, multiple_of, simplify
from tilewright.ir.thread.split_ops import GROUP, place_of_piece
from tilewright.ir.thread.transport_ops import STORE_TILE
from tilewright.ir.thread.warpgroup_ops import TURNED
from tilewright.ir.types import TensorType
from tilewright.passes.thread.scopes import Mask, body_ranges, loop_ranges, mask_of

#: per op, the operand that is the buffer and the attribute that says where; None: anywhere in the buffer
_READS: dict[str, tuple[int, str | None]] = {
    "thread.load": (0, "at"),
    "thread.load_fragment": (1, "at"),
    "thread.gather": (0, None),
    "thread.atomic_add": (1, None),
    "thread.split_shared": (0, "at"),
    "thread.sum_of_cluster": (0, None),
    "thread.turn_shared": (0, "src"),
    "thread.share_with_block": (0, "at"),  # the block's own; what it writes is other blocks'
}
_WRITES: dict[str, tuple[int, str | None]] = {
    "thread.store": (1, "at"),
    "thread.store_fragment": (1, "at"),
    "thread.round_shared": (0, "at"),
    "thread.scatter": (1, None),
    "thread.copy_async": (1, "dst"),
    "thread.atomic_add": (1, None),
    "thread.split_shared": (1, "dst"),
    "thread.turn_shared": (1, "dst"),
    "thread.give_to_block": (1, None),
}


#: rows and columns of a tile that the warps write: fragments of accumulators
_TILE = (16, 8)
#: values of an index's symbols that are tried out at most
_MOST_TRIED = 1 << 16
#: start of the names of symbols that have one value for all threads at a time
UNIFORM = "now."

#: an index with None for what may be anywhere in a dimension
Place = tuple[Expr | None, ...]


@dataclass(frozen=True)
class Access:
    """One access to shared memory: at which index (None: anywhere), under which mask and symbol ranges.

    group: for a copy, a multiplication or a store of a tile in flight (by), how many groups were closed after
    its own (-1: its own is still open); None for everything that happens at once, and for what the thread has
    waited for. warps: the index counts tiles of 16 x 8 elements, which the threads of a warp (symbol `warp`)
    access together.
    """

    buffer: Value
    write: bool
    at: Place | None
    lanes: int
    mask: Mask
    ranges: Ranges
    group: int | None = None
    warps: bool = False
    by: Literal["copies", "multiplications", "stores"] = "copies"

    @property
    def in_flight(self) -> bool:
        return self.group is not None


def accesses(op: Op, ranges: Ranges, mask: Mask = ()) -> Iterator[Access]:
    """All shared-memory accesses of an op and its body."""
    yield from own_accesses(op, ranges, mask)
    if op.body is not None:
        inner = loop_ranges(op, ranges) if op.name == "thread.loop" else ranges
        inside = (*mask, *mask_of(op)) if op.name == "thread.if" else mask
        for o in op.body.ops:
            yield from accesses(o, inner, inside)


def own_accesses(op: Op, ranges: Ranges, mask: Mask = ()) -> Iterator[Access]:
    """The shared-memory accesses of an op itself."""
    if op.name == "thread.warpgroup_mma":
        for tile, start, turned in zip(op.operands[:2], ("a_at", "b_at"), TURNED, strict=True):
            if tile.tensor.space == "shared":
                first, inner = op.exprs(start), 3 if op[turned] else 2
                place = (*first[:-inner], *[None] * inner)
                own = 0 if op["closes"] else -1
                yield Access(tile, False, place, 1, mask, ranges, group=own, by="multiplications")
    if op.name == STORE_TILE:
        tile, first = op.operands[0], op.exprs("src")
        yield Access(tile, False, (*first[:-2], None, None), 1, mask, ranges, group=-1, by="stores")
    for table, write in ((_READS, False), (_WRITES, True)):
        if op.name not in table:
            continue
        position, key = table[op.name]
        buffer = op.operands[position]
        if not isinstance(buffer.type, TensorType) or buffer.type.space != "shared":
            continue
        where: Any = op[key] if key is not None else None
        at = tuple(where) if where is not None else None
        whole = (*mask, *mask_of(op))
        if op.name == "thread.turn_shared":
            assert at is not None
            yield Access(buffer, write, (*at[:-2], None, None), 1, mask, ranges)
        elif op.name == "thread.load_fragment":
            yield Access(buffer, False, (*at[:-2], None, None) if at else None, 1, whole, ranges)
        elif op.name == "thread.store_fragment":
            yield _of_warps(buffer, op, mask, ranges)
        elif op.name == "thread.split_shared":
            assert at is not None
            for place in [place_of_piece(at, p) for p in range(PIECES)] if write else [at]:
                yield Access(buffer, write, place, GROUP, mask, ranges)
        elif op.name in ("thread.copy_async", "thread.round_shared"):
            group = -1 if op.name == "thread.copy_async" else None
            yield Access(buffer, True, at, op.integer("lanes"), mask, ranges, group=group)
        else:
            lanes = int(op.get("lanes", 1)) if not write else getattr(op.operands[0].type, "lanes", 1)  # type: ignore[arg-type]
            yield Access(buffer, write, at, lanes, whole, ranges)


def _of_warps(buffer: Value, op: Op, mask: Mask, ranges: Ranges) -> Access:
    """The places at which warps store a fragment, in tiles; all of the last dimensions if off their grid."""
    at = op.exprs("at")
    height, width = reversed(_TILE) if op["transposed"] else _TILE
    threads = int(ranges["tid"][1]) + 1
    inner = {**ranges, "warp": (0, max(0, threads // WARP - 1))}
    place = [simplify(_by_warp(e), inner) for e in at]
    sizes = (*[1] * (len(at) - 2), height, width)
    aligned = all(multiple_of(e, inner) % size == 0 for e, size in zip(place, sizes, strict=True))
    if not aligned or any("tid" in symbols(e) for e in place):
        return Access(buffer, True, (*at[:-2], None, None), 1, mask, ranges)
    tiles = tuple(simplify(e // size, inner) for e, size in zip(place, sizes, strict=True))
    return Access(buffer, True, tiles, 1, mask, inner, warps=True)


def _by_warp(e: Expr) -> Expr:
    """`e` with what depends on the thread's warp alone in terms of `warp`."""
    if not isinstance(e, BinOp):
        return e
    if e.op == "//" and e.lhs == Sym("tid") and isinstance(e.rhs, int) and e.rhs % WARP == 0:
        return Sym("warp") // (e.rhs // WARP)
    return BinOp(e.op, _by_warp(e.lhs), _by_warp(e.rhs))


def conflict(a: Access, b: Access) -> bool:
    """Return whether different threads may touch the same element, one of them writing; `b` comes after `a`.

    A read of what is still being copied is one even where the thread itself started the copy.
    """
    if a.buffer is not b.buffer or not (a.write or b.write):
        return False
    if a.at is None or b.at is None:
        return True
    if a.warps != b.warps:
        return True
    own = not (a.in_flight and not b.write) and _own_elements(a, b)
    return not (own or _disjoint(a, b))


def private_to_warps(block: Block, ranges: Ranges) -> frozenset[Value]:
    """The buffers of which each warp has a part of its own.

    The first index of every access is the number of the thread's warp.
    """
    own: dict[Value, bool] = {}
    for op in block.ops:
        for a in accesses(op, body_ranges(op, ranges)):
            own[a.buffer] = own.get(a.buffer, True) and _of_own_warp(a)
    return frozenset(v for v, alone in own.items() if alone)


def _of_own_warp(a: Access) -> bool:
    return a.at is not None and len(a.at) > 0 and a.at[0] in (Sym("warp"), Sym("tid") // WARP)


def _own_elements(a: Access, b: Access) -> bool:
    """Both name their element in the same way, and no two threads (or iterations) name the same one."""
    if a.lanes != b.lanes:
        return False
    at, ranges = _positional(a)
    other, other_ranges = _positional(b)
    unit = "warp" if a.warps else "tid"
    if at is None or at != other or ranges != other_ranges:
        return False
    return _injective(at, ranges, a.lanes, unit) or _counted_apart(a, b)


def _counted_apart(a: Access, b: Access) -> bool:
    """No two threads (or warps) touch the same group of lanes, by trying all values of the index's symbols.

    Only those that do the accesses count, where both do them under the same conditions. Where an index is the
    same for all threads at a time, it tells none of them apart.
    """
    at, buffer = a.at, a.buffer.type
    unit = "warp" if a.warps else "tid"
    if at is None or None in at or not isinstance(buffer, TensorType):
        return False
    at = tuple(0 if e is not None and symbols(e) and all(map(_uniform, symbols(e))) else e for e in at)
    masks = [
        (part, low, high) for part, low, high in a.mask if isinstance(low, int) and isinstance(high, int)
    ]
    masks = masks if a.mask == b.mask else []
    names = sorted({n for e in at if e is not None for n in symbols(e)})
    masks = [m for m in masks if symbols(m[0]) and set(symbols(m[0])) <= set(names)]
    counts = [int(a.ranges[n][1]) + 1 if a.ranges[n][0] == 0 else _MOST_TRIED + 1 for n in names]
    if unit not in names or any(map(_uniform, names)) or prod(counts) > _MOST_TRIED:
        return False
    counted = tuple(zip(names, counts, strict=True))
    return _one_user_each(
        tuple(e for e in at if e is not None), buffer.shape, a.lanes, unit, counted, tuple(masks)
    )


@lru_cache(maxsize=4096)
def _one_user_each(
    at: tuple[Expr, ...],
    shape: tuple[int, ...],
    lanes: int,
    unit: str,
    counted: tuple[tuple[str, int], ...],
    masks: tuple[tuple[Expr, int, int], ...],
) -> bool:
    """Return whether each group of lanes that is touched is of one thread (or warp), and whole.

    counted: how many values each symbol of the index has. Memoised: kernels with the same tiles lay them out
    in the same way.
    """
    grid = np.indices([n for _, n in counted]).reshape(len(counted), -1)
    env = dict(zip((name for name, _ in counted), grid, strict=True))
    does = np.ones(grid.shape[1], dtype=bool)
    for part, low, high in masks:
        value = evaluate(part, env)
        does &= (value >= low) & (value < high)
    places = np.array([np.broadcast_to(evaluate(e, env), does.shape) for e in at])[:, does]
    strides = [prod(shape[i + 1 :]) for i in range(len(at))]
    group, odd = np.divmod(np.array(strides) @ places, lanes)
    order = np.argsort(group, kind="stable")
    group, users = group[order], env[unit][does][order]
    return not odd.any() and bool((users[1:] == users[:-1])[group[1:] == group[:-1]].all())


def _uniform(name: str) -> bool:
    return name.startswith(("bid.", UNIFORM))


def _positional(a: Access) -> tuple[tuple[Expr, ...] | None, dict[str, tuple[int, int]]]:
    """The index with loop variables named by order of appearance, and the ranges of what varies."""
    assert a.at is not None
    names: dict[str, Expr] = {}
    ranges: dict[str, tuple[int, int]] = {}
    whole: list[Expr] = []
    for e in a.at:
        if e is None:
            return None, ranges
        whole.append(e)
        for n in symbols(e):
            if n not in names and not _uniform(n):
                name = n if n in ("tid", "warp") else f"loop.{len(names)}"
                names[n] = Sym(name)
                ranges[name] = a.ranges[n]
    return tuple(substitute(e, names) for e in whole), ranges


def _injective(at: Sequence[Expr], ranges: Ranges, lanes: int, unit: str) -> bool:
    """Different values of the symbols give disjoint groups of `lanes` elements.

    The index, read as one number with just enough room per dimension, is a mixed-radix number of the symbols,
    or of quotient and remainder of one of them.
    """
    if unit not in ranges and unit == "tid":
        return False
    number: Expr = 0
    for i, e in enumerate(at):
        if symbols(e) and all(map(_uniform, symbols(e))):
            continue
        low, high = interval(e, ranges)
        if low < 0 or high == float("inf"):
            return False
        number = number * (int(high) + (lanes if i == len(at) - 1 else 1)) + e
    form = linear(simplify(number, ranges), ranges)
    room = lanes
    seen: set[str] = set()
    parts: dict[str, set[tuple[str, int]]] = {}
    for atom, c in sorted(form.terms, key=lambda t: t[1]):
        if c < room:
            return False
        if isinstance(atom, Sym):
            seen.add(atom.name)
        elif isinstance(atom.lhs, Sym) and isinstance(atom.rhs, int) and atom.op in ("//", "%"):
            parts.setdefault(atom.lhs.name, set()).add((atom.op, atom.rhs))
        else:
            return False
        room += c * int(interval(atom, ranges)[1])
    seen |= {n for n, found in parts.items() if len(found) == 2 and len({by for _, by in found}) == 1}
    return seen == {n for n, (_, high) in ranges.items() if high > 0}


def _disjoint(a: Access, b: Access) -> bool:
    """Some dimension's indices never meet."""
    assert a.at is not None
    assert b.at is not None
    last = len(a.at) - 1
    for i, (x, y) in enumerate(zip(a.at, b.at, strict=True)):
        if x is None or y is None:
            continue
        (al, ah), (bl, bh) = _reach(x, a), _reach(y, b)
        if i == last:
            ah, bh = ah + a.lanes - 1, bh + b.lanes - 1
        elif _other_remainder(x, y):
            return True
        if ah < bl or bh < al:
            return True
    return False


def _other_remainder(x: Expr, y: Expr) -> bool:
    """Both are remainders by one divisor, of numbers whose difference is known and no multiple of it."""
    if not (isinstance(x, BinOp) and isinstance(y, BinOp) and x.op == y.op == "%" and x.rhs == y.rhs):
        return False
    apart = simplify(x.lhs - y.lhs)
    return isinstance(apart, int) and isinstance(x.rhs, int) and apart % x.rhs != 0


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
