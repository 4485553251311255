"""`DistributedStep`: this rank's part of a step with state; inputs and state are those of the whole step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from tilewright.ir import ArrayType, InputError, TilewrightError
from tilewright.ir.modules.divisions import Division, read_divisions
from tilewright.running.executable import Artifact, Executable
from tilewright.running.rank_executable import DistributedExecutable
from tilewright.running.state import State, StateStore, read_state, write_state
from tilewright.running.stateful import StatefulExecutable
from tilewright.running.step_forms import StepForms
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.dtypes import dtype_named
from tilewright.runtime.interface.lazy import LazyArray
from tilewright.runtime.plan.arrays import host_array
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import Buffer

#: entries of the facts of a division: rows [name, dtype of NumPy, shape] of the whole step, and its divisions
STATE, INPUTS, DIVISIONS = "state", "inputs", "divisions"


class DistributedStep(DistributedExecutable, StatefulExecutable):
    """A step that ranks run together: all of them are given all inputs and get the results of the caller.

    `state` reads and writes whole arrays on every rank: reading what is divided is a collective, so all
    ranks read the same names in the same order. `save_state` writes the file of one device, on rank 0;
    `load_state` reads it on every rank. So a run may go on with another number of ranks, or another mode.
    """

    has_state = True
    #: the forms of a step whose runs are not alike, of which this is the one of an update
    forms: StepForms | None = None

    def take_forms(self, forms: StepForms) -> None:
        """Run other forms of the step, over this state, where they are next."""
        self.forms = forms
        for other in forms.others.values():
            other.share_state(self)

    def step(self, /, *inputs: object, **named: object) -> LazyArray | tuple[LazyArray, ...]:
        if self.forms is None:
            return super().step(*inputs, **named)
        with self.forms.turn(self._store) as other:
            return super().step(*inputs, **named) if other is None else other.step(*inputs, **named)

    def __call__(self, /, *inputs: object, **named: object) -> list[np.ndarray]:
        if self.forms is None:
            return super().__call__(*inputs, **named)
        with self.forms.turn(self._store) as other:
            return super().__call__(*inputs, **named) if other is None else other(*inputs, **named)

    def share_state(self, other: Executable) -> None:
        super().share_state(other)
        for form in self.forms.others.values() if self.forms else ():
            form.share_state(self)

    def close(self) -> None:
        for form in self.forms.others.values() if self.forms else ():
            form.close()
        super().close()

    def report(self) -> dict[str, Any]:
        """The report of a rank; of a step of several forms that of an update, and `forms` of them all."""
        out = super().report()
        if self.forms is not None:
            own = out["distributed"]
            out["distributed"] = {**own, "forms": self.forms.facts(own)}
        return out

    def save(self, path: str | Path) -> None:
        """Write this rank's file; one plan stands for several forms there, so all ranks call it."""
        if self.forms is None:
            super().save(path)
            return
        with self.forms.whole() as whole:
            for name in whole.state:
                whole.state[name] = self.state[name]
            whole.save(path)

    @cached_property
    def _facts(self) -> Mapping[str, Any]:
        """The facts of the division."""
        return cast("Mapping[str, Any]", self.artifact.facts["distributed"])

    @cached_property
    def _divisions(self) -> dict[str, Division]:
        return read_divisions(self._facts.get(DIVISIONS, ()))

    @cached_property
    def _whole_inputs(self) -> list[Buffer]:
        return [_whole_buffer(*row) for row in self._facts.get(INPUTS, ())]

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(b.name for b in self._whole_inputs)

    @property
    def input_types(self) -> tuple[ArrayType, ...]:
        """Shape and NumPy dtype name of each input, whole."""
        return tuple(ArrayType(b.shape, b.dtype) for b in self._whole_inputs)

    @property
    def _whole(self) -> WholeState:
        rows = self.distribution.get(STATE, ())
        return WholeState(self._store, rows, self._divisions, self.distribution["rank"], self)

    @property
    def state(self) -> State:
        """The whole state by name; see the class."""
        return State(self._whole)

    def save_state(self, path: str | Path) -> None:
        """Write the whole state on rank 0, as one device does; a collective of all ranks.

        Raises InputError or WorkError on all ranks alike where the file cannot be written.
        """
        whole = self._whole
        error = ""
        if self.communicator.rank:
            for name in whole.buffers:
                whole.read(name)
        else:
            error = self._written({name: whole.read(name) for name in whole.buffers}, path)
        self._agree_on(error, "writing the state")

    def load_state(self, path: str | Path) -> None:
        """Take this rank's part of the state from a file of `save_state`; a collective of all ranks.

        Raises InputError on all ranks, and leaves the state as it is, where one of them cannot read the file,
        where it does not fit, or where they read different ones.
        """
        read = _Read(self._whole.buffers)
        error = ""
        try:
            read_state(read, path)
        except InputError as fault:
            error = str(fault)
        self._agree_on(error, "reading the state")
        digests = self.communicator.gather_texts(read.digest(), doing="comparing the state")
        if len(set(digests)) > 1:
            raise InputError("expected the same file of state on all ranks", where=str(path))
        self._whole.write_all(read.values)

    def _written(self, values: Mapping[str, np.ndarray], path: str | Path) -> str:
        """Write state that was read; the reason where that is not possible, else an empty text."""
        try:
            write_state(_Read(self._whole.buffers, values), path)
        except (TilewrightError, OSError) as fault:
            return str(fault)
        return ""

    def _agree_on(self, error: str, doing: str) -> None:
        """Raise the first error of any rank on all of them."""
        told = self.communicator.gather_texts(error, doing=doing)
        first = next((e for e in told if e), "")
        if first:
            raise InputError(first)

    def own_inputs(self, inputs: Sequence[object]) -> Sequence[object]:
        """The pieces of the inputs of all ranks that this rank computes with."""
        whole = self._whole_inputs
        if len(inputs) != len(whole):
            listed = ", ".join(b.name for b in whole) or "none"
            raise InputError(f"expected {len(whole)} inputs ({listed}), got {len(inputs)}")
        return [
            x if (d := self._divisions.get(b.name)) is None else self._piece(d, host_array(x, b, "input"))
            for x, b in zip(inputs, whole, strict=True)
        ]

    def _piece(self, division: Division, array: np.ndarray) -> np.ndarray:
        return division.piece(array, self.distribution["rank"])


