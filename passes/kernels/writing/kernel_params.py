"""The `params` of a kernel as its skeleton reads them, with the kernel named in what does not fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.ir import Func, InputError, Pairs


@contextmanager
def reading_params(kernel: Func) -> Iterator[Pairs]:
    """The params of a kernel; faults found while they are read become InputErrors that name the kernel."""
    where = f"@{kernel.name}"
    p = kernel.get("params")
    if not isinstance(p, Pairs):
        raise InputError("expected implementation parameters in 'params'", where=where)
    try:
        yield p
    except KeyError as e:
        raise InputError(f"expected {e} in params", where=where) from e
    except InputError as e:
        raise InputError(str(e), where=where) from e


def whole(value: object, name: str, least: int) -> int:
    """`value`, known to be an integer of at least `least`; raises InputError otherwise."""
    if type(value) is not int or value < least:
        raise InputError(f"expected {name} in params to be an integer of at least {least}, got {value!r}")
    return value


def integer_params(kernel: Func, *names: str) -> tuple[int, ...]:
    """Named integers of the kernel's `params`; raises InputError naming what is missing."""
    p = kernel.get("params")
    if not isinstance(p, Pairs) or any(n not in p for n in names):
        raise InputError(f"expected params with {', '.join(names)}, got {p!r}", where=f"@{kernel.name}")
    with reading_params(kernel) as p:
        return tuple(whole(p[n], n, 1) for n in names)
