"""Quantities as a person reads them: seconds, bytes, operations, parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.costmodel.hardware.provenance import borrowed_text


def seconds_text(s: float) -> str:
    """`412 us`, `1.25 ms`, `2.1 s`: three digits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if s >= 0.9995 * scale:  # which three digits round to 1.00
            return f"{_digits(s / scale)} {unit}"
    return f"{_digits(s / 1e-9)} ns" if s > 0 else "0"


def bytes_text(n: float) -> str:
    """`25.6 MB`: powers of 1000, three digits."""
    return _scaled(n, "B")


def operations_text(n: float) -> str:
    """`7.72 GFLOP`."""
    return _scaled(n, "FLOP")


def rate_text(per_s: float) -> str:
    """`1.24 TFLOP/s`."""
    return _scaled(per_s, "FLOP/s")


def counted(n: int, noun: str) -> str:
    """`1 launch`, `2 launches`, `3 kernels`."""
    plural = noun + ("es" if noun.endswith("ch") else "s")
    return f"{n} {noun if n == 1 else plural}"


def parameter_text(value: Any) -> str:
    """One implementation parameter: tile extents by dimension, or the value itself."""
    if isinstance(value, Mapping):
        return " ".join(f"{d}:{n}" for d, n in value.items()) or "-"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def hardware_text(facts: Mapping[str, Any]) -> str:
    """One line about what the hardware record of a compilation has from other devices; empty if nothing.

    facts: those of `tilewright.compilation.report_facts`; files of older versions do not say it.
    """
    borrowed = facts.get("hardware_borrowed", {})
    return borrowed_text(facts["hardware"], borrowed, facts.get("hardware_stands_for", ""))


def weights_text(facts: Mapping[str, Any]) -> str:
    """`parameters: 11,689,512 trainable, 11,699,112 with all constants, 46.8 MB`; empty without facts.

    facts: those of a compilation; files of older versions do not count parameters.
    """
    counts = facts.get("parameters")
    if not counts:
        return ""
    return (
        f"parameters: {counts['trainable']:,} trainable, {counts['total']:,} with all constants, "
        f"{bytes_text(counts['bytes'])}"
    )


def shape_text(dtype: str, shape: tuple[int, ...]) -> str:
    """`float32 1x64x56x56`."""
    return f"{dtype} {'x'.join(map(str, shape))}" if shape else f"{dtype} scalar"


def _scaled(n: float, unit: str) -> str:
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if n >= scale:
            return f"{_digits(n / scale)} {prefix}{unit}"
    return f"{_digits(n)} {unit}"


def _digits(x: float) -> str:
    return f"{x:.0f}" if x >= 99.95 or x == int(x) else f"{x:.1f}" if x >= 9.995 else f"{x:.2f}"
