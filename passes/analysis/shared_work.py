"""Scalar work that neighbouring points of a map share: what depends on neither their place nor their values.

A random word of four elements is one call for all of them, and a factor per row is one for the row. A thread
that has several neighbours computes such values once: so do those that write the results of a product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from math import inf

from tilewright.ir import Expr, Op, Sym
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, ranges_of, reads

#: neighbours along the last dimension that one thread has at most
MOST_NEIGHBOURS = 16
#: neighbouring results of a thread, and those where they share much of their work
LANES, LONG_LANES = 4, 8
#: neighbours of a row of a fragment that a thread has
FRAGMENT_COLUMNS = 2
_FREE = frozenset({"scalar.yield", "scalar.const"})
#: whole numbers that fill one or two registers: between them a cast is another name
_WHOLE = frozenset({"i32", "u32", "i64", "u64"})
_WIDE = frozenset({"i64", "u64"})
_REGISTER_BITS = 32
_BITWISE = frozenset({"scalar.bit_and", "scalar.bit_or", "scalar.bit_xor"})

#: cycles by which shared memory serves a vector of four sums later where threads have eight: two of a warp
#: meet in each bank
_CONFLICT_CLK = 4


def shared_work(op: Op) -> Mapping[int, int]:
    """Scalar ops of a map's body by the number of neighbours that share their results, where it is above 1.

    Numbers are powers of two up to MOST_NEIGHBOURS. Aligned groups of so many indices of the last dimension
    find the same results. Where some also follow from the place in a group of up to LONG_LANES alone, as the
    choice among the words of a call does, they count once for the group: the compiler knows them in threads
    that have it.
    """
    if op.name != "tensor.map" or op.body is None:
        return {}
    par = dims(op, "par")
    last = next((d for d in reversed(par) if par[d] > 1), "")
    if not last:
        return {}
    shared: dict[object, int] = {}
    #: neighbours from whose place in their group a value follows
    known: dict[object, float] = {}
    for parameter, at in zip(op.body.params, reads(op), strict=True):
        shared[parameter] = min((_sharing(op, e, last, par[last]) for e in at), default=MOST_NEIGHBOURS)
    found: Counter[int] = Counter()
    free = free_ops(op)
    for o in op.body.ops:
        sharing = min((shared[v] for v in o.operands), default=MOST_NEIGHBOURS)
        group = max((known.get(v, inf) for v in o.operands), default=1)
        if o.name == "scalar.index":
            sharing = _sharing(op, o["at"], last, par[last])  # type: ignore[arg-type]
            group = _group(op, o["at"], last, par[last])  # type: ignore[arg-type]
        shared.update(dict.fromkeys(o.results, sharing))
        known.update(dict.fromkeys(o.results, group))
        if o.name == "scalar.select":
            group = known.get(o.operands[0], inf)  # the value that is chosen has another name then
        if sharing > 1 and o not in free:
            found[max(sharing, int(group)) if group <= LONG_LANES else sharing] += 1
    return found


def shared_instructions(ops: Iterable[Op], neighbours: int) -> float:
    """Instructions per point for what threads with so many neighbours each compute once for several.

    Constants and names of registers take none; each other scalar op counts as one.
    """
    found = (shared_work(op) for op in ops)
    return sum(count / min(n, neighbours) for work in found for n, count in work.items())


def free_ops(op: Op) -> Set[Op]:
    """The scalar ops of a body that take no instruction of their own.

    Constants; casts between whole numbers of one and two registers, which only rename them, as a shift of two
    by 32 does; bit operations on what another one found for them alone, since one instruction does both.
    """
    ops = op.body.ops if op.body is not None else ()
    made = {r: o for o in ops for r in o.results}
    readers = Counter(v for o in ops for v in o.operands)
    free: set[Op] = set()
    for o in ops:
        producers = [made.get(v) for v in o.operands]
        if o.name == "scalar.cast":
            is_free = {o.operands[0].type.dtype, o.result.type.dtype} <= _WHOLE
        elif o.name == "scalar.shr":
            by = producers[1]
            is_free = o.result.type.dtype in _WIDE and by is not None and by.get("value") == _REGISTER_BITS
        elif o.name in _BITWISE:
            is_free = any(
                p is not None and p.name in _BITWISE and p not in free and readers[p.result] == 1
                for p in producers
            )
        else:
            is_free = o.name in _FREE
        if is_free:
            free.add(o)
    return free


def _sharing(op: Op, e: Expr, last: str, extent: int) -> int:
    """The largest number of neighbours for which an index is the same."""
    if last not in symbols(e):
        return MOST_NEIGHBOURS
    n = MOST_NEIGHBOURS
    while n > 1:
        if extent % n == 0 and last not in _symbols_in_groups(op, e, last, n):
            return n
        n //= 2
    return 1


def _group(op: Op, e: Expr, last: str, extent: int) -> float:
    """The least number of neighbours in whose groups an index follows from the place in the group alone."""
    sizes = (1 << i for i in range(LONG_LANES.bit_length()))
    return next((n for n in sizes if extent % n == 0 and _symbols_in_groups(op, e, last, n) <= {last}), inf)


def _symbols_in_groups(op: Op, e: Expr, last: str, n: int) -> set[str]:
    """What an index depends on by groups of n neighbours: `last` is the place of one in its group here."""
    group = f"{last}.group"
    ranges = {**ranges_of(op), group: (0, dims(op, "par")[last] // n - 1), last: (0, n - 1)}
    return set(symbols(simplify(substitute(e, {last: Sym(group) * n + Sym(last)}), ranges)))


def lanes_of(ops: Sequence[Op]) -> int:
    """Neighbours that a thread had best have where such ops follow the sums."""
    few, many = (LANES * shared_instructions(ops, n) for n in (LANES, LONG_LANES))
    return LONG_LANES if many + _CONFLICT_CLK < few else LANES
