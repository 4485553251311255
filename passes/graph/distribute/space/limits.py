"""The fastest split in space among those that fit into the devices' memories."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isfinite

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func
from tilewright.passes.graph.distribute.sharding.shards import number_list
from tilewright.passes.graph.distribute.space.memory import rank_bytes
from tilewright.passes.graph.distribute.spreading import Request, Spread, spread

#: how often rows are moved from devices that are too full to the others
_ROUNDS = 12
#: relative precision of the least memory that is named where none fits
_PRECISION = 1e-3


def memory_limits(text: str, devices: int) -> tuple[float, ...]:
    """Bytes of every device, one number standing for all; empty without limits. Raises InputError."""
    given = number_list(text, "memory")
    if len(given) not in (0, 1, devices) or not all(given):
        raise InputError(f"option 'memory' expects 1 or {devices} numbers of bytes above 0, got '{text}'")
    return given * devices if len(given) == 1 else given


def fastest(func: Func, requests: Sequence[Request], limits: Sequence[float]) -> Spread:
    """What takes least modelled seconds of some requests, on devices with so many bytes (none: no limit).

    Where a request does not fit, its rows are cut by other shares than the speeds, less for devices that are
    too full, and gathering as late as possible is tried as well. Raises InputError with the least memory that
    would do, all devices' limits raised by one factor.
    """
    if not limits:
        return min((spread(func, r) for r in requests), key=lambda s: s.total_s)
    found = _fitting(func, requests, limits)
    if found is None:
        least = ", ".join(f"{b:.0f}" for b in _least(func, requests, limits))
        got = ", ".join(f"{b:.0f}" for b in limits)
        raise InputError(
            f"expected memory for the weights and values of {len(limits)} devices, at least {least} bytes, "
            f"got {got}"
        )
    return found


def _fitting(func: Func, requests: Sequence[Request], limits: Sequence[float]) -> Spread | None:
    own = [s for r in requests if _fits(func, s := spread(func, r), limits)]
    # Other shares, and gathers later than is fastest, are slower: they are tried where nothing else fits.
    found = own or [s for r in _thriftier(requests) for s in _moved(func, r, limits)]
    return min(found, key=lambda s: s.total_s, default=None)


def _thriftier(requests: Sequence[Request]) -> Iterator[Request]:
    for r in requests:
        yield replace(r, searched={})
        if not r.late:
            yield replace(r, searched={}, late=True)


def _moved(func: Func, request: Request, limits: Sequence[float]) -> Iterator[Spread]:
    """The request with shares that fit, if they are found: close to the speeds, close to the memories."""
    for start in (request.speeds, tuple(limits)):
        shares = tuple(s / sum(start) for s in start)
        for _ in range(_ROUNDS):
            made = spread(func, replace(request, shares=shares))
            if _fits(func, made, limits):
                yield made
                break
            used = rank_bytes(func, made, len(limits))
            full = [b > m for b, m in zip(used, limits, strict=True)]
            if all(full):
                break
            shares = _relieved(shares, used, limits)


def _relieved(shares: Sequence[float], used: Sequence[float], limits: Sequence[float]) -> tuple[float, ...]:
    """Less for every device that is too full, what is left in proportion to the shares of the others."""
    less = [
        s * min(0.98, max(0.5, m / b)) if b > m else 0.0 for s, b, m in zip(shares, used, limits, strict=True)
    ]
    others = sum(s for s, new in zip(shares, less, strict=True) if not new)
    left = 1.0 - sum(less)
    return tuple(new or s * left / others for s, new in zip(shares, less, strict=True))


def _fits(func: Func, made: Spread, limits: Sequence[float]) -> bool:
    used = rank_bytes(func, made, len(limits))
    return all(b <= m for b, m in zip(used, limits, strict=True))


def _least(func: Func, requests: Sequence[Request], limits: Sequence[float]) -> tuple[float, ...]:
    """Limits raised by the least factor for which something fits, in whole bytes."""

    def raised(factor: float) -> tuple[float, ...]:
        return tuple(float(ceil(m * factor)) for m in limits)

    first = rank_bytes(func, spread(func, requests[0]), len(limits))
    low, high = 1.0, max(b / m for b, m in zip(first, limits, strict=True))
    if not isfinite(high):
        raise InputError(f"expected memories above 0, got {list(limits)}")
    while high > low * (1 + _PRECISION):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if _fitting(func, requests, raised(middle)) else (middle, high)
    return raised(high)
