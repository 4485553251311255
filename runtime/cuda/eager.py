"""A plan's launches one by one from the host: on the plan's streams, or waited for one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tilewright.runtime.cuda.communication import CommunicationLaunch, urgent_stream
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.launch import AnyLaunch

#: waits for all work on a stream, which is described by the text
Wait = Callable[[Any, str], None]


class EagerReplay:
    """The launches on the plan's streams, ordered across streams by events, forked from and joined to one.

    With `check_each_launch` everything runs on one stream, and each launch is waited for, by `wait` where
    the driver's own wait could last for ever.
    """

    def __init__(
        self,
        context: Context,
        launches: Sequence[AnyLaunch],
        stream: Any,
        *,
        check_each_launch: bool = False,
        wait: Wait | None = None,
    ) -> None:
        self._context = context
        self._launches = launches
        self._check = check_each_launch
        self._wait = wait or synchronise(context)
        self._streams: dict[int, Any] = {}
        self._own: list[tuple[str, Any]] = []
        self._main = stream
        try:
            self._create()
        except BaseException:
            for function, handle in self.handles():
                context.call(function, handle)
            raise

    def _create(self) -> None:
        numbers = sorted({prepared.launch.stream for prepared in self._launches})
        others = {x.launch.stream for x in self._launches if not isinstance(x, CommunicationLaunch)}
        flag = int(self._context.api.CUstream_flags.CU_STREAM_NON_BLOCKING)
        for number in numbers:
            if number == numbers[0] or self._check:
                self._streams[number] = self._main
            else:
                urgent = number not in others
                self._streams[number] = (
                    urgent_stream(self._context) if urgent else self._context.call("cuStreamCreate", flag)
                )
                self._own.append(("cuStreamDestroy", self._streams[number]))
        self._begin = self._new_event()
        self._done = {index: self._new_event() for index in self._awaited()}

    def _new_event(self) -> Any:
        flag = int(self._context.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = self._context.call("cuEventCreate", flag)
        self._own.append(("cuEventDestroy", event))
        return event

    def _stream_of(self, index: int) -> int:
        return self._launches[index].launch.stream

    def _awaited(self) -> set[int]:
        """Launches another stream waits for: dependencies across streams, and each stream's last launch."""
        if self._check:
            return set()
        last = {prepared.launch.stream: index for index, prepared in enumerate(self._launches)}
        across = {
            dep
            for index, prepared in enumerate(self._launches)
            for dep in prepared.launch.deps
            if self._stream_of(dep) != self._stream_of(index)
        }
        return across | {index for number, index in last.items() if self._streams[number] is not self._main}

    def launch(self, stream: Any = None) -> None:
        """Queue one replay on `stream` (default: the plan's); that stream sees its end."""
        main = self._main if stream is None else stream
        streams = {number: main if s is self._main else s for number, s in self._streams.items()}
        side_streams = [s for s in streams.values() if s is not main]
        call = self._context.call
        if side_streams:
            call("cuEventRecord", self._begin, main)
        for side in side_streams:
            call("cuStreamWaitEvent", side, self._begin, 0)
        for index, prepared in enumerate(self._launches):
            number = prepared.launch.stream
            for dep in prepared.launch.deps:
                if dep in self._done and self._stream_of(dep) != number:
                    call("cuStreamWaitEvent", streams[number], self._done[dep], 0, doing=prepared.doing)
            prepared.start(self._context, streams[number])
            if index in self._done:
                call("cuEventRecord", self._done[index], streams[number], doing=prepared.doing)
            if self._check:
                self._wait(streams[number], prepared.doing)
        for index, event in self._done.items():
            if streams[self._stream_of(index)] is not main:
                call("cuStreamWaitEvent", main, event, 0)

    def handles(self) -> Iterator[tuple[str, Any]]:
        """The handles that have to be destroyed, each with the driver function that does it."""
        yield from reversed(self._own)


def synchronise(context: Context) -> Wait:
    """The driver's own wait."""
    return lambda stream, doing: context.call("cuStreamSynchronize", stream, doing=doing)
