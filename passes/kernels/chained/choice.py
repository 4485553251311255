"""Parameters of chained products by the cost model, and why a kernel cannot be one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import gcd

import numpy as np

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import LAUNCH, PEAK, Bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.geometry import ceil_div
from tilewright.costmodel.kernels.windows import FloatArray
from tilewright.ir import Func, InputError, TensorType
from tilewright.ir.hardware_facts import MOST_REGISTERS, REGISTER_UNIT, REGISTERS_PER_SM
from tilewright.ir.thread.warpgroup_ops import GROUP_M, MOST_N
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.chained.parameters import CHUNK, STEP, ChainedParameters
from tilewright.passes.kernels.chained.view import ChainedView, chained_view
from tilewright.passes.kernels.decision import decided, parameters_of
from tilewright.passes.kernels.kernel_problem import traffic
from tilewright.passes.kernels.matrix.bound import tensor_flops_per_s
from tilewright.passes.kernels.matrix.boxes import comes_in_boxes
from tilewright.passes.kernels.matrix.estimator import (
    epilogue_clk,
    exposed_of_roles,
    launched_s,
    role_chunk_clk,
)
from tilewright.passes.kernels.matrix.parameters import MAX_STAGES
from tilewright.passes.kernels.matrix.problem import (
    large_bytes,
    matrix_problem,
    packs_boxes,
    result_work,
    tiling_of,
)
from tilewright.passes.kernels.matrix.roles import role_registers
from tilewright.passes.kernels.matrix.space import (
    BESIDE_RING_BYTES,
    OTHER_REGISTERS,
    MatrixProblem,
    matrix_space_of,
)
from tilewright.passes.kernels.writing.engine_results import (
    PIECES,
    ROW_BYTES,
    map_of_tiles,
    result_maps,
)

#: registers of a thread beside the sums of both products and the factor that is handed on
_BESIDE_SUMS = 40
#: rows of a block, slots of chunks of the first product, blocks of a multiprocessor
_ROWS = (64, 128, 192)
_STAGES = (2, 3, 4, 5)
_RESIDENT = (1, 2, 3)
#: slots of tiles of residuals and the like
_READ_STAGES = (0, 1, 2, 3)
#: columns of tiles, beside those that hold all columns of a product
_COLUMNS = (64, 96, 128, 192, 256)
#: columns of a tile where a product has several whose sums the second one keeps: ptxas spills registers of
#: wider ones, whose results read residuals
_SEVERAL = (64, 128)
#: kernels that a search measures
MEASURED = 24


@dataclass(frozen=True)
class ChainedProblem:
    """Both products as the cost model of matrix products sees them, and the kernel's bytes and operations.

    The second product has its first factor in registers. further: per product the tensors of its extents that
    the copy engine can bring for its results, and the bytes that these read of others, beyond a few values
    per row or column.
    """

    first: MatrixProblem
    second: MatrixProblem
    moved_bytes: int
    further: tuple[tuple[int, int], tuple[int, int]]


@dataclass(frozen=True)
class ChainedPoint:
    """Parameters with their estimate."""

    parameters: ChainedParameters
    estimate_s: float


def chained_problem(kernel: Func, view: ChainedView) -> ChainedProblem:
    """The problem of a kernel; constant weights count as packed."""
    problems, further = [], []
    for i, (product_view, maps) in enumerate(zip(view.products, view.maps, strict=True)):
        work, _, paired = result_work(maps)
        problems.append(
            replace(
                matrix_problem(kernel, product_view),
                tail_work=work,
                tail_shared=paired,  # both are computed where sums lie in fragments
                tail_bytes=large_bytes(kernel, maps),
                # Both hand on or write what warps lay down, among other work than `laid_instructions` has:
                # 12 chains timed on an H200 took 0.8 to 1.2 times an estimate with sums in rows.
                laid=None,
            )
        )
        brought = view.further(i)
        further.append((len(brought), large_bytes(kernel, maps) - sum(v.tensor.nbytes for v in brought)))
    second = replace(problems[1], handed=True, fetched=0.0)
    return ChainedProblem(problems[0], second, traffic(kernel), (further[0], further[1]))


def choose_chained(kernel: Func, hardware: Hardware) -> Func | str:
    """The kernel with the best parameters, or one clause that says why it cannot be chained products."""
    view = chained_view(kernel)
    if isinstance(view, str):
        return view
    if not isinstance(hardware, GpuHardware) or not hardware.wgmma_share:
        return "the device has no warpgroups that multiply"
    points = chained_points(kernel, view, hardware)
    if isinstance(points, str):
        return points
    return _decided(kernel, view, points[0], hardware, len(points))


def chained_variants(kernel: Func, hardware: Hardware) -> list[Func]:
    """Chained products, and those with other parameters of the smallest estimates, to be measured."""
    view = chained_view(kernel)
    if isinstance(view, str) or not isinstance(hardware, GpuHardware):
        return []
    points = chained_points(kernel, view, hardware)
    if isinstance(points, str):
        return []
    made = [_decided(kernel, view, p, hardware, len(points)) for p in points[:MEASURED]]
    own = parameters_of(kernel, ChainedParameters)
    return [kernel, *(f for f in made if parameters_of(f, ChainedParameters) != own)]


def chained_points(kernel: Func, view: ChainedView, hardware: GpuHardware) -> list[ChainedPoint] | str:
    """All legal parameters, the smallest estimate first, or one clause that says why there are none."""
    size = itemsize(view.first.dtype)
    if not comes_in_boxes(view.first, 0) or not all(
        packs_boxes(kernel, v, size) or comes_in_boxes(v, 1) for v in view.products
    ):
        return "the copy engine cannot bring a factor"
    plans = list(filter(_Fit(view, hardware).fits, _plans(view)))
    if not plans:
        return "no tiles fit registers and shared memory, or the copy engine cannot write the results"
    seconds = chained_s(chained_problem(kernel, view), plans, hardware)
    order = np.argsort(seconds, kind="stable")
    return [ChainedPoint(plans[i], float(seconds[i])) for i in order]


def _plans(view: ChainedView) -> Iterator[ChainedParameters]:
    """Every sensible division, the grid left open."""
    read = _READ_STAGES if view.further(0) or view.further(1) else (0,)
    for columns, width in product(_tiles(view.columns), _tiles(view.width)):
        if columns < view.columns and (width < view.width or columns not in _SEVERAL):
            continue
        chunks = -(-columns // CHUNK)
        slots = sorted({n for n in (chunks, chunks + 1, 2 * chunks, 3 * chunks) if n <= MAX_STAGES})
        for rows, *others in product(_ROWS, _STAGES, slots, _RESIDENT, read):
            stages, second_stages, resident, reads_ahead = others
            if rows < 2 * max(view.rows, GROUP_M // 2 + 1):
                yield ChainedParameters(
                    rows, columns, width, stages, second_stages, resident=resident, read_stages=reads_ahead
                )


def _tiles(extent: int) -> list[int]:
    """Columns that a tile may have: all of them, as they are or as whole pieces of results, or fewer."""
    whole = {-(-extent // unit) * unit for unit in (STEP, 2 * STEP, CHUNK)}
    return sorted({n for n in (*whole, *_COLUMNS) if n <= MOST_N and n <= max(whole)})


class _Fit:
    """What of the parameters fits a device; bytes of tiles are counted once for all rings."""

    def __init__(self, view: ChainedView, hardware: GpuHardware) -> None:
        self.view, self.hardware = view, hardware
        self._bytes: dict[tuple[int, int, int], tuple[int | None, int | None]] = {}

    def fits(self, plan: ChainedParameters) -> bool:
        """Return whether a block can be built, and as many as planned be resident."""
        size = itemsize(self.view.first.dtype)
        ring = plan.stages * (plan.rows + plan.columns) + plan.second_stages * plan.width
        room = self.hardware.smem_per_block_max_bytes // plan.resident - BESIDE_RING_BYTES
        if ring * CHUNK * size > room or not self._has_registers(plan):
            return False
        try:
            plan.check(self.view)
        except InputError:
            return False
        pieces, read = self._tile_bytes(plan)
        if pieces is None or (read is None and plan.read_stages):
            return False
        return ring * CHUNK * size + pieces + plan.read_stages * (read or 0) <= room

    def _has_registers(self, plan: ChainedParameters) -> bool:
        threads = plan.threads
        if threads > self.hardware.max_threads_per_block:
            return False
        share = REGISTERS_PER_SM // plan.resident // threads // REGISTER_UNIT * REGISTER_UNIT
        at_launch = min(share, MOST_REGISTERS)
        own = role_registers(plan.first(""), by_engine=True)[1] or at_launch
        sums, second_sums, handed = plan.columns // 2, plan.width // 2, plan.columns // 4
        beside_one = max(sums, second_sums) + OTHER_REGISTERS
        return beside_one <= at_launch and sums + second_sums + handed + _BESIDE_SUMS <= own

    def _tile_bytes(self, plan: ChainedParameters) -> tuple[int | None, int | None]:
        """Bytes of pieces of results, and of one slot of further tensors."""
        tile = plan.rows, plan.columns, plan.width
        if tile not in self._bytes:
            self._bytes[tile] = _piece_bytes(plan, self.view), _read_bytes(plan, self.view)
        return self._bytes[tile]


def _read_bytes(plan: ChainedParameters, view: ChainedView) -> int | None:
    """Bytes of a slot of tiles of further tensors; None where the copy engine cannot bring them."""
    total = 0
    for i, (taken, p) in enumerate(zip(view.products, (plan.first(""), plan.second("")), strict=True)):
        tiling = tiling_of(taken, p)
        for v in view.further(i):
            size = itemsize(v.tensor.dtype)
            box = (plan.rows, gcd(ROW_BYTES // size, p.block.n))
            if map_of_tiles(v.tensor, tiling, 0, box) is None:
                return None
            total += plan.rows * p.block.n * size
    return total


def _piece_bytes(plan: ChainedParameters, view: ChainedView) -> int | None:
    """Bytes in which results are laid down; None where the copy engine cannot write them."""
    buffers: dict[tuple[int, int], int] = {}
    for taken, p, results in zip(view.products, (plan.first(""), plan.second("")), view.results, strict=True):
        if not results:
            continue
        types: list[TensorType] = [v.tensor for v in results]
        tiling = tiling_of(taken, p)
        written = result_maps(dict(enumerate(types)), tiling)
        if written is None:
            return None
        kind = (written[0], itemsize(types[0].dtype))
        buffers[kind] = max(buffers.get(kind, 0), len(results))
    rows = plan.rows * PIECES
    return sum(count * rows * columns * size for (columns, size), count in buffers.items())


def chained_s(
    problem: ChainedProblem, plans: Sequence[ChainedParameters], hardware: GpuHardware
) -> FloatArray:
    """Estimated seconds of each division, with the coefficients of products by roles.

    A block's warpgroups do one thing after another: chunks of the first product, its results, chunks of the
    second, and at the end the results of that. Several blocks of a multiprocessor share tensor cores, copies
    and the port of shared memory, and hide one another's results as several blocks of one product do. Tiles
    of further tensors that the copy engine brings take the way around their slots. Memory brings everything
    once and takes all results.
    """
    fit = hardware.matrix
    firsts = matrix_space_of(*(p.first("") for p in plans))
    seconds = matrix_space_of(*(p.second("") for p in plans))
    once = np.ones(len(plans), dtype=np.int64)
    tiles = ceil_div(problem.first.m, firsts.m)
    column_tiles, width_tiles = ceil_div(problem.first.n, firsts.n), ceil_div(problem.second.n, seconds.n)
    depth = problem.first.taps * -(-problem.first.channel // CHUNK)
    items = (column_tiles * depth, column_tiles * width_tiles * ceil_div(firsts.n, CHUNK))
    loop = shared_loop = results = np.zeros(len(plans))
    parts = ((problem.first, firsts, column_tiles), (problem.second, seconds, width_tiles))
    ahead = np.array([p.read_stages for p in plans], dtype=np.int64)
    brought = np.zeros(len(plans))
    memory = fit.memory_clk if problem.moved_bytes > hardware.l2_bytes else 0.0
    for count, (one, space, finished), (tensors, left) in zip(items, parts, problem.further, strict=True):
        shared, alone = role_chunk_clk(one, space, hardware)
        loop, shared_loop = loop + count * alone, shared_loop + count * shared
        finish = epilogue_clk(one, space, hardware, once)
        if tensors:
            without = epilogue_clk(replace(one, tail_bytes=left), space, hardware, once)
            finish = np.where(ahead > 0, without, finish)
        finish = finish + fit.role_turn_clk
        tile = tensors * space.m * space.n * one.element_bytes
        copy = tile / fit.role_bytes_per_sm_per_clk
        around = (fit.fetch_clk + memory + fit.role_queue_share * copy + finish) / ahead.clip(1)
        wait = np.maximum(0.0, around - count * alone / finished - finish) + fit.exposed_share * copy
        results = results + finished * (finish + np.where((ahead > 0) & (tensors > 0), wait, 0.0))
        brought = brought + np.where(ahead > 0, tensors * one.m * one.n * one.element_bytes, 0)
    resident = firsts.resident
    turns = ceil_div(tiles, np.minimum(hardware.sm_count * resident, tiles))
    per_sm = np.maximum(turns * np.minimum(resident, ceil_div(tiles, hardware.sm_count)), 1)
    beside = np.maximum(per_sm * (shared_loop + fit.role_beside_share * results), turns * (loop + results))
    busy = fit.fetch_clk + fit.block_clk + np.where(resident > 1, beside + results, turns * (loop + results))
    whole = replace(problem.first, result_bytes=_beside_factors(problem))
    waits = 1.0 - brought / max(1, whole.result_bytes)  # the share of what threads read or write themselves
    exposed = fit.exposed_share + exposed_of_roles(whole, hardware) * waits
    return launched_s(whole, busy / hardware.clock_hz, exposed, hardware)


def _beside_factors(problem: ChainedProblem) -> int:
    """Bytes that the kernel moves beside the factors of its first product."""
    return problem.moved_bytes - problem.first.first_bytes - problem.first.second_bytes


def _decided(
    kernel: Func, view: ChainedView, point: ChainedPoint, hardware: GpuHardware, considered: int
) -> Func:
    """The kernel with these parameters, and what the cost model says of them."""
    plan = point.parameters
    blocks = hardware.sm_count * plan.resident
    plan = replace(plan, blocks=blocks) if plan.row_tiles(view) > blocks else plan
    choice = ParameterChoice(plan, _bound(kernel, view, hardware), point.estimate_s, considered)
    return decided(kernel, "chained", choice)


def _bound(kernel: Func, view: ChainedView, hardware: GpuHardware) -> Bound:
    """The sound lower bound: all bytes once, products at the dense peak, the launch."""
    moved, peak = traffic(kernel), tensor_flops_per_s(matrix_problem(kernel, view.first), hardware)
    bytes_s = 1.0 / hardware.dram_bytes_per_s
    terms = {
        "GM": moved * bytes_s,
        "L2": moved / hardware.l2_bytes_per_s,
        PEAK: view.flops / (peak * hardware.wgmma_share),
        LAUNCH: hardware.launch_floor_s,
    }
    warm = terms | {"GM": max(0.0, moved - hardware.l2_bytes) * bytes_s}
    limit = max(terms, key=terms.__getitem__)
    seconds = terms[limit]
    return Bound(min(1.0, view.flops / (seconds * peak)), seconds, limit, max(warm.values()))
