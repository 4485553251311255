"""Products of which each result is computed from several sums of its row: the members of the result.

Their columns are interleaved: groups of neighbouring columns of the first member, of the second one and so
on, and then the next groups. A group is what one fragment of tensor cores holds, so that a thread has all
members of the results that it computes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import Expr, Func, Op, Sym, TensorType, Value
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import MMA_N
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.tensor.ops import dims, fills, ranges_of, reads
from tilewright.passes.kernels.kernel_problem import contract_roles

#: neighbouring columns of one member
GROUP = MMA_N


@dataclass(frozen=True)
class Members:
    """How many sums make a result, and the dimension of the contraction that holds the columns of all.

    extent: columns of results. Groups are whole: the last columns of a product may be of no result.
    """

    count: int
    column: str
    extent: int


def whole_groups(extent: int) -> int:
    """Columns of one member of so many columns of results."""
    return -(-extent // GROUP) * GROUP


def column_of(column: Expr, member: int, members: int) -> Expr:
    """The column of a product that holds a member of the results of a column."""
    if members == 1:
        return column
    return column // GROUP * (GROUP * members) + column % GROUP + GROUP * member


def members_of(kernel: Func, op: Op) -> Members | None:
    """The members of the results of a kernel around a contraction; None where each has one sum of its own.

    All maps that read the contraction must do so at columns that are interleaved alike, in the same rows.
    """
    columns = [d for d in contract_roles(op).columns if dims(op, "par")[d] > 1]
    readings = [
        (x, at)
        for x in kernel.body.ops[:-1]
        for v, at, fill in zip(x.operands, reads(x), fills(x), strict=False)
        if v is op.result and x.name == "tensor.map" and fill is None
    ]
    if len(columns) != 1 or not readings or op.result in kernel.body.ops[-1].operands:
        return None
    axis = list(dims(op, "par")).index(columns[0])
    extents = {_extent(x, axis) for x, _ in readings}
    whole = dims(op, "par")[columns[0]]
    if len(extents) != 1 or not (extent := extents.pop()) or whole % whole_groups(extent):
        return None
    count = whole // whole_groups(extent)
    if count == 1 or any(_member(x, at, axis, count) is None for x, at in readings):
        return None
    return Members(count, columns[0], extent)


def results_of(op: Op, members: Members | None) -> Mapping[str, int]:
    """The domain of the results of a kernel around a contraction."""
    par = dict(dims(op, "par"))
    if members is not None:
        par[members.column] = members.extent
    return par


def members_apart(kernel: Func, op: Op, members: Members | None) -> tuple[Func, tuple[Value, ...]]:
    """The kernel in which maps read a value of its own for each member, and these values.

    Where results have one sum each that is what the contraction gives, and the kernel stays as it is.
    """
    if members is None:
        return kernel, (op.result,)
    par = results_of(op, members)
    t = TensorType(op.result.tensor.dtype, tuple(par.values()))
    sums = tuple(Value(t, op.result.hint) for _ in range(members.count))
    axis = list(par).index(members.column)
    ops = []
    for x in kernel.body.ops:
        if op.result in x.operands:
            operands, places = list(x.operands), list(reads(x))
            for i, v in enumerate(operands):
                if v is op.result:
                    member = _member(x, places[i], axis, members.count)
                    assert member is not None
                    operands[i], places[i] = sums[member], tuple(map(Sym, dims(x, "par")))
            x = x.with_operands(tuple(operands)).with_attrs(reads=tuple(places))
        ops.append(x)
    return replace(kernel, body=kernel.body.with_ops(tuple(ops))), sums


def _extent(op: Op, axis: int) -> int:
    """Columns of a map's domain; 0 where it has fewer dimensions."""
    extents = list(dims(op, "par").values())
    return extents[axis] if axis < len(extents) else 0


def _member(op: Op, at: Sequence[Expr], axis: int, count: int) -> int | None:
    """The member that a map reads at an index of the contraction's result; None where it reads no such."""
    names = list(dims(op, "par"))
    rest = [i for i in range(len(at)) if i != axis]
    if len(names) != len(at) or any(at[i] != Sym(names[i]) and at[i] != 0 for i in rest):
        return None
    ranges = ranges_of(op)
    if any(at[i] == 0 and ranges[names[i]][1] > 0 for i in rest):
        return None
    first = simplify(substitute(at[axis], {names[axis]: 0}), ranges)
    if not isinstance(first, int) or first % GROUP or not 0 <= first // GROUP < count:
        return None
    member = first // GROUP
    apart = simplify(at[axis] - column_of(Sym(names[axis]), member, count), ranges)
    return member if interval(apart, ranges) == (0, 0) else None
