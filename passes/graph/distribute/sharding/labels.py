"""Along which dimensions a graph op works independently: labels that operands and results share.

An op may be done on a piece of a labelled dimension if every operand that has the label gives that piece; a
label that only operands have is summed (or its maximum taken) over the pieces. Dimensions without a label
are needed whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from tilewright.ir.facts import Elements
from tilewright.ir.graph_ops.einsum import terms_of
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import facts_of, op_def

#: one label per dimension; None where the dimension is needed whole
Dims = tuple[int | str | None, ...]


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of every operand and every result; `sums` and `maxima` are what is reduced over."""

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    sums: frozenset[int | str] = frozenset()
    maxima: frozenset[int | str] = frozenset()


Rule = Callable[[Op], Labels | None]
#: the label of channels that are groups of their own
DEPTHWISE = "g"


def labels_of(op: Op) -> Labels | None:
    """The labels of an op; None for one that needs its operands whole."""
    rule = RULES.get(op.name)
    if rule is not None:
        return rule(op)
    return _elementwise(op) if facts_of(op.name).elements is Elements.MAPS else None


def _ranks(op: Op) -> list[int]:
    return [v.tensor.rank for v in op.operands]


def _ints(op: Op, key: str) -> tuple[int, ...]:
    return cast("tuple[int, ...]", op[key])


def _none(rank: int) -> Dims:
    return (None,) * rank


def _broadcast(op: Op) -> tuple[Dims, ...]:
    """Labels of operands that broadcast to the first result, whose dimension d is labelled d."""
    out = []
    shape = op.results[0].tensor.shape
    for v in op.operands:
        first = len(shape) - v.tensor.rank
        out.append(tuple(first + d if n == shape[first + d] else None for d, n in enumerate(v.tensor.shape)))
    return tuple(out)


def _elementwise(op: Op) -> Labels:
    return Labels(_broadcast(op), tuple(tuple(range(r.tensor.rank)) for r in op.results))


def _kept(op: Op, closed: Iterable[int] = (), **others: Dims) -> Labels:
    """Results with the dimensions of the first operand; `closed` ones are needed whole.

    others: labels of further operands by name, which have none otherwise.
    """
    rank = op.operands[0].tensor.rank
    shut = {d % rank for d in closed}
    dims = tuple(None if d in shut else d for d in range(rank))
    names = [n.rstrip("?*") for n in op_def(op.name).operands]
    rest = (others.get(n, _none(v.tensor.rank)) for n, v in zip(names[1:], op.operands[1:], strict=False))
    return Labels((dims, *rest), (dims,) * len(op.results))


def _axis(op: Op) -> int:
    return op.integer("axis") % op.operands[0].tensor.rank


def _closed_axis(op: Op) -> Labels:
    return _kept(op, [op.integer("axis")])


def _closed_from(first: int) -> Rule:
    """Dimensions from `first` on (which may count from the back) are needed whole."""

    def rule(op: Op) -> Labels:
        return _kept(op, range(op.operands[0].tensor.rank)[first:])

    return rule


def _per_channel(op: Op) -> Labels:
    """Further operands hold one value per index of `axis`."""
    axis = _axis(op)
    names = [n.rstrip("?*") for n in op_def(op.name).operands[1:]]
    return _kept(op, (), **dict.fromkeys(names, (axis,)))


def _instance_norm(op: Op) -> Labels:
    rank, axis = op.operands[0].tensor.rank, _axis(op)
    return _kept(op, [d for d in range(1, rank) if d != axis], gamma=(axis,), beta=(axis,))


def _l2_normalize(op: Op) -> Labels:
    return _kept(op, _ints(op, "axis") or range(op.operands[0].tensor.rank))


def _reduced(op: Op) -> Labels:
    rank = op.operands[0].tensor.rank
    axes = {d % rank for d in _ints(op, "axis")}
    numbers = op.operands[0].tensor.dtype != "bool"
    sums = frozenset(axes) if op.name == "graph.sum" and numbers else frozenset()
    maxima = frozenset(axes) if op.name == "graph.max" and numbers else frozenset()
    open_axes = sums | maxima
    dims = tuple(None if d in axes - open_axes else d for d in range(rank))
    result = tuple(None if d in axes else d for d in range(rank) if op["keepdims"] or d not in axes)
    rest = []
    for v in op.operands[1:]:  # the mean of a variance broadcasts to x
        first, shape = rank - v.tensor.rank, op.operands[0].tensor.shape
        pairs = enumerate(v.tensor.shape)
        rest.append(tuple(dims[first + d] if n == shape[first + d] else None for d, n in pairs))
    return Labels((dims, *rest), (result,), sums, maxima)


