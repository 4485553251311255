"""Ops that keep every element and its row-major order: reshape and its special cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

from tilewright.ir.division import OperandRows, SlicedOp, by_rules, in_its_operand, linear, replaced
from tilewright.ir.errors import InputError
from tilewright.ir.extents import Dims, attributes_stay, regrouped
from tilewright.ir.facts import Elements, Facts, Gradient, movement
from tilewright.ir.graph_ops.operands import axes_of, entries, require, tensors
from tilewright.ir.nodes import Attr, Op
from tilewright.ir.opdef import AttrDef, Attrs, define
from tilewright.ir.types import TensorType, Type


def _same_elements(
    name: str,
    shape_of: Callable[[TensorType, Attrs], tuple[int, ...]],
    doc: str,
    attrs: Mapping[str, AttrDef],
    facts: Facts,
) -> None:
    def infer(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
        (x,) = tensors(types)
        shape = shape_of(x, attrs)
        require(prod(shape) == x.size, f"expected a shape of {x.size} elements for {x}, got {shape}")
        return [TensorType(x.dtype, shape)]

    define(
        f"graph.{name}",
        ("x",),
        doc,
        attrs=attrs,
        infer=infer,
        evaluate=lambda x, a: [x[0].reshape(shape_of(_type(x[0].shape), a))],
        facts=facts,
    )


def _regrouped_rows(op: Op, axis: int, start: int, end: int) -> SlicedOp | None:
    """Rows that are whole rows of an axis of x with as many elements before it."""
    x, out = op.operands[0].tensor, op.result.tensor
    if not x.size or out.shape[axis] == 1:
        return None
    outer = prod(out.shape[:axis])
    source = next((d for d in range(x.rank) if x.shape[d] > 1 and prod(x.shape[:d]) == outer), None)
    if source is None:
        return None
    inner, out_inner = prod(x.shape[source + 1 :]), prod(out.shape[axis + 1 :])
    low, high = start * out_inner, end * out_inner
    if low % inner or high % inner:
        return None
    attrs: dict[str, Attr] = {}
    if "newshape" in op.attributes:
        attrs["newshape"] = replaced(out.shape, axis, end - start)
    elif op.get("axis", 0) is None:  # a row of one element is no dimension to drop
        attrs["axis"] = tuple(d for d, n in enumerate(x.shape) if n == 1)
    need = OperandRows(source, low // inner, high // inner)
    return SlicedOp((need,), attrs, align=max(1, inner // out_inner))


def _new_shape(operands: Sequence[Dims], attrs: Attrs) -> Mapping[str, Attr]:
    """The new shape has the factors of the dimensions that the old one was made of."""
    return {"newshape": tuple(d.new for d in regrouped(operands[0], attrs["newshape"]))}


def _type(shape: tuple[int, ...]) -> TensorType:
    """A type of this shape; the dtype plays no part in shapes."""
    return TensorType("f32", shape)


def _expanded(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    count, rank = attrs["num_newaxis"], x.rank
    axis = attrs["axis"] + (rank + 1 if attrs["axis"] < 0 else 0)
    good = 0 <= axis <= rank and 0 <= count <= 64
    require(good, f"expected an axis in [{-rank - 1}, {rank}], got {attrs['axis']}")
    return (*x.shape[:axis], *(1,) * count, *x.shape[axis:])


def _squeezed(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    if attrs["axis"] is None:
        return tuple(n for n in x.shape if n != 1)
    axes = axes_of(attrs["axis"], x.rank)
    require(all(x.shape[d] == 1 for d in axes), f"expected extents of 1 on axes {axes} of {x}")
    return tuple(n for d, n in enumerate(x.shape) if d not in axes)


def _flattened(x: TensorType, attrs: Attrs) -> tuple[int, ...]:
    require(x.rank >= 1, f"expected an operand of rank 1 or more, got {x}")
    return x.shape[0], prod(x.shape[1:])


_same_elements(
    "reshape",
    lambda x, a: entries(a["newshape"], len(a["newshape"]), "newshape"),
    "x with another shape of as many elements, which keep their row-major order.",
    {"newshape": AttrDef("ints", doc="the result's shape, without codes")},
    facts=movement(
        Elements.RESHAPES,
        linear(by_rules(_regrouped_rows), in_its_operand),
        _new_shape,
        gradient=Gradient.RULE,
    ),
)
_same_elements(
    "expand_dims",
    _expanded,
    "x with `num_newaxis` dimensions of extent 1 put in before `axis`.",
    {"axis": AttrDef("int"), "num_newaxis": AttrDef("int", 1)},
    facts=movement(Elements.RESHAPES, by_rules(_regrouped_rows), attributes_stay, gradient=Gradient.RULE),
)
_same_elements(
    "squeeze",
    _squeezed,
    "x without dimensions of extent 1: those in `axis`, or all.",
    {"axis": AttrDef("ints?", None)},
    facts=movement(Elements.RESHAPES, by_rules(_regrouped_rows), attributes_stay, gradient=Gradient.RULE),
)
_same_elements(
    "batch_flatten",
    _flattened,
    "x as a matrix: all dimensions after the first become one.",
    {},
    facts=movement(Elements.RESHAPES, by_rules(_regrouped_rows), attributes_stay, gradient=Gradient.RULE),
)


def resolve_reshape(
    shape: Sequence[int], newshape: Sequence[int], *, allowzero: bool = False
) -> tuple[int, ...]:
    """The static shape that Relay's codes in `newshape` stand for.

    0 copies an extent (unless `allowzero`), -1 is inferred, -2 copies all that are left, -3 multiplies the
    next two, -4 splits the next one into the two entries that follow (one may be -1).
    Raises InputError where the codes do not fit.
    """
    state = _Codes(tuple(shape), list(newshape), allowzero)
    out, inferred = state.run(), state.inferred
    if inferred is not None:
        known = prod(n for d, n in enumerate(out) if d != inferred)
        if known == 0 or prod(shape) % known:
            raise InputError(
                f"reshape: newshape {tuple(newshape)} does not fit {prod(shape)} elements of {tuple(shape)}"
            )
        out[inferred] = prod(shape) // known
    if prod(out) != prod(shape):
        raise InputError(
            f"reshape: expected {prod(shape)} elements of {tuple(shape)}, got newshape {tuple(newshape)}"
        )
    return tuple(out)


class _Codes:
    """Reads Relay's reshape codes left to right, using up source dimensions."""

    def __init__(self, shape: tuple[int, ...], codes: list[int], allowzero: bool) -> None:
        self.shape, self.codes, self.allowzero = shape, codes, allowzero
        self.used = 0
        self.inferred: int | None = None

    def next(self) -> int:
        """The next source extent."""
        if self.used >= len(self.shape):
            raise InputError(
                f"reshape: newshape {tuple(self.codes)} uses more dimensions than {self.shape} has"
            )
        self.used += 1
        return self.shape[self.used - 1]

    def run(self) -> list[int]:
        """Extents, with 1 at the place that is inferred."""
        out: list[int] = []
        codes = iter(self.codes)
        for code in codes:
            if code == -1:
                if self.inferred is not None:
                    raise InputError(f"reshape: expected at most one -1, got {tuple(self.codes)}")
                self.inferred = len(out)
                out.append(1)
                self.used += 1
            elif code == -2:
                out += self.shape[self.used :]
                self.used = len(self.shape)
            elif code == -3:
                out.append(self.next() * self.next())
            elif code == -4:
                out += self.split(next(codes, 0), next(codes, 0))
            elif code == 0 and not self.allowzero:
                out.append(self.next())
            elif code >= 0:
                out.append(code)
                self.used += 1
            else:
                raise InputError(f"reshape: unknown code {code} in {tuple(self.codes)}")
        return out

    def split(self, first: int, second: int) -> tuple[int, int]:
        """The two extents that -4 splits the next one into."""
        whole = self.next()
        if first == -1 and second > 0:
            first = whole // second
        elif second == -1 and first > 0:
            second = whole // first
        if first < 1 or second < 1 or first * second != whole:
            raise InputError(
                f"reshape: expected -4 to split {whole} into two factors, got {first} and {second}"
            )
        return first, second
