"""Values between steps of several micro-batches: all on the device, or kept by the host, or on storage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tilewright.ir import ArrayType, Value
from tilewright.ir.types import array_type
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.interface.queue import Allocation, DeviceQueue, Location
from tilewright.runtime.storage.buffers import AlignedAllocator
from tilewright.runtime.storage.layout import StepSpec, TensorSpec
from tilewright.runtime.storage.scratch import ScratchStore, StepWriter
from tilewright.streaming.parts.step_modules import NetworkStep, ValueWindow

Array = np.ndarray


class Activations(Protocol):
    """A place for values while other micro-batches, or other steps, use the device."""

    def fetch(self, step: int, batch: int) -> Allocation:
        """The window in which the step finds what it reads; queued copies bring it there."""
        ...

    def keep(self, step: int, batch: int) -> None:
        """The step is queued: take what later steps read from the window."""
        ...

    def results(self, batch: int) -> list[Array]:
        """The results of a micro-batch that went through all steps."""
        ...

    def close(self) -> None: ...


class OnDevice:
    """A window per micro-batch, or one that micro-batches use one after the other: nothing moves."""

    def __init__(
        self,
        queue: DeviceQueue,
        window: ValueWindow,
        steps: Sequence[NetworkStep],
        allocations: Sequence[Allocation],
        inputs: Sequence[Sequence[Array]],
    ) -> None:
        self._queue, self._window, self._steps = queue, window, steps
        self._allocations, self._inputs = allocations, inputs

    def fetch(self, step: int, batch: int) -> Allocation:
        """The micro-batch's window; its inputs are copied there before the first step."""
        allocation = self._allocations[batch % len(self._allocations)]
        if step == 0:
            for v, array in zip(self._steps[0].line.parameters, self._inputs[batch], strict=True):
                self._queue.upload(array, Location(allocation, self._window.offsets[v]))
        return allocation

    def keep(self, step: int, batch: int) -> None:
        """Everything stays where it is."""

    def results(self, batch: int) -> list[Array]:
        allocation = self._allocations[batch % len(self._allocations)]
        return download(self._queue, self._steps[0].line.returned, self._window, allocation)

    def close(self) -> None:
        """Nothing is held."""


class OnHost:
    """One window; between steps the values of all micro-batches are in host memory."""

    def __init__(
        self,
        queue: DeviceQueue,
        window: ValueWindow,
        steps: Sequence[NetworkStep],
        allocation: Allocation,
        inputs: Sequence[Sequence[Array]],
    ) -> None:
        self._queue, self._window, self._steps, self._allocation = queue, window, steps, allocation
        line = steps[0].line
        self._last = {v: k for k, s in enumerate(steps) for v in s.inputs}
        self._last |= dict.fromkeys(line.returned, len(steps))
        self._held = [dict(zip(line.parameters, arrays, strict=True)) for arrays in inputs]

    def fetch(self, step: int, batch: int) -> Allocation:
        """Copy what the step reads to the device and let go of what no later step reads."""
        arrays = self._held[batch]
        for v in self._steps[step].inputs:
            self._queue.upload(arrays[v], Location(self._allocation, self._window.offsets[v]))
            if self._last[v] == step:
                del arrays[v]
        return self._allocation

    def keep(self, step: int, batch: int) -> None:
        """Copy what the step made to the host, which waits for the step."""
        made = self._steps[step].outputs
        arrays = download(self._queue, made, self._window, self._allocation)
        self._held[batch] |= dict(zip(made, arrays, strict=True))

    def results(self, batch: int) -> list[Array]:
        return [self._held[batch][v].copy() for v in self._steps[0].line.returned]

    def close(self) -> None:
        """Let go of everything."""
        self._held = []


