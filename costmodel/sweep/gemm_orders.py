"""Orders of the operands of a contraction in which it is one matrix product, or one batched matrix product.

Source: Ivanov et al., "Data Movement Is All You Need" (MLSys 2021), section 5.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import prod

Order = tuple[str, ...]


@dataclass(frozen=True)
class GemmCall:
    """A (batched) matrix product as libraries are asked for it: C = op(A) op(B), column by column.

    swapped: the operands are given in the other order, so that the result comes out transposed.
    leading, strides: of the first and second operand as given, and of the result.
    """

    swapped: bool
    transposed: tuple[bool, bool]
    m: int
    n: int
    k: int
    leading: tuple[int, int, int]
    batch: int
    strides: tuple[int, int, int]


@dataclass(frozen=True)
class GemmOrder:
    """Orders of both operands and the result, and the call that computes them.

    row_major: of both operands and the result, whether the second index of (m, k), (k, n) and (m, n) has
    unit stride.
    """

    a: Order
    b: Order
    c: Order
    call: GemmCall
    row_major: tuple[bool, bool, bool]


def gemm_orders(
    a: Sequence[str], b: Sequence[str], c: Sequence[str], sizes: Mapping[str, int]
) -> Iterator[GemmOrder]:
    """All orders of a[..] b[..] -> c[..], dimensions of these names and sizes, that one call computes.

    The dimensions of each role (in all three, in both operands, in one operand and the result) must lie side
    by side and in one order wherever they are, and each operand must have unit stride along m, n or k.
    """
    batch = {*a} & {*b} & {*c}
    roles = {"batch": batch, "k": ({*a} & {*b}) - batch, "m": {*a} - {*b}, "n": {*b} - {*a}}
    views = [_views(x, roles, along, sizes) for x, along in ((a, "mk"), (b, "kn"), (c, "mn"))]
    for x, y, z in product(*views):
        if all(len({v.runs[r] for v in (x, y, z) if r in v.runs}) < 2 for r in roles):
            extents = {r: prod(sizes[d] for d in names) for r, names in roles.items()}
            row_major = x.steps["k"] == 1, y.steps["n"] == 1, z.steps["n"] == 1
            yield GemmOrder(x.order, y.order, z.order, _call(x, y, z, extents), row_major)


@dataclass(frozen=True)
class _View:
    """An order of one operand as a (batched) matrix: per role its dimensions in their order, and the elements
    from one index to the next.
    """

    order: Order
    runs: Mapping[str, Order]
    steps: Mapping[str, int]


def _views(
    names: Sequence[str], roles: Mapping[str, set[str]], along: str, sizes: Mapping[str, int]
) -> list[_View]:
    """The orders of an operand in which every role is one run, and one of `along` has unit stride."""
    out = []
    for order in permutations(names):
        runs = {}
        for role, members in roles.items():
            places = [i for i, d in enumerate(order) if d in members]
            if places and places[-1] - places[0] + 1 != len(places):
                break
            if places:
                runs[role] = tuple(order[i] for i in places)
        else:
            steps = {r: _step(roles[r], order, sizes) if r in runs or r in along else 0 for r in roles}
            if 1 in (steps[along[0]], steps[along[1]]):
                out.append(_View(order, runs, steps))
    return out


def _call(x: _View, y: _View, z: _View, extents: Mapping[str, int]) -> GemmCall:
    m, n = extents["m"], extents["n"]
    first = (x.steps["k"], False) if x.steps["m"] == 1 else (x.steps["m"], True)
    second = (y.steps["n"], False) if y.steps["k"] == 1 else (y.steps["k"], True)
    between = [v.steps["batch"] for v in (x, y, z)]
    swapped = z.steps["m"] != 1
    if swapped:
        m, n = n, m
        first, second = (second[0], not second[1]), (first[0], not first[1])
        between = [between[1], between[0], between[2]]
    leading = first[0], second[0], z.steps["m"] if swapped else z.steps["n"]
    transposed = first[1], second[1]
    return GemmCall(swapped, transposed, m, n, extents["k"], leading, extents["batch"], tuple(between))  # type: ignore[arg-type]


def _step(names: set[str], order: Order, sizes: Mapping[str, int]) -> int:
    """Elements from one index of the innermost of these dimensions to the next; 1 where there is none."""
    last = max((i for i, d in enumerate(order) if d in names), default=len(order) - 1)
    return prod(sizes[d] for d in order[last + 1 :])
