"""Ops that rearrange, repeat or select elements by position: each result element is one element of x."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.ir.division import (
    Labels,
    OperandRows,
    SlicedOp,
    along_other_axes,
    by_rules,
    in_its_operand,
    linear,
    replaced,
    unlabelled,
    where_not_repeated,
    where_untouched,
)
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.extents import Dims, attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, movement
from tilewright.ir.graph_ops.operands import axes_of, axis_of, broadcast_shapes, entries, require, tensors
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, Evaluate, define
from tilewright.ir.types import TensorType, Type


def _define(
    name: str,
    doc: str,
    attrs: Mapping[str, AttrDef],
    shape: Callable[[TensorType, Attrs], Sequence[int]],
    evaluate: Evaluate,
    facts: Facts,
) -> None:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        (x,) = tensors(types)
        return [TensorType(x.dtype, tuple(shape(x, attrs)))]

    define(f"graph.{name}", ("x",), doc, attrs=attrs, infer=infer, evaluate=evaluate, facts=facts)


def _transposed(x: TensorType, attrs: Attrs) -> Sequence[int]:
    axes = axes_of(attrs["axes"], x.rank)
    require(len(axes) == x.rank, f"expected {x.rank} axes for {x}, got {attrs['axes']}")
    return [x.shape[d] for d in axes]


def _broadcast(x: TensorType, attrs: Attrs) -> Sequence[int]:
    shape = entries(attrs["shape"], len(attrs["shape"]), "shape")
    good = broadcast_shapes([x.shape, shape]) == shape
    require(good, f"expected a shape that {x} broadcasts to, got {shape}")
    return shape


def _sliced(x: TensorType, attrs: Attrs) -> Sequence[int]:
    check_slice(x, attrs["begin"], attrs["size"], attrs["strides"])
    return attrs["size"]


def check_slice(x: TensorType, begin: Sequence[int], size: Sequence[int], strides: Sequence[int]) -> None:
    """Raise InputError unless elements begin + i * stride of every dimension, i < size, lie within x."""
    counts = (len(begin), len(size), len(strides))
    require(counts == (x.rank,) * 3, f"expected {x.rank} entries in begin, size and strides, got {counts}")
    for d, (first, n, step) in enumerate(zip(begin, size, strides, strict=True)):
        last = first + (n - 1) * step
        inside = n == 0 or (0 <= first < x.shape[d] and 0 <= last < x.shape[d])
        good = n >= 0 and step != 0 and inside
        require(good, f"expected a slice within dimension {d} of {x}, got {first}, {n}, {step}")


def slices(begin: Sequence[int], size: Sequence[int], strides: Sequence[int]) -> tuple[slice, ...]:
    """NumPy's slices for elements begin + i * stride, i < size."""
    out = []
    for first, n, step in zip(begin, size, strides, strict=True):
        end = first + n * step
        out.append(slice(first, None if end < 0 else end, step) if n else slice(0, 0))
    return tuple(out)


def _tiled(x: TensorType, attrs: Attrs) -> Sequence[int]:
    reps = attrs["reps"]
    require(len(reps) >= x.rank, f"expected at least {x.rank} entries in 'reps', got {reps}")
    reps = entries(reps, len(reps), "reps")
    shape = (*(1,) * (len(reps) - x.rank), *x.shape)
    return [n * r for n, r in zip(shape, reps, strict=True)]


def _repeated(x: TensorType, attrs: Attrs) -> Sequence[int]:
    repeats = attrs["repeats"]
    axis = axis_of(attrs["axis"], x.rank)
    require(repeats >= 0, f"expected a number of repeats, got {repeats}")
    return [n * repeats if d == axis else n for d, n in enumerate(x.shape)]


def _reversed(x: TensorType, attrs: Attrs) -> Sequence[int]:
    axis_of(attrs["axis"], x.rank)
    return x.shape


