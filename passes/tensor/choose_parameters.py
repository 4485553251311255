"""Chooses a skeleton and its implementation parameters for every kernel by the cost model."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any

import numpy as np

from tilewright.costmodel import (
    ContractParameters,
    CpuHardware,
    Hardware,
    choose_contract,
    choose_map,
    likely_contract,
    load_hardware,
)
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.costmodel.kernels.choose import Choice
from tilewright.costmodel.kernels.geometry import WIDEST_COPY_BYTES, vector_width
from tilewright.costmodel.kernels.parameters import MatrixParameters
from tilewright.costmodel.kernels.problem import Problem
from tilewright.ir import Attr, Func, Level, Op, Pairs, UnsupportedError
from tilewright.ir.tensor.ops import dims, domain
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import POINTWISE
from tilewright.passes.kernels.contract.warp_shape import warp_shape
from tilewright.passes.kernels.kernel_problem import (
    contract_problem,
    contract_roles,
    line_problem,
    row_problem,
    stream_problem,
    window_problem,
)
from tilewright.passes.kernels.matrix.bound import least_matrix_s
from tilewright.passes.kernels.matrix.choice import choose_matrix, has_tensor_cores, likely_matrix
from tilewright.passes.kernels.matrix.plan import MatrixView, matrix_view
from tilewright.passes.kernels.matrix.problem import matrix_plan, matrix_problem
from tilewright.passes.kernels.matrix.space import MatrixProblem
from tilewright.passes.kernels.ordered.choose_lines import choose_lines
from tilewright.passes.kernels.recurrence.lowering import MAX_LINE_BYTES
from tilewright.passes.kernels.rows.lowering import combiner
from tilewright.passes.kernels.rows.parameters import choose_row_kernel
from tilewright.passes.kernels.window.parameters import choose_window_kernel
from tilewright.passes.kernels.writing.staging import region

#: bytes of a work-item's private copy of its input window (fits a first-level cache beside the weights)
PRIVATE_TILE_BYTES = 16384

#: skeleton, its parameters, and what the cost model says of them
_Chosen = tuple[str, dict[str, Attr], Choice[Any]]


@register_pass(Level.TENSOR, requires={"kernels-outlined"}, establishes={"parameters-chosen"})
def choose_parameters(func: Func, ctx: PassContext) -> Func:
    """Give every kernel a skeleton, implementation parameters, and what the cost model says of them.

    rewrite:  tensor.func @conv(...)
        -->   tensor.func @conv(..., skeleton = "contract", params = (block: (k: 64, ...), ...))
    """
    if func.name == "main" or func.get("params") is not None:
        return func
    hardware = ctx.hardware or load_hardware(ctx.target)
    skeleton, params, choice = _choose(func, hardware)
    return func.with_attrs(skeleton=skeleton, params=Pairs.of(params), cost=_cost(choice))


def _cost(choice: Choice[Any]) -> Pairs:
    """What the cost model says of a choice, as a kernel attribute."""
    cost: dict[str, Attr] = {
        "estimate_s": choice.estimate_s,
        "bound_s": choice.bound.seconds,
        "fraction_of_peak": float(choice.bound.ub),
        "limit": choice.bound.limit,
        "considered": choice.candidates_considered,
    }
    return Pairs.of(cost)


def least_s(kernel: Func, hardware: Hardware) -> float:
    """Seconds a kernel takes at least with any parameters: arithmetic, traffic with warm caches, launch."""
    by_name = {op.name: op for op in kernel.body.ops}
    problem: Problem
    if contract := by_name.get("tensor.contract"):
        if (cores := _on_tensor_cores(kernel, contract, hardware)) is not None:
            return least_matrix_s(cores[1], cores[2], MEASURED_LOOP)
        problem = contract_problem(kernel, contract)
    elif window := by_name.get("tensor.window"):
        problem = window_problem(kernel, window)
    elif "tensor.reduce" in by_name:
        problem = row_problem(kernel)
    elif set(by_name) <= POINTWISE | {"tensor.return"}:
        problem = stream_problem(kernel)
    else:
        return hardware.launch_floor_s
    return global_bound(problem, hardware, MEASURED_LOOP).seconds


def _choose(kernel: Func, hardware: Hardware) -> _Chosen:
    ops = [op for op in kernel.body.ops if op.name != "tensor.return"]
    by_name: dict[str, list[Op]] = {}
    for op in ops:
        by_name.setdefault(op.name, []).append(op)
    if contract := by_name.get("tensor.contract"):
        return _choose_contract(kernel, contract[0], hardware)
    if window := by_name.get("tensor.window"):
        return "window", *choose_window_kernel(kernel, window[0], hardware)
    if "tensor.reduce" in by_name:
        return choose_row_kernel(kernel, by_name["tensor.reduce"], hardware)
    if set(by_name) <= POINTWISE:
        m = choose_map(stream_problem(kernel), hardware)
        p = m.parameters
        return "map", {"threads": p.threads, "vec": p.vec, "items": p.items_per_thread}, m
    if len(ops) == 1 and ops[0].name in ("tensor.scan", "tensor.scatter"):
        lines = choose_lines(line_problem(kernel, ops[0]), hardware)
        named: dict[str, Attr] = {"threads": lines.parameters.threads}
        if ops[0].name == "tensor.scatter":
            named["owners"] = lines.parameters.owners
        return ops[0].name.removeprefix("tensor."), named, lines
    if len(ops) == 1 and ops[0].name == "tensor.recur":
        lines = choose_lines(line_problem(kernel, ops[0]), hardware)
        # several threads keep their line in shared memory
        fits = (
            dims(ops[0], "par")[str(ops[0]["dim"])] * itemsize(ops[0].result.tensor.dtype) <= MAX_LINE_BYTES
        )
        return "recur", {"threads": lines.parameters.owners if fits else 1}, lines
    raise UnsupportedError(
        f"no skeleton lowers a kernel of {', '.join(sorted(by_name))}", where=f"@{kernel.name} [{ops[0].loc}]"
    )


def _choose_contract(kernel: Func, op: Op, hardware: Hardware) -> _Chosen:
    roles, sizes = contract_roles(op), domain(op)
    gpu = not isinstance(hardware, CpuHardware)
    if gpu and all(sizes[d] == 1 for d in roles.rows) and not roles.windows and combiner(op) is not None:
        return choose_row_kernel(kernel, [op], hardware)  # matrix times vector
    best = choose_contract(contract_problem(kernel, op), hardware)
    if (cores := _on_tensor_cores(kernel, op, hardware)) is not None:
        view, problem, gpu_hardware = cores
        matrix = choose_matrix(problem, gpu_hardware)
        if matrix.estimate_s < best.estimate_s:
            return "matrix", dict(matrix_plan(view, matrix.parameters).params().items), matrix
    return "contract", _contract_params(op, best.parameters, hardware), best


def _on_tensor_cores(
    kernel: Func, op: Op, hardware: Hardware
) -> tuple[MatrixView, MatrixProblem, GpuHardware] | None:
    """The contraction as the tensor cores of a device would compute it; None where they cannot."""
    view = matrix_view(kernel, op)
    if view is None:
        return None
    problem = matrix_problem(kernel, view)
    return (view, problem, hardware) if has_tensor_cores(hardware, problem) else None


def matrix_variant(kernel: Func, view: MatrixView, choice: Choice[MatrixParameters]) -> Func:
    """A contraction kernel on tensor cores with these parameters."""
    params = matrix_plan(view, choice.parameters).params()
    return kernel.with_attrs(skeleton="matrix", params=params, cost=_cost(choice))


def contract_candidates(kernel: Func, hardware: Hardware, top: int) -> list[Func]:
    """A contraction kernel with its chosen parameters and with at most `top` others worth measuring.

    Half of them are of the tensor cores, where those can compute it.
    """
    (op,) = (o for o in kernel.body.ops if o.name == "tensor.contract")
    on = _on_tensor_cores(kernel, op, hardware)
    cores = [] if on is None else likely_matrix(on[1], on[2], -(-top // 2))
    lanes = likely_contract(contract_problem(kernel, op), hardware, top - len(cores))
    found = [(c.estimate_s, contract_variant(kernel, op, c, hardware)) for c in lanes]
    found += [(c.estimate_s, matrix_variant(kernel, on[0], c)) for c in cores if on is not None]
    variants = [kernel]
    for _, variant in sorted(found, key=lambda f: f[0]):
        if all(v["params"] != variant["params"] for v in variants):
            variants.append(variant)
    return variants


def contract_variant(kernel: Func, op: Op, choice: Choice[ContractParameters], hardware: Hardware) -> Func:
    """A contraction kernel with the parameters of one point of its space; `op` is its tensor.contract."""
    params = Pairs.of(_contract_params(op, choice.parameters, hardware))
    return kernel.with_attrs(skeleton="contract", params=params, cost=_cost(choice))


def _contract_params(op: Op, p: ContractParameters, hardware: Hardware) -> dict[str, Attr]:
    roles = contract_roles(op)
    n, h, w = roles.spatial
    columns = roles.columns[-1] if roles.columns else ""
    k_b, extent = p.k_b, dims(op, "par").get(columns, 1)
    least = max(extent, _vector(op, p, hardware))
    while k_b % 2 == 0 and k_b // 2 >= least:  # the model counts all columns as one dimension
        k_b //= 2
    k_t = gcd(p.k_t, k_b)
    block = dict.fromkeys(dims(op, "par"), 1) | {n: p.n_b, h: p.h_b, w: p.w_b, columns: k_b}
    thread = dict.fromkeys(dims(op, "par"), 1) | {n: p.n_t, h: p.h_t, w: p.w_t, columns: k_t}
    for names in (block, thread):
        names.pop("", None)
    params: dict[str, Attr] = {
        "block": Pairs.of(block),
        "thread": Pairs.of(thread),
        "step": Pairs.of(_steps(op, roles.channels, p, thread)),
        "stages": p.stages,
        "staging": p.staging,
        "pad": p.smem_pad,
    }
    run, lanes = warp_shape(op, roles, block, thread) if p.staging == "shared" else ({}, {})
    return params | {k: Pairs.of(v) for k, v in (("run", run), ("lanes", lanes)) if v}


def _vector(op: Op, p: ContractParameters, hardware: Hardware) -> int:
    """Elements of one vector along the columns."""
    loaded = WIDEST_COPY_BYTES // itemsize(op.operands[0].tensor.dtype)
    widest = hardware.simd_lanes if isinstance(hardware, CpuHardware) else loaded
    return int(vector_width(np.array(p.k_t), widest))


def _steps(
    op: Op, channels: tuple[str, ...], p: ContractParameters, thread: Mapping[str, int]
) -> dict[str, int]:
    """Chunk of each plainly reduced dimension: the model's for the last one, single indices of the others."""
    sizes = domain(op)
    out = dict.fromkeys(channels[:-1], 1)
    if not channels:
        return out
    last = channels[-1]
    most = p.c_step if p.staging == "shared" else _private_step(op, last, out, thread)
    out[last] = max(s for s in range(1, max(1, min(most, sizes[last])) + 1) if sizes[last] % s == 0)
    return out


def _private_step(op: Op, channel: str, step: Mapping[str, int], thread: Mapping[str, int]) -> int:
    """The longest chunk whose input window of one work-item fits its private tile."""
    one = region(op, 0, {**domain(op), **thread, **step, channel: 1})
    if one is None:
        return domain(op)[channel]
    return max(1, PRIVATE_TILE_BYTES // (one.size * itemsize(op.operands[0].tensor.dtype)))
