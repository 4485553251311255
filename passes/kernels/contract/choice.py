"""Chooses the parameters of contraction kernels on ordinary lanes by the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

import numpy as np

from tilewright.costmodel import ContractParameters, CpuHardware, Hardware, choose_contract, likely_contract
from tilewright.costmodel.kernels.bound import contract_bound, global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.costmodel.kernels.choose import ParameterChoice, legal_points
from tilewright.costmodel.kernels.geometry import vector_width
from tilewright.costmodel.kernels.problem import ContractProblem
from tilewright.costmodel.kernels.warp_reads import COLUMN_LANES, ROW_LANES, ROW_RUN, owned_together
from tilewright.ir import AttrRecord, Func, Op, Sizes
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.tensor.ops import dims, domain, reads
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.column_members import members_of
from tilewright.passes.kernels.decision import decided, parameters_of
from tilewright.passes.kernels.engine_points import EnginePoints, SearchedEngine
from tilewright.passes.kernels.kernel_problem import (
    ContractRoles,
    contract_problem,
    contract_roles,
    ops_named,
)
from tilewright.passes.kernels.matrix.choice import (
    likely_matrix,
    matrix_variant,
    on_tensor_cores_of,
    sums_columns,
)
from tilewright.passes.kernels.writing.staging import region

#: bytes of a work-item's private copy of its input window (fits a first-level cache beside the weights)
PRIVATE_TILE_BYTES = 16384


def contract_candidates(kernel: Func, hardware: Hardware, top: int) -> list[Func]:
    """A contraction kernel with its chosen parameters and with at most `top` others worth measuring.

    Half of them are of the tensor cores, where those can compute it.
    """
    (op,) = (o for o in kernel.body.ops if o.name == "tensor.contract")
    on = on_tensor_cores_of(kernel, op, hardware)
    cores = [] if on is None else likely_matrix(on[1], on[2], -(-top // 2))
    alone = sums_columns(kernel) or members_of(kernel, op) is not None  # which lanes cannot
    lanes = [] if alone else likely_contract(contract_problem(kernel, op), hardware, top - len(cores))
    found = [(c.estimate_s, contract_variant(kernel, op, c, hardware)) for c in lanes]
    found += [(c.estimate_s, matrix_variant(kernel, on[0], c, on[2])) for c in cores if on is not None]
    variants = [kernel]
    for _, variant in sorted(found, key=lambda f: f[0]):
        if all(parameters_of(v, AttrRecord) != parameters_of(variant, AttrRecord) for v in variants):
            variants.append(variant)
    return variants


def contract_variant(
    kernel: Func, op: Op, choice: ParameterChoice[ContractParameters], hardware: Hardware
) -> Func:
    """A contraction kernel with the parameters of one point of its space; `op` is its tensor.contract."""
    return decided(kernel, "contract", choice, parameters_for(op, choice.parameters, hardware))


def parameters_for(op: Op, p: ContractParameters, hardware: Hardware) -> ContractParameters:
    """A point of the model's space in the dimensions of a kernel; `op` is its tensor.contract."""
    roles = contract_roles(op)
    n, h, w = roles.spatial
    columns = roles.columns[-1] if roles.columns else ""
    k_b, extent = p.block["k"], dims(op, "par").get(columns, 1)
    least = max(extent, _vector(op, p, hardware))
    while k_b % 2 == 0 and k_b // 2 >= least:  # the model counts all columns as one dimension
        k_b //= 2
    k_t = gcd(p.thread["k"], k_b)
    block, thread = (
        dict.fromkeys(dims(op, "par"), 1) | {n: t["n"], h: t["h"], w: t["w"], columns: k}
        for t, k in ((p.block, k_b), (p.thread, k_t))
    )
    for names in (block, thread):
        names.pop("", None)
    step = _steps(op, roles.channels, p, thread)
    run, lanes = warp_shape(op, roles, block, thread) if p.staging == "shared" else ({}, {})
    return replace(
        p, block=Sizes(block), thread=Sizes(thread), step=Sizes(step), run=Sizes(run), lanes=Sizes(lanes)
    )


def _vector(op: Op, p: ContractParameters, hardware: Hardware) -> int:
    """Elements of one vector along the columns."""
    loaded = VECTOR_BYTES // itemsize(op.operands[0].tensor.dtype)
    widest = hardware.simd_lanes if isinstance(hardware, CpuHardware) else loaded
    return int(vector_width(np.array(p.thread["k"]), widest))


def _steps(
    op: Op, channels: tuple[str, ...], p: ContractParameters, thread: Mapping[str, int]
) -> dict[str, int]:
    """Chunk of each plainly reduced dimension: the model counts them as one, whose last ones are whole first.

    So a block goes through as many chunks as the model says, or a few more where extents do not divide.
    """
    sizes = domain(op)
    out = dict.fromkeys(channels, 1)
    if not channels:
        return out
    if p.staging != "shared":
        last = channels[-1]
        out[last] = _divisor(sizes[last], _private_step(op, last, dict.fromkeys(channels[:-1], 1), thread))
        return out
    left = p.step["c"]
    for name in reversed(channels):
        out[name] = _divisor(sizes[name], left)
        left //= out[name]
        if out[name] < sizes[name]:
            break
    return out


