"""`Executable`: a compiled network bound to a device, callable on NumPy and DLPack arrays."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from tqdm import tqdm

from tilewright.devices.opening import OpenedDevice
from tilewright.devices.targets import target_here
from tilewright.ir import ArrayType, InputError, Module, parse, show
from tilewright.ir.errors import file_path
from tilewright.profiling.kernel_times import Subject, profile_loaded
from tilewright.profiling.ledger import Ledger, recorded_ledger
from tilewright.profiling.profile import Profile
from tilewright.profiling.stamps import kernel_names, saved_kernels
from tilewright.running.instances import InstancePool, stream_batches
from tilewright.running.named_inputs import in_order
from tilewright.running.state import State
from tilewright.runtime.arena.placement import arena_lower_bound
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.interface.device import Device, LoadedPlan, Progress
from tilewright.runtime.interface.lazy import LazyArray
from tilewright.runtime.plan.container import SavedExecutable, write_container
from tilewright.runtime.plan.execution_plan import ExecutionPlan

#: the fact of a saved file with the names of its kernels' values
NAMES = "value_names"


@contextmanager
def progress_bar(kernels: int) -> Iterator[Progress]:
    """A bar on stderr, where that is a terminal, while a device builds kernels."""
    with tqdm(
        total=kernels, desc="building", unit="kernel", file=sys.stderr, disable=not sys.stderr.isatty()
    ) as bar:

        def advance(done: int, total: int, name: str) -> None:
            bar.update(done - bar.n)

        yield advance


#: the levels of the IR that an artifact keeps
LEVELS = ("graph", "tensor", "thread")


@dataclass(frozen=True)
class Artifact:
    """The result of compiling, without a device: plan, constants, facts for reports, the network by level.

    modules: by level what the passes left, without data; none of what was read from a file. saved_texts: by
    name the texts that a file holds besides, or, of what was read from a file, all of them. names: those of
    the kernels' values, which a text does not keep and a file states beside it (`kernel_names`).
    """

    plan: ExecutionPlan
    constants: Mapping[str, np.ndarray] = field(repr=False)
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)
    modules: Mapping[str, Module] = field(default_factory=dict, repr=False)
    saved_texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    names: Mapping[str, Sequence[str]] = field(default_factory=dict, repr=False)

    @cached_property
    def texts(self) -> Mapping[str, str]:
        """Every text that a file holds, by name: of each level, and the entries of a tuning database."""
        return {**{level: show(module) for level, module in self.modules.items()}, **self.saved_texts}

    def module(self, level: str) -> Module:
        """The network at a level, without data; raises InputError where a file has no text of it."""
        if level not in self.modules and level not in self.saved_texts:
            raise InputError(f"expected an executable with its IR, the text {level!r} is missing")
        if level in self.modules:
            return self.modules[level]
        import tilewright.passes.kernels.registry  # noqa: F401 - reads the decisions that stand in the text

        return parse(self.saved_texts[level], where=f"text {level!r}")

    def kernels(self) -> Module:
        """The kernels at the thread level that the plan was made of.

        Raises InputError for a file without their text, UnsupportedError where this version emits other
        kernels of it than the plan has.
        """
        thread = self.module("thread")
        return thread if "thread" in self.modules else saved_kernels(self.plan, thread, self.names)

    @staticmethod
    def of(saved: SavedExecutable) -> Artifact:
        """The content of a file, whose target stands elsewhere."""
        facts = {k: v for k, v in saved.facts.items() if k not in ("target", NAMES)}
        stated = saved.facts.get(NAMES)
        rows = stated.items() if isinstance(stated, dict) else ()
        names = {k: list(map(str, v)) for k, v in rows if isinstance(v, list)}
        return Artifact(saved.plan, saved.constants, facts, saved_texts=saved.texts, names=names)

    def saved(self, facts: Mapping[str, Any]) -> SavedExecutable:
        """The content of a file, with facts besides those of the artifact."""
        names = kernel_names(self.modules["thread"]) if "thread" in self.modules else dict(self.names)
        facts = {**self.facts, NAMES: names, **facts}
        return SavedExecutable(self.plan, dict(self.constants), dict(self.texts), facts)


class Executable:
    """A compiled network. The first call opens the device, `close()` or a `with` block closes it."""

    def __init__(
        self, artifact: Artifact, target: str, *, instances: int = 1, device: OpenedDevice | None = None
    ) -> None:
        self.artifact = artifact
        self.target = target
        self.instances = instances
        self._opened = device or OpenedDevice(target)
        self._lock = threading.RLock()
        self._device: Device | None = None
        self._pool: InstancePool | None = None

    @property
    def plan(self) -> ExecutionPlan:
        """The execution plan: buffers, kernels, launches."""
        return self.artifact.plan

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, as the network has them, in calling order."""
        return self.plan.input_titles

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input."""
        return self._types(self.plan.inputs)

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each output."""
        return self._types(self.plan.outputs)

    def _types(self, names: Sequence[str]) -> tuple[ArrayType, ...]:
        buffers = [self.plan.buffer_by_name[n] for n in names]
        return tuple(ArrayType(b.shape, b.dtype) for b in buffers)

    @property
    def communicator(self) -> AnyCommunicator | None:
        """The other ranks; None for a network on one device."""
        return None

    @property
    def device(self) -> str:
        """Name of the device that runs it."""
        return self._open()[0].name

    def _open(self) -> tuple[Device, InstancePool]:
        with self._lock:
            if self._device is None or self._pool is None:
                self._device = self._opened.take()
                self._pool = InstancePool(partial(self._load_on, self._device), self.instances)
            return self._device, self._pool

    def _load_on(self, device: Device) -> LoadedPlan:
        given = self._beside_constants(device)
        with progress_bar(len(self.plan.kernels)) as progress:
            return device.load(self.plan, self.artifact.constants, progress=progress, **given)

    def _beside_constants(self, device: Device) -> dict[str, Any]:
        """What a plan is loaded with on a device beside its constants, as `Device.load` names it."""
        return {}

    def load(self) -> LoadedPlan:
        """The plan on its device: opened, allocated, uploaded, built; happens by itself at the first call.

        Its fixed inputs and outputs and `replay` are the fast path of a caller that keeps data on the device
        (see `tilewright.runtime.cuda.plan.CudaPlan`).
        """
        with self._working() as pool:
            return pool.first()

    @contextmanager
    def _working(self) -> Iterator[InstancePool]:
        """The opened pool; after an error, a device on which nothing is loaded is given back."""
        try:
            yield self._open()[1]
        except BaseException:
            with self._lock:
                if self._pool is not None and self._pool.empty:
                    self.close()
            raise

    def __call__(self, /, *inputs: object, **named: object) -> list[np.ndarray]:
        """Outputs for one array per input (NumPy or DLPack; shapes and dtypes as `input_types` says).

        Inputs come in the order of `input_names`, or by name: `exe(data=x)`, `exe(**{"x.1": x})`.
        Threads may call together: up to `instances` calls run side by side, others wait.
        """
        with self._working() as pool, pool.lent() as instance:
            return instance.run(in_order(self.input_names, inputs, named))

    def map(self, batches: Iterable[object]) -> Iterator[list[np.ndarray]]:
        """The outputs of every batch, in order, while later batches are copied in and earlier ones out.

        batches: per batch an array, or a sequence of one array per input. At least two instances take turns
        on a device that can queue a batch without waiting for it; others run batch after batch. As many
        batches as there are instances are taken from the iterable ahead of the outputs.
        """
        with self._working() as pool, pool.lent_all(max(2, self.instances)) as plans:
            yield from stream_batches(plans, map(inputs_of, batches))

    def step(self, /, *inputs: object, **named: object) -> LazyArray | tuple[LazyArray, ...]:
        """One run of a network with state (see `StatefulExecutable`); raises InputError for any other."""
        raise _without_state()

    @property
    def state(self) -> State:
        """The state by name of a network that has some; raises InputError for any other."""
        raise _without_state()

    def share_state(self, other: Executable) -> None:
        """Let two executables have one state; raises InputError where this one has none."""
        raise _without_state()

    def save_state(self, path: str | Path) -> None:
        """Write the state of a network that has some; raises InputError for any other."""
        raise _without_state()

    def load_state(self, path: str | Path) -> None:
        """Read the state of a network that has some; raises InputError for any other."""
        raise _without_state()

    def own_inputs(self, inputs: Sequence[object]) -> Sequence[object]:
        """The part of the inputs that the plan is given: all of them."""
        return inputs

    def time(self, *inputs: object, repeats: int = 20) -> list[float]:
        """Seconds of each of `repeats` runs on the device's clock, without copies, after one warm-up."""
        loaded = self.load()
        return loaded.time(self.own_inputs(inputs), repeats)

    def time_kernels(self, *inputs: object, repeats: int = 5) -> list[tuple[str, float]]:
        """Kernel name and median seconds of each launch, launched one by one."""
        loaded = self.load()
        rows = loaded.time_kernels(self.own_inputs(inputs), repeats)
        names = [launch.kernel for launch in self.plan.launches]
        return [(n, float(np.median(r))) for n, r in zip(names, rows, strict=True)]

    def profile(self, *inputs: object, repeats: int = 10, compare_serial: bool = False) -> Profile:
        """Record when every launch of a replay runs, on which stream and multiprocessors (see `Profile`).

        compare_serial: time the same kernels one after the other as well. All ranks of a network that
        communicates call it together. Raises UnsupportedError where the target runs nothing, or where the
        kernels were made by another version.
        """
        return profile_loaded(
            self._subject(), self.own_inputs(inputs), repeats=repeats, compare_serial=compare_serial
        )

    def ledger(self, *inputs: object, repeats: int = 10) -> Ledger:
        """Record where the time of every launch of a replay goes: boundary, first load, loop, tail, weights
        that it asks for late, and what remedies could save (see `Ledger`). Raises as `profile`.
        """
        return recorded_ledger(self._subject(), self.own_inputs(inputs), repeats=repeats)

    def _subject(self) -> Subject:
        loaded, device, target = self.load(), self._open()[0], target_here(self.target)
        kernels = self.artifact.kernels
        return Subject(target, device, loaded, self.artifact.constants, kernels, self.communicator)

    def report(self) -> dict[str, Any]:
        """Plain data about the compilation: target, kernels with parameters, bound and estimate, memory."""
        plan = self.plan
        constants = sum(b.nbytes for b in plan.buffers if b.kind == "constant")
        return {
            **self.artifact.facts,
            "target": plan.target,
            "inputs": _listed(self.input_names, self.input_types),
            "outputs": _listed(self.plan.outputs, self.output_types),
            "launches": len(plan.launches),
            "kernels_compiled": len(plan.kernels),
            "arena_bytes": plan.arena_bytes,
            "arena_lower_bound": arena_lower_bound(plan),
            "constant_bytes": constants,
        }

    def save(self, path: str | Path) -> None:
        """Write one file that `tilewright.load` reads; replaced at once, only when complete."""
        write_container(file_path(path), self.artifact.saved({"target": self.target}))

    def close(self) -> None:
        """Free the device. The executable can be called again, which opens it anew."""
        with self._lock:
            pool, self._pool = self._pool, None
            device, self._device = self._device, None
        try:
            if pool is not None:
                pool.close()
            if device is not None:
                self._plans_closed()
        finally:
            if device is not None:
                self._opened.give_back()

    def _plans_closed(self) -> None:
        """Take back from the device, which is still open, what outlives the loaded plans: nothing here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _without_state() -> InputError:
    return InputError("expected a network with state; this one has none, as its module has no updates")


def _listed(names: Sequence[str], types: Sequence[ArrayType]) -> list[dict[str, Any]]:
    """Names, shapes and dtypes as plain data."""
    return [{"name": n, "shape": list(t.shape), "dtype": t.dtype} for n, t in zip(names, types, strict=True)]


def inputs_of(batch: object) -> Sequence[object]:
    """The arrays of one batch: a list or tuple of them, or the only one."""
    return batch if isinstance(batch, list | tuple) else (batch,)