def _image(letters: str) -> Rule:
    """Ops on images of a layout, which work independently along the dimensions named."""

    def rule(op: Op) -> Labels:
        dims = tuple(c if c in letters else None for c in str(op["layout"]))
        rest = (_none(v.tensor.rank) for v in op.operands[1:])
        return Labels((dims, *rest), (dims,) * len(op.results))

    return rule


def _samples(op: Op) -> Labels:
    """Only samples, the first dimension of every operand named in _BY_SAMPLE, are independent."""
    count = _BY_SAMPLE[op.name]
    operands = tuple(
        ("N", *_none(v.tensor.rank - 1)) if i < count else _none(v.tensor.rank)
        for i, v in enumerate(op.operands)
    )
    return Labels(operands, tuple(("N", *_none(r.tensor.rank - 1)) for r in op.results))


_BY_SAMPLE = {"graph.grid_sample": 2, "graph.correlation": 2}


def _convolution(op: Op) -> Labels:
    layout, kernel = str(op["data_layout"]), str(op["kernel_layout"])
    x, w = (v.tensor for v in op.operands)
    groups = op.integer("groups")
    channels = x.shape[layout.index("C")]
    depthwise = groups == channels == w.shape[kernel.index("O")] and w.shape[kernel.index("I")] == 1
    if groups == 1:
        data, weight, result = {"N": "n", "C": "c"}, {"I": "c", "O": "o"}, {"N": "n", "C": "o"}
    elif depthwise and not op.name.endswith("_transpose"):
        data, weight, result = {"N": "n", "C": DEPTHWISE}, {"O": DEPTHWISE}, {"N": "n", "C": DEPTHWISE}
    else:
        data, weight, result = {"N": "n"}, {}, {"N": "n"}
    dims = tuple(map(data.get, layout)), tuple(map(weight.get, kernel))
    return Labels(dims, (tuple(map(result.get, layout)),), frozenset("c") if groups == 1 else frozenset())


def _dense(op: Op) -> Labels:
    lead = tuple(range(op.operands[0].tensor.rank - 1))
    return Labels(((*lead, "k"), ("n", "k")), ((*lead, "n"),), frozenset("k"))


def _matmul(op: Op) -> Labels:
    shape = op.result.tensor.shape[:-2]
    dims = []
    for v, last in zip(op.operands, (("m", "k"), ("k", "n")), strict=True):
        lead = v.tensor.shape[:-2]
        first = len(shape) - len(lead)
        batch = (first + d if n == shape[first + d] else None for d, n in enumerate(lead))
        turned = op["transpose_a" if last[0] == "m" else "transpose_b"]
        dims.append((*batch, *(last[::-1] if turned else last)))
    return Labels(tuple(dims), ((*range(len(shape)), "m", "n"),), frozenset("k"))


def _einsum(op: Op) -> Labels:
    terms, output = terms_of(str(op["equation"]))
    extents: dict[str, set[int]] = {}
    for term, v in zip(terms, op.operands, strict=True):
        for c, n in zip(term, v.tensor.shape, strict=True):
            extents.setdefault(c, set()).add(n)
    shut = {c for c in extents if len(extents[c]) > 1 or any(t.count(c) > 1 for t in (*terms, output))}
    dims = [tuple(None if c in shut else c for c in t) for t in (*terms, output)]
    return Labels(tuple(dims[:-1]), (dims[-1],), frozenset(extents) - frozenset(output) - shut)


def _transpose(op: Op) -> Labels:
    rank = op.operands[0].tensor.rank
    return Labels((tuple(range(rank)),), (tuple(d % rank for d in _ints(op, "axes")),))


def _repeating(op: Op) -> Labels:
    """broadcast_to and tile: dimensions that are not repeated."""
    result = op.result.tensor.rank
    first = result - op.operands[0].tensor.rank
    pairs = zip(op.operands[0].tensor.shape, op.result.tensor.shape[first:], strict=True)
    dims = tuple(first + d if a == b else None for d, (a, b) in enumerate(pairs))
    return Labels((dims,), ((*_none(first), *dims),))


def _untouched(op: Op) -> Labels:
    """strided_slice, strided_set, pad and scatter_elements: dimensions that all have in full."""
    shapes = [v.tensor.shape for v in (*op.operands, *op.results) if v.tensor.rank == op.result.tensor.rank]
    shut = {d for d in range(op.result.tensor.rank) if len({s[d] for s in shapes}) > 1}
    for key, plain in (("begin", 0), ("strides", 1), ("pad_before", 0), ("pad_after", 0)):
        shut |= {d for d, n in enumerate(cast("tuple[int, ...]", op.get(key, ()))) if n != plain}
    if op.get("axis") is not None:
        shut.add(_axis(op))
    dims = tuple(None if d in shut else d for d in range(op.result.tensor.rank))
    alike = (dims if v.tensor.rank == len(dims) else _none(v.tensor.rank) for v in op.operands)
    return Labels(tuple(alike), (dims,))