class OnStorage:
    """One window; between steps the values of all micro-batches are in a scratch file.

    A piece of the file holds what one step makes of one micro-batch, until no later step reads it: then a
    step that makes values of the same types takes the piece over. The network's inputs stay the caller's.
    """

    def __init__(
        self,
        queue: DeviceQueue,
        window: ValueWindow,
        steps: Sequence[NetworkStep],
        allocation: Allocation,
        inputs: Sequence[Sequence[Array]],
        folder: str,
    ) -> None:
        """Takes the space of the whole scratch file; raises `StorageError` where there is too little."""
        self._queue, self._window, self._steps, self._allocation = queue, window, steps, allocation
        self._inputs = inputs
        self._parameters = steps[0].line.parameters
        self._maker = {v: k for k, s in enumerate(steps) for v in s.outputs}
        self._piece_of = pieces_of(steps)
        self._pieces = 1 + max(self._piece_of)
        makers = [steps[self._piece_of.index(piece)] for piece in range(self._pieces)]
        pieces = [_piece(batch, k, s) for batch in range(len(inputs)) for k, s in enumerate(makers)]
        allocator = AlignedAllocator()
        self._scratch = ScratchStore(folder, pieces)
        try:
            self._writer = StepWriter(self._scratch, allocator)
            self._buffer = allocator.allocate(self._scratch.layout.largest_step_bytes)
        except BaseException:
            self._scratch.close()
            raise

    def fetch(self, step: int, batch: int) -> Allocation:
        """Read what the step reads, wherever earlier steps put it, and copy it to the device."""
        arrays = self._read(self._steps[step].inputs, batch)
        for v, array in arrays.items():
            self._queue.upload(array, Location(self._allocation, self._window.offsets[v]))
        return self._allocation

    def keep(self, step: int, batch: int) -> None:
        """Have what the step made written; the write goes on beside later work."""
        opened = self._writer.open(self._number(batch, step))
        arrays = list(opened.arrays().values())
        for v, array in zip(self._steps[step].outputs, arrays, strict=True):
            self._queue.download(Location(self._allocation, self._window.offsets[v]), array)
        self._writer.submit(opened)

    def results(self, batch: int) -> list[Array]:
        returned = self._steps[0].line.returned
        arrays = self._read(returned, batch)
        return [arrays[v] for v in returned]

    def _read(self, values: Sequence[Value], batch: int) -> Mapping[Value, Array]:
        arrays_read: dict[Value, Array] = {}
        for v, array in zip(self._parameters, self._inputs[batch], strict=True):
            if v in values:
                arrays_read[v] = array
        for maker in dict.fromkeys(self._maker[v] for v in values if v not in arrays_read):
            piece = self._number(batch, maker)
            self._scratch.start(piece, self._buffer).wait()
            arrays = self._scratch.layout.steps[piece].arrays(self._buffer.view).values()
            for v, array in zip(self._steps[maker].outputs, arrays, strict=True):
                if v in values:
                    arrays_read[v] = array.copy()
        return arrays_read

    def _number(self, batch: int, step: int) -> int:
        """The piece of the scratch file with what a step made of a micro-batch."""
        return batch * self._pieces + self._piece_of[step]

    def close(self) -> None:
        """Give the space back."""
        self._writer.close()
        self._scratch.close()


def pieces_of(steps: Sequence[NetworkStep]) -> list[int]:
    """Per step the number of the piece that holds what it makes, from 0 on; pieces are used again.

    A piece is free when the last step that reads of it is done; results of the network stay to the end.
    """
    last = {v: k for k, s in enumerate(steps) for v in s.inputs}
    last |= dict.fromkeys(steps[0].line.returned, len(steps))
    pieces: list[int] = []
    kinds: list[tuple[ArrayType, ...]] = []  # of each piece
    busy: list[int] = []  # the last step that reads of each piece
    for number, step in enumerate(steps):
        types = tuple(array_type(v.tensor) for v in step.outputs)
        free = (p for p, kind in enumerate(kinds) if kind == types and busy[p] < number)
        piece = next(free, len(kinds))
        if piece == len(kinds):
            kinds.append(types)
            busy.append(0)
        busy[piece] = max((last[v] for v in step.outputs), default=number)
        pieces.append(piece)
    return pieces


def _piece(batch: int, number: int, maker: NetworkStep) -> StepSpec:
    kinds = [array_type(v.tensor) for v in maker.outputs]
    prefix = f"batch{batch}/piece{number}"
    tensors = (TensorSpec(f"{prefix}/{i}", t.dtype, t.shape) for i, t in enumerate(kinds))
    return StepSpec(f"values of batch {batch}, piece {number}", tuple(tensors))


def download(
    queue: DeviceQueue, values: Sequence[Value], window: ValueWindow, allocation: Allocation
) -> list[Array]:
    """Fresh arrays of values in a window, behind everything that is queued."""
    out: list[Array] = []
    for v in values:
        kind = array_type(v.tensor)
        array = np.empty(kind.shape, DTYPES[kind.dtype])
        queue.download(Location(allocation, window.offsets[v]), array)
        out.append(array)
    return out
