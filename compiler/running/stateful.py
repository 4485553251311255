"""`StatefulExecutable`: a compiled network with state, whose runs advance it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.devices.opening import OpenedDevice
from tilewright.ir import InputError
from tilewright.ir.errors import file_path
from tilewright.running.executable import Artifact, Executable, inputs_of
from tilewright.running.state import HoldsState, StateStore
from tilewright.running.step_rules import StepRules
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.device import Device
from tilewright.runtime.interface.lazy import LazyArray, Steps, ready
from tilewright.runtime.interface.state import StateMemory
from tilewright.runtime.plan.container import write_container


class StatefulExecutable(HoldsState, Executable):
    """An executable of a network whose parameters with updates are state.

    A call takes the inputs alone, gives the results of the caller, and the state becomes its new values.
    Calls of several threads follow one another. Methods that take times leave the state as it was.
    `close()` brings the state back to the host; opened anew, the executable goes on with it.
    """

    def __init__(self, artifact: Artifact, target: str, *, device: OpenedDevice | None = None) -> None:
        super().__init__(artifact, target, device=device)
        self._memory: StateMemory | None = None
        self._stepping: Steps | None = None  # a loaded plan that queues steps
        self._store = StateStore()
        self._join(self._store)
        self._rules = StepRules.of(artifact.facts, self.input_names)

    def _join(self, store: StateStore) -> None:
        plan = self.plan
        store.add(plan.states, {b.title: self.artifact.constants[b.name] for b in plan.states})

    def share_state(self, other: Executable) -> None:
        """Let this executable and `other` have one state from now on: what this one has beside it is added.

        Both are for the same target. The values of `other` stay where both have a name. What was loaded of
        this executable is unloaded. Raises InputError where a name stands for another shape or dtype there.
        """
        if not isinstance(other, StatefulExecutable):
            raise InputError(f"expected a compiled network with state, got {type(other).__name__}")
        if other.target != self.target:
            raise InputError(f"expected an executable for {self.target}, got one for {other.target}")
        with self._lock:
            if other._store is self._store:
                return
            self._join(other._store)
            self.close()
            self._store, self._opened = other._store, other._opened

    def _beside_constants(self, device: Device) -> dict[str, Any]:
        given = super()._beside_constants(device)
        with self._lock:
            if self._memory is None:
                self._memory = self._store.open(device)
        return {**given, "state": self._memory}

    def close(self) -> None:
        """Free the device; the state comes back to the host. The executable can be called again."""
        self._stepping = None
        super().close()

    def _plans_closed(self) -> None:
        with self._lock:
            if self._memory is not None:
                self._memory = None
                self._store.close()

    def step(self, /, *inputs: object, **named: object) -> LazyArray | tuple[LazyArray, ...]:
        """Run once and return without waiting for the results: one, or a tuple where there are several.

        `float(loss)`, `loss.numpy()` and `np.asarray(loss)` wait. Results stay what they are when later steps
        have run. Inputs are copied before the call returns. Devices that cannot queue work wait here.
        """
        if named:
            arrays = self._ordered(self.input_names, inputs, named)
        else:
            arrays = inputs
            self._rules.check(arrays)
        arrays = self.own_inputs(arrays)
        self._store.counts.clear()
        stepping = self._stepping
        if stepping is None:
            results = self._first_step(arrays)
        else:
            try:
                results = stepping.step(arrays)
            except DeviceError:
                self._stepping = None
                self.close()
                raise
        if self._rules.raises:
            self._accept(results)
        return results[0] if len(results) == 1 else results

    def __call__(self, /, *inputs: object, **named: object) -> list[np.ndarray]:
        """Results of one step, waited for; otherwise as `step`."""
        arrays = self.own_inputs(self._ordered(self.input_names if named else (), inputs, named))
        self._store.counts.clear()
        try:
            with self._working() as pool, pool.lent() as instance:
                results = instance.run(arrays)
        except DeviceError:
            self._stepping = None  # the plan that failed is closed
            raise
        self._accept(results)
        return results

    def _first_step(self, arrays: Sequence[object]) -> tuple[LazyArray, ...]:
        """A step of a plan that may have to be loaded; the next ones take a shorter way if it can queue."""
        with self._working() as pool, pool.lent() as instance:
            if not isinstance(instance, Steps):
                return tuple(map(ready, instance.run(arrays)))
            results = instance.step(arrays)
        self._stepping = instance
        return results

    def map(self, batches: Iterable[object]) -> Iterator[list[np.ndarray]]:
        """The results of one step after the other, each started before the results before are waited for."""
        before: Sequence[LazyArray] | None = None
        for batch in batches:
            results = self.step(*inputs_of(batch))
            if before is not None:
                yield [r.numpy() for r in before]
            before = results if isinstance(results, tuple) else (results,)
        if before is not None:
            yield [r.numpy() for r in before]

    def report(self) -> dict[str, Any]:
        """Plain data as of `Executable.report`, and the bytes of the state."""
        return {**super().report(), "state_bytes": sum(b.nbytes for b in self.plan.states)}

    def save(self, path: str | Path) -> None:
        """Write one file that `tilewright.load` reads; its state starts as this executable's is now."""
        current = {b.name: self._store.read(b.title) for b in self.plan.states}
        artifact = replace(self.artifact, constants={**self.artifact.constants, **current})
        write_container(file_path(path), artifact.saved({"target": self.target}))


def executable_of(
    artifact: Artifact, target: str, *, instances: int = 1, device: OpenedDevice | None = None
) -> Executable:
    """The executable of a plan with or without state; one with state has a single instance."""
    if not artifact.plan.states:
        return Executable(artifact, target, instances=instances, device=device)
    return StatefulExecutable(artifact, target, device=device)