def _windowed(x: TensorType, attrs: Attrs) -> Sequence[int]:
    axis = axis_of(attrs["axis"], x.rank)
    count = x.rank - axis
    taps = entries(attrs["window_shape"], count, "window_shape", least=1)
    steps = entries(attrs["strides"], count, "strides", least=1)
    good = all(k <= n for k, n in zip(taps, x.shape[axis:], strict=True))
    require(good, f"expected windows that fit into {x} from axis {axis} on, got {taps}")
    places = [(n - k) // step + 1 for n, k, step in zip(x.shape[axis:], taps, steps, strict=True)]
    return [*x.shape[:axis], *places, *taps]


def _evaluate_windows(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, axis = inputs[0], attrs["axis"] % inputs[0].ndim
    view = np.lib.stride_tricks.sliding_window_view(x, attrs["window_shape"], tuple(range(axis, x.ndim)))
    return [view[(slice(None),) * axis + tuple(slice(None, None, step) for step in attrs["strides"])]]


def _divided_transpose(op: Op) -> Labels:
    rank = op.operands[0].tensor.rank
    return Labels((tuple(range(rank)),), (tuple(d % rank for d in op.integers("axes")),))


def _divided_windows(op: Op) -> Labels:
    """Dimensions before those that windows slide over."""
    operand, result = op.operands[0].tensor.rank, op.result.tensor.rank
    lead = tuple(range(op.integer("axis") % operand))
    rest = (unlabelled(rank - len(lead)) for rank in (operand, result))
    labelled = [(*lead, *dims) for dims in rest]
    return Labels((labelled[0],), (labelled[1],))


def _repeated_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp:
    """Along a dimension that repeats one element: as many repetitions of it."""
    return SlicedOp((None,), {"shape": replaced(op.result.tensor.shape, axis, end - start)})


def _cut_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """The rows of x between the first and the last one wanted."""
    begin, size, strides = (op.integers(k) for k in ("begin", "size", "strides"))
    if strides[axis] < 1:
        return None
    first = begin[axis] + start * strides[axis]
    last = begin[axis] + (end - 1) * strides[axis] + 1
    attrs: dict[str, Attr] = {
        "begin": replaced(begin, axis, 0),
        "size": replaced(size, axis, end - start),
    }
    whole = size[axis] == op.operands[0].tensor.shape[axis]
    return SlicedOp((OperandRows(axis, first, last),), attrs, balanced=not whole)


def _new_broadcast(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """Extents that were those of x follow it."""
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


def _new_slice(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """A slice that went to both ends still does; one of the near end stays."""
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


_define(
    "transpose",
    "x with its dimensions in another order: dimension d of the result is `axes[d]` of x.",
    {"axes": AttrDef("ints")},
    _transposed,
    lambda x, a: [x[0].transpose(a["axes"])],
    facts=movement(
        Elements.STRIDES,
        linear(_divided_transpose, in_its_operand),
        attributes_stay,
        gradient=Gradient.RULE,
    ),
)
_define(
    "broadcast_to",
    "x repeated along dimensions of extent 1 and new leading ones, as NumPy broadcasts.",
    {"shape": AttrDef("ints")},
    _broadcast,
    lambda x, a: [np.broadcast_to(x[0], a["shape"])],
    facts=movement(
        Elements.STRIDES,
        by_rules(_repeated_rows, labels=where_not_repeated),
        _new_broadcast,
        gradient=Gradient.RULE,
    ),
)
_define(
    "strided_slice",
    "Element i of each dimension is begin + i * stride of x; strides may be negative.",
    {"begin": AttrDef("ints"), "size": AttrDef("ints"), "strides": AttrDef("ints")},
    _sliced,
    lambda x, a: [x[0][slices(a["begin"], a["size"], a["strides"])]],
    facts=movement(
        Elements.CUTS, by_rules(_cut_rows, labels=where_untouched), _new_slice, gradient=Gradient.RULE
    ),
)
_define(
    "reverse",
    "x with the order of elements along `axis` reversed.",
    {"axis": AttrDef("int")},
    _reversed,
    lambda x, a: [np.flip(x[0], a["axis"])],
    facts=movement(Elements.MOVES, along_other_axes, attributes_stay, gradient=Gradient.RULE),
)
_define(
    "tile",
    "Copies of x side by side: `reps[d]` of them along dimension d of the result.",
    {"reps": AttrDef("ints", doc="of the result's rank, which may be larger than that of x")},
    _tiled,
    lambda x, a: [np.tile(x[0], a["reps"])],
    facts=movement(Elements.MOVES, where_not_repeated, attributes_stay, gradient=Gradient.RULE),
)
_define(
    "repeat",
    "Every element of x `repeats` times in a row along `axis`.",
    {"repeats": AttrDef("int"), "axis": AttrDef("int")},
    _repeated,
    lambda x, a: [np.repeat(x[0], a["repeats"], a["axis"])],
    facts=movement(Elements.REPEATS, along_other_axes, attributes_stay, gradient=Gradient.RULE),
)


_define(
    "sliding_window",
    "Windows over the dimensions from `axis` on, `strides` apart: their places, then the elements of each.",
    {"axis": AttrDef("int"), "window_shape": AttrDef("ints"), "strides": AttrDef("ints")},
    _windowed,
    _evaluate_windows,
    facts=movement(Elements.MOVES, _divided_windows, attributes_stay),
)


def _infer_set(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x, v = tensors(types)
    require(x.dtype == v.dtype, f"expected operands of one dtype, got {x} and {v}")
    check_slice(x, attrs["begin"], v.shape, attrs["strides"])
    return [x]


def _evaluate_set(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    x, v = inputs
    out = x.copy()
    out[slices(attrs["begin"], v.shape, attrs["strides"])] = v
    return [out]


def _new_place(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """A part that filled a whole dimension still does."""
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


define(
    "graph.strided_set",
    ("x", "v"),
    "x where element begin + i * stride of every dimension is element i of v.",
    attrs={"begin": AttrDef("ints"), "strides": AttrDef("ints")},
    infer=_infer_set,
    evaluate=_evaluate_set,
    facts=movement(Elements.MOVES, where_untouched, _new_place, gradient=Gradient.RULE),
)


def resolve_slice(
    shape: Sequence[int],
    begin: Sequence[int],
    end: Sequence[int],
    strides: Sequence[int] = (),
    axes: Sequence[int] | None = None,
    slice_mode: str = "end",
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Full-rank (begin, size, strides) of Relay's strided_slice on a tensor of `shape`.

    Entries stand for `axes` (default: the leading dimensions); missing strides are 1, missing begins and ends
    the whole dimension. Negative positions count from the back, positions beyond the ends are cut to them.
    slice_mode: end, or size, where `end` holds sizes (-1: all that is left) and strides are 1.
    Raises InputError for strides of 0, more entries than axes, and ends before their begins.
    """
    if slice_mode not in ("end", "size"):
        raise InputError(f"expected slice_mode end or size, got '{slice_mode}'")
    over = range(len(shape)) if axes is None else axes_of(axes, len(shape), "axes")
    if max(len(begin), len(end)) > len(over):
        raise InputError(f"expected at most {len(over)} positions, got {len(begin)} and {len(end)}")
    first, size, step = [0] * len(shape), list(shape), [1] * len(shape)
    for i, d in enumerate(over):
        lo = begin[i] if i < len(begin) else None
        hi = end[i] if i < len(end) else None
        if slice_mode == "size":
            hi = None if hi is None or hi < 0 else _from_front(lo or 0, shape[d]) + hi
        else:
            step[d] = strides[i] if i < len(strides) else 1
        first[d], size[d] = _resolved(shape[d], lo, hi, step[d])
    return tuple(first), tuple(size), tuple(step)


def _from_front(position: int, extent: int) -> int:
    return position + extent if position < 0 else position


def _resolved(extent: int, begin: int | None, end: int | None, step: int) -> tuple[int, int]:
    """First element and number of elements along one dimension."""
    if step == 0:
        raise InputError("expected strides other than 0")
    least, most = (-1, extent - 1) if step < 0 else (0, extent)
    start, stop = (most, least) if step < 0 else (least, most)
    if begin is not None:
        start = min(max(_from_front(begin, extent), least), most)
    if end is not None:
        stop = min(max(_from_front(end, extent), least), most)
    room = (stop - start) * (1 if step > 0 else -1)
    if room < 0:
        raise InputError(f"expected an end not before its begin, got {begin}, {end}, {step}")
    count = -(-room // abs(step))
    return (start if count else 0), count
