"""Chooses tiles, parts and warps of a chain on tensor cores by the cost model, or says why it is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir import Func, Sizes, UnsupportedError
from tilewright.ir.hardware_facts import MMA_M
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.chain.stages import stages_of
from tilewright.passes.kernels.chain_tiles.parameters import ChainTilesParameters
from tilewright.passes.kernels.chain_tiles.view import MMA_K, TilesChain, tiles_chain, unfit, walked_dim
from tilewright.passes.kernels.chain_tiles.work import (
    ChainTilesWork,
    bound_chain_tiles,
    chain_tiles_work,
    estimate_chain_tiles,
    resident_blocks,
)
from tilewright.passes.kernels.decision import decided, parameters_of

#: tiles tried along a dimension of the results, beside the whole of it
_TILES = (1, 2, 4, 7, 8, 14, 16, 28, 32, 56, 64, 128)
#: pixels of a block's tile: fewer leave rows of fragments empty, more do not fit with their halos
_FEWEST_PIXELS, _MOST_PIXELS = 16, 512
#: tiles that are looked at, those whose blocks fill the device best with the least halo
_MOST_TILES = 6
#: indices by which a usual window reaches over a tile, and the share of a chain's work ahead of it
_HALO, _RIM_SHARE = 2, 0.35
#: channels of a step at most, and how many numbers of them are looked at, the largest ones
_MOST_PART, _PARTS = 144, 4
#: columns of a block where blocks divide them
_WIDTHS = (16, 32, 48, 64, 96, 128)
_WARPS = (4, 8, 16)
#: kernels that a search measures
MEASURED = 24


@dataclass(frozen=True)
class ChainTilesPoint:
    """Parameters with their work and estimate."""

    parameters: ChainTilesParameters
    work: ChainTilesWork
    estimate_s: float


def choose_chain_tiles(kernel: Func, hardware: Hardware) -> Func | str:
    """The kernel as a chain with the smallest estimate, or one clause that says why it cannot be one."""
    points = chain_tiles_points(kernel, hardware)
    if isinstance(points, str):
        return points
    assert isinstance(hardware, GpuHardware)
    return _decided(kernel, points[0], hardware, len(points))


def chain_tiles_variants(kernel: Func, hardware: Hardware) -> list[Func]:
    """The kernel, and those with other parameters of the smallest estimates, to be measured."""
    points = chain_tiles_points(kernel, hardware)
    if isinstance(points, str) or not isinstance(hardware, GpuHardware):
        return []
    made = [_decided(kernel, p, hardware, len(points)) for p in points[:MEASURED]]
    own = parameters_of(kernel, ChainTilesParameters)
    return [kernel, *(f for f in made if parameters_of(f, ChainTilesParameters) != own)]


def chain_tiles_points(kernel: Func, hardware: Hardware) -> list[ChainTilesPoint] | str:
    """All legal parameters, the smallest estimate first, or one clause that says why there are none."""
    if not isinstance(hardware, GpuHardware) or not hardware.tensor_fma_16bit_per_sm_per_clk:
        return "the device has no tensor cores"
    reason = unfit(kernel)
    if reason:
        return reason
    found: list[ChainTilesPoint] = []
    reason = "no tile of its results has rows enough for tensor cores"
    for block, part in _divisions(kernel, hardware):
        try:
            tiles = tiles_chain(kernel, block, part)
        except UnsupportedError as e:
            reason = str(e).removeprefix("error: ")
            continue
        point = _best(tiles, block, part, hardware)
        if point is not None:
            found.append(point)
        else:
            reason = "no tiles fit registers and shared memory"
    found.sort(key=lambda p: p.estimate_s)
    return found or reason


def _best(
    tiles: TilesChain, block: Mapping[str, int], part: int, hardware: GpuHardware
) -> ChainTilesPoint | None:
    """The number of warps with the smallest estimate."""
    points = []
    for warps in _WARPS:
        plan = ChainTilesParameters(Sizes(block), part, warps)
        work = chain_tiles_work(tiles, plan, hardware)
        resident = min(resident_blocks(work, hardware), -(-work.blocks // hardware.sm_count))
        if resident:
            plan = replace(plan, resident=resident)
            points.append(ChainTilesPoint(plan, work, estimate_chain_tiles(work, hardware)))
    return min(points, key=lambda p: p.estimate_s, default=None)


def _divisions(kernel: Func, hardware: GpuHardware) -> Iterator[tuple[dict[str, int], int]]:
    """Tiles of the final result with the channels of a step."""
    last = stages_of(kernel)[-1].anchor
    walked = walked_dim(kernel)
    extent = dims(last, "red").get(walked, 0)
    parts = [p for p in range(MMA_K, min(extent, _MOST_PART + 1), MMA_K) if extent % p == 0][-_PARTS:]
    parts += [0] if not parts or extent <= _MOST_PART else []
    for block in _blocks(dims(last, "par"), hardware, cut=not walked):
        for part in parts:
            yield block, part


def _blocks(par: Mapping[str, int], hardware: GpuHardware, *, cut: bool) -> Iterator[dict[str, int]]:
    """Tiles of the final result. cut: its columns are cut, for blocks share nothing between them."""
    *pixels, columns = par
    widths = [n for n in (*_WIDTHS, par[columns]) if par[columns] % n == 0 and n <= par[columns]]
    options = [
        sorted({t for t in _TILES if t < n and (n % t == 0 or n > 4 * t)} | {n})
        for n in (par[d] for d in pixels)
    ]
    found: list[tuple[float, int, dict[str, int]]] = []
    least = min(_FEWEST_PIXELS, prod(par[d] for d in pixels))
    for tile in product(*options):
        size = prod(tile)
        if not least <= size <= _MOST_PIXELS:
            continue
        for width in widths if cut else widths[-1:]:
            block = dict(zip((*pixels, columns), (*tile, width), strict=True))
            blocks = prod(-(-par[d] // t) for d, t in block.items())
            covered = blocks * prod(block.values()) / prod(par.values())
            rim = prod((t + _HALO) / t for t, d in zip(tile, pixels, strict=True) if t < par[d])
            waves = -(-blocks // hardware.sm_count) * hardware.sm_count / blocks
            rows = -(-size // MMA_M) * MMA_M / size
            work = covered * waves * rows * (1.0 - _RIM_SHARE + _RIM_SHARE * rim)
            found.append((work, len(found), block))
    found.sort(key=lambda f: f[:2])
    for _, _, block in found[:_MOST_TILES]:
        yield block


def _decided(kernel: Func, point: ChainTilesPoint, hardware: GpuHardware, considered: int) -> Func:
    """The kernel with these parameters, and what the cost model says of them."""
    bound = bound_chain_tiles(point.work, hardware)
    return decided(
        kernel, "chain_tiles", ParameterChoice(point.parameters, bound, point.estimate_s, considered)
    )
