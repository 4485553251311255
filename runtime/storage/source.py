"""Readers of steps: the protocol that files, scratch files and what a user brings have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from tilewright.runtime.errors import InputError
from tilewright.runtime.storage.buffers import HostBuffer
from tilewright.runtime.storage.layout import BLOCK_BYTES, StoreLayout

Verify = Literal["first", "always", "never"]


@dataclass(frozen=True)
class IoOptions:
    """Options of reading and writing steps.

    chunk_bytes: bytes of one request, a multiple of 1 MiB (`BLOCK_BYTES`). depth: requests in flight.
    direct: past the page cache (O_DIRECT) where the file system takes it; facts say whether it does.
    verify: compare checksums the first time a step is read, always, or never.
    drop_cache: where requests are not direct, ask the system to forget their pages afterwards.
    """

    chunk_bytes: int = 4 << 20
    depth: int = 8
    direct: bool = True
    verify: Verify = "first"
    drop_cache: bool = False

    def __post_init__(self) -> None:
        if self.chunk_bytes <= 0 or self.chunk_bytes % BLOCK_BYTES:
            raise InputError(
                f"expected chunk_bytes to be a positive multiple of {BLOCK_BYTES}, got {self.chunk_bytes}"
            )
        if not 1 <= self.depth <= 256:
            raise InputError(f"expected a depth in 1..256, got {self.depth}")
        if self.verify not in ("first", "always", "never"):
            raise InputError(f"expected verify to be first, always or never, got {self.verify!r}")


@dataclass(frozen=True)
class IoFacts:
    """The facts of what a reader or writer really does.

    direct: whether requests go past the page cache; `note` says why not, empty where they do.
    """

    path: str
    direct: bool
    note: str
    chunk_bytes: int
    depth: int
    verify: Verify


@dataclass(frozen=True)
class Transfer:
    """One step that was read or written; times in seconds of `time.perf_counter`.

    began_s: when the first request was handed to the system (not when it was queued); ended_s: when the last
    byte was there and its checksum compared. verified: whether checksums were compared.
    """

    step: int
    nbytes: int
    began_s: float
    ended_s: float
    verified: bool


class PendingTransfer(Protocol):
    """A step on its way; the buffer belongs to it until `wait` or `cancel` returned."""

    def done(self) -> bool:
        """Return whether `wait` would return, or raise, at once."""
        ...

    def wait(self) -> Transfer:
        """Wait for the end; raises `StorageError` naming file, step and offset, the same one every time."""
        ...

    def cancel(self) -> None:
        """Start no more requests and wait for those in flight; never raises what they ran into."""
        ...


class StepSource(Protocol):
    """Steps that can be read; `layout.steps[k]` is what `start(k, ...)` brings."""

    @property
    def layout(self) -> StoreLayout:
        """The steps and where their tensors lie in a buffer."""
        ...

    @property
    def facts(self) -> IoFacts:
        """The facts of how it reads."""
        ...

    def start(self, step: int, buffer: HostBuffer) -> PendingTransfer:
        """Begin to read a step into the beginning of `buffer` and return at once."""
        ...