class WholeState:
    """The state of all ranks as whole arrays (`NamedState`), over the part that this rank has."""

    def __init__(
        self,
        store: StateStore,
        rows: Sequence[Sequence[Any]],
        divisions: Mapping[str, Division],
        rank: int,
        owner: DistributedStep,
    ) -> None:
        self._store, self._divisions, self._rank, self._owner = store, divisions, rank, owner
        self.buffers: Mapping[str, Buffer] = {str(row[0]): _whole_buffer(*row) for row in rows}

    def read(self, name: str) -> np.ndarray:
        """One whole array, after all runs so far: a collective where it is divided."""
        division = self._divisions.get(name)
        if division is None:
            return self._store.read(name)
        buffer = self.buffers[name]
        dtype = dtype_named(buffer.dtype)
        own = self._store.read(name) if division.held(self._rank) else None
        ranks = range(len(division.parts))
        shapes = [_piece_shape(division, r) if division.held(r) else None for r in ranks]
        counts = tuple(0 if s is None else int(np.prod(s)) * dtype.itemsize for s in shapes)
        data = np.zeros(0, np.uint8) if own is None else np.ascontiguousarray(own).reshape(-1).view(np.uint8)
        gathered = gathered_bytes(self._owner.communicator, data, counts, doing=f"reading state {name!r}")
        ends = np.cumsum(counts)
        pieces = [
            None if s is None else gathered[e - n : e].view(dtype).reshape(s)
            for s, n, e in zip(shapes, counts, ends, strict=True)
        ]
        return division.joined(pieces)

    def write(self, name: str, value: object) -> None:
        """Replace one array; all ranks are given the whole one."""
        if name not in self.buffers:
            raise InputError(f"unknown state {name!r:.100}; there is {', '.join(self.buffers) or 'none'}")
        array = host_array(value, self.buffers[name], "state")
        division = self._divisions.get(name)
        if division is None:
            self._store.write(name, array)
        elif division.held(self._rank):
            self._store.write(name, division.piece(array, self._rank))

    def write_all(self, values: Mapping[str, object]) -> None:
        """Replace everything; raises InputError, and changes nothing, where one array does not fit."""
        arrays = {n: host_array(values[n], b, "state") for n, b in self.buffers.items()}
        own = {
            n: a if (d := self._divisions.get(n)) is None else d.piece(a, self._rank)
            for n, a in arrays.items()
            if n in self._store.buffers
        }
        self._store.write_all(own)


class _Read:
    """State that was read and lies nowhere else (`NamedState`)."""

    def __init__(self, buffers: Mapping[str, Buffer], values: Mapping[str, Any] | None = None) -> None:
        self.buffers, self.values = buffers, dict(values or {})

    def read(self, name: str) -> np.ndarray:
        return np.asarray(self.values[name])

    def write(self, name: str, value: object) -> None:
        self.values[name] = value

    def write_all(self, values: Mapping[str, object]) -> None:
        self.values = dict(values)

    def digest(self) -> str:
        """A text that different contents do not share."""
        digest = hashlib.blake2b(digest_size=16)
        for name in sorted(self.values):
            digest.update(json.dumps(name).encode())
            digest.update(np.ascontiguousarray(self.values[name]).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


def gathered_bytes(
    communicator: AnyCommunicator, own: np.ndarray, counts: Sequence[int], *, doing: str
) -> np.ndarray:
    """The bytes of all ranks one after another, through host memory; `counts` are theirs."""
    out = np.empty(sum(counts), np.uint8)
    kernel = CommunicationKernel(
        "all_gather",
        "uint8",
        (counts[communicator.rank],),
        (sum(counts),),
        members=tuple(range(communicator.size)),
        position=communicator.rank,
        counts=tuple(counts),
    )
    communicator.start(kernel, [own], [out], doing=doing).finish()
    return out


def _piece_shape(division: Division, rank: int) -> tuple[int, ...]:
    """The shape of what a rank that knows the value holds of it."""
    if division.kind != "cut":
        return division.shape
    (start, end), d = division.parts[rank], division.axis
    return (*division.shape[:d], division.outer * (end - start), *division.shape[d + 1 :])


def _whole_buffer(name: str, dtype: str, shape: Sequence[int]) -> Buffer:
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype_named(dtype).itemsize
    return Buffer(name, dtype, tuple(shape), "state", nbytes)


def rank_executable(artifact: Artifact, target: str, **options: Any) -> DistributedExecutable:
    """The executable of a rank: of a step where its facts name state."""
    division = artifact.facts.get("distributed")
    kind = DistributedStep if isinstance(division, dict) and STATE in division else DistributedExecutable
    return kind(artifact, target, **options)
