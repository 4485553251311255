"""The facts that the rest of the compiler may ask of a kernel family: a frozen record without defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.costmodel import Hardware
from tilewright.ir import AttrRecord, Func, Op
from tilewright.passes.kernels.engine_points import SearchedEngine
from tilewright.passes.kernels.weight_order import WeightOrder

#: a tensor-level kernel and the device it is for, to kernels with other parameters
Variants = Callable[[Func, Hardware], list[Func]]


@dataclass(frozen=True)
class ContractionEngine:
    """One way to compute contractions, whose points the tuner searches with those of all others."""

    #: the order in which a kernel reads constant weights of its contraction, which are then stored so
    weight_order: Callable[[Func, Op], WeightOrder]
    #: whether a kernel can bring large weights of its contraction to the L2 cache before it waits for others
    prefetches_weights: bool
    #: a kernel to those that have all that a block needs of its weights in shared memory first, and take less
    #: time by the model where that is there in time; the most demanding first; None where there are none
    preloaded: Callable[[Func, Hardware], list[Func]] | None
    #: a kernel, its contraction, the device, and bytes of its operands that every run brings from DRAM, to
    #: points; None where the engine cannot compute it. Raises InputError where no point fits the device.
    points: Callable[[Func, Op, Hardware, float], SearchedEngine | None]
    #: the kernel, then at most so many of the model's likeliest ones, for reports; None where there are none
    candidates: Callable[[Func, Hardware, int], list[Func]] | None


@dataclass(frozen=True)
class Joined:
    """A family's part in the choice for a kernel that joins several.

    All are asked, by `precedence`; the first of those with the smallest estimate decides.
    """

    #: no two families have the same
    precedence: int
    #: the kernel with its decision; None where the family refuses it
    choose: Callable[[Func, Hardware], Func | None]
    #: whether a kernel that the family refuses could be a part of one that it takes
    may_grow: Callable[[Func], bool]
    #: the ops that shape the stages of a kernel (`contract-reduce-map-contract`)
    anchors: Callable[[Func], str]
    #: whether a kernel keeps its intermediates in registers, which an option of chain-kernels demands
    keeps_registers: bool


@dataclass(frozen=True)
class KernelTemplate:
    """One way to write kernels: how it is lowered, and what other code must know to treat its kernels.

    Every fact is stated by the family itself. Code outside of the family asks for a fact and never compares
    the name, so that a new family needs no change anywhere else.
    """

    #: what a kernel's decision calls it
    name: str
    #: the record of its parameters in a kernel's decision
    parameters: type[AttrRecord]
    #: gives the thread-level function of a kernel; None where a library computes the kernel
    lower: Callable[[Func], Func] | None
    #: the facts of an engine for contractions; None where the template is none
    contraction: ContractionEngine | None
    #: the dtype to which a kernel may round its float32 factors; None where it never rounds
    rounds_to: str | None
    #: how the family takes part in the choice for kernels that join several; None where it never does
    joined: Joined | None
    #: values of parameters among which the tuner tries the neighbours of the model's choice
    neighbours: Mapping[str, tuple[int, ...]]
    #: the kernel, then kernels with other parameters that are worth a measurement; None where there are none
    variants: Variants | None
    #: chooses parameters anew for a kernel that reads words of bits in place of masks, and whose threads read
    #: a word once for all their elements in it; None where they would read it for each
    choose_for_words: Callable[[Func, Hardware], Func | None] | None = None
    #: the order in which a kernel of several contractions reads the constant weights of each of them, which
    #: are then stored so; that of an engine for one contraction stands in its facts
    weight_order: Callable[[Func, Op], WeightOrder] | None = None

    @property
    def generated(self) -> bool:
        """Return whether this compiler writes the kernels; False where a library computes them."""
        return self.lower is not None


@dataclass(frozen=True)
class Choices:
    """A family's part in the choice for a kernel on its own; see `Joined` for others.

    Families are asked by `precedence`, the least first, and the first one that does not refuse decides.
    """

    #: the family's folder
    family: str
    #: no two families have the same
    precedence: int
    #: the kernel with template, parameters and cost; None where the family refuses it
    choose: Callable[[Func, Hardware], Func | None]
    #: seconds that a kernel takes at least with any parameters (arithmetic, traffic with warm caches,
    #: launch); None where the family refuses it
    least_s: Callable[[Func, Hardware], float | None]