def _divisor(extent: int, most: int) -> int:
    """The largest divisor of an extent that is at most this, and 1 at least."""
    return max(s for s in range(1, max(1, min(most, extent)) + 1) if extent % s == 0)


def _private_step(op: Op, channel: str, step: Mapping[str, int], thread: Mapping[str, int]) -> int:
    """The longest chunk whose input window of one work-item fits its private tile."""
    one = region(op, 0, {**domain(op), **thread, **step, channel: 1})
    if one is None:
        return domain(op)[channel]
    return max(1, PRIVATE_TILE_BYTES // (one.size * itemsize(op.operands[0].tensor.dtype)))


def contract_points(
    problem: ContractProblem, hardware: Hardware, *, streamed_bytes: float = 0.0
) -> EnginePoints[ContractParameters]:
    """Every legal point of ordinary lanes; raises InputError where there is none.

    streamed_bytes: what of its operands comes from DRAM in every run of the timing loop.
    """
    s, cold, estimates = legal_points(problem, hardware)
    warm = contract_bound(problem, s, hardware, replace(MEASURED_LOOP, streamed_bytes=streamed_bytes))
    kinds = (s.n_t, s.k_t, s.h_t, s.w_t, s.threads, s.stages)
    likeliest = int(np.lexsort((cold.seconds, estimates))[0])
    return EnginePoints("lanes", problem, s, cold, warm.seconds, estimates, kinds, likeliest)


def lanes_engine(kernel: Func, op: Op, hardware: Hardware, streamed_bytes: float) -> SearchedEngine | None:
    """The points of ordinary lanes for a contraction, and what makes a kernel of one.

    None where the kernel sums columns of what it computes besides, and where results are computed from
    several sums, which lie in different threads.
    """
    if sums_columns(kernel) or members_of(kernel, op) is not None:
        return None
    points = contract_points(contract_problem(kernel, op), hardware, streamed_bytes=streamed_bytes)
    return points, lambda choice: contract_variant(kernel, op, choice, hardware)


def choose_lanes(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel around a contraction with the best parameters on ordinary lanes.

    None for other kernels, and where results are computed from several sums, which lie in different threads.
    """
    contracts = ops_named(kernel, "tensor.contract")
    if not contracts or sums_columns(kernel) or members_of(kernel, contracts[0]) is not None:
        return None
    return contract_variant(
        kernel, contracts[0], choose_contract(contract_problem(kernel, contracts[0]), hardware), hardware
    )


def least_lanes_s(kernel: Func, hardware: Hardware) -> float | None:
    """Seconds a kernel around a contraction takes at least on ordinary lanes; None for other kernels."""
    contracts = ops_named(kernel, "tensor.contract")
    if not contracts or members_of(kernel, contracts[-1]) is not None:
        return None
    return global_bound(contract_problem(kernel, contracts[-1]), hardware, MEASURED_LOOP).seconds


def warp_shape(
    op: Op, roles: ContractRoles, block: Mapping[str, int], thread: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    """`run` and `lanes` of a contraction staged in shared memory, as its template takes them.

    Rows that no window moves are read four at a time, so a thread owns runs of four of them. Then a warp
    that is 8 rows by 4 columns wide reads both operands without bank conflicts, each word once. Rows that a
    window moves a thread owns side by side, so that its taps share what they read; along a row of the image
    that is so for odd numbers of them, which threads side by side read without bank conflicts.
    """
    _, h, row = roles.spatial
    windowed = {d for d, _ in roles.windows}
    run = {d: thread[d] for d in (h, row) if d in windowed and owned_together(thread[d], along_row=d == row)}
    if not row or row in windowed or thread[row] % ROW_RUN or not _plain(op, row, block):
        return run, {}
    run[row] = ROW_RUN
    column = roles.columns[-1] if roles.columns else ""
    if not column:
        return run, {}
    lanes, left = {column: COLUMN_LANES}, ROW_LANES
    for d in (row, roles.spatial[0]):  # samples lie beside each other in the block's tile
        if d and d not in windowed:
            lanes[d] = gcd(block[d] // thread[d], left)
            left //= lanes[d]
    if left > 1 or block[column] // thread[column] % COLUMN_LANES:
        return run, {}
    return run, lanes


def _plain(op: Op, row: str, block: Mapping[str, int]) -> bool:
    """Return whether a row is the last parallel index of the first operand that varies within a block."""
    inside = [d for e in reads(op)[0] for d in symbols(e) if block.get(d, 1) > 1]
    return inside[-1:] == [row]
