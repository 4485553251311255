"""The state of executables: values by name that runs change, on a device while it is open or on the host."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.ir import InputError, UnsupportedError, dtype_name
from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import file_path
from tilewright.running.named_inputs import in_order
from tilewright.running.step_rules import RATE, REFUSED, StepRules
from tilewright.runtime.atomic_file import output_file
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.device import Device
from tilewright.runtime.interface.state import StateMemory, check_state
from tilewright.runtime.plan.arrays import host_array
from tilewright.runtime.plan.check import MAX_BYTES
from tilewright.runtime.plan.execution_plan import Buffer
from tilewright.runtime.plan.tensor_file import read_metadata, read_tensors, write_tensors

#: what the metadata of a file with state says of its format
FORMAT, VERSION = "tilewright-state", "1"


class StateStore:
    """State by name that one or several executables read and change.

    Values are arrays of the host until an executable opens its device, and again when the last one closes it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._buffers: dict[str, Buffer] = {}
        self._host: dict[str, np.ndarray] = {}
        self._lost: dict[str, str] = {}  # of what a failed device did not give back: why
        self._memory: StateMemory | None = None
        self._users = 0
        #: counters as the host knows them without reading; who runs or writes something else forgets them
        self.counts: dict[str, int] = {}

    @property
    def buffers(self) -> Mapping[str, Buffer]:
        """Name, shape and dtype of everything that is there."""
        return self._buffers

    def add(self, buffers: Sequence[Buffer], values: Mapping[str, np.ndarray]) -> None:
        """Take state in that is not there yet, with its values by name.

        Raises InputError, before anything changes, where a name stands for another shape or dtype here.
        """
        with self._lock:
            for buffer in buffers:
                if buffer.title in self._buffers:
                    check_state(self._buffers[buffer.title], buffer)
            for buffer in (b for b in buffers if b.title not in self._buffers):
                value = np.array(host_array(values[buffer.title], buffer, "state"), copy=True)
                if self._memory is not None:
                    self._memory.add(buffer, value)
                self._buffers[buffer.title], self._host[buffer.title] = buffer, value

    def open(self, device: Device) -> StateMemory:
        """The state in the memory of `device`, for one more user; all users must name the same device."""
        with self._lock:
            if self._memory is None:
                if self._lost:
                    raise DeviceError(next(iter(self._lost.values())))
                memory = device.new_state()
                try:
                    for name, buffer in self._buffers.items():
                        memory.add(buffer, self._host[name])
                except BaseException:
                    memory.close()
                    raise
                self._memory = memory
                self._host = {}
            self._users += 1
            return self._memory

    def close(self) -> None:
        """One user less; the last one brings the values back to the host and frees the device's memory."""
        with self._lock:
            self._users -= 1
            if self._users or self._memory is None:
                return
            memory, self._memory = self._memory, None
            try:
                for name in self._buffers:
                    try:
                        self._host[name] = memory.read(name)
                    except DeviceError as error:
                        self._lost[name] = str(error)
            finally:
                memory.close()

    def read(self, name: str) -> np.ndarray:
        """A copy of one array, after all runs so far; raises DeviceError where a failed run lost it."""
        with self._lock:
            self._require(name)
            if self._memory is not None:
                return self._memory.read(name)
            if name in self._lost:
                raise DeviceError(self._lost[name])
            return self._host[name].copy()

    def write(self, name: str, value: object) -> None:
        """Replace one array by one of its shape and dtype; raises InputError for anything else."""
        with self._lock:
            self._require(name)
            self.counts.pop(name, None)
            if self._memory is not None:
                self._memory.write(name, value)
            else:
                self._host[name] = np.array(host_array(value, self._buffers[name], "state"), copy=True)
                self._lost.pop(name, None)

    def write_all(self, values: Mapping[str, object]) -> None:
        """Replace everything; raises InputError, and changes nothing, where one array does not fit."""
        with self._lock:
            self.counts.clear()
            if self._memory is not None:
                self._memory.write_all(values)
                return
            self._host = {
                n: np.array(host_array(values[n], b, "state"), copy=True) for n, b in self._buffers.items()
            }
            self._lost = {}

    def _require(self, name: str) -> None:
        if name not in self._buffers:
            raise InputError(f"unknown state {name!r:.100}; there is {', '.join(self._buffers) or 'none'}")


class NamedState(Protocol):
    """State by name that is read and written as whole arrays."""

    @property
    def buffers(self) -> Mapping[str, Buffer]: ...

    def read(self, name: str) -> np.ndarray: ...

    def write(self, name: str, value: object) -> None: ...

    def write_all(self, values: Mapping[str, object]) -> None: ...


class State(Mapping[str, np.ndarray]):
    """The state of an executable by name. Reading an array copies it; assigning one replaces it."""

    def __init__(self, store: NamedState) -> None:
        self._store = store

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._store.buffers:
            raise KeyError(name)
        return self._store.read(name)

    def __setitem__(self, name: str, value: object) -> None:
        """Replace an array; raises InputError unless it has the same shape and dtype."""
        self._store.write(name, value)

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.buffers)

    def __len__(self) -> int:
        return len(self._store.buffers)

    def __repr__(self) -> str:
        listed = (f"{n}: {b.dtype}{list(b.shape)}" for n, b in self._store.buffers.items())
        return f"<State of {len(self)} arrays: {', '.join(listed):.400}>"