def _sliding_window(op: Op) -> Labels:
    lead = tuple(range(_axis(op)))
    operand, result = op.operands[0].tensor.rank, op.result.tensor.rank
    return Labels(((*lead, *_none(operand - len(lead))),), ((*lead, *_none(result - len(lead))),))


def _concatenate(op: Op) -> Labels:
    axis = _axis(op)
    dims = tuple(None if d == axis else d for d in range(op.result.tensor.rank))
    return Labels((dims,) * len(op.operands), (dims,))


def _stack(op: Op) -> Labels:
    rank = op.result.tensor.rank
    axis = op.integer("axis") % rank
    dims = tuple(range(rank - 1))
    return Labels((dims,) * len(op.operands), ((*dims[:axis], None, *dims[axis:]),))


def _take(op: Op) -> Labels:
    x, indices = _ranks(op)
    picked = tuple(f"i{d}" for d in range(indices))
    if op["axis"] is None:
        return Labels((_none(x), picked), (picked,))
    axis, batch = _axis(op), op.integer("batch_dims")
    dims = tuple(None if d == axis else d for d in range(x))
    at = (*dims[:batch], *picked[batch:])
    return Labels((dims, at), ((*dims[:axis], *picked[batch:], *dims[axis + 1 :]),))


def _adv_index(op: Op) -> Labels:
    x, *rest = op.operands
    points = op.result.tensor.rank - (x.tensor.rank - len(rest))
    trailing = tuple(f"x{d}" for d in range(len(rest), x.tensor.rank))
    dims = []
    for v in rest:
        first = points - v.tensor.rank
        shape = zip(v.tensor.shape, op.result.tensor.shape[first:points], strict=True)
        dims.append(tuple(first + d if a == b else None for d, (a, b) in enumerate(shape)))
    return Labels(((*_none(len(rest)), *trailing), *dims), ((*range(points), *trailing),))


def _one_hot(op: Op) -> Labels:
    axis = op.integer("axis") % op.result.tensor.rank
    dims = tuple(range(op.operands[0].tensor.rank))
    return Labels((dims, (), ()), ((*dims[:axis], None, *dims[axis:]),))


def _region(op: Op) -> Labels:
    """Regions are independent; the images they lie in are needed whole."""
    return Labels(
        (_none(op.operands[0].tensor.rank), ("r", None)), (("r", *_none(op.result.tensor.rank - 1)),)
    )


def _reverse_sequence(op: Op) -> Labels:
    rank = op.operands[0].tensor.rank
    batch = op.integer("batch_axis") % rank
    return _kept(op, [op.integer("seq_axis")], lengths=(batch,))


def _named(names: str, rule: Rule) -> Mapping[str, Rule]:
    return {f"graph.{n}": rule for n in names.split()}


def _sized(names: Sequence[str], rule: Rule) -> Mapping[str, Rule]:
    """Ops that exist for one, two and three spatial dimensions."""
    return {f"graph.{n.format(s)}": rule for n in names for s in "123"}


#: ops that have labels; elementwise ones have them without being listed
RULES: Mapping[str, Rule] = {
    **_named("dropout copy", _kept),
    **_named("softmax log_softmax layer_norm lrn split reverse", _closed_axis),
    **_named("cumsum cumprod sort argsort topk", _closed_axis),
    **_named("bias_add prelu batch_norm", _per_channel),
    **_named("group_norm", _closed_from(1)),
    **_named("trilu", _closed_from(-2)),
    **_named("instance_norm", _instance_norm),
    **_named("l2_normalize", _l2_normalize),
    **_named("sum prod max min mean all any argmax argmin variance", _reduced),
    **_sized(["max_pool{}d", "avg_pool{}d", "global_avg_pool{}d", "global_max_pool{}d"], _image("NC")),
    **_sized(["adaptive_avg_pool{}d", "adaptive_max_pool{}d", "resize{}d"], _image("NC")),
    **_named("depth_to_space space_to_depth", _image("N")),
    **_named("grid_sample correlation", _samples),
    **_sized(["conv{}d", "conv{}d_transpose"], _convolution),
    **_named("dense", _dense),
    **_named("matmul batch_matmul", _matmul),
    **_named("einsum", _einsum),
    **_named("transpose", _transpose),
    **_named("broadcast_to tile", _repeating),
    **_named("strided_slice strided_set pad", _untouched),
    **_named("sliding_window", _sliding_window),
    **_named("concatenate", _concatenate),
    **_named("stack", _stack),
    **_named("take", _take),
    **_named("gather scatter_elements", _untouched),
    **_named("adv_index", _adv_index),
    **_named("one_hot", _one_hot),
    **_named("roi_align roi_pool", _region),
    **_named("reverse_sequence", _reverse_sequence),
}
