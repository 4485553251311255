"""Results that are read when they are needed: arrays that a device may still be computing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from tilewright.runtime.dtypes import Array


class LazyArray:
    """One result of a step. Reading it waits until it is there; it never changes afterwards."""

    __slots__ = ("__weakref__", "_fetch", "_value", "dtype", "shape")

    def __init__(self, shape: tuple[int, ...], dtype: str, fetch: Callable[[], Array] | Array) -> None:
        """fetch: waits for the array and gives one that nobody else writes; or the array."""
        self.shape, self.dtype = shape, dtype
        self._fetch: Callable[[], Array] | None = fetch if callable(fetch) else None
        self._value: Array | None = None if callable(fetch) else fetch

    def numpy(self) -> Array:
        """The array, waited for; the same one at each call. Raises `DeviceError` where its step failed."""
        if self._value is None:
            assert self._fetch is not None
            self._value = self._fetch()
            self._fetch = None
        return self._value

    def item(self) -> Any:
        """The only element as a number of Python."""
        return self.numpy().item()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __format__(self, spec: str) -> str:
        return format(self.item() if spec else self.numpy(), spec)

    def __repr__(self) -> str:
        shown = "not read yet" if self._value is None else str(self._value)
        return f"<LazyArray {self.dtype}{list(self.shape)}: {shown}>"


def ready(array: Array) -> LazyArray:
    """A result that is there already."""
    return LazyArray(array.shape, array.dtype.name, array)


@runtime_checkable
class Steps(Protocol):
    """A loaded plan that can queue a run and hand out its outputs before they are there."""

    def step(self, inputs: Sequence[object]) -> tuple[LazyArray, ...]:
        """Queue one run behind those that are queued and return; the inputs are copied by then."""
        ...
