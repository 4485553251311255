"""Pass split-space: one inference split over several devices; the module of one of them."""

from __future__ import annotations

from typing import Literal

from tilewright.costmodel.partition.naive import check_speeds
from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Level, Module
from tilewright.passes.context import PassContext
from tilewright.passes.definition import register_pass
from tilewright.passes.graph.distribute.directions import DIRECTIONS, Direction
from tilewright.passes.graph.distribute.rank_module import rank_module
from tilewright.passes.graph.distribute.space_plan import read_plan
from tilewright.passes.graph.distribute.spreading import Request, Spread, spread


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def split_space(
    module: Module,
    ctx: PassContext,
    *,
    devices: int = 2,
    rank: int = 0,
    axis: Literal["h", "w", "batch", "channels", "sequence", "auto"] = "h",
    speeds: str = "",
    plan: str = "",
    gather: Literal["auto", "late"] = "auto",
) -> Module:
    """What rank `rank` of `devices` runs where each makes a part of every layer; inputs, results are whole.

    axis: what is split; auto takes the axis whose modelled time is least.
    speeds: of the devices relative to each other, `1,1,2`; shares are proportional. Default: equal.
    plan: what single layers do instead: `3:h=0-57,57-112; 5:whole`, rows of every rank by layer number.
    gather: auto goes on whole on every device where that is cheaper (behind the last large layers); late
      splits as long as it can.

    rewrite: %y = graph.conv2d(%x, %w, padding = [1, 1, 1, 1])
        -->  %h = graph.halo_exchange(%x, axis = 2, ...); %y = graph.conv2d(%h, %w, padding = [0, 1, 1, 1])
    """
    if devices < 1 or not 0 <= rank < devices:
        raise InputError(f"expected a rank among 0..{devices - 1} of {devices} devices, got {rank}")
    directions = DIRECTIONS if axis == "auto" else (axis,)
    found = _best(module, directions, _speeds(speeds, devices), plan, gather == "late")
    return rank_module(module, found, rank, devices)


def _best(
    module: Module, directions: tuple[Direction, ...], speeds: tuple[float, ...], plan: str, late: bool
) -> Spread:
    """The decisions of the direction that takes least time."""
    layers = read_plan(module.main, plan)
    found = (spread(module.main, Request(speeds, d, layers, late)) for d in directions)
    return min(found, key=lambda s: s.total_s)


def _speeds(text: str, devices: int) -> tuple[float, ...]:
    """One speed per device, the fastest being 1; raises InputError."""
    if not text.strip():
        return (1.0,) * devices
    try:
        values = [float(t) for t in text.split(",")]
    except ValueError:
        raise InputError(f"option 'speeds' expects numbers as in 1,1,2, got '{text}'") from None
    if len(values) != devices:
        raise InputError(f"option 'speeds' expects {devices} numbers, one per device, got '{text}'")
    check_speeds(values)
    return tuple(v / max(values) for v in values)
