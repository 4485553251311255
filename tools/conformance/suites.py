"""The suites there are, by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tilewright.compilation.option_values import Precision
from tilewright.tools.conformance.case import Suite
from tilewright.tools.conformance.networks import network_suite
from tilewright.tools.conformance.onnx_nodes import onnx_suite
from tilewright.tools.conformance.recorded import recorded_suite

SUITES = ("operators", "onnx", "networks")


def open_suites(data: str, names: Sequence[str], precisions: Sequence[Precision]) -> list[Suite]:
    """The suites called `names` with the cases found in folder `data`."""
    suites: list[Suite] = []
    if "operators" in names:
        suites.append(recorded_suite(Path(data, "relay_ops")))
    if "onnx" in names:
        suites.append(onnx_suite())
    if "networks" in names:
        suites += [network_suite(Path(data, "relay"), p) for p in precisions]
    return suites
