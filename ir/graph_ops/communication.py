"""Communication between devices: every rank runs its own module, and these ops are where they meet.

All of them have the effect `communicate`: they are never dropped, merged or reordered among themselves.
`rank` is the position of this device in `ranks`, which lists global ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tilewright.ir.division import along_other_axes, same_dimensions, undivided
from tilewright.ir.extents import attributes_stay
from tilewright.ir.facts import Elements, Facts, Gradient, Precision, ReportClass, flops_per_element
from tilewright.ir.graph_ops.operands import axis_of, require, tensors
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type

COMMUNICATE = frozenset({"communicate"})
#: names of the ops that join what members hold
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = "graph.all_reduce", "graph.reduce_scatter", "graph.all_gather"
#: the ways in which all_reduce joins the members' tensors
REDUCTIONS = ("sum", "max")
#: half-open interval of rows
Interval = tuple[int, int]


@dataclass(frozen=True, slots=True)
class HaloPiece:
    """Rows [start, end) of the whole tensor, taken from the member at position `member` of `ranks`."""

    member: int
    start: int
    end: int


def halo_pieces(owned: Sequence[Interval], needed: Sequence[Interval], rank: int) -> tuple[HaloPiece, ...]:
    """Return where the rows needed[rank] come from, in rising order: own rows, else the first owner's.

    Neighbouring rows of one member are one piece. Raises InputError where nobody owns a needed row.
    """
    low, high = needed[rank]
    cuts = {low, high, *(c for interval in owned for c in interval if low < c < high)}
    bounds = sorted(cuts)
    order = [rank, *(m for m in range(len(owned)) if m != rank)]
    out: list[HaloPiece] = []
    for start, end in pairwise(bounds):
        member = next((m for m in order if owned[m][0] <= start and end <= owned[m][1]), None)
        owned_here = member is not None
        message = f"expected an owner of rows [{start}, {end}) that member {rank} needs, got none"
        require(owned_here, message)
        assert member is not None
        if out and out[-1].member == member:
            start = out.pop().start
        out.append(HaloPiece(member, start, end))
    return tuple(out)


def _members(attrs: Attrs) -> int:
    """The number of ranks; raises InputError unless they are distinct and `rank` is one of them."""
    ranks, rank = attrs["ranks"], attrs["rank"]
    good = len(set(ranks)) == len(ranks) > 0 and min(ranks) >= 0
    require(good, f"expected distinct ranks of at least 0, got {list(ranks)}")
    require(0 <= rank < len(ranks), f"expected 'rank' to be a position in {list(ranks)}, got {rank}")
    return len(ranks)


def _intervals(attrs: Attrs, key: str, count: int) -> tuple[Interval, ...]:
    value = attrs[key]
    good = len(value) == count and all(
        isinstance(v, tuple) and len(v) == 2 and all(type(n) is int for n in v) and 0 <= v[0] <= v[1]
        for v in value
    )
    message = f"expected {count} intervals [start, end] of rising numbers in '{key}', got {_text(value)}"
    require(good, message)
    return tuple(value)


def _text(value: object) -> str:
    return f"[{', '.join(map(_text, value))}]" if isinstance(value, tuple) else repr(value)


def _extents(attrs: Attrs, count: int) -> tuple[int, ...]:
    extents = tuple(attrs["extents"])
    good = len(extents) == count and min(extents) >= 0
    require(good, f"expected {count} extents of at least 0, one per rank, got {list(extents)}")
    return extents


def _tensor(types: Sequence[Type]) -> TensorType:
    (x,) = tensors(types)
    return x


def _with_extent(x: TensorType, axis: int, extent: int) -> TensorType:
    return TensorType(x.dtype, (*x.shape[:axis], extent, *x.shape[axis + 1 :]))


def _infer_send(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    _tensor(types)
    to, tag = attrs["to"], attrs["tag"]
    require(to >= 0 and tag >= 0, f"expected a rank and a tag of at least 0, got {to} and {tag}")
    return []


def _infer_recv(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    source, tag = attrs["source"], attrs["tag"]
    good = source >= 0 and tag >= 0
    require(good, f"expected a rank and a tag of at least 0, got {source} and {tag}")
    return [TensorType(attrs["dtype"], tuple(attrs["shape"]))]


def _infer_halo(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x = _tensor(types)
    axis = axis_of(attrs["axis"], x.rank)
    count, rank = _members(attrs), attrs["rank"]
    require(attrs["tag"] >= 0, f"expected a tag of at least 0, got {attrs['tag']}")
    owned = _intervals(attrs, "owned", count)
    needed = _intervals(attrs, "needed", count)
    start, end = owned[rank]
    message = f"expected rows [{start}, {end}) along axis {axis}, which rank {rank} owns, got {x}"
    require(x.shape[axis] == end - start, message)
    for member in range(count):
        halo_pieces(owned, needed, member)
    return [_with_extent(x, axis, needed[rank][1] - needed[rank][0])]


def _infer_gather(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x = _tensor(types)
    axis, rank = axis_of(attrs["axis"], x.rank), attrs["rank"]
    extents = _extents(attrs, _members(attrs))
    message = f"expected an extent of {extents[rank]} along axis {axis} at rank {rank}, got {x}"
    require(x.shape[axis] == extents[rank], message)
    return [_with_extent(x, axis, sum(extents))]


def _infer_reduce(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x = _tensor(types)
    _members(attrs)
    kind = attrs["reduction"]
    require(kind in REDUCTIONS, f"expected a reduction {' or '.join(REDUCTIONS)}, got '{kind}'")
    require(x.dtype != "bool" or kind == "max", f"expected numbers to add, got {x}")
    return [x]


def _infer_scatter(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    x = _tensor(types)
    axis, rank = axis_of(attrs["axis"], x.rank), attrs["rank"]
    extents = _extents(attrs, _members(attrs))
    message = f"expected an extent of {sum(extents)} along axis {axis}, the sum of {list(extents)}, got {x}"
    require(x.shape[axis] == sum(extents), message)
    require(x.dtype != "bool", f"expected numbers to add, got {x}")
    return [_with_extent(x, axis, extents[rank])]


_AXIS = AttrDef("int", doc="of the tensor that is cut into pieces")
_TAG = AttrDef("int", 0, "tells messages between the same ranks apart")
_GROUP = {
    "rank": AttrDef("int", doc="position of this device in `ranks`"),
    "ranks": AttrDef("ints", doc="global ranks of the members, in the same order on all of them"),
}
_EXTENTS = {"extents": AttrDef("ints", doc="of every member's piece along `axis`; 0 is allowed")}

#: facts that ops below share; each replaces those that differ
_COMMUNICATION = Facts(
    elements=Elements.COMMUNICATES,
    flops=flops_per_element,
    precision=Precision.FOLLOWS,
    exact=True,
    division=along_other_axes,
    extents=attributes_stay,
    report=ReportClass.OF_KERNEL,
    gradient=Gradient.REFUSED,
)
#: of ops in which the ranks of a group meet; a message between two of them has no way back
_MEETING = replace(_COMMUNICATION, gradient=Gradient.RULE)
define(
    "graph.send",
    ("x",),
    "Sends x to rank `to`, whose recv of the same tag takes it.",
    attrs={"to": AttrDef("int", doc="global rank"), "tag": _TAG},
    results=0,
    infer=_infer_send,
    effects=COMMUNICATE,
    facts=replace(_COMMUNICATION, precision=Precision.WIDE, division=undivided),
)
define(
    "graph.recv",
    (),
    "What rank `source` sends with the same tag.",
    attrs={
        "source": AttrDef("int", doc="global rank"),
        "tag": _TAG,
        "dtype": AttrDef("dtype"),
        "shape": AttrDef("ints"),
    },
    infer=_infer_recv,
    effects=COMMUNICATE,
    facts=replace(_COMMUNICATION, division=undivided),
)
define(
    "graph.halo_exchange",
    ("x",),
    "Rows needed[rank] along `axis` of a tensor of which x is rows owned[rank]: a row comes from the "
    "rank itself where it has it, else from the first of `ranks` that owns it. Intervals are half-open; "
    "those of `owned` may overlap.",
    attrs={
        "axis": _AXIS,
        **_GROUP,
        "owned": AttrDef("list", doc="rows [start, end] of every member before"),
        "needed": AttrDef("list", doc="rows [start, end] of every member afterwards"),
        "tag": _TAG,
    },
    infer=_infer_halo,
    effects=COMMUNICATE,
    facts=_MEETING,
)
define(
    ALL_GATHER,
    ("x",),
    "The members' pieces one after another along `axis`.",
    attrs={"axis": _AXIS, **_GROUP, **_EXTENTS},
    infer=_infer_gather,
    effects=COMMUNICATE,
    facts=_MEETING,
)
define(
    ALL_REDUCE,
    ("x",),
    "The elementwise sum or maximum of the members' tensors, in the order of `ranks`.",
    attrs={**_GROUP, "reduction": AttrDef("str", "sum", " or ".join(REDUCTIONS))},
    infer=_infer_reduce,
    effects=COMMUNICATE,
    facts=replace(_MEETING, exact=False, division=same_dimensions),
)
define(
    REDUCE_SCATTER,
    ("x",),
    "The elementwise sum of the members' tensors, of which each member keeps its piece along `axis`.",
    attrs={"axis": _AXIS, **_GROUP, **_EXTENTS},
    infer=_infer_scatter,
    effects=COMMUNICATE,
    facts=replace(_MEETING, exact=False),
)
