"""A plan that communicates, on an OpenCL device: requests begin while other ranks work on earlier ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.opencl.communication import Replay
from tilewright.runtime.opencl.plan import OpenClPlan


class OpenClStreamedPlan(OpenClPlan):
    """A run in two halves, so that several loads of one plan can take turns.

    Between `start` and `finish` of one, others may be started: the first half ends when all messages of the
    run are posted, so that those of the next run follow them on every rank.
    """

    _under_way: tuple[list[Any], list[Any], Iterator[Replay]] | None = None

    def start(self, inputs: Sequence[object]) -> None:
        """Begin a run: up to where nothing is left to do but wait for what other ranks send.

        Raises `DeviceError` where one is under way.
        """
        if self._under_way is not None:
            raise DeviceError("this plan has a run under way: finish it before the next one is started")
        with self._working():
            copies, events = self._copy_in(inputs), list[Any]()
            steps = self._launching(copies, events)
            replay = next(steps, None)
            if replay is not None:
                replay.post_all()
            self._under_way = copies, events, steps

    def finish(self) -> list[Array]:
        """The outputs of the run that was started, when it has ended."""
        if self._under_way is None:
            raise DeviceError("this plan has no run under way")
        copies, events, steps = self._under_way
        self._under_way = None
        with self._working():
            for _ in steps:
                pass
            return self._results(copies, events)
