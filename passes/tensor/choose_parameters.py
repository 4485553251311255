"""Chooses a skeleton and its implementation parameters for every kernel by the cost model."""

from __future__ import annotations

from typing import Any

from tilewright.costmodel import (
    CpuHardware,
    Hardware,
    choose_contract,
    choose_map,
    load_hardware,
)
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.costmodel.kernels.choose import Choice
from tilewright.costmodel.kernels.problem import Problem
from tilewright.ir import Attr, Func, Level, Op, Pairs, UnsupportedError
from tilewright.ir.tensor.ops import dims, domain
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import POINTWISE
from tilewright.passes.kernels.contract.choice import contract_params
from tilewright.passes.kernels.decision import cost_of
from tilewright.passes.kernels.kernel_problem import (
    contract_problem,
    contract_roles,
    line_problem,
    row_problem,
    stream_problem,
    window_problem,
)
from tilewright.passes.kernels.matrix.bound import least_matrix_s
from tilewright.passes.kernels.matrix.choice import choose_matrix, on_tensor_cores_of
from tilewright.passes.kernels.matrix.problem import matrix_plan
from tilewright.passes.kernels.ordered.choose_lines import choose_lines
from tilewright.passes.kernels.recurrence.lowering import MAX_LINE_BYTES
from tilewright.passes.kernels.rows.lowering import combiner
from tilewright.passes.kernels.rows.parameters import choose_row_kernel
from tilewright.passes.kernels.window.parameters import choose_window_kernel

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
    return func.with_attrs(skeleton=skeleton, params=Pairs.of(params), cost=cost_of(choice))


def least_s(kernel: Func, hardware: Hardware) -> float:
    """Seconds a kernel takes at least with any parameters: arithmetic, traffic with warm caches, launch."""
    by_name = {op.name: op for op in kernel.body.ops}
    problem: Problem
    if contract := by_name.get("tensor.contract"):
        if (cores := on_tensor_cores_of(kernel, contract, hardware)) is not None:
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
    if (cores := on_tensor_cores_of(kernel, op, hardware)) is not None:
        view, problem, gpu_hardware = cores
        matrix = choose_matrix(problem, gpu_hardware)
        if matrix.estimate_s < best.estimate_s:
            return "matrix", dict(matrix_plan(view, matrix.parameters).params().items), matrix
    return "contract", contract_params(op, best.parameters, hardware), best
