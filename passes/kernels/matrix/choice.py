"""Chooses parameters of tensor-core kernels by model: the best estimate, or the likeliest to measure."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TypeGuard

import numpy as np

from tilewright.costmodel import choose_contract
from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.kernels.bound import BoundArrays
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.estimator import least_contract_estimate_s
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir import Func, InputError, Op
from tilewright.passes.kernels.decision import chosen_for, decided, with_decision
from tilewright.passes.kernels.engine_points import EnginePoints, SearchedEngine
from tilewright.passes.kernels.kernel_problem import contract_problem, ops_named
from tilewright.passes.kernels.matrix.bound import least_matrix_s, matrix_bound, tensor_fma
from tilewright.passes.kernels.matrix.estimator import estimate_matrix
from tilewright.passes.kernels.matrix.parameters import (
    LONGEST_RING,
    MatrixParameters,
    Warps,
    chunks_of_part,
    matrix_parameters,
)
from tilewright.passes.kernels.matrix.problem import matrix_problem, parameters_for
from tilewright.passes.kernels.matrix.space import (
    MatrixProblem,
    MatrixSpace,
    in_whole_waves,
    matrix_space,
    matrix_space_of,
    rounds_first,
    splits_on_the_way,
    takes_roles,
    turns_second,
)
from tilewright.passes.kernels.matrix.stage import chunk_count
from tilewright.passes.kernels.matrix.view import MatrixView, matrix_view
from tilewright.passes.kernels.writing.column_sums import column_sums

#: several sets of warps must be estimated to take at most this share of what one set takes
SETS_GAIN = 0.93
#: the same of roles, against warps that all do the same
ROLES_GAIN = 0.98
#: of TF32 factors, whose kernels without roles took 1.4 to 2.8 times their estimate on an H200 where
#: arithmetic decides, while those with roles took 0.85 to 1.15 times theirs
TF32_ROLES_GAIN = 1.05
#: of roles of which one splits float32 factors, until they are measured
SPLIT_ROLES_GAIN = 0.9
#: the same of blocks that share sums, and of tiles whose number comes out in whole waves
SHARING_GAIN, WAVES_GAIN = 0.9, 0.9
#: the same of points that share what full turns leave over: of six such products on an H200 those that were
#: estimated to save more took 0 to 11 % less time, the two others 3 % more (docs/adr/0092)
LEFT_OVER_GAIN = 0.875

#: what of a sum of seconds rounding leaves at least, where it is compared with another sum of the same terms
NEARLY = 1.0 - 1e-9


def sums_columns(kernel: Func) -> bool:
    """Return whether a kernel sums columns of what its contraction computes, which only tensor cores can."""
    names = [op.name for op in kernel.body.ops]
    if names.count("tensor.contract") != 1 or "tensor.reduce" not in names[names.index("tensor.contract") :]:
        return False
    view = matrix_view(kernel, ops_named(kernel, "tensor.contract")[0])
    return view is not None and column_sums(kernel, view) is not None


def has_tensor_cores(hardware: Hardware, problem: MatrixProblem) -> TypeGuard[GpuHardware]:
    """Return whether the device multiplies such factors on tensor cores that generated kernels can use."""
    return not isinstance(hardware, CpuHardware) and tensor_fma(problem, hardware) > 0


@lru_cache(maxsize=4096)
def choose_matrix(problem: MatrixProblem, hardware: GpuHardware) -> ParameterChoice[MatrixParameters]:
    """The legal point that `best_point` names. Memoised. Raises InputError where no point fits the device."""
    whole = matrix_space(problem, hardware)
    estimates = estimate_matrix(problem, whole, hardware)
    first = _first_of_kinds(problem, whole, estimates)
    space, estimates = whole.take(first), estimates[first]
    bounds = matrix_bound(problem, space, hardware)
    best = best_point(problem, space, bounds, estimates)
    return ParameterChoice(space.at(best), bounds.at(best), float(estimates[best]), len(whole))


def _first_of_kinds(problem: MatrixProblem, space: MatrixSpace, estimates: FloatArray) -> IntArray:
    """The points of the least estimate of each kind that `best_point` tells apart: it takes one of them."""
    kinds = (
        *(space.parts > 1, in_whole_waves(problem, space), space.by_roles),
        *(space.warps_k == 1, space.left_over > 0),
    )
    kind = np.sum([flag.astype(np.int64) << i for i, flag in enumerate(kinds)], axis=0)
    least = np.full(1 << len(kinds), np.inf)
    np.minimum.at(least, kind, estimates)
    return np.flatnonzero(estimates == least[kind])


def best_point(problem: MatrixProblem, space: MatrixSpace, bounds: BoundArrays, estimates: FloatArray) -> int:
    """The point with the smallest estimate; the bound, then enumeration order, break ties.

    Several sets of warps, roles, blocks that share sums and tiles for whole waves are taken only where the
    gain is clear; clusters that share what is left over, where it is against whatever else is best.
    """
    order = np.lexsort((bounds.seconds, estimates))
    shared, waves = space.parts > 1, in_whole_waves(problem, space)
    known = order[~(shared | waves)[order]]
    rounds = rounds_first(problem) and not problem.split
    gain = TF32_ROLES_GAIN if rounds else SPLIT_ROLES_GAIN if splits_on_the_way(problem) else ROLES_GAIN
    best = own = _best_known(space, estimates, known, gain) if len(known) else int(order[0])
    waves_gain = TF32_ROLES_GAIN if rounds and not space.by_roles[own] else WAVES_GAIN
    left_over = space.left_over > 0
    for unmeasured, share in ((waves & ~shared, waves_gain), (shared & ~left_over, SHARING_GAIN)):
        for i in order[unmeasured[order]][:1]:
            if estimates[i] <= share * estimates[own] and estimates[i] < estimates[best]:
                best = int(i)
    for i in order[left_over[order]][:1]:
        if estimates[i] <= LEFT_OVER_GAIN * estimates[best]:
            best = int(i)
    return best


def _best_known(space: MatrixSpace, estimates: FloatArray, order: IntArray, gain: float) -> int:
    """The best of points in the order of their estimates, where gains of roles and sets are clear.

    gain: the share of the time of warps that all do the same which roles may take at most.
    """
    alike, roles = order[~space.by_roles[order]], order[space.by_roles[order]]
    if len(alike):
        order = roles if len(roles) and estimates[roles[0]] <= gain * estimates[alike[0]] else alike
    best, single = int(order[0]), order[space.warps_k[order] == 1]
    if len(single) and estimates[best] > SETS_GAIN * estimates[single[0]]:
        return int(single[0])
    return best


def likely_matrix(
    problem: MatrixProblem, hardware: GpuHardware, top: int
) -> list[ParameterChoice[MatrixParameters]]:
    """At most `top` points, the chosen one and then by estimate, each with another tile or other warps."""
    space, bounds, estimates = _evaluate(problem, hardware)
    chosen: list[ParameterChoice[MatrixParameters]] = []
    seen: set[tuple[int, int, Warps, str, int, int, int, int, int, bool]] = set()
    for i in (best_point(problem, space, bounds, estimates), *np.lexsort((bounds.seconds, estimates))):
        p = space.at(int(i))
        kind = (
            *(p.block.m, p.block.n, p.warps, p.engine, p.copiers, p.teams, p.cluster, p.parts, p.resident),
            p.left_over,
        )
        if kind not in seen:
            seen.add(kind)
            chosen.append(ParameterChoice(p, bounds.at(int(i)), float(estimates[i]), len(space)))
        if len(chosen) == top:
            break
    return chosen


def _evaluate(problem: MatrixProblem, hardware: GpuHardware) -> tuple[MatrixSpace, BoundArrays, FloatArray]:
    space = matrix_space(problem, hardware)
    return space, matrix_bound(problem, space, hardware), estimate_matrix(problem, space, hardware)


def on_tensor_cores_of(
    kernel: Func, op: Op, hardware: Hardware
) -> tuple[MatrixView, MatrixProblem, GpuHardware] | None:
    """The contraction as the tensor cores of a device would compute it; None where they cannot."""
    view = matrix_view(kernel, op)
    if view is None:
        return None
    problem = matrix_problem(kernel, view)
    if not has_tensor_cores(hardware, problem):
        return None
    view, problem = _exchanged(kernel, view, problem, hardware)
    return view, problem, hardware


def _exchanged(
    kernel: Func, view: MatrixView, problem: MatrixProblem, hardware: GpuHardware
) -> tuple[MatrixView, MatrixProblem]:
    """The product with its factors exchanged where so roles take it, or turn less, and sooner by the model.

    Of two factors in columns roles turn the second one; tiles are higher than wide then.
    """
    if (
        problem.summed is not None
        or not view.rounds
        or (takes_roles(problem, hardware) and not turns_second(problem))
    ):
        return view, problem
    if view.members is not None:
        return view, problem
    other = view.exchange()
    turned = matrix_problem(kernel, other)
    if not takes_roles(turned, hardware):
        return view, problem
    best, own = choose_matrix(turned, hardware), choose_matrix(problem, hardware)
    gain = ROLES_GAIN if own.parameters.copiers else TF32_ROLES_GAIN
    if best.parameters.copiers and best.estimate_s < gain * own.estimate_s:
        return other, turned
    return view, problem


def matrix_variant(
    kernel: Func, view: MatrixView, choice: ParameterChoice[MatrixParameters], hardware: GpuHardware
) -> Func:
    """A contraction kernel on tensor cores with these parameters."""
    return decided(kernel, "matrix", choice, parameters_for(kernel, view, choice.parameters, hardware))


def matrix_points(
    problem: MatrixProblem, hardware: GpuHardware, *, streamed_bytes: float = 0.0
) -> EnginePoints[MatrixParameters]:
    """Every legal point of the tensor cores, as `contract_points`; raises InputError without any."""
    space, bounds, estimates = _evaluate(problem, hardware)
    legal: IntArray = np.flatnonzero((bounds.ub > 0) & np.isfinite(estimates))
    s, cold, estimates = space.take(legal), bounds.take(legal), estimates[legal]
    warm = matrix_bound(problem, s, hardware, replace(MEASURED_LOOP, streamed_bytes=streamed_bytes))
    kinds = (
        s.m,
        s.n,
        s.warps_m,
        s.warps_n,
        s.warps_k,
        s.groups,
        s.copiers,
        s.teams,
        s.cluster,
        s.parts,
        s.resident,
        s.left_over,
    )
    likeliest = best_point(problem, s, cold, estimates) if len(s) else -1
    return EnginePoints("tensor cores", problem, s, cold, warm.seconds, estimates, kinds, likeliest)


def cores_engine(kernel: Func, op: Op, hardware: Hardware, streamed_bytes: float) -> SearchedEngine | None:
    """The points of the tensor cores for a contraction, and what makes a kernel of one.

    None where they cannot compute it.
    """
    cores = on_tensor_cores_of(kernel, op, hardware)
    if cores is None:
        return None
    view, problem, gpu = cores
    points = matrix_points(problem, gpu, streamed_bytes=streamed_bytes)
    return points, lambda choice: matrix_variant(kernel, view, choice, gpu)


def choose_cores(kernel: Func, hardware: Hardware) -> Func | None:
    """A contraction kernel with the best parameters on tensor cores.

    None where they cannot compute it, or where the model finds ordinary lanes as fast, which do not compute
    results of several sums.
    """
    contracts = ops_named(kernel, "tensor.contract")
    cores = on_tensor_cores_of(kernel, contracts[0], hardware) if contracts else None
    if cores is None:
        return None
    view, problem, gpu = cores
    if problem.summed is not None:  # nothing else sums columns besides
        return matrix_variant(kernel, view, choose_matrix(problem, gpu), gpu)
    try:
        best = choose_matrix(problem, gpu)
    except InputError:
        if problem.stored or view.members is not None:
            # pieces: too small for roles, and nothing else multiplies them; members: none has all columns
            return None
        raise
    if view.members is None:
        lanes = contract_problem(kernel, view.op)
        # Most products are far beyond what ordinary lanes can multiply in that time.
        near = NEARLY * least_contract_estimate_s(lanes, gpu) <= best.estimate_s
        if near and choose_contract(lanes, gpu).estimate_s <= best.estimate_s:
            return None
    return matrix_variant(kernel, view, best, gpu)


def least_cores_s(kernel: Func, hardware: Hardware) -> float | None:
    """Seconds a contraction kernel takes at least on tensor cores; None where they cannot compute it."""
    contracts = ops_named(kernel, "tensor.contract")
    cores = on_tensor_cores_of(kernel, contracts[-1], hardware) if contracts else None
    return None if cores is None else least_matrix_s(cores[1], cores[2], MEASURED_LOOP)


def preloaded(kernel: Func, hardware: Hardware) -> list[Func]:
    """The kernels with the same tile that have all of the second factor first, by the length of their rings.

    The ring is of the first factor then, and no shorter than it was; the longest comes first. None where
    roles copy, whose rings are as long as fits, where threads cannot copy the second factor as it is
    multiplied, where the ring holds all of it anyway, or where time is lost by the model.
    """
    contracts = ops_named(kernel, "tensor.contract")
    view = matrix_view(kernel, contracts[0]) if len(contracts) == 1 else None
    if view is None or not isinstance(hardware, GpuHardware):
        return []
    plan, view = matrix_parameters(kernel, view)
    chunks, _ = chunks_of_part(chunk_count(view, plan), plan.parts)
    if plan.preloaded or not plan.may_preload(view) or chunks <= plan.stages:
        return []
    stages = range(min(LONGEST_RING, chunks), plan.stages - 1, -1)
    points = [replace(plan, preloaded=True, stages=n) for n in stages]
    own_s, *seconds = estimate_matrix(matrix_problem(kernel, view), matrix_space_of(plan, *points), hardware)
    cost = chosen_for(kernel).cost
    found = []
    for point, s in zip(points, seconds, strict=True):
        if s <= own_s:
            new = cost and replace(cost, estimate_s=cost.estimate_s * float(s / own_s))
            found.append(with_decision(kernel, parameters=point, cost=new))
    return found
