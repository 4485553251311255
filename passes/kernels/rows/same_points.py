"""Sums over the same points of the same arrays, which one walk can take: found through maps by index sets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.simplify import simplify
from tilewright.ir.tensor.ops import dims, reads

#: an array, and where it is read at each point of a sum, in names that all sums share
Source = tuple[Value, tuple[Expr, ...]]


@dataclass(frozen=True)
class Walk:
    """What a sum reads at each of its points: arrays, and the maps between these and the sum.

    maps: in the order of the function. What is the same for all points of a column is not among the arrays.
    """

    op: Op
    sources: frozenset[Source]
    maps: tuple[Op, ...]


class _Function:
    """The values of a function: who makes each, and which ones are likely to be stored."""

    def __init__(self, func: Func) -> None:
        self.maker = {r: op for op in func.body.ops for r in op.results}
        self.position = {id(op): i for i, op in enumerate(func.body.ops)}
        readers = Counter(v for op in func.body.ops for v in dict.fromkeys(op.operands))
        #: bytes that are read where a value is needed: its own, or those that it is computed from
        self.behind: dict[Value, int] = {v: v.tensor.nbytes for v in func.params}
        self.stored = set(func.params)
        for op in func.body.ops:
            for r in op.results:
                read = sum(
                    self.behind[v] for v in dict.fromkeys(op.operands) if v.tensor.size >= r.tensor.size
                )
                again = op.name == "tensor.map" and (readers[r] < 2 or r.tensor.nbytes > read)
                self.behind[r] = read if again else r.tensor.nbytes
                if not again:
                    self.stored.add(r)

    def walk(self, op: Op) -> Walk:
        """The walk of a sum: from arrays that are stored, through maps that are computed where read."""
        par, red = dims(op, "par"), dims(op, "red")
        named: dict[str, Expr] = {d: Sym(f"p{i}") for i, d in enumerate(par)}
        named |= {d: Sym(f"r{i}") for i, d in enumerate(red)}
        ranges = {f"p{i}": (0, n - 1) for i, n in enumerate(par.values())}
        ranges |= {f"r{i}": (0, n - 1) for i, n in enumerate(red.values())}
        wide = {f"r{i}" for i, n in enumerate(red.values()) if n > 1}
        found: set[Source] = set()
        seen: set[Source] = set()
        maps: dict[int, Op] = {}
        todo = [(v, _at(at, named)) for v, at in zip(op.operands, reads(op), strict=True)]
        while todo:
            value, at = todo.pop()
            source = value, tuple(simplify(e, ranges) for e in at)
            if source in seen or not wide <= {name for e in source[1] for name in symbols(e)}:
                continue
            seen.add(source)
            if value in self.stored:
                found.add(source)
                continue
            made = self.maker[value]
            maps[self.position[id(made)]] = made
            env = dict(zip(dims(made, "par"), source[1], strict=True))
            todo += [(v, _at(inner, env)) for v, inner in zip(made.operands, reads(made), strict=True)]
        return Walk(op, frozenset(found), tuple(maps[i] for i in sorted(maps)))


def _at(index: Sequence[Expr], env: Mapping[str, Expr]) -> tuple[Expr, ...]:
    return tuple(substitute(e, env) for e in index)


def sums_of_same_points(func: Func, sums: Sequence[Op]) -> Iterator[tuple[Walk, ...]]:
    """Sums that one walk can take, two or more: of the same dimensions and a common array, none from another.

    sums: of the function, in its order. Each is in one group at most.
    """
    needs, function = _needs(func, sums), _Function(func)
    groups: list[list[Walk]] = []
    for op in sums:
        walk = function.walk(op)
        for group in groups:
            if all(
                _extents(op) == _extents(other.op)
                and walk.sources & other.sources
                and id(other.op) not in needs[id(op)]
                for other in group
            ):
                group.append(walk)
                break
        else:
            groups.append([walk])
    yield from (tuple(group) for group in groups if len(group) > 1)


def _extents(op: Op) -> tuple[tuple[int, ...], tuple[int, ...]]:
    return tuple(dims(op, "par").values()), tuple(dims(op, "red").values())


def _needs(func: Func, sums: Sequence[Op]) -> Mapping[int, frozenset[int]]:
    """For each sum those of the others that it is computed from."""
    own = set(map(id, sums))
    behind: dict[Value, frozenset[int]] = {}
    needs: dict[int, frozenset[int]] = {}
    nothing: frozenset[int] = frozenset()
    for op in func.body.ops:
        found = nothing.union(*(behind.get(v, nothing) for v in op.operands))
        if id(op) in own:
            needs[id(op)] = found
            found |= {id(op)}
        if found:
            behind |= dict.fromkeys(op.results, found)
    return needs
