"""Pass split-space: one inference split over several devices; the module of one of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Level, Module
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.distribute.rows.rank_module import rank_module
from tilewright.passes.graph.distribute.sharding.options import check_rank
from tilewright.passes.graph.distribute.space.grid import grid_modules
from tilewright.passes.graph.distribute.space.options import SpaceOptions, decide, device_wave, grid_request
from tilewright.passes.graph.distribute.state import refuse_state


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def split_space(
    module: Module,
    ctx: PassContext,
    *,
    devices: int = 2,
    rank: int = 0,
    axis: Literal["h", "w", "batch", "channels", "sequence", "grid", "auto"] = "h",
    speeds: str = "",
    plan: str = "",
    method: Literal["naive", "exact", "directions", "layers", "pruned"] = "naive",
    threshold: float = 5.0,
    gather: Literal["auto", "late"] = "auto",
    tflops: float = 20.0,
    link_gbs: float = 100.0,
    latency_us: float = 2.0,
    overlap: Literal["auto", "always", "never"] = "auto",
    kernel_us: float = 2.0,
    wave: float = 0.0,
    memory: str = "",
    grid: str = "",
) -> Module:
    """Divide one inference: rank `rank` of `devices` makes its part of every layer of whole inputs.

    axis: what is split; auto takes the axis whose modelled time is least; grid splits images in rows and
      columns, `grid=2x2` of devices or those that are best for the largest layer.
    speeds: of the devices relative to each other, `1,1,2`; shares are proportional. Default: equal.
    plan: what single layers do instead: `3:h=0-57,57-112; 5:whole`, rows of every rank by layer number.
    method, threshold: how the rows of layers are chosen. naive: in proportion to the speeds. exact: by
      modelled seconds, computing halos twice where that is faster than fetching them. directions: every layer
      of images in a direction of its own, where that is faster than one for all. layers, pruned: by the
      objective of BBGraP, up to `threshold` percent from naive (pruned: by the search of its thesis).
    gather: auto goes on whole on every device where that is cheaper (behind the last large layers); late
      splits as long as it can.
    tflops, link_gbs, latency_us: what auto weighs: 1e12 operations per second of the fastest device (which
      reads a byte in the time of ten), 1e9 bytes per second and microseconds per message of a link.
    overlap: rows of convolutions and poolings that need no other rank's rows are computed while those come.
      auto: where that hides more time than the additional kernels take: `kernel_us` between two, and each
      as long as for `wave` elements, which a device makes at once (0: those of the GPU that is compiled for,
      where it is known, else those of a data-centre GPU).
    memory: bytes of the devices, one number for all or one for each, which weights and values have to fit
      into; rows are moved to devices that have more where that is needed.

    rewrite: %y = graph.conv2d(%x, %w, padding = [1, 1, 1, 1])
        -->  %h = graph.halo_exchange(%x, axis = 2, ...); %y = graph.conv2d(%h, %w, padding = [0, 1, 1, 1])
    """
    check_rank(devices, rank)
    refuse_state(module, "split-space")
    rates = {"tflops": tflops, "link_gbs": link_gbs, "latency_us": latency_us, "kernel_us": kernel_us}
    options = SpaceOptions(
        axis,
        speeds,
        plan,
        method,
        threshold,
        gather,
        overlap=overlap,
        wave=wave or device_wave(ctx.hardware),
        memory=memory,
        grid=grid,
        **rates,
    )
    return _modules(module, devices, options, [rank])[0]


def split_modules(module: Module, devices: int, options: SpaceOptions | None = None) -> list[Module]:
    """The modules of all ranks, as `split_space` makes each of them; what they share is decided once.

    `module` is at the graph level with known shapes. Raises InputError as the pass does.
    """
    if devices < 1:
        raise InputError(f"expected at least 1 device, got {devices}")
    return _modules(module, devices, options or SpaceOptions(), range(devices))


def _modules(module: Module, devices: int, options: SpaceOptions, ranks: Sequence[int]) -> list[Module]:
    if options.axis == "grid":
        return grid_modules(module, grid_request(devices, options), options.grid, ranks)
    shared = decide(module, devices, options)
    return [rank_module(module, shared, rank, range(devices)) for rank in ranks]
