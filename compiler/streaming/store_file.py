"""The constants of all steps on storage: one file, in the order of the steps, as their plans need them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewright.ir import InputError, WorkError
from tilewright.runtime.storage.store_writer import StoreWriter
from tilewright.runtime.temporary_folder import TemporaryFolder
from tilewright.streaming.parts.step_modules import NetworkStep
from tilewright.streaming.step_plans import StepCompiler, StepPlan, store_specs, tensor_name

STORE_NAME = "weights.store"


class StoreFolder:
    """A folder for the store and for scratch space: the caller's, which stays, or one that is removed."""

    def __init__(self, folder: str | Path | None) -> None:
        """Raises InputError where the folder is missing, none, or cannot be written."""
        self._temporary: TemporaryFolder | None = None
        if folder is None:
            try:
                self._temporary = TemporaryFolder("tilewright-stream-")
            except OSError as e:
                raise WorkError(f"a temporary folder for weights cannot be made: {e.strerror}") from e
            self.path = self._temporary.path
        else:
            self.path = Path(folder)
            if not self.path.exists():
                raise InputError(
                    "no such folder: make it first, the weights of a streamed network stay in it",
                    where=str(folder),
                )
            if not self.path.is_dir() or not os.access(self.path, os.W_OK | os.X_OK):
                raise InputError(
                    "expected a folder that can be written, for the weights of a streamed network",
                    where=str(folder),
                )

    @property
    def store(self) -> Path:
        """The file with the constants."""
        return self.path / STORE_NAME

    def close(self) -> None:
        """Remove a temporary folder; a given one keeps its store."""
        if self._temporary is not None:
            self._temporary.close()
            self._temporary = None


@dataclass
class PlannedSteps:
    """Steps, the plans they share and which of them each step has."""

    steps: Sequence[NetworkStep]
    plans: list[StepPlan]
    plan_of: list[int]

    def plan(self, step: int) -> StepPlan:
        """The plan of a step."""
        return self.plans[self.plan_of[step]]


def write_store(path: Path, planned: PlannedSteps, compiler: StepCompiler) -> None:
    """Write the constants of every step, one step's in memory at a time.

    A step whose data leads to another plan than that of its like gets its own, and writing begins anew.
    Raises WorkError where the file cannot be written; then there is none.
    """
    own: set[int] = set()
    while (odd := _write(path, planned, compiler)) is not None:
        if odd in own:
            name = planned.steps[odd].line.module.name
            raise WorkError(f"step {odd} of @{name} compiles to another plan every time: tune it beforehand")
        own.add(odd)
        planned.plan_of[odd] = len(planned.plans)
        planned.plans.append(compiler.compile(planned.steps[odd]))
    used = list(dict.fromkeys(planned.plan_of))
    planned.plans = [planned.plans[number] for number in used]
    planned.plan_of = [used.index(number) for number in planned.plan_of]


class _OtherPlan(Exception):
    """The data of this step does not fit the plan it was to share."""


def _write(path: Path, planned: PlannedSteps, compiler: StepCompiler) -> int | None:
    """The number of the first step that needs another plan; None where all is written."""
    specs = store_specs(planned.plans, planned.plan_of)
    number = 0
    try:
        with StoreWriter(path, specs) as writer:
            for number, step in enumerate(planned.steps):
                constants = compiler.constants(step, planned.plan(number))
                if constants is None:
                    raise _OtherPlan
                writer.write_step({tensor_name(number, k): a for k, a in constants.items()})
    except _OtherPlan:
        return number
    return None
