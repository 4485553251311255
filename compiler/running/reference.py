"""The `reference` target: the graph interpreted in NumPy behind the interface of an executable."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from tilewright.ir import ArrayType, InputError, Module, UnsupportedError
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.ir.types import array_type
from tilewright.running.interpreting import interpret
from tilewright.running.named_inputs import in_order
from tilewright.running.state import HoldsState, StateStore
from tilewright.running.step_rules import StepRules, training_facts
from tilewright.runtime.interface.lazy import LazyArray, ready
from tilewright.runtime.plan.execution_plan import Buffer


class ReferenceExecutable:
    """Interprets a module at each call; same calling interface as `Executable`, no plan, cannot be saved."""

    target = "reference"
    device = "NumPy"

    def __init__(self, module: Module) -> None:
        self.module = module

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in calling order."""
        return self.module.input_names

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input."""
        return self.module.input_types

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each output."""
        return tuple(array_type(v.tensor) for v in self.module.main.body.ops[-1].operands)

    def __enter__(self) -> ReferenceExecutable:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is held."""

    def __call__(self, /, *inputs: Any, **named: Any) -> list[np.ndarray]:
        """Outputs by reference semantics, for inputs by position or by name."""
        return interpret(self.module, *in_order(self.input_names, inputs, named))

    def map(self, batches: Iterable[object]) -> Iterator[list[np.ndarray]]:
        """Outputs of every batch, one after the other."""
        return (self(*batch) if isinstance(batch, list | tuple) else self(batch) for batch in batches)

    @property
    def plan(self) -> NoReturn:
        """There is none: raises UnsupportedError, as all of the following do."""
        raise _without("plan")

    def load(self) -> NoReturn:
        """There is nothing to load."""
        raise _without("plan to load")

    def save(self, path: str | Path) -> NoReturn:
        """There is nothing compiled."""
        raise _without("compiled file to save; `tilewright.show` gives the network as text")

    def time(self, *inputs: object, repeats: int = 20) -> NoReturn:
        """There are no kernels."""
        raise _without("kernels to time")

    def time_kernels(self, *inputs: object, repeats: int = 5) -> NoReturn:
        """There are no kernels."""
        raise _without("kernels to time")

    def profile(self, *inputs: object, repeats: int = 10, compare_serial: bool = False) -> NoReturn:
        """There are no kernels."""
        raise _without("kernels to profile")

    def report(self) -> dict[str, Any]:
        """Plain data about the compilation."""
        return {"target": "reference", "launches": 0}


class StatefulReference(HoldsState, ReferenceExecutable):
    """Interprets a module with state: calls take the inputs alone and advance the state."""

    def __init__(self, module: Module) -> None:
        super().__init__(module)
        kept = set(module.state_names)
        typed = list(zip(module.input_names, module.input_types, strict=True))
        self._inputs = [(n, t) for n, t in typed if n not in kept]
        buffers = [Buffer(n, t.dtype, t.shape, "state", 0) for n, t in typed if n in kept]
        self._store = StateStore()
        self._store.add(buffers, initial_state(module))
        self._turn = threading.Lock()
        self._rules = StepRules.of(training_facts(module), self.input_names)

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in calling order; state is none."""
        return tuple(n for n, _ in self._inputs)

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input."""
        return tuple(t for _, t in self._inputs)

    @property
    def output_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each result of the caller."""
        updates = {r for _, r in self.module.main.updates}
        returned = self.module.main.body.ops[-1].operands
        return tuple(array_type(v.tensor) for i, v in enumerate(returned) if i not in updates)

    def share_state(self, other: StatefulReference) -> None:
        """Let this executable and `other` have one state from now on: what this one has beside it is added.

        The values of `other` stay where both have a name. Raises InputError where a name stands for another
        shape or dtype there.
        """
        if not isinstance(other, StatefulReference):
            raise InputError(f"expected another interpreted network with state, got {type(other).__name__}")
        if other._store is not self._store:
            other._store.add(list(self._store.buffers.values()), self.state)
            self._store, self._turn = other._store, other._turn

    def __call__(self, /, *inputs: Any, **named: Any) -> list[np.ndarray]:
        """Results of one step by reference semantics, for inputs by position or by name."""
        arrays = self._ordered(self.input_names if named else (), inputs, named)
        with self._turn:
            results, new = interpret_step(
                self.module, arrays, {n: self._store.read(n) for n in self.module.state_names}
            )
            for name, array in new.items():
                self._store.write(name, array)
        self._accept(results)
        return results

    def step(self, /, *inputs: Any, **named: Any) -> LazyArray | tuple[LazyArray, ...]:
        """One step; its results, one or a tuple where there are several, are there already."""
        results = tuple(map(ready, self(*inputs, **named)))
        return results[0] if len(results) == 1 else results


def reference_executable(module: Module) -> ReferenceExecutable:
    """The executable that interprets a module, with state or without."""
    return StatefulReference(module) if module.state_names else ReferenceExecutable(module)


def _without(what: str) -> UnsupportedError:
    return UnsupportedError(f"the reference target interprets: it has no {what} (name another target)")
