"""What a pass sees of the world (`PassContext`) and what watches passes run (`Instrument`)."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from tilewright.ir.nodes import Func, Module, Op, Value

if TYPE_CHECKING:
    from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware
    from tilewright.passes.framework.definition import Pass


@dataclass(frozen=True, slots=True)
class Step:
    """One pass at its place in the pipeline that runs: `position` counts from 1 to `total`."""

    configured: Pass
    position: int
    total: int

    def __str__(self) -> str:
        return f"{self.configured} ({self.position} of {self.total})"


class Instrument:
    """Watches passes; override what is needed. Calls nest where a pass runs other passes."""

    def before(self, step: Step, module: Module) -> None:
        """The pass is about to run on `module`."""

    def after(self, step: Step, before: Module, after: Module) -> None:
        """The pass has run; `after is before` means that it changed nothing."""

    def failed(self, step: Step, module: Module, error: BaseException) -> None:
        """The pass raised `error` on `module`."""


@dataclass(frozen=True)
class AlgorithmCost:
    """Seconds of all kernels of an algorithm, and the most bytes that one of them has at hand."""

    seconds: float
    working_bytes: int


class Estimator(Protocol):
    """What passes ask of the cost of a piece of a network: a pass sees kernels that come later only here.

    Estimates are of the cost model, for pieces on their own; times are in seconds. Equal questions about
    algorithms and products are answered from a memo.
    """

    def __hash__(self) -> int:
        """By identity: answers may be remembered by who gave them."""

    def algorithm_cost(
        self, op: Op, algorithm: str, hardware: GpuHardware | CpuHardware, *, constant_weight: bool
    ) -> AlgorithmCost:
        """Cost of all kernels of graph.conv2d `op` by an algorithm that is legal for it.

        constant_weight: whether the kernel's transform is done at compile time.
        """

    def product_s(self, op: Op, hardware: GpuHardware | CpuHardware, *, tf32: bool = False) -> float:
        """The kernels of a product of graph ops with a constant; tf32: factors may be rounded to TF32."""

    def program_s(
        self, params: Sequence[Value], ops: Sequence[Op], hardware: GpuHardware | CpuHardware
    ) -> float:
        """The kernels of tensor ops, the last of which returns."""

    def stored_kernels(self, module: Module, ctx: PassContext) -> Module:
        """A module of graph or tensor ops as kernels without parameters: what they store is in memory."""

    def kernel(self, func: Func, ctx: PassContext) -> Func:
        """An outlined kernel with the parameters and the `cost` that it would have alone.

        Raises InputError or UnsupportedError where no parameters fit the device.
        """

    def canonical(self, func: Func, ctx: PassContext) -> Func:
        """An outlined kernel in the dimensions that parameters are chosen for."""


def own_estimator() -> Estimator:
    """The service of `tilewright.passes.estimation`, loaded like passes by the name of its room.

    It stands above the passes it runs, and so above this file.
    """
    return cast(Estimator, importlib.import_module("tilewright.passes.estimation").ESTIMATOR)


def temporary_reproducers() -> Path:
    """Where reproducers of failing passes go when the caller names no folder."""
    return Path(tempfile.gettempdir()) / "tilewright-reproducers"


@dataclass(frozen=True)
class PassContext:
    """Everything a pass may read beside the module and its options.

    target: `cuda:sm_90a`, `opencl`, ...
    hardware: the cost model's record of the device, where one is known.
    instruments: watch every pass that runs under this context.
    verify_each: after each pass, verify the module and check every fact that is claimed to hold.
    reproducer_folder: where a failing pass leaves a file that reruns it; None writes none.
    estimator: what passes ask of the cost of pieces that only later passes make kernels of.
    """

    target: str = "opencl"
    hardware: GpuHardware | CpuHardware | None = None
    instruments: tuple[Instrument, ...] = ()
    verify_each: bool = False
    reproducer_folder: Path | None = field(default_factory=temporary_reproducers)
    estimator: Estimator = field(default_factory=own_estimator, repr=False, compare=False)
