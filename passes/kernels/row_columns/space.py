"""Parameters of kernels of rows and columns, and their seconds by the cost model."""

from __future__ import annotations

from collections.abc import Hashable
from math import hypot, prod

from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.costmodel.kernels.parameters import RowReduceParameters
from tilewright.costmodel.kernels.problem import RowReduceProblem
from tilewright.costmodel.kernels.streams import rounds_clk
from tilewright.ir import Expr, Func, Op, Sym, Value
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.hardware_facts import VECTOR_BYTES, WARP
from tilewright.ir.tensor.ops import domain, reads
from tilewright.ir.types import FLOATS, itemsize
from tilewright.passes.analysis.row_phases import Uses
from tilewright.passes.analysis.shared_work import free_ops, shared_work
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import traffic
from tilewright.passes.kernels.row_columns.view import RowsAndColumns, rows_and_columns
from tilewright.passes.kernels.rows.combiners import combiner

#: threads of a block
_BLOCK = (128, 256, 512)
#: registers of a thread that sums of columns may take, and those that they and kept values may take
_SUM_REGISTERS, _ALL_REGISTERS = 64, 96
_REGISTER_BYTES = 4
#: arithmetic that the pipe of float32 does
_FAST = frozenset({"scalar.add", "scalar.sub", "scalar.mul", "scalar.fma", "scalar.neg", "scalar.cast"})
#: neighbours of a thread along a row
_NEIGHBOURS = 8
#: steps of a thread along a row, which are all unrolled
_STEPS = 8


