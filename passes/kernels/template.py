"""What the rest of the compiler may ask about a kernel family: a frozen record without defaults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tilewright.costmodel import Hardware
from tilewright.ir import AttrRecord, Func, Op
from tilewright.passes.kernels.weight_order import WeightOrder

#: a tensor-level kernel and the device it is for, to kernels with other parameters
Variants = Callable[[Func, Hardware], list[Func]]


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
    #: the order in which a kernel reads constant weights of its contraction, which are then stored so;
    #: None where weights stay as they are
    weight_order: Callable[[Func, Op], WeightOrder] | None
    #: whether a kernel can bring large weights of its contraction to the L2 cache before it waits for others
    prefetches_weights: bool
    #: the dtype to which a kernel may round its float32 factors; None where it never rounds
    rounds_to: str | None
    #: the ops that shape the stages of a kernel which joins several (`contract-reduce-map-contract`); None
    #: where kernels of this template are never joined ones
    anchors: Callable[[Func], str] | None
    #: whether a joined kernel keeps its intermediates in registers, which an option of chain-kernels demands
    keeps_registers: bool
    #: whether the tuner searches all points of all engines that can compute the kernel's contraction
    searches_engines: bool
    #: values of parameters among which the tuner tries the neighbours of the model's choice
    neighbours: Mapping[str, tuple[int, ...]]
    #: the kernel, then kernels with other parameters that are worth a measurement; None where there are none
    variants: Variants | None
    #: the kernel, then at most so many of the model's likeliest ones, for reports; None where there are none
    candidates: Callable[[Func, Hardware, int], list[Func]] | None

    @property
    def generated(self) -> bool:
        """Whether this compiler writes the kernels; False where a library computes them."""
        return self.lower is not None


@dataclass(frozen=True)
class Choices:
    """How a family takes part in the choice for a kernel on its own; joined kernels are chosen elsewhere.

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
