"""Loads of one plan for callers that run side by side: made on demand, lent to one caller at a time."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Protocol, runtime_checkable

import numpy as np

from tilewright.runtime.errors import DeviceError
from tilewright.runtime.interface.device import LoadedPlan


class InstancePool:
    """At most `limit` loads of one plan. Devices share weights and kernels between them."""

    def __init__(self, load: Callable[[], LoadedPlan], limit: int) -> None:
        self._load = load
        self._changed = threading.Condition()
        self._limit = limit
        self._all: list[LoadedPlan] = []
        self._free: list[LoadedPlan] = []
        self._loading = 0
        self._closed = False

    @property
    def empty(self) -> bool:
        """Return whether there is no instance, not even one that is being loaded."""
        with self._changed:
            return not self._all and not self._loading

    def first(self) -> LoadedPlan:
        """One instance, whether somebody works with it or not; loaded if there is none yet."""
        with self._changed:
            if self._all:
                return self._all[0]
        with self.lent() as instance:
            return instance

    @contextmanager
    def lent(self) -> Iterator[LoadedPlan]:
        """An instance for this caller alone: a free one, a new one, or the next that another gives back.

        One whose device fails is closed and not lent again.
        """
        instance = self._take()
        try:
            yield instance
        except DeviceError:
            self._drop(instance)
            raise
        except BaseException:
            self._give_back(instance)
            raise
        else:
            self._give_back(instance)

    @contextmanager
    def lent_all(self, count: int) -> Iterator[list[LoadedPlan]]:
        """`count` instances for this caller alone; the pool grows where its limit is lower."""
        with self._changed:
            self._limit = max(self._limit, count)
        with ExitStack() as stack:
            yield [stack.enter_context(self.lent()) for _ in range(count)]

    def _take(self) -> LoadedPlan:
        with self._changed:
            while not (self._closed or self._free or len(self._all) + self._loading < self._limit):
                self._changed.wait()
            self._check_open()
            if self._free:
                return self._free.pop()
            self._loading += 1
        instance: LoadedPlan | None = None
        try:
            instance = self._load()
        finally:
            with self._changed:
                self._loading -= 1
                closed = self._closed
                if instance is not None and not closed:
                    self._all.append(instance)
                self._changed.notify_all()
        if closed:
            instance.close()
        self._check_open()
        return instance

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("this executable was closed while a call waited for an instance of its plan")

    def _give_back(self, instance: LoadedPlan) -> None:
        with self._changed:
            # A pool that was closed meanwhile does not know it any more.
            if instance in self._all:
                self._free.append(instance)
            self._changed.notify_all()

    def _drop(self, instance: LoadedPlan) -> None:
        with self._changed:
            known = instance in self._all
            if known:
                self._all.remove(instance)
            self._changed.notify_all()
        if known:
            instance.close()

    def close(self) -> None:
        """Close every instance, one that works when it is done; callers that wait get `DeviceError`."""
        with self._changed:
            self._closed = True
            instances, self._all, self._free = self._all, [], []
            self._changed.notify_all()
        for instance in instances:
            instance.close()


@runtime_checkable
class QueuesBatches(Protocol):
    """A loaded plan that can queue copy-in, kernels and copy-out without waiting for them."""

    def start(self, inputs: Sequence[object]) -> None:
        """Queue one batch and return at once."""
        ...

    def finish(self) -> list[np.ndarray]:
        """Wait for the batch that was started; its outputs."""
        ...


def stream_batches(
    plans: Sequence[LoadedPlan], batches: Iterable[Sequence[object]]
) -> Iterator[list[np.ndarray]]:
    """Outputs of every batch in order; each plan holds at most one batch at a time."""
    queueing: list[QueuesBatches] = [plan for plan in plans if isinstance(plan, QueuesBatches)]
    if len(queueing) < len(plans):
        for inputs in batches:
            yield plans[0].run(inputs)
        return
    free, under_way = deque(queueing), deque[QueuesBatches]()
    try:
        for inputs in batches:
            if not free:
                plan = under_way.popleft()
                free.append(plan)
                yield plan.finish()
            free[0].start(inputs)
            under_way.append(free.popleft())
        while under_way:
            yield under_way.popleft().finish()
    finally:
        # A caller that stops early, or a bad batch, leaves work behind that still writes its outputs.
        while under_way:
            under_way.popleft().finish()
