"""The common use of an OpenCL driver: one context per device, errors turned into ours."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tilewright.runtime.errors import DeviceError, DeviceLostError, OutOfMemoryError

_COMPLAINT = re.compile(r"error: \S*?:(\d+):\d+: (.*)|:(\d+):\d+: error: (.*)")


_contexts: dict[int, Any] = {}
_opening = threading.Lock()


def context_of(cl: ModuleType, device: Any) -> Any:
    """The context of a device that this process shares: PoCL reads its library anew for each (0.5 s)."""
    with _opening:
        if device.int_ptr not in _contexts:
            _contexts[device.int_ptr] = cl.Context([device])
        return _contexts[device.int_ptr]


def driver_error(cl: ModuleType, doing: str, error: Exception) -> DeviceError:
    """Our error for one of pyopencl's; it says what was being done."""
    if isinstance(error, cl.MemoryError):
        return OutOfMemoryError(f"{doing}: the OpenCL device is out of memory ({error})")
    if getattr(error, "code", 0) == cl.status_code.DEVICE_NOT_AVAILABLE:
        _contexts.clear()
        return DeviceLostError(f"{doing}: the OpenCL device is gone ({error})")
    return DeviceError(f"{doing}: {error}")


@contextmanager
def driver_errors(cl: ModuleType, doing: str) -> Iterator[None]:
    """Turn pyopencl's errors into ours."""
    try:
        yield
    except cl.Error as error:
        raise driver_error(cl, doing, error) from None


def first_complaint(log: str, source: str) -> str:
    """The first error of an OpenCL compiler's log with the source line it is about; else all of it, once."""
    match = _COMPLAINT.search(log)
    if match is None:
        head, mark, rest = log.partition("\n")
        return " - ".join(dict.fromkeys(head.split(" - "))) + mark + rest  # pyopencl repeats what failed
    line, text = int(match[1] or match[3]), match[2] or match[4]
    lines = source.splitlines()
    return f"line {line}: {text}: {lines[line - 1].strip() if 0 < line <= len(lines) else ''}"
