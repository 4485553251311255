"""Facts that every graph op states of itself, so that passes and cost models need no lists of op names.

Functions among them read the types and the attributes of an op and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from math import prod
from typing import Any

from tilewright.ir.division import Division
from tilewright.ir.extents import Extents
from tilewright.ir.nodes import Op


class Elements(Enum):
    """The effect of an op on the elements of tensors."""

    CREATES = auto()
    """Gives elements without reading a tensor."""
    RETURNS = auto()
    """Hands tensors on to the caller."""
    KEEPS = auto()
    """Gives its operand as it is."""
    RESHAPES = auto()
    """Gives all elements of its operand in their order under another shape."""
    CUTS = auto()
    """Gives a part of its operand, at regular distances."""
    STRIDES = auto()
    """Gives the elements of its operand in another order or several times, as strides alone can say."""
    JOINS = auto()
    """Gives its operands one after another along `axis`."""
    SPLITS = auto()
    """Gives its operand in several parts, cut along `axis`."""
    REPEATS = auto()
    """Gives every element of its operand several times in a row along `axis`."""
    MOVES = auto()
    """Gives elements of its operands, or given ones, at other places."""
    LOOKS_UP = auto()
    """Gives the elements of its first operand that indices name: it reads as many as it gives."""
    SCATTERS = auto()
    """Puts elements where indices say."""
    MAPS = auto()
    """Computes each element from those at its place; operands broadcast from the right, as NumPy's do."""
    MAPS_PER_CHANNEL = auto()
    """Computes each element from that at its place and vectors with one element per index of `axis`."""
    REDUCES = auto()
    """Computes each element from those along whole dimensions."""
    SLIDES = auto()
    """Computes each element from a window of its operand, or from a part of an image."""
    NORMALISES = auto()
    """Reduces lines, and then maps their elements by what was found."""
    CONTRACTS = auto()
    """Sums products of elements of its operands, as a layer of parameters does."""
    SCANS = auto()
    """Computes each element from those before it."""
    SORTS = auto()
    """Compares elements with each other to order or to find them."""
    SAMPLES = auto()
    """Interpolates between elements at real places."""
    COMPUTES = auto()
    """Computes in a way of its own."""
    COMMUNICATES = auto()
    """Exchanges elements with other devices."""


#: ops that give their operand, all of it and in its order, and so need no memory of their own
SAME_MEMORY = frozenset({Elements.KEEPS, Elements.RESHAPES})


class Precision(Enum):
    """The effect on an op of storing tensors in 16 bits instead of float32."""

    NARROW = auto()
    """A product: it reads 16 bits and sums in float32."""
    NARROW_MATRICES = auto()
    """A product of operands of the rank of its first one, which it reads in 16 bits; operands of lower rank
    (statistics of lines, masks that broadcast) keep their type."""
    WIDE = auto()
    """It overflows, cancels, divides unevenly or orders elements: it reads float32."""
    BOUNDED = auto()
    """It follows what it reads and gives numbers of moderate size: they are stored in 16 bits."""
    FOLLOWS = auto()
    """It works in the type of what it reads."""
    ANY = auto()
    """It says nothing of the type of what it reads."""


class ReportClass(Enum):
    """The class of operators under which reports sum times; of a kernel's ops the first class here counts."""

    CONVOLUTION = "convolution"
    TRANSPOSED_CONVOLUTION = "transposed convolution"
    MATRIX_PRODUCT = "matrix product"
    CORRELATION = "correlation"
    POOLING = "pooling"
    SOFTMAX = "softmax"
    NORMALISATION = "normalisation"
    SORT = "sort"
    SCAN = "scan"
    REDUCTION = "reduction"
    OF_KERNEL = ""
    """The class of its kernel says more: the op computes element by element, or moves them."""


class WorkClass(Enum):
    """What a tensor op does, as data movement counts it: the order in which a kernel's ops give its class.

    Source: Ivanov et al., "Data Movement Is All You Need" (MLSys 2021), section 4.2.
    """

    CONTRACTION = "tensor contraction"
    """Sums products of elements of two operands, each of which it reads many times."""
    NORMALISATION = "statistical normalisation"
    """Reduces lines, windows or columns; maps of the same kernel go on with what was found."""
    ELEMENTWISE = "element-wise"
    """Computes each element by itself, or moves it."""


class Gradient(Enum):
    """The way in which an op takes part in automatic differentiation.

    Operands that hold no floats never carry a gradient, whatever the op states.
    """

    RULE = auto()
    """A rule of `passes/graph/gradients/rules` writes its gradient in graph ops."""
    DERIVED = auto()
    """Its adjoint is derived from the tensor ops that it is lowered to (`graph.adjoint`)."""
    NONE = auto()
    """Its results are integers, booleans or piecewise constant: what comes back to it is dropped."""
    REFUSED = auto()
    """No derivative of it is defined here: differentiation along a path through it is an error."""


#: FLOP of one execution of an op
Flops = Callable[[Op], int]


class _Unstated:
    def __repr__(self) -> str:
        return "not stated"


UNSTATED: Any = _Unstated()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that passes, cost models and reports know of a graph op beside its types.

    No fact has a default: `define` refuses a graph op that leaves one out.
    """

    elements: Elements = field(default=UNSTATED, metadata={"meaning": "what it does to elements"})
    flops: Flops = field(default=UNSTATED, metadata={"meaning": "its floating-point operations"})
    precision: Precision = field(default=UNSTATED, metadata={"meaning": "what mixed precision may do"})
    exact: bool = field(
        default=UNSTATED,
        metadata={"meaning": "whether its floating results are, but for signs, bits of operands or given"},
    )
    division: Division = field(default=UNSTATED, metadata={"meaning": "how its dimensions may be divided"})
    extents: Extents = field(
        default=UNSTATED, metadata={"meaning": "how its attributes follow the extents of its operands"}
    )
    report: ReportClass = field(default=UNSTATED, metadata={"meaning": "its class in reports"})
    gradient: Gradient = field(default=UNSTATED, metadata={"meaning": "how it is differentiated"})

    def unstated(self) -> list[tuple[str, str]]:
        """Name and meaning of every fact that is missing."""
        return [(f.name, f.metadata["meaning"]) for f in fields(self) if getattr(self, f.name) is UNSTATED]


def no_flops(op: Op) -> int:
    """Nothing is computed: elements are only moved or named."""
    return 0


def flops_per_element(op: Op) -> int:
    """One per element of the results together or of the largest operand, whichever are more."""
    return max(sum(v.tensor.size for v in op.results), *(v.tensor.size for v in op.operands), 0)


def flops_per_tap(op: Op) -> int:
    """One per result element and element of its window `pool_size`."""
    return sum(v.tensor.size for v in op.results) * prod(op.integers("pool_size"))


def movement(
    elements: Elements, division: Division, extents: Extents, gradient: Gradient = Gradient.DERIVED
) -> Facts:
    """The facts of an op that gives elements of its operands, or given ones, and computes nothing."""
    return Facts(
        elements=elements,
        flops=no_flops,
        precision=Precision.FOLLOWS,
        exact=True,
        division=division,
        extents=extents,
        report=ReportClass.OF_KERNEL,
        gradient=gradient,
    )
