"""Memory that keeps its content between runs of loaded plans, by name: what every device does with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from tilewright.runtime.closable import Closable
from tilewright.runtime.dtypes import Array
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.plan.arrays import host_array
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan
from tilewright.runtime.work_lock import WorkLock


class StateMemory(Closable):
    """State in the memory of one device, by the names that the network gives it.

    Loaded plans that share it take turns: `lock` is theirs too. Subclasses allocate, copy and free.
    """

    def __init__(self) -> None:
        self.lock = WorkLock()
        self._buffers: dict[str, Buffer] = {}
        self._lost: dict[str, str] = {}  # name -> why its content is not what a run leaves

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that is there."""
        return tuple(self._buffers)

    def add(self, buffer: Buffer, value: object) -> None:
        """Take memory for one more array, which starts as `value`; raises as `write` does."""
        array = host_array(value, buffer, "state")
        with self.lock:
            self.check_open()
            if buffer.title in self._buffers:
                raise InputError(f"there is state called {buffer.title!r} already")
            self._allocate(buffer)
            self._buffers[buffer.title] = buffer
            self._upload(buffer, array)

    def fit(self, plan: ExecutionPlan) -> None:
        """Raise `InputError` unless the state of `plan` is here, of the same shapes and dtypes."""
        for buffer in plan.states:
            own = self._buffers.get(buffer.title)
            if own is None:
                raise InputError(f"expected state called {buffer.title!r}, got {', '.join(self._buffers)}")
            check_state(own, buffer)

    def read(self, name: str) -> Array:
        """A copy of one array, after all runs so far; raises `DeviceError` where it was lost."""
        with self.lock:
            self.check_open()
            buffer = self._known(name)
            if name in self._lost:
                raise DeviceError(self._lost[name])
            return self._download(buffer)

    def write(self, name: str, value: object) -> None:
        """Replace one array; raises `InputError` unless `value` has its shape and dtype."""
        with self.lock:
            self.check_open()
            buffer = self._known(name)
            self._upload(buffer, host_array(value, buffer, "state"))
            self._lost.pop(name, None)

    def write_all(self, values: Mapping[str, object]) -> None:
        """Replace everything; where the device fails on the way, the state is lost.

        Raises `InputError`, before anything changes, unless `values` has each name with its shape and dtype.
        """
        with self.lock:
            self.check_open()
            arrays = {n: host_array(values[n], buffer, "state") for n, buffer in self._buffers.items()}
            try:
                for name, array in arrays.items():
                    self._upload(self._buffers[name], array)
            except BaseException as error:
                self.lose(error)
                raise
            self._lost = {}

    def _known(self, name: str) -> Buffer:
        if name not in self._buffers:
            raise InputError(f"unknown state {name!r}; there is {', '.join(self._buffers) or 'none'}")
        return self._buffers[name]

    def check_whole(self) -> None:
        """Raise `DeviceError` where something was lost and has not been replaced since."""
        if self._lost:
            name, reason = next(iter(self._lost.items()))
            raise DeviceError(f"{reason} (first of {len(self._lost)}: {name!r})")

    def lose(self, reason: object) -> None:
        """Note that a run failed half way: some of the state may be new, some old."""
        text = (
            f"the state was lost when a run failed: load or assign all of it before the next run ({reason})"
        )
        self._lost = dict.fromkeys(self._buffers, text)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A run: the state must be whole, and is lost where it fails."""
        self.check_whole()
        try:
            yield
        except BaseException as error:
            self.lose(error)
            raise

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Runs inside change the state, which afterwards is what it was before."""
        with self.lock:
            self.check_whole()
            copies = self._snapshot()
            try:
                with self.changing():
                    yield
            except BaseException:
                self._restore(copies, after_failure=True)
                raise
            self._restore(copies, after_failure=False)

    # What a device does; each is called by one thread at a time.

    def _allocate(self, buffer: Buffer) -> None:
        raise NotImplementedError(f"{type(self).__name__} takes no memory")

    def _upload(self, buffer: Buffer, array: Array) -> None:
        raise NotImplementedError(f"{type(self).__name__} copies nothing to the device")

    def _download(self, buffer: Buffer) -> Array:
        raise NotImplementedError(f"{type(self).__name__} copies nothing to the host")

    def _snapshot(self) -> Mapping[str, Array]:
        """Copies of everything, in the memory of the host."""
        return {name: self._download(buffer) for name, buffer in self._buffers.items()}

    def _restore(self, copies: Mapping[str, Array], *, after_failure: bool) -> None:
        """Bring the copies back; after a failure of the device this may fail as well, which is no news."""
        try:
            for name, array in copies.items():
                self._upload(self._buffers[name], array)
        except DeviceError:
            if not after_failure:
                raise
        else:
            self._lost = {}


class HostState(StateMemory):
    """State in memory of the host, for devices that have no other."""

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, Array] = {}

    def _allocate(self, buffer: Buffer) -> None:
        pass

    def _upload(self, buffer: Buffer, array: Array) -> None:
        self.arrays[buffer.title] = array.copy()

    def _download(self, buffer: Buffer) -> Array:
        return self.arrays[buffer.title].copy()

    def _release(self) -> None:
        self.arrays = {}


@dataclass(frozen=True)
class PlanState:
    """The state of one loaded plan: memory that others may share, or its own; None for a plan without."""

    memory: StateMemory | None
    own: bool = False

    @staticmethod
    def of(
        plan: ExecutionPlan,
        values: Mapping[str, Array],
        shared: StateMemory | None,
        new: Callable[[], StateMemory],
    ) -> PlanState:
        """Memory with the state of `plan`: `shared`, or `new` memory that starts as `values` (by buffer)."""
        if not plan.states:
            return NO_STATE
        if shared is not None:
            shared.fit(plan)
            return PlanState(shared)
        memory = new()
        try:
            for buffer in plan.states:
                memory.add(buffer, values[buffer.name])
        except BaseException:
            memory.close()
            raise
        return PlanState(memory, own=True)

    @property
    def lock(self) -> WorkLock:
        """The lock of the plan's work: plans of one state take turns."""
        return WorkLock() if self.memory is None else self.memory.lock

    def changing(self) -> AbstractContextManager[None]:
        """See `StateMemory.changing`."""
        return nullcontext() if self.memory is None else self.memory.changing()

    def kept(self) -> AbstractContextManager[None]:
        """See `StateMemory.kept`."""
        return nullcontext() if self.memory is None else self.memory.kept()

    def release(self) -> None:
        """Free what is the plan's own."""
        if self.memory is not None and self.own:
            self.memory.close()


NO_STATE = PlanState(None)


def check_state(own: Buffer, other: Buffer) -> None:
    """Raise `InputError` unless two plans mean state of one shape and dtype by one name."""
    if (own.dtype, own.shape) != (other.dtype, other.shape):
        raise InputError(
            f"state {own.title!r}: expected {own.dtype} {list(own.shape)} as the others that share it, "
            f"got {other.dtype} {list(other.shape)}"
        )
