"""The options of a split in space, as the pass and its callers spell them, and the decisions they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.costmodel.hardware.description import GpuHardware, Hardware
from tilewright.costmodel.op_work import Rates, wave_elements
from tilewright.costmodel.partition.naive import check_speeds
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Module, Op
from tilewright.passes.graph.distribute.rows.layer_axes import DIRECTIONS, checked_direction
from tilewright.passes.graph.distribute.rows.overlap import OVERLAPS, Overlap
from tilewright.passes.graph.distribute.rows.spreading import PlannedLayer, SplitRequest, Spread
from tilewright.passes.graph.distribute.sharding.options import memory_limits, speeds_of
from tilewright.passes.graph.distribute.space.limits import fastest
from tilewright.passes.graph.distribute.space.plan import read_plan
from tilewright.passes.graph.distribute.space.search import Method, directed_plan, searched_plan

_METHODS: dict[str, Method] = {"exact": "exact", "layers": "layers", "pruned": "pruned"}
_OTHERS = ("naive", "directions")


@dataclass(frozen=True)
class SpaceOptions:
    """The options of the pass split-space that all ranks share; see there."""

    axis: str = "h"
    speeds: str = ""
    plan: str = ""
    method: str = "naive"
    threshold: float = 5.0
    gather: str = "auto"
    tflops: float = 20.0
    link_gbs: float = 100.0
    latency_us: float = 2.0
    overlap: str = "auto"
    kernel_us: float = 2.0
    wave: float = Rates().wave
    memory: str = ""
    grid: str = ""


def decide(module: Module, devices: int, options: SpaceOptions) -> Spread:
    """Decide how every op of @main runs on `devices` ranks; raises InputError for options that do not fit."""
    speeds = _speeds(options.speeds, devices)
    binding, late = read_plan(module.main, options.plan), options.gather == "late"
    rates = _rates(options)
    if options.grid:
        raise InputError(f"option 'grid' expects axis=grid, got axis={options.axis}")
    shared = SplitRequest(speeds, "h", binding, late=late, rates=rates, overlap=_overlap(options.overlap))
    method = _METHODS.get(options.method)
    if method is None and options.method not in _OTHERS:
        methods = ", ".join((*_OTHERS, *_METHODS))
        raise InputError(f"expected a method among {methods}, got '{options.method}'")
    several = options.axis == "auto" or options.method == "directions"
    requests = []
    for direction in DIRECTIONS if several else (checked_direction(options.axis),):
        searched: Mapping[Op, PlannedLayer] = {}
        if method is not None:
            searched = searched_plan(module.main, direction, speeds, method, options.threshold, rates)
        requests.append(replace(shared, direction=direction, searched=searched))
        if method == "exact":  # its blocks leave out what fetching their inputs takes
            requests.append(replace(shared, direction=direction))
    if options.method == "directions":
        searched = directed_plan(module.main, speeds, rates)
        requests += [replace(shared, direction=d, searched=searched) for d in DIRECTIONS]
    return fastest(module.main, requests, memory_limits(options.memory, devices))


def grid_request(devices: int, options: SpaceOptions) -> SplitRequest:
    """Return the request of each of the two splits of a grid; raises InputError.

    Grids take no plans, searches or memory limits.
    """
    for name, value, without in (
        ("plan", options.plan, ""),
        ("method", options.method, "naive"),
        ("memory", options.memory, ""),
    ):
        if value != without:
            raise InputError(f"option '{name}' expects one axis to split along, got axis=grid")
    overlap, late = _overlap(options.overlap), options.gather == "late"
    return SplitRequest(
        _speeds(options.speeds, devices), "w", late=late, rates=_rates(options), overlap=overlap
    )


def _speeds(text: str, devices: int) -> tuple[float, ...]:
    """One speed per device, the fastest being 1; raises InputError."""
    speeds = speeds_of(text, devices)
    check_speeds(speeds)
    return tuple(v / max(speeds) for v in speeds)


def _overlap(text: str) -> Overlap:
    for policy in OVERLAPS:
        if text == policy:
            return policy
    raise InputError(f"option 'overlap' expects one of {', '.join(OVERLAPS)}, got '{text}'")


def device_wave(hardware: Hardware | None) -> float:
    """Elements that a device makes at once; those of a data-centre GPU where no GPU is known."""
    if isinstance(hardware, GpuHardware):
        return wave_elements(hardware.sm_count)
    return Rates().wave


def _rates(o: SpaceOptions) -> Rates:
    if not (min(o.tflops, o.link_gbs) > 0 and min(o.latency_us, o.kernel_us, o.wave) >= 0):
        raise InputError(
            f"expected positive rates, got {o.tflops} Tflop/s, {o.link_gbs} GB/s, "
            f"{o.latency_us} us per message, {o.kernel_us} us per kernel, {o.wave} elements at once"
        )
    link = o.link_gbs * 1e9, o.latency_us * 1e-6
    return Rates(o.tflops * 1e12, o.tflops * 1e11, *link, o.kernel_us * 1e-6, o.wave)