class HoldsState:
    """What every executable with state offers of it, and what training steps check on the host."""

    _store: StateStore
    _rules: StepRules = StepRules({})
    #: of a training step that was compiled in this process: makes the executable of its network
    network: Callable[[], Any] | None = None

    @property
    def state(self) -> State:
        """The state by name: `exe.state["w"]` copies an array, `exe.state["w"] = array` replaces it."""
        return State(self._store)

    def save_state(self, path: str | Path) -> None:
        """Write the state as a safetensors file, replaced at once and only when complete."""
        write_state(self._store, path)

    def load_state(self, path: str | Path) -> None:
        """Take the state from a file of `save_state`: runs go on bit by bit as they did after saving it.

        Raises InputError, and leaves the state as it is, for a file that cannot be read, is damaged, of
        another version, or has other names, shapes or dtypes.
        """
        read_state(self._store, path)

    def inference(self) -> Any:
        """The executable of the network that this step trains, over the same weights.

        It reads what later steps write, and is compiled at each call, for the same target and options.
        `Module.inference(exe.state)` gives the network with the weights of now as constants, which compiles
        to faster kernels.
        Raises UnsupportedError where this is no training step or was read from a file.
        """
        if self.network is None:
            raise UnsupportedError(
                "expected a training step that was compiled here, whose module has a function @inference; "
                "the module of a step gives its network: step.inference(exe.state)"
            )
        out = self.network()
        if isinstance(out, HoldsState):
            out.share_state(self)
        return out

    def share_state(self, other: Any) -> None:
        """Let this executable and `other` have one state; see there."""
        raise NotImplementedError

    def _ordered(
        self, names: Sequence[str], inputs: Sequence[object], named: Mapping[str, object]
    ) -> Sequence[object]:
        """The inputs of a run in their order, checked; a learning rate `lr` among the named ones is state.

        names: of the inputs, needed where some are given by name.
        """
        rate = None
        if named:
            if RATE in named and RATE not in names:
                rate = self._rate(named[RATE])
                named = {n: x for n, x in named.items() if n != RATE}
            inputs = in_order(names, inputs, named)
        self._rules.check(inputs)
        if rate is not None:
            self._store.write(RATE, rate)
        return inputs

    def _rate(self, value: object) -> np.ndarray:
        """A learning rate as the state holds it; raises InputError where it is none."""
        if RATE not in self._store.buffers:
            raise InputError(
                "expected no lr, the learning rate of this step is none of its state: a schedule gives it"
            )
        if not isinstance(value, int | float | np.floating) or not 0 <= value < float("inf"):
            raise InputError(f"expected a learning rate of 0 or more, got {value!r:.100}")
        return np.asarray(value, np.float32)

    def _accept(self, results: Sequence[Any]) -> None:
        """Raise InputError where the step asks for it and the run, waited for, changed nothing."""
        if not self._rules.raises or not int(self._store.read(REFUSED)):
            return
        self._store.write(REFUSED, np.zeros((), np.uint32))
        raise InputError(
            f"expected a batch with a finite loss and finite gradients, got the loss {float(results[0])}; "
            "the state is as it was before"
        )


def write_state(store: NamedState, path: str | Path) -> None:
    """Write state as a file; see `HoldsState.save_state`."""
    arrays = {name: store.read(name) for name in store.buffers}
    metadata = {"format": FORMAT, "version": VERSION, "state": json.dumps(_types(store), sort_keys=True)}
    with output_file(file_path(path), "the state") as file:
        file.write(write_tensors(arrays, metadata))


def read_state(store: NamedState, path: str | Path) -> None:
    """Replace all state by that of a file; see `HoldsState.load_state`."""
    where = str(path)
    data = read_bounded(file_path(path), MAX_BYTES, "state")
    try:
        arrays, metadata = read_tensors(data), read_metadata(data)
    except InputError as error:
        raise InputError(
            f"expected a file of saved state, got a damaged or other file ({error})", where=where
        ) from None
    kind = (metadata.get("format"), metadata.get("version"))
    if kind != (FORMAT, VERSION):
        got = f"{kind[0]} {kind[1]}" if kind[0] else "a file of another kind"
        raise InputError(f"expected saved state ({FORMAT} {VERSION}), got {got:.200}", where=where)
    expected = _types(store)
    missing, extra = sorted(expected.keys() - arrays.keys()), sorted(arrays.keys() - expected.keys())
    if missing or extra:
        fault = f"{missing[0]!r} is missing" if missing else f"there is no {extra[0]!r:.100} here"
        raise InputError(f"expected state of {len(expected)} names, got {len(arrays)}: {fault}", where=where)
    for name, array in arrays.items():
        got = _type(array.dtype.name, array.shape)
        if got != expected[name]:
            raise InputError(f"state {name!r}: expected {expected[name]}, got {got}", where=where)
    store.write_all(arrays)


def _types(store: NamedState) -> dict[str, str]:
    return {name: _type(b.dtype, b.shape) for name, b in store.buffers.items()}


def _type(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype_name(dtype)}{list(shape)}"
