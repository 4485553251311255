"""The ways to divide a network between ranks: names, and the passes that carry them out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tilewright.ir import InputError
from tilewright.passes import Pipeline
from tilewright.passes.pipelines import GRAPH, PRECISIONS

#: what each rank computes, by mode, and the pass that gives every rank its own module
MODES: Final[Mapping[str, str]] = {
    "space": "split-space",
    "batch": "split-batch",
    "weights": "split-weights",
    "pipeline": "split-pipeline",
}


def mode_pipeline(mode: str, devices: int, rank: int, options: str = "", precision: str = "fp32") -> Pipeline:
    """The passes from a whole network to what one rank of `devices` runs.

    options: further ones of the mode's pass, as pipelines write them (`axis=w, gather=late`).
    precision: where it is decided on the graph, it is before the network is divided: so all ranks agree on
    every dtype, also one without rows, and messages are as narrow as tensors. Raises InputError for an
    unknown mode, precision or option.
    """
    if mode not in MODES:
        raise InputError(f"expected a mode among {', '.join(MODES)}, got {mode!r:.60}")
    if precision not in PRECISIONS:
        raise InputError(f"expected a precision among {', '.join(PRECISIONS)}, got {precision!r:.60}")
    further = f", {options}" if options.strip() else ""
    divided = f"{MODES[mode]}{{devices={devices}, rank={rank}{further}}}"
    narrowed = PRECISIONS[precision].get("graph", Pipeline())
    return GRAPH + narrowed + Pipeline.parse(divided)
