"""The corrected, sound upper bound on performance: for contract kernels per point, for the others per
problem.

ub = COEF min(GM, L2, LAT, TQ WB LANE min(SMB, ISS)) is a fraction of the device's peak; the seconds are
max(flops / (peak ub), launch floor). No kernel built as described can be faster under the stated assumptions,
as long as the constants of the record are optimistic. The seconds are those of a kernel that finds nothing
of its data in a cache; `warm_s` beside them holds wherever the data is: measurements are held against it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels import bound_terms as terms
from tilewright.costmodel.kernels.bound_terms import SPECIFIED, Assumptions
from tilewright.costmodel.kernels.geometry import Geometry, contract_geometry
from tilewright.costmodel.kernels.parameters import ContractParameters, ContractSpace, contract_space
from tilewright.costmodel.kernels.problem import ContractProblem, Problem
from tilewright.costmodel.kernels.windows import FloatArray, IntArray

LOCAL_TERMS = ("TQ", "WB", "LANE", "SMB", "ISS", "RATE")
"""Terms of one multiprocessor, which multiply; the others bound the whole device on their own."""

PEAK = "PEAK"
LAUNCH = "LAUNCH"
ILLEGAL = "COEF"


@dataclass(frozen=True)
class Bound:
    """A lower bound on the time of one kernel: fraction of peak, seconds, and the term that sets it.

    seconds: of a launch that finds nothing of its data in a cache. warm_s: of every launch; as much of the
    data as the last cache holds is there, as behind the kernel that wrote it or in a timing loop.
    """

    ub: float
    seconds: float
    limit: str
    warm_s: float


@dataclass(frozen=True, eq=False)
class BoundArrays:
    """Bounds of many points: `ub` and `seconds` in float64 (0 and inf where illegal), `terms` by name.

    warm_s: what no launch of any of the points is below, wherever its data is.
    """

    ub: FloatArray
    seconds: FloatArray
    terms: dict[str, FloatArray]
    launch_floor_s: float
    warm_s: float

    def at(self, index: int) -> Bound:
        """The bound of one point with its limiting term."""
        ub, seconds = float(self.ub[index]), float(self.seconds[index])
        return Bound(ub, seconds, self._limiting(index, seconds), min(seconds, self.warm_s))

    def take(self, chosen: IntArray) -> BoundArrays:
        """The bounds of the points selected by an index array."""
        terms = {name: column[chosen] for name, column in self.terms.items()}
        return BoundArrays(self.ub[chosen], self.seconds[chosen], terms, self.launch_floor_s, self.warm_s)

    def _limiting(self, index: int, seconds: float) -> str:
        if self.ub[index] == 0.0:
            return ILLEGAL
        if seconds <= self.launch_floor_s:
            return LAUNCH
        value = {name: float(column[index]) for name, column in self.terms.items()}
        local = [name for name in LOCAL_TERMS if name in value]
        product = value.get("TQ", 1.0) * value.get("WB", 1.0) * value.get("LANE", 1.0)
        product *= min(value.get(name, 1.0) for name in ("SMB", "ISS", "RATE"))
        alone = [name for name in value if name not in (*LOCAL_TERMS, ILLEGAL)]
        device_wide = min(alone, key=value.__getitem__)
        if min(value[device_wide], product) == 1.0:
            return PEAK
        if value[device_wide] <= product:
            return device_wide
        return min(local, key=value.__getitem__)


def contract_bound(
    problem: ContractProblem, space: ContractSpace, hardware: Hardware, assumptions: Assumptions = SPECIFIED
) -> BoundArrays:
    """The sound bound of every point of `space`."""
    g = contract_geometry(problem, space)
    if isinstance(hardware, CpuHardware):
        return _cpu_bound(problem, space, hardware, g, assumptions)
    return _gpu_bound(problem, space, hardware, g, assumptions)


def contract_bound_of(
    problem: ContractProblem,
    parameters: ContractParameters,
    hardware: Hardware,
    assumptions: Assumptions = SPECIFIED,
) -> Bound:
    """The sound bound of one choice of parameters."""
    return contract_bound(problem, contract_space([parameters]), hardware, assumptions).at(0)


def global_bound(problem: Problem, hardware: Hardware, assumptions: Assumptions = SPECIFIED) -> Bound:
    """The bound that holds for all parameters: compulsory bytes, arithmetic peak, launch floor.

    It is all there is to say of map, window and row-reduce kernels.
    """
    moved = problem.compulsory_bytes
    cache = hardware.l2_bytes if isinstance(hardware, GpuHardware) else hardware.cache_bytes
    seconds = {
        "GM": moved / hardware.dram_bytes_per_s,
        PEAK: problem.flops / hardware.peak_flops_per_s,
        LAUNCH: hardware.launch_floor_s,
    }
    if isinstance(hardware, GpuHardware):
        seconds["L2"] = moved / hardware.l2_bytes_per_s
    warm = seconds | {"GM": max(moved - cache, 0.0) / hardware.dram_bytes_per_s}
    if not assumptions.cold_l2:
        seconds = warm
    limit = max(sorted(seconds, key=LAUNCH.__ne__), key=seconds.__getitem__)  # of equals the launch
    ub = _fraction(problem.flops, hardware, max(s for name, s in seconds.items() if name != LAUNCH))
    return Bound(ub, seconds[limit], limit, max(warm.values()))


def _fraction(flops: int, hardware: Hardware, seconds: float) -> float:
    return min(1.0, flops / hardware.peak_flops_per_s / seconds) if seconds else 1.0


def _gpu_bound(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: GpuHardware,
    g: Geometry,
    assumptions: Assumptions,
) -> BoundArrays:
    columns = {
        "GM": np.full(len(space), terms.gm(problem, hardware, hardware.l2_bytes, assumptions)),
        "L2": terms.l2(problem, hardware, g, assumptions),
        "LAT": terms.lat(problem, space, hardware, g, assumptions),
        "TQ": terms.tq(problem, space, g),
        "WB": terms.wb(g.blocks, hardware.sm_count),
        "LANE": terms.lane(g),
        "SMB": terms.smb(problem, hardware, g),
        "ISS": terms.iss(problem, hardware, g),
        ILLEGAL: terms.coef(problem, space, hardware, g, assumptions),
    }
    local = columns["TQ"] * columns["WB"] * columns["LANE"] * np.minimum(columns["SMB"], columns["ISS"])
    device_wide = np.minimum(np.minimum(columns["GM"], columns["L2"]), columns["LAT"])
    return _finish(problem, hardware, columns[ILLEGAL] * np.minimum(device_wide, local), columns)


def _cpu_bound(
    problem: ContractProblem,
    space: ContractSpace,
    hardware: CpuHardware,
    g: Geometry,
    assumptions: Assumptions,
) -> BoundArrays:
    legal = g.threads <= hardware.max_threads_per_block
    columns = {
        "GM": np.full(len(space), terms.gm(problem, hardware, hardware.cache_bytes, assumptions)),
        "LAT": terms.cpu_lat(problem, hardware, g),
        "TQ": terms.tq(problem, space, g),
        "WB": terms.wb(g.blocks, hardware.cores),
        "LANE": terms.cpu_lane(space, hardware, g),
        "ISS": terms.cpu_iss(hardware, g),
        ILLEGAL: legal.astype(np.float64),
    }
    local = columns["TQ"] * columns["WB"] * columns["LANE"] * columns["ISS"]
    ub = columns[ILLEGAL] * np.minimum(np.minimum(columns["GM"], columns["LAT"]), local)
    return _finish(problem, hardware, ub, columns)


def _finish(
    problem: ContractProblem, hardware: Hardware, ub: npt.NDArray[np.float64], columns: dict[str, FloatArray]
) -> BoundArrays:
    with np.errstate(divide="ignore"):
        seconds = problem.flops / (hardware.peak_flops_per_s * ub)
    floor, warm = hardware.launch_floor_s, global_bound(problem, hardware, terms.MEASURED_LOOP)
    return BoundArrays(ub, np.maximum(seconds, floor), columns, floor, warm.seconds)
