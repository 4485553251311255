"""Chooses the tiles and the warps of an attention kernel by the cost model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod

import numpy as np

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import Bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir import Func, Op
from tilewright.ir.hardware_facts import MMA_M, MMA_N
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.attention import INNER, KEY
from tilewright.passes.analysis.terms import Read, leaves, names_in
from tilewright.passes.kernels.attention.blocks import products_per_clk, residents
from tilewright.passes.kernels.attention.parameters import (
    KEY_STEP,
    AttentionParameters,
    padded,
    width_tiles,
)
from tilewright.passes.kernels.attention.role_work import RoleWork, bound_roles, estimate_roles, role_works
from tilewright.passes.kernels.attention.scores import reads_of_scores
from tilewright.passes.kernels.attention.stage import TileLayout
from tilewright.passes.kernels.attention.term_writer import term_work
from tilewright.passes.kernels.attention.view import AttentionView, attention_view, reach
from tilewright.passes.kernels.attention.work import (
    AttentionWork,
    bound_attention,
    estimate_attention,
)
from tilewright.passes.kernels.decision import decided, parameters_of
from tilewright.passes.kernels.kernel_problem import traffic
from tilewright.passes.kernels.matrix.view import on_tensor_cores

ROWS = (16, 32, 64, 128, 256)
#: short tiles of keys rescale often what was summed before: 16 only where there are no more
KEYS = (16, 32, 64, 128)
WARPS = (1, 2, 4, 8)
STAGES = (1, 2, 3, 4)
#: sets of warps that share the keys of a tile: shorter chains of dependences where blocks are few
SETS = (1, 2, 4)
MOST_WARPS = 16
#: tiles of 16 queries that one warp may have: more would not fit registers
MOST_ROW_TILES = 2
#: points worth a measurement
MEASURED = 24


@dataclass(frozen=True)
class AttentionPoint:
    """A plan that fits the device, and its estimated seconds."""

    plan: AttentionParameters
    work: AttentionWork | RoleWork
    estimate_s: float

    def bound(self, hardware: GpuHardware) -> Bound:
        """The lower bound on its seconds."""
        if isinstance(self.work, RoleWork):
            return bound_roles(self.work, hardware)
        return bound_attention(self.work, hardware)


def attention_points(kernel: Func, hardware: Hardware) -> list[AttentionPoint]:
    """All plans of a kernel that fit the device, those of the smallest estimate first; none where it has no
    tensor cores for such factors, or the kernel is no attention.
    """
    view = attention_view(kernel)
    if view is None or not isinstance(hardware, GpuHardware) or not products_per_clk(view.dtype, hardware):
        return []
    least = traffic(kernel)
    points = fragment_points(view, least, hardware)
    for plan, work in role_works(view, least, _moved(view), hardware):
        points.append(AttentionPoint(plan, work, estimate_roles(work, hardware)))
    return sorted(
        (p for p in points if p.estimate_s < inf),
        key=lambda p: (p.estimate_s, p.plan.resident, p.plan.teams, p.plan.blocks),
    )


def fragment_points(view: AttentionView, least: int, hardware: GpuHardware) -> list[AttentionPoint]:
    """The plans on `mma.sync`; least: bytes of parameters and results, once."""
    furthest = reach(view)
    points = []
    for plan in _plans(view):
        work = attention_work(view, plan, least, furthest)
        for resident in residents(work, hardware):
            limited = replace(work, resident=resident)
            seconds = estimate_attention(limited, hardware)
            points.append(AttentionPoint(replace(plan, resident=resident), limited, seconds))
    return points


def choose_attention(kernel: Func, hardware: Hardware) -> Func | None:
    """The kernel as attention with the parameters of the smallest estimate; None where it is none."""
    points = attention_points(kernel, hardware)
    if not points or not isinstance(hardware, GpuHardware):
        return None
    return attention_variant(kernel, points[0], hardware, len(points))


def attention_variants(kernel: Func, hardware: Hardware) -> list[Func]:
    """An attention kernel, and those with other parameters of the smallest estimates, to be measured."""
    if not isinstance(hardware, GpuHardware):
        return []
    points = attention_points(kernel, hardware)
    made = [attention_variant(kernel, p, hardware, len(points)) for p in points[:MEASURED]]
    own = parameters_of(kernel, AttentionParameters)
    return [kernel, *(f for f in made if parameters_of(f, AttentionParameters) != own)]


def attention_variant(kernel: Func, point: AttentionPoint, hardware: GpuHardware, considered: int) -> Func:
    """The kernel with these parameters, and what the cost model says of them."""
    choice = ParameterChoice(point.plan, point.bound(hardware), point.estimate_s, considered)
    return decided(kernel, "attention", choice)


def may_become_attention(kernel: Func) -> bool:
    """True where the kernel could be the end of attention: softmax of a parameter, and a product with it."""
    names = [op.name.removeprefix("tensor.") for op in kernel.body.ops[:-1] if op.name != "tensor.map"]
    if sorted(names) != ["contract", "reduce", "reduce"] or names[-1] != "contract":
        return False
    factors: tuple[Op, ...] = tuple(op for op in kernel.body.ops if op.name == "tensor.contract")
    return on_tensor_cores(factors[0])


def attention_work(
    view: AttentionView, plan: AttentionParameters, least_bytes: int, furthest: int | None
) -> AttentionWork:
    """The work of a block with these parameters; furthest: the `reach` of the view."""
    layouts = _layouts(view, plan)
    slots = plan.slots(view)
    size = itemsize(view.dtype)
    tiles = [size * prod(x.shape) for x in layouts]
    result = plan.sets * plan.rows * (width_tiles(view) * MMA_N + 8) * 4
    state = plan.sets * plan.rows * 8 if plan.sets > 1 else 0
    ahead, shares = reads_of_scores(view, plan, (*view.score_reads, *view.kept_reads))
    copied = tuple(x.lanes * size for x in layouts)
    return AttentionWork(
        heads=view.size(view.batch),
        queries=view.size(view.rows),
        keys=view.keys,
        inner=view.inner,
        width=view.size(view.width),
        dtype=view.dtype,
        rows=plan.rows,
        tile=plan.keys,
        warps=plan.warps,
        sets=plan.sets,
        shared_bytes=max(tiles[0] + slots * (tiles[1] + tiles[2]), result) + state,
        least_bytes=least_bytes,
        moved_bytes=_moved(view),
        map_work=float(term_work(view.score) + term_work(view.dropped)),
        map_reads=shares,
        ahead_bytes=ahead,
        seen=_seen(view, plan, furthest),
        copied=(copied[0], copied[1], copied[2]),
    )


def _seen(view: AttentionView, plan: AttentionParameters, furthest: int | None) -> float:
    """Return the share of all tiles of keys of all warps that some query sees."""
    tiles = plan.tiles(view)
    if furthest is None or tiles == 1:
        return 1.0
    last = np.arange(plan.rows // plan.warps - 1, view.size(view.rows) + plan.rows, plan.rows // plan.warps)
    last = last[: -(-view.size(view.rows) // plan.rows) * plan.warps]
    return float(np.minimum((last + furthest) // plan.keys + 1, tiles).mean() / tiles)


def _layouts(view: AttentionView, plan: AttentionParameters) -> tuple[TileLayout, TileLayout, TileLayout]:
    return (
        TileLayout(view, view.q, view.rows, (INNER,), plan.rows),
        TileLayout(view, view.k, (KEY,), (INNER,), plan.keys),
        TileLayout(view, view.v, (KEY,), view.width, plan.keys),
    )


def _plans(view: AttentionView) -> Iterator[AttentionParameters]:
    """Every sensible combination of tiles, warps and stages."""
    queries, keys = padded(view.size(view.rows), MMA_M), padded(view.keys, KEYS[0])
    for rows, tile, warps, sets in product(ROWS, KEYS, WARPS, SETS):
        if rows % (MMA_M * warps) or rows // warps // MMA_M > MOST_ROW_TILES:
            continue
        if tile % (KEY_STEP * sets) or warps * sets > MOST_WARPS:
            continue
        if rows >= 2 * queries or tile > keys or (tile == KEYS[0] and keys > tile):
            continue
        tiles = -(-view.keys // tile)
        for stages in STAGES:
            if stages <= tiles and (stages > 1 or tiles == 1):
                yield AttentionParameters(rows, tile, warps, stages, sets=sets)


def _moved(view: AttentionView) -> int:
    """Bytes of all elements that are read and written, each once."""
    total = sum(o.value.tensor.nbytes for o in (*view.outputs, *view.lse))
    for term in (view.q, view.k, view.v, view.score, view.dropped, *(o.term for o in view.outputs)):
        for read in dict.fromkeys(x for x in leaves(term) if isinstance(x, Read)):
            elements = prod(view.sizes[d] for d in names_in(read))
            total += min(elements * itemsize(read.value.tensor.dtype), read.value.tensor.nbytes)
    return total
