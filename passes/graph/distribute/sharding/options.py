"""Options that the passes of this folder have in common: numbers per device, and which device is meant."""

from __future__ import annotations

from tilewright.costmodel.op_work import Rates
from tilewright.ir.errors import InputError


def number_list(text: str, what: str, count: int | None = None) -> tuple[float, ...]:
    """The numbers of an option such as `1,2.5,1`; raises InputError, also for another count than wanted."""
    try:
        numbers = tuple(float(n) for n in text.split(",")) if text.strip() else ()
    except ValueError:
        raise InputError(f"option '{what}' expects numbers such as 1,2,1, got '{text}'") from None
    if count is not None and len(numbers) != count:
        raise InputError(f"option '{what}' expects {count} numbers, got {len(numbers)}: '{text}'")
    if any(not 0 <= n < float("inf") for n in numbers):
        raise InputError(f"option '{what}' expects numbers of at least 0, got '{text}'")
    return numbers


def speeds_of(text: str, devices: int) -> tuple[float, ...]:
    """Relative speeds of all devices: equal ones for an empty text; one at least is above zero."""
    speeds = number_list(text, "speeds", devices) if text.strip() else (1.0,) * devices
    if not any(speeds):
        raise InputError(f"option 'speeds' expects one speed above 0 at least, got '{text}'")
    return speeds


def check_rank(devices: int, rank: int) -> None:
    """Raise InputError unless there is a device and `rank` is one."""
    if devices < 1 or not 0 <= rank < devices:
        raise InputError(f"expected devices >= 1 and a rank in [0, devices), got {devices} and {rank}")


def memory_limits(text: str, devices: int) -> tuple[float, ...]:
    """Bytes of every device, one number standing for all; empty without limits. Raises InputError."""
    limits = number_list(text, "memory")
    if len(limits) not in (0, 1, devices) or not all(limits):
        raise InputError(f"option 'memory' expects 1 or {devices} numbers of bytes above 0, got '{text}'")
    return limits * devices if len(limits) == 1 else limits


def message_rates(join: str, tflops: float, link_gbs: float, latency_us: float) -> Rates | None:
    """The rates by which sums share messages; None where they do not. Raises InputError."""
    if not (min(tflops, link_gbs) > 0 and latency_us >= 0):
        raise InputError(
            f"expected positive rates, got {tflops} Tflop/s, {link_gbs} GB/s and {latency_us} us per hop"
        )
    if join not in ("auto", "never"):
        raise InputError(f"option 'join' expects auto or never, got '{join}'")
    if join == "never":
        return None
    return Rates(tflops * 1e12, tflops * 1e11, link_gbs * 1e9, latency_us * 1e-6)
