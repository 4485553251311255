"""Which attributes of graph ops hold extents of their operands, and how they follow when these change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.facts import Elements
from tilewright.ir.graph_ops.interpolation import spatial
from tilewright.ir.nodes import Attr
from tilewright.ir.opdef import Attrs, facts_of
from tilewright.passes.analysis.extents import Dim, Dims, regrouped

#: dimensions of the operands, attributes -> the attributes that change; raises UnsupportedError
Rule = Callable[[Sequence[Dims], Attrs], Mapping[str, Attr]]


def changed_attributes(name: str, operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """The attributes of op `name` that are others at the new extents of its operands.

    Sizes that an op has from its attributes alone (adaptive pooling, pooled regions, affine_grid, arange,
    one_hot, paddings, repetitions) stay as they are.
    Raises UnsupportedError where the old extents do not say what the new attribute is, and where an operand
    that keeps its extent would broadcast, or cut the result short, where it did not before.
    """
    rule = RULES.get(name)
    if rule is None and len(operands) > 1 and facts_of(name).elements is Elements.MAPS:
        rule = _no_new_broadcast
    return rule(operands, attrs) if rule is not None else {}


def _reshape(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    return {"newshape": tuple(d.new for d in regrouped(operands[0], attrs["newshape"]))}


def _broadcast_to(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    (x,) = operands
    shape = list(attrs["shape"])
    for d in range(-len(x), 0):
        if x[d].old == shape[d]:
            shape[d] = x[d].new
        elif x[d].changed:
            raise UnsupportedError(
                f"dimension {len(shape) + d} repeats one element {shape[d]} times, but now there are "
                f"{x[d].new}"
            )
    return {"shape": tuple(shape)}


def _strided_slice(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    (x,) = operands
    begin, size = list(attrs["begin"]), list(attrs["size"])
    for d, (dim, step) in enumerate(zip(x, attrs["strides"], strict=True)):
        if not dim.changed or size[d] == 0:
            continue
        old, new = dim.pair
        first = begin[d] if step > 0 else old - 1 - begin[d]  # elements left out at the near end
        last = first + (size[d] - 1) * abs(step)
        if first < abs(step) and last + abs(step) >= old:
            size[d] = max(0, -(-(new - first) // abs(step)))
            begin[d] = (first if step > 0 else new - 1 - first) if size[d] else 0
        elif last + abs(step) >= old or step < 0:
            raise UnsupportedError(
                f"the slice of dimension {d} ends where its {old} elements end; now there are {new}, and it "
                "may grow or move"
            )
    return {"begin": tuple(begin), "size": tuple(size)}


def _strided_set(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    x, v = operands
    begin = list(attrs["begin"])
    for d, (whole, part) in enumerate(zip(x, v, strict=True)):
        if not (whole.changed or part.changed):
            continue
        same = whole.pair == part.pair and abs(attrs["strides"][d]) == 1
        if not same:
            raise UnsupportedError(
                f"dimension {d} goes from {whole.old} to {whole.new} elements, what is put there from "
                f"{part.old} to {part.new}"
            )
        begin[d] = 0 if attrs["strides"][d] > 0 else whole.new - 1
    return {"begin": tuple(begin)}


def _split(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    (x,) = operands
    dim, cuts = x[attrs["axis"]], attrs["indices"]
    if not dim.changed:
        return {}
    sections = len(cuts) + 1
    extent = dim.old // sections
    equal = dim.old % sections == 0 and cuts == tuple(extent * i for i in range(1, sections))
    if not equal or (extent == 1 and sections > 1) or dim.new % sections:
        raise UnsupportedError(
            f"{dim.old} elements are cut before {cuts}; now there are {dim.new}, and the cuts may be others"
        )
    return {"indices": tuple(dim.new // sections * i for i in range(1, sections))}


def _resize(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    size = list(attrs["size"])
    for axis, d in enumerate(spatial(attrs["layout"])):
        old, new = operands[0][d].pair
        if old == new:
            continue
        if size[axis] * new % old:
            raise UnsupportedError(
                f"{old} elements are resized to {size[axis]}; {new} have no whole size of the same ratio"
            )
        size[axis] = size[axis] * new // old
    return {"size": tuple(size)}


def _topk(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    dim = operands[0][attrs["axis"]]
    return {"k": dim.new} if attrs["k"] == dim.old else {}


def _no_new_broadcast(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """The operands keep broadcasting where they did; from 1 on all may grow, one with the others."""
    for d in range(1, max(map(len, operands)) + 1):
        here = [dims[-d] for dims in operands if d <= len(dims)]
        pairs = {dim.pair for dim in here if dim.old != 1}
        if len(pairs) > 1:
            a, b = sorted(pairs)[:2]
            raise UnsupportedError(
                f"expected operands that keep their common extent {a[0]} in dimension {-d}; one has "
                f"{a[1]} now, another {b[1]}"
            )
        grown = {dim.new for dim in here if dim.old == 1} - {1}
        if grown and pairs:
            ((old, new),) = pairs
            raise UnsupportedError(
                f"one element of dimension {-d} was repeated {old} times; now it is {grown.pop()} elements, "
                f"for {new}"
            )
    return {}


def _matmul(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    return _no_new_broadcast([dims[:-2] for dims in operands], attrs)


def _same_places(count: int, axis: bool) -> Rule:
    """The first `count` operands keep the extents they have in common, but along the attribute `axis`."""

    def rule(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
        rank = len(operands[0])
        for d in range(rank):
            here = [dims[d] for dims in operands[:count]]
            alike = len({x.old for x in here}) == 1
            if not (axis and d == attrs["axis"] % rank) and alike and len({x.new for x in here}) > 1:
                found = ", ".join(str(x.new) for x in here)
                raise UnsupportedError(
                    f"expected operands that keep their common extent {here[0].old} in dimension {d}, "
                    f"got {found}"
                )
        return {}

    return rule


def _take(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    x, indices = operands
    if attrs["axis"] is None:
        fixed, whole = any(d.changed for d in x), prod(d.old for d in x)
    else:
        fixed, whole = x[attrs["axis"]].changed, x[attrs["axis"]].old
    picked = indices[attrs["batch_dims"] :]
    if fixed and not any(d.changed for d in picked) and prod(d.old for d in picked) >= whole:
        raise UnsupportedError(
            f"as many indices as there were elements ({whole}) pick from an extent that changes"
        )
    return {}


def _adv_index(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    x, *indices = operands
    _fixed_indices(x[: len(indices)], [d for dims in indices for d in dims])
    return {}


def _gather_nd(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    x, indices = operands
    batch = attrs["batch_dims"]
    _fixed_indices(x[batch : batch + indices[0].old], indices[1:])
    return {}


def _fixed_indices(picked_from: Sequence[Dim], indices: Sequence[Dim]) -> None:
    """Refuse indices that stay as many while there is another number of elements to pick from."""
    for d in picked_from:
        if d.changed and not any(i.changed for i in indices):
            raise UnsupportedError(
                f"indices that keep their shape pick from an extent that goes from {d.old} to {d.new}"
            )


RULES: Mapping[str, Rule] = {
    "graph.reshape": _reshape,
    "graph.broadcast_to": _broadcast_to,
    "graph.strided_slice": _strided_slice,
    "graph.strided_set": _strided_set,
    "graph.split": _split,
    "graph.topk": _topk,
    "graph.matmul": _matmul,
    "graph.batch_matmul": _matmul,
    "graph.take": _take,
    "graph.adv_index": _adv_index,
    "graph.gather_nd": _gather_nd,
    "graph.gather": _same_places(2, axis=True),
    "graph.scatter_elements": _same_places(3, axis=True),
    **{f"graph.resize{n}d": _resize for n in (1, 2, 3)},
}
