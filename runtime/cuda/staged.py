"""Communication between GPUs through host memory, for machines without NCCL and ranks that share a GPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np

from tilewright.runtime.communication.host import LONGEST_SLEEP_S
from tilewright.runtime.communication.nccl import HostRanks, Queued
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.plan.communication_kernel import CommunicationKernel


class StagedCommunicator:
    """A `Communicator` between `cuda` memory that copies to the host, where `host` communicates, and back.

    `start` waits for the stream and for the other ranks, so nothing runs meanwhile, and plans are launched
    step by step: it is there for whoever asks for it, never by itself. The context must be current in
    `start`.
    """

    space: Literal["cuda"] = "cuda"
    #: whether `start` is legal while its stream is captured
    capturable = False

    def __init__(self, host: HostRanks, context: Context) -> None:
        """host: the same ranks between host memory; it stays the caller's."""
        self._host, self._context = host, context
        self.rank, self.size = host.rank, host.size
        self.broken = False

    @property
    def timeout_s(self) -> float:
        """See `Communicator.timeout_s`: that of the host."""
        return self._host.timeout_s

    def start(
        self,
        kernel: CommunicationKernel,
        operands: Sequence[int],
        results: Sequence[int],
        *,
        doing: str,
        stream: int = 0,
    ) -> Queued:
        """See `Communicator.start`; the results are there when it returns."""
        # Fresh arrays each time: operands are the host communicator's from then on.
        sent = [np.empty(n, DTYPES[kernel.dtype]) for n in kernel.operands]
        received = [np.empty(n, DTYPES[kernel.dtype]) for n in kernel.results]
        out = [(a.ctypes.data, place, a.nbytes) for a, place in zip(sent, operands, strict=True)]
        back = [(place, a.ctypes.data, a.nbytes) for a, place in zip(received, results, strict=True)]
        self._copy("cuMemcpyDtoHAsync", out, stream, doing)
        try:
            self._host.start(kernel, sent, received, doing=doing).finish()
        except BaseException:
            self.broken = True
            raise
        self._copy("cuMemcpyHtoDAsync", back, stream, doing)
        return Queued()

    def _copy(self, function: str, copies: Sequence[tuple[int, int, int]], stream: Any, doing: str) -> None:
        for target, source, nbytes in copies:
            if nbytes:
                self._context.call(function, target, source, nbytes, stream, doing=doing)
        self._context.call("cuStreamSynchronize", stream, doing=doing)

    def wait(self, done: Callable[[], bool], *, doing: str) -> None:
        """Wait for queued work: nothing of it waits for other ranks."""
        while not done():
            time.sleep(LONGEST_SLEEP_S / 10)

    def gather_texts(self, text: str, *, doing: str) -> list[str]:
        return self._host.gather_texts(text, doing=doing)

    def check_peers(self, peers: Sequence[int], *, doing: str) -> None:
        self._host.check_peers(peers, doing=doing)

    def fail(self, reason: str) -> None:
        self.broken = True
        self._host.fail(reason)

    def close(self) -> None:
        """See `Communicator.close`: there is nothing of its own."""
