"""`Executable`: a compiled network bound to a device, callable on NumPy and DLPack arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from tilewright.ir import ArrayType, InputError, WorkError
from tilewright.runtime.container import SavedExecutable, read_container, write_container
from tilewright.runtime.device import Device, LoadedPlan, Progress
from tilewright.runtime.errors import DeviceError, RuntimeInputError
from tilewright.runtime.plan import ExecutionPlan


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn the runtime's errors into the public ones: bad input (exit 2) and failed work (exit 1)."""
    try:
        yield
    except RuntimeInputError as e:
        raise InputError(str(e)) from e
    except DeviceError as e:
        raise WorkError(str(e)) from e


@contextmanager
def _progress_bar(kernels: int) -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal, while a device builds kernels."""
    with tqdm(
        total=kernels, desc="building", unit="kernel", file=sys.stderr, disable=not sys.stderr.isatty()
    ) as bar:

        def advance(done: int, total: int, name: str) -> None:
            bar.update(done - bar.n)

        yield advance


@dataclass(frozen=True)
class Artifact:
    """What compiling gives, without a device: plan, constants, IR texts by level, facts for reports."""

    plan: ExecutionPlan
    constants: Mapping[str, np.ndarray] = field(repr=False)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Executable:
    """A compiled network. The first call opens the device, `close()` or a `with` block closes it."""

    def __init__(self, artifact: Artifact, target: str) -> None:
        self.artifact = artifact
        self.target = target
        self._device: Device | None = None
        self._loaded: LoadedPlan | None = None

    @property
    def plan(self) -> ExecutionPlan:
        """The execution plan: buffers, kernels, launches."""
        return self.artifact.plan

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in calling order."""
        return self.plan.inputs

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input."""
        return self._types(self.plan.inputs)

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each output."""
        return self._types(self.plan.outputs)

    def _types(self, names: Sequence[str]) -> tuple[ArrayType, ...]:
        found = [self.plan.buffer_by_name[n] for n in names]
        return tuple(ArrayType(b.shape, b.dtype) for b in found)

    @property
    def device(self) -> str:
        """Name of the device that runs it."""
        self.load()
        assert self._device is not None
        return self._device.name

    def load(self) -> LoadedPlan:
        """Open the device, allocate, upload and build; happens by itself at the first call."""
        if self._loaded is None:
            from tilewright.devices import open_device

            with clear_errors():
                self._device = open_device(self.target)
                try:
                    with _progress_bar(len(self.plan.kernels)) as progress:
                        self._loaded = self._device.load(
                            self.plan, self.artifact.constants, progress=progress
                        )
                except BaseException:
                    self._device.close()
                    self._device = None
                    raise
        return self._loaded

    def __call__(self, *inputs: object) -> list[np.ndarray]:
        """Outputs for one array per input (NumPy or DLPack; shapes and dtypes as `input_types` says)."""
        loaded = self.load()
        with clear_errors():
            return loaded.run(inputs)

    def time(self, *inputs: object, repeats: int = 20) -> list[float]:
        """Seconds of each of `repeats` runs on the device's clock, without copies, after one warm-up."""
        loaded = self.load()
        with clear_errors():
            return loaded.time(inputs, repeats)

    def time_kernels(self, *inputs: object, repeats: int = 5) -> list[tuple[str, float]]:
        """Kernel name and median seconds of each launch, launched one by one."""
        loaded = self.load()
        with clear_errors():
            rows = loaded.time_kernels(inputs, repeats)
        names = [launch.kernel for launch in self.plan.launches]
        return [(n, float(np.median(r))) for n, r in zip(names, rows, strict=True)]

    def report(self) -> dict[str, Any]:
        """Plain data about the compilation: target, kernels with parameters, bound and estimate, memory."""
        plan = self.plan
        constants = sum(b.nbytes for b in plan.buffers if b.kind == "constant")
        return {
            **self.artifact.facts,
            "target": plan.target,
            "launches": len(plan.launches),
            "kernels_compiled": len(plan.kernels),
            "arena_bytes": plan.arena_bytes,
            "constant_bytes": constants,
        }

    def save(self, path: str | Path) -> None:
        """Write one file that `tilewright.load` reads; replaced at once, only when complete."""
        a = self.artifact
        facts = {**a.facts, "target": self.target}
        with clear_errors():
            write_container(path, SavedExecutable(a.plan, dict(a.constants), dict(a.texts), facts))

    def close(self) -> None:
        """Free the device. The executable can be called again, which opens it anew."""
        with clear_errors():
            if self._loaded is not None:
                self._loaded.close()
            if self._device is not None:
                self._device.close()
        self._loaded = self._device = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def load(path: str | Path) -> Executable:
    """Read a file written by `Executable.save`, running nothing from it; raises InputError on damage."""
    with clear_errors():
        saved = read_container(path)
    target = saved.facts.get("target")
    if not isinstance(target, str):
        raise InputError("expected a saved executable that names its target", where=str(path))
    facts = {k: v for k, v in saved.facts.items() if k != "target"}
    return Executable(Artifact(saved.plan, saved.constants, saved.texts, facts), target)
