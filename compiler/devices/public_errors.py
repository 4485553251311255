"""The runtime's errors as the public ones that every entry point raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.ir import InputError, WorkError
from tilewright.runtime.errors import DeviceError, RuntimeInputError


@contextmanager
def public_errors() -> Iterator[None]:
    """Turn the runtime's errors into the public ones: bad input (exit 2) and failed work (exit 1)."""
    try:
        yield
    except RuntimeInputError as e:
        raise InputError(str(e)) from e
    except DeviceError as e:
        raise WorkError(str(e)) from e
