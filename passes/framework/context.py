"""What a pass sees of the world (`PassContext`) and what watches passes run (`Instrument`)."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.ir.nodes import Module

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
    """

    target: str = "opencl"
    hardware: GpuHardware | CpuHardware | None = None
    instruments: tuple[Instrument, ...] = ()
    verify_each: bool = False
    reproducer_folder: Path | None = field(default_factory=temporary_reproducers)