def choose_row_columns(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel of rows and columns with its template and parameters; None for others, and where none fit."""
    view = rows_and_columns(kernel)
    if view is None or not isinstance(hardware, GpuHardware) or not view.phases.alike:
        return None
    if any(combiner(view.phases.phases[n].op) is None for n in view.sums):
        return None
    problem = row_columns_problem(kernel, view, hardware)
    size = _element_bytes(kernel, view)
    words = kept_registers(kernel, view)
    if words == 0.0 and len(view.phases.walks) > 1 and any(_reduces(view)):
        return None  # each walk would read its rows anew
    space = [
        RowReduceParameters(block // rows, rows, vec)
        for block in _BLOCK
        for rows in (1, 2, 4, 8, 16)
        for vec in (8, 4, 2, 1)
        if vec <= max(1, VECTOR_BYTES // size)
        and view.columns[-1] % vec == 0
        and view.length % rows == 0
        and block // rows >= WARP
        and _fits(view, block // rows, vec, words)
        and block * _registers(view, block // rows, vec, words, hardware) <= hardware.registers_per_sm
        and _shared_bytes(view, rows) <= hardware.smem_per_block_max_bytes // 2
    ]
    if not space:
        return None
    seconds = [_seconds(problem, view, hardware, p, size, words) for p in space]
    best = min(range(len(space)), key=seconds.__getitem__)
    bound = global_bound(problem, hardware)
    return decided(kernel, "row_columns", ParameterChoice(space[best], bound, seconds[best], len(space)))


def row_columns_problem(kernel: Func, view: RowsAndColumns, hardware: GpuHardware) -> RowReduceProblem:
    """The kernel as a reduction of rows: each parameter is read once, each result written once.

    Its operations are those that a thread computes, in slots of the pipe of float32.
    """
    written = sum(v.tensor.nbytes for v in kernel.body.ops[-1].operands)
    fresh, slow = _fresh_shares(view), hardware.rows.columns_slow_slots
    flops = int(sum(
        _work(op) * _slots(op, slow) * fresh.get(op, 1.0) * prod(domain(op).values())
        for op in kernel.body.ops
        if op.body is not None
    ))  # fmt: skip
    rows, length = prod(view.rows), prod(view.columns)
    return RowReduceProblem(rows, length, traffic(kernel) - written, written, flops, 1)


def kept_registers(kernel: Func, view: RowsAndColumns) -> float:
    """Registers for each element of a row: what is computed and kept, and parameters as they lie in memory,
    those of the rows at hand and of the ones behind.
    """
    total = 0.0
    for v in view.phases.kept(kernel):
        params = 1.0 if v not in kernel.params else itemsize(v.tensor.dtype) / _REGISTER_BYTES
        total += params * (2.0 if v in kernel.params and read_by_row(view.phases.uses[v]) else 1.0)
    return total


def read_by_row(uses: Uses) -> bool:
    """Return whether rows have elements of a parameter of their own."""
    return any(s.startswith("row.") for at in uses.indices for e in at for s in symbols(e))


def keeps_rows(view: RowsAndColumns, steps: int, vec: int, words: float) -> bool:
    """Return whether registers hold a thread's part of a row, `words` for each element, beside its sums."""
    return words == 0.0 or (steps <= _STEPS and steps * vec * (words + len(view.sums)) <= _ALL_REGISTERS)


def _work(op: Op) -> float:
    """Scalar ops of a point, those once for several neighbours that these share, as random words."""
    assert op.body is not None
    shared = sum(n - n / min(neighbours, _NEIGHBOURS) for neighbours, n in shared_work(op).items())
    return max(0.0, len(op.body.ops) - len(free_ops(op)) - shared)


def _slots(op: Op, slow: float) -> float:
    """Slots of a scalar op of a body, on average: `slow` for those that are no arithmetic in float32."""
    ops = [o for o in op.body.ops if o not in free_ops(op)] if op.body is not None else []
    fast = [o for o in ops if o.name in _FAST and o.result.type.dtype in FLOATS]
    return (len(fast) + slow * (len(ops) - len(fast))) / len(ops) if ops else 1.0


def _fresh_shares(view: RowsAndColumns) -> dict[Op, float]:
    """The share of each op's scalar ops that no op before it computes at the same points.

    Several sums of a norm's gradient begin with the same standardised elements, which a thread computes once.
    """
    known: dict[Value, Hashable] = {}
    seen: set[Hashable] = set()
    shares: dict[Op, float] = {}
    for phase in view.phases.phases:
        op = phase.op
        if op.body is None:
            continue
        names: dict[str, Expr] = {d: Sym(f"row.{k}") for k, d in enumerate(phase.rows)}
        names |= {d: Sym(f"col.{k}") for k, d in enumerate(phase.columns)}
        keys: dict[Value, Hashable] = {}
        for param, v, at in zip(op.body.params, op.operands, reads(op), strict=False):
            keys[param] = known.get(v, (v, tuple(substitute(e, names) for e in at)))
        free, fresh, count = free_ops(op), 0, 0
        for o in op.body.ops[:-1]:
            attrs = tuple((k, substitute(a, names) if isinstance(a, Expr) else a) for k, a in o.attrs)
            key = (o.name, attrs, tuple(keys.get(v, v) for v in o.operands))
            keys.update(dict.fromkeys(o.results, key))
            if o not in free:
                count += 1
                fresh += key not in seen
            seen.add(key)
        if op.name == "tensor.map":
            known.update(
                (r, keys.get(y, y)) for r, y in zip(op.results, op.body.ops[-1].operands, strict=True)
            )
        shares[op] = fresh / count if count else 1.0
    return shares


def _element_bytes(kernel: Func, view: RowsAndColumns) -> int:
    """Bytes of an element of the largest array that is read."""
    read = [v for v in view.phases.uses if v in kernel.params]
    return itemsize(max(read, key=lambda v: v.tensor.nbytes).tensor.dtype) if read else 4


def _reduces(view: RowsAndColumns) -> list[bool]:
    """Whether each phase is a reduction of rows."""
    return [bool(p.columns) and p.op.name == "tensor.reduce" and i not in view.sums
            for i, p in enumerate(view.phases.phases)]  # fmt: skip


def _steps(view: RowsAndColumns, threads: int, vec: int) -> int:
    return -(-prod(view.columns) // (threads * vec))


def _shared_bytes(view: RowsAndColumns, rows: int) -> int:
    """Bytes in which sums of rows at once are added up, for one block."""
    sizes = [itemsize(op.result.tensor.dtype) for op in view.sums.values()]
    return rows * prod(view.columns) * sum(set(sizes)) if rows > 1 else 0


def _fits(view: RowsAndColumns, threads: int, vec: int, words: float) -> bool:
    steps = _steps(view, threads, vec)
    if threads > prod(view.columns) or steps > _STEPS:
        return False
    return keeps_rows(view, steps, vec, words) and steps * vec * len(view.sums) <= _SUM_REGISTERS


def _registers(view: RowsAndColumns, threads: int, vec: int, words: float, hardware: GpuHardware) -> float:
    """Registers of a thread, of which each of its elements of a row needs its share."""
    fit = hardware.rows
    each = words + len(view.sums) + fit.columns_element_registers
    return fit.columns_registers + _steps(view, threads, vec) * vec * each


def _seconds(
    problem: RowReduceProblem,
    view: RowsAndColumns,
    hardware: GpuHardware,
    p: RowReduceParameters,
    size: int,
    words: float,
) -> float:
    """Memory traffic with the bytes in flight, issue slots, or the latency of rows that follow each other."""
    fit = hardware.rows
    threads, vec = p.threads_per_row * p.rows_per_block, p.vec
    steps = _steps(view, p.threads_per_row, vec)
    blocks, trips = problem.rows // view.length, view.length // p.rows_per_block
    per_element = 1.0 + problem.flops / (problem.rows * problem.row_length)
    exchanged = sum(_reduces(view))
    lanes = min(p.threads_per_row, WARP).bit_length() - 1
    warps = max(1, p.threads_per_row // WARP)
    walks = len(view.phases.walks)
    instructions = steps * (fit.step_instructions * walks + vec * per_element)
    instructions += exchanged * (2.0 * lanes + (warps if warps > 1 else 0))
    # sums of one walk wait together
    waiting = sum(any(_reduces(view)[n] for n in walk) for walk in view.phases.walks)
    waits = waiting * (lanes * fit.exchange_clk + (fit.barrier_clk if warps > 1 else 0.0))
    fetch_clk, row_clk = hardware.estimate_fetch_clk, instructions * fit.columns_issue_clk + waits
    last = len(view.sums) * (fit.barrier_clk + steps * vec * (p.rows_per_block + 1.0))
    # rows that are kept between walks are asked for while those before them are summed
    row_clk = max(row_clk, fetch_clk) if words else row_clk + fetch_clk
    chain_clk = fit.start_instructions + fetch_clk + trips * row_clk + last
    registers = _registers(view, p.threads_per_row, vec, words, hardware)
    shared = _shared_bytes(view, p.rows_per_block)
    resident = int(hardware.registers_per_sm // (registers * threads))
    if shared:
        resident = min(resident, hardware.smem_per_sm_bytes // shared)
    resident = max(1, min(resident, hardware.max_threads_per_sm // threads, hardware.max_blocks_per_sm))
    per_sm = -(-blocks // hardware.sm_count)
    issue = hardware.schedulers_per_sm * fit.columns_ops_per_slot
    issued = fit.start_instructions + trips * instructions + last
    issue_clk = per_sm * threads / WARP * issued / issue
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    asked = max(1.0, problem.bytes_read / (problem.rows * problem.row_length * size))
    flying = min(per_sm, resident) * threads * steps * vec * size * asked * (2.0 if words else 1.0)
    rate *= min(1.0, flying / hardware.stream.bytes_in_flight_per_sm)
    rate *= min(1.0, blocks / hardware.sm_count)
    moved_s = problem.compulsory_bytes / rate
    waiting_clk = rounds_clk(-(-per_sm // resident), chain_clk, hardware)
    # few warps meet at each barrier: what one waits for, others hide in part
    busy_s = hypot(issue_clk, waiting_clk) / hardware.clock_hz
    return (
        hardware.launch_floor_s
        + max(busy_s, moved_s)
        + hardware.estimate_exposed_share * min(busy_s, moved_s)
    )
