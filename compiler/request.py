"""The options of `tilewright.compile` as one checked value."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from tilewright.compilation.option_values import (
    PARTITIONER,
    ConvAlgorithm,
    Layouts,
    Partitioner,
    Precision,
    Relays,
    Tune,
    Workspace,
)
from tilewright.compilation.own_passes import PassesOption
from tilewright.devices.targets import Target
from tilewright.ir import InputError
from tilewright.ir.errors import expect
from tilewright.measuring.budget import budget_seconds
from tilewright.passes import Instrument
from tilewright.passes.pipelines import PRECISIONS
from tilewright.running.buckets import ShapesOption

#: options that only kernels have, with the values that ask for nothing
_OF_KERNELS = {
    "tune": "model",
    "conv_algorithm": "auto",
    "workspace": "network",
    "partitioner": PARTITIONER,
    "layouts": "cut",
    "streams": None,
    "relays": "auto",
}


@dataclass(frozen=True, kw_only=True)
class CompileRequest:
    """The options as they were given; `tilewright.compile` says what each means and has their defaults."""

    target: str | Target
    tune: Tune
    tuning_db: str | os.PathLike[str] | None
    budget: float | str | None
    precision: Precision
    libraries: bool
    conv_algorithm: ConvAlgorithm
    workspace: Workspace
    partitioner: Partitioner
    layouts: Layouts
    streams: str | None
    relays: Relays
    instances: int
    shapes: Sequence[ShapesOption] | None
    progress: bool | None
    passes: PassesOption
    instruments: Sequence[Instrument]
    verify_each: bool

    def check(self) -> None:
        """Raise InputError naming the first option that has no such value."""
        choices = {
            "tune": get_args(Tune),
            "precision": tuple(PRECISIONS),
            "conv_algorithm": get_args(ConvAlgorithm),
            "workspace": get_args(Workspace),
            "partitioner": get_args(Partitioner),
            "layouts": get_args(Layouts),
            "relays": get_args(Relays),
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise InputError(f"expected {name} among {', '.join(known)}, got {getattr(self, name)!r}")
        if self.tuning_db is not None and self.tune != "measure":
            raise InputError('expected tune="measure" with tuning_db: the model measures nothing')
        if budget_seconds(self.budget) is not None and self.tune != "measure":
            raise InputError('expected tune="measure" with budget: the model measures nothing')
        if type(self.instances) is not int or self.instances < 1:
            raise InputError(f"expected a positive number of instances, got {self.instances!r}")
        if not isinstance(self.libraries, bool):
            raise InputError(f"expected libraries to be true or false, got {self.libraries!r}")
        for instrument in expect(self.instruments, Sequence, "instruments as a list"):
            expect(instrument, Instrument, "instruments that are objects of tilewright.passes.Instrument")

    def check_interpreted(self) -> None:
        """Raise InputError for the first option that means nothing without kernels."""
        for name, default in _OF_KERNELS.items():
            value = getattr(self, name)
            if value != default:
                raise InputError(
                    f"expected a target with kernels with {name}={value!r}, got reference, which interprets"
                )
