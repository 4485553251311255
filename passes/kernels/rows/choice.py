"""The choice of the template that walks along the rows of a kernel on a GPU, and of its parameters."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, prod

from tilewright.costmodel import Hardware, choose_row_reduce
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.parameters import RowReduceParameters
from tilewright.ir import Func, Op, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import LINE_BYTES, VECTOR_BYTES, WARP
from tilewright.ir.tensor.ops import domain
from tilewright.ir.types import itemsize
from tilewright.passes.analysis.row_phases import RowPhases, rewritten_rows, row_phases, whole_rows
from tilewright.passes.kernels.column_members import members_of
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import contract_roles, ops_named, reached, row_problem
from tilewright.passes.kernels.rows.combiners import combiner
from tilewright.passes.kernels.rows.space import RowAccess, choose_rows, keeps
from tilewright.passes.kernels.rows.staged_space import choose_staged

#: lines that a row is shorter than whose threads are too few to read lines at once
_SHORT_LINES = 2
#: what shuffles exchange
_SHUFFLED = frozenset({"f32", "i32", "u32", "f16", "bf16"})


def choose_row_kernel(
    kernel: Func, reductions: list[Op], hardware: Hardware
) -> tuple[str, ParameterChoice[RowReduceParameters]]:
    """The template, parameters and what the cost model says of them.

    Rows whose neighbours lie side by side take `rows_across`; contiguous ones `rows_kept` on a GPU, where a
    block can hold them or walks along them once, or `rows_staged`, where vectors as wide as the memory's do
    not fit their last dimension; `rows` otherwise.
    """
    best = choose_row_reduce(row_problem(kernel), hardware)
    p = best.parameters
    if any(combiner(op) is None for op in reductions):
        alone = max(1, p.threads_per_row * p.rows_per_block)
        return "rows", replace(best, parameters=RowReduceParameters(1, alone, 1))
    if isinstance(hardware, GpuHardware):
        found = _on_gpu(kernel, reductions, hardware, best.estimate_s)
        if found is not None:
            return found
    return "rows", best


def _on_gpu(
    kernel: Func, reductions: list[Op], hardware: GpuHardware, otherwise_s: float
) -> tuple[str, ParameterChoice[RowReduceParameters]] | None:
    phases = row_phases(kernel)
    if phases is None or not phases.alike:
        return None
    access = _access(kernel, phases)
    if access is None:
        return None
    if not access.across and any(op.result.tensor.dtype not in _SHUFFLED for op in reductions):
        return None
    choice = choose_rows(row_problem(kernel), hardware, access)
    staged = _staged(kernel, phases, hardware, access)
    if staged is not None and (choice is None or staged.estimate_s < choice.estimate_s):
        return "rows_staged", staged
    if choice is None:
        return None
    p = choice.parameters
    steps = -(-row_problem(kernel).row_length // (p.threads_per_row * p.vec))
    if not keeps(steps, p.vec, access.kept_words) and otherwise_s <= choice.estimate_s:
        return None
    return "rows_across" if access.across else "rows_kept", choice


def _staged(
    kernel: Func, phases: RowPhases, hardware: GpuHardware, access: RowAccess
) -> ParameterChoice[RowReduceParameters] | None:
    """Parameters of `rows_staged`; None where threads read whole vectors, or lines by single elements.

    Of rows walked along several times only short ones, whose threads would reach into many lines at once.
    """
    together = VECTOR_BYTES // access.element_bytes
    if (
        phases.stores_while_summing
        or access.across
        or access.inner % together == 0
        or WARP * access.element_bytes >= LINE_BYTES
    ):
        return None
    source, problem = whole_rows(kernel, phases), row_problem(kernel)
    if source is None:
        return None
    if access.walks > 1:
        long = problem.row_length * access.element_bytes >= _SHORT_LINES * LINE_BYTES
        if long or rewritten_rows(kernel, phases, source) is None:
            return None
    return choose_staged(problem, hardware, access.element_bytes, access.walks)


def _access(kernel: Func, phases: RowPhases) -> RowAccess | None:
    """Return how the rows lie in memory; None where that is unclear."""
    anchor = phases.walked
    inner, run = phases.run(kernel)
    read = [v for v in phases.uses if v in kernel.params]
    if not inner or not read:
        return None
    largest = max(read, key=lambda v: v.tensor.nbytes)
    size, parts = itemsize(largest.tensor.dtype), _parts(kernel, largest)
    walks = sum(1 for numbers in phases.walks if phases.phases[numbers[0]].columns)
    kind, _, number = inner.partition(".")
    if kind == "row":
        extents = anchor.row_extents()
        wide = [i for i, n in enumerate(extents) if n > 1]
        if not wide or int(number) != wide[-1]:
            return None
        side = extents[wide[-1]]
        asked = _asked_bytes(kernel, phases)
        return RowAccess(side, size, across=True, walks=walks, asked_bytes=asked, parts=parts)
    kept = phases.kept(kernel)
    if walks > 1 and not kept:
        return None
    words = phases.kept_words(kernel) if walks > 1 else 0.0
    shared = gcd(anchor.extents()[-1], run)
    return RowAccess(shared, size, kept_words=words, walks=walks, piece=phases.piece(kernel), parts=parts)


def _parts(kernel: Func, v: Value) -> float:
    """How many times what is read at one place of a parameter its places take that lie apart."""
    return reached(kernel, v, apart=True) / max(1, reached(kernel, v))


def _asked_bytes(kernel: Func, phases: RowPhases) -> int:
    """Bytes of parameters that all rows' walks ask for, at every place that they read on its own."""
    anchor = phases.walked
    points = prod(anchor.row_extents()) * prod(anchor.extents())
    walked = [
        itemsize(v.tensor.dtype) * len(found.indices)
        for v, found in phases.uses.items()
        if v in kernel.params
        and any(d.startswith("col.") for at in found.indices for e in at for d in symbols(e))
    ]
    return points * sum(walked)


def choose_rows_of(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel that reduces rows, with its template and parameters; None for other kernels.

    On a GPU the product of a matrix and a vector is one, too, unless results are computed from several sums.
    """
    contracts = ops_named(kernel, "tensor.contract")
    if contracts:
        alone = _one_row(contracts[0]) and members_of(kernel, contracts[0]) is None
        vector = isinstance(hardware, GpuHardware) and alone
        reductions = contracts[:1] if vector and combiner(contracts[0]) is not None else []
    else:
        reductions = [] if ops_named(kernel, "tensor.window") else ops_named(kernel, "tensor.reduce")
    if not reductions:
        return None
    return decided(kernel, *choose_row_kernel(kernel, reductions, hardware))


def _one_row(contract: Op) -> bool:
    """Return whether a contraction multiplies a matrix and a vector."""
    roles, sizes = contract_roles(contract), domain(contract)
    return all(sizes[d] == 1 for d in roles.rows) and not roles.windows


def least_rows_s(kernel: Func, hardware: Hardware) -> float | None:
    """Seconds a kernel that reduces rows takes at least; None for others, and for products."""
    others = ops_named(kernel, "tensor.contract", "tensor.window")
    if others or not ops_named(kernel, "tensor.reduce"):
        return None
    return global_bound(row_problem(kernel), hardware, MEASURED_LOOP).seconds
