"""The values that the options of a compilation and of its commands take: plain data that loads in no time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

Tune = Literal["model", "measure"]
Precision = Literal["fp32", "fp32-strict", "tf32", "fp16", "bf16"]
Workspace = Literal["network", "any"]
Partitioner = Literal["rules", "exact", "algorithm1", "maximal", "none"]
Layouts = Literal["cut", "exact", "sssp"]
Relays = Literal["auto", "always", "never"]
ConvAlgorithm = Literal["auto", "direct", "winograd2", "winograd4", "fft"]

#: what chooses the kernels where nothing else is asked for
PARTITIONER: Final = "rules"

#: relative error against float64 above which a result counts as wrong, by precision
TOLERANCE: Mapping[str, float] = {"fp32": 1e-4, "fp32-strict": 1e-4, "tf32": 5e-3, "fp16": 2e-2, "bf16": 1e-1}

#: what of a network is divided among several devices
DivisionMode = Literal["space", "batch", "weights", "pipeline"]

#: how messages travel between GPUs: from device to device, or through the memory of the host
Transport = Literal["device", "host"]

#: processes that one run may start
MAX_RANKS = 1_024

#: seconds that a wait for another process may take where nothing else is asked for
RANK_TIMEOUT_S = 60.0

#: bytes below which a plan for several devices leaves a weight whole
LEAST_WEIGHT_BYTES = 16 << 10

#: which of several timed runs counts
Pick = Literal["median", "fastest"]

#: how the cluster model prices a training: as the thesis prints it, as its table was made, or corrected
ClusterMode = Literal["printed", "table", "corrected"]
