"""Pass join-row-maps: kernels of rows compute and store the maps whose results they read along their rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tilewright.costmodel import GpuHardware, load_hardware
from tilewright.ir import Func, Level, Module, Op, Ref
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import SECTOR_BYTES
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import callee_of, dims, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import row_major_offset, run_along
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.analysis.memory_headroom import FLOOR_BYTES, MEMORY_BUDGET, peak_bytes
from tilewright.passes.analysis.row_phases import row_phases
from tilewright.passes.rewriting.names import numbered
from tilewright.passes.tensor.fusion.kernel_groups import MAX_ROW_BYTES, SMALL_BYTES
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import kernel_of, merged, reshapes_filled
from tilewright.passes.tensor.memory.order_kernels import calls_before, reaches


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_row_maps(
    module: Module, ctx: PassContext, *, when: Literal["auto", "always", "never"] = "auto"
) -> Module:
    """Compute a map in the kernel of rows that reads its result along its own rows, and store it from there.

    rewrite:  %s = call(%a, %b, callee = @add); %y = call(%s, callee = @layer_norm);
              %z = call(%s, %y, callee = @rest)
        -->   %s, %y = call(%a, %b, callee = @layer_norm_map); %z = call(%s, %y, callee = @rest)

    As a residual sum that a norm reads and that the next residual sum reads as well. Every other call that
    waits for the map must wait for the kernel of rows anyway, so that none starts later than before, and no
    more is alive at once than before. when: `auto` where the estimate of the one kernel is below the sum of
    the two, except in a step with a budget of memory; `always` where legal; `never`. Kernels of a CPU compute
    what they read again in each walk along a row: there, nothing is joined.
    """
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or not isinstance(hardware, GpuHardware):
        return module
    if when == "auto" and module.main.get(MEMORY_BUDGET) is not None:
        return module
    search = _Search(module, ctx, hardware, always=when == "always")
    while search.take_next():
        pass
    return search.current


class _Search:
    """The calls of a module, more and more of which are joined."""

    def __init__(self, module: Module, ctx: PassContext, hardware: GpuHardware, *, always: bool) -> None:
        self.current, self.ctx, self.hardware, self.always = module, ctx, hardware, always
        self.names = {f.name for f in module.funcs}
        self.stems: dict[str, str] = {}  # by the name of a joined kernel that of its rows
        self.tried: set[tuple[Op, Op]] = set()
        self.most_bytes = max(FLOOR_BYTES, peak_bytes(module))

    def take_next(self) -> bool:
        """Join the next map with a kernel of rows where that pays; False where there is none left."""
        main = self.current.main
        self.kernels = {f.name: f for f in self.current.funcs if f.name != "main"}
        pairs = [pair for pair in self._pairs(main) if pair not in self.tried]
        if not pairs:
            return False
        calls = [op for op in main.body.ops if op.name in ("tensor.call", COMMUNICATE)]
        number = {op: i for i, op in enumerate(calls)}
        followers: list[set[int]] = [set() for _ in calls]
        for i, before in enumerate(calls_before(main, calls)):
            for b in before:
                followers[b].add(i)
        for made, rows in pairs:
            self.tried.add((made, rows))
            if _nothing_waits_longer(followers, number[made], number[rows]):
                joined = self._joined(made, rows)
                if joined is not None:
                    self.current = joined
                    return True
        return False

    def _pairs(self, main: Func) -> Iterator[tuple[Op, Op]]:
        """Calls of maps, each with a call of a kernel of rows that reads its result."""
        returned = main.body.ops[-1].operands
        state = {returned[r] for _, r in main.updates}
        maker = {r: op for op in main.body.ops for r in op.results}
        for rows in main.body.ops:
            if not self._free(rows) or not _reduces(self.kernels[callee_of(rows)]):
                continue
            for made in dict.fromkeys(maker[v] for v in rows.operands if v in maker):
                free = self._free(made) and _maps(self.kernels[callee_of(made)])
                if free and state.isdisjoint((*made.results, *rows.results)):
                    yield made, rows

    def _free(self, op: Op) -> bool:
        kernel = kernel_of(op, self.kernels)
        return kernel is not None and not kernel.attrs

    def _joined(self, made: Op, rows: Op) -> Module | None:
        """The module with two calls as one; None where no kernel of rows takes both, or that does not pay."""
        calls = (made, rows)
        if reshapes_filled(calls, self.kernels):
            return None
        main = self.current.main
        outputs = {v for op in main.body.ops if op is not rows for v in op.operands}
        stem = self.stems.get(callee_of(rows), callee_of(rows))
        name = numbered(f"{stem}_map", self.names)
        kernel, arguments, results = merged(calls, self.kernels, outputs, name, once=True)
        if not self._in_rows(kernel):
            return None
        if not self.always and not self._pays(kernel, calls):
            return None
        joined = Op("tensor.call", tuple(arguments), (("callee", Ref(name)),), tuple(results), None, rows.loc)
        ops = tuple(joined if op is rows else op for op in main.body.ops if op is not made)
        called = {callee_of(op) for op in ops if op.name == "tensor.call"}
        others = (f for f in self.current.funcs if f is not main and f.name in called)
        module = self.current.with_funcs((kernel, *others, main.with_body(main.body.with_ops(ops))))
        if not self.always and peak_bytes(module) > self.most_bytes:
            return None
        self.names.add(name)
        self.stems[name] = stem
        return module

    def _in_rows(self, kernel: Func) -> bool:
        """Return whether all that a kernel stores belongs to rows that one block can walk along."""

        def answer() -> bool:
            phases = row_phases(self.ctx.estimator.canonical(kernel, self.ctx))
            if phases is None or not phases.alike:
                return False
            return all(phase.row_bytes() <= MAX_ROW_BYTES for phase in phases.phases)

        return self.ctx.estimator.remembered(("maps of rows", kernel_text(kernel), self.ctx.target), answer)

    def _pays(self, kernel: Func, calls: Sequence[Op]) -> bool:
        apart_s = sum(alone_s(self.kernels[callee_of(call)], self.ctx, self.hardware) for call in calls)
        return 0.0 < alone_s(kernel, self.ctx, self.hardware) < apart_s


def _nothing_waits_longer(followers: Sequence[set[int]], made: int, rows: int) -> bool:
    """Return whether every step that waits for `made` waits for `rows` too, `rows` itself apart."""
    return all(step == rows or reaches(followers, rows, step) for step in followers[made])


def _maps(kernel: Func) -> bool:
    """Return whether a kernel does nothing but map what lies in memory as its results do.

    Walks along rows would gather anew what it gathers. What lies across is moved by a map, whose threads lie
    as they please: the model of rows counts each array once and knows no lines.
    """
    ops = kernel.body.ops[:-1]
    return {op.name for op in ops} == {"tensor.map"} and all(map(_keeps_neighbours, ops))


def _keeps_neighbours(op: Op) -> bool:
    """Return whether neighbours in the results of a map are neighbours in all large arrays that it reads."""
    ranges = ranges_of(op)
    wide = [d for d, n in dims(op, "par").items() if n > 1]
    for v, at in zip(op.operands, reads(op), strict=True):
        if not wide or v.tensor.nbytes <= SMALL_BYTES:
            continue
        place = row_major_offset(at, v.tensor.shape)
        if wide[-1] not in symbols(place):
            continue
        run = run_along(place, wide[-1], ranges)
        whole = run == dims(op, "par")[wide[-1]]
        if not whole and run * itemsize(v.tensor.dtype) % SECTOR_BYTES:
            return False
    return True


def _reduces(kernel: Func) -> bool:
    """Return whether a kernel reduces rows, and maps besides."""
    names = {op.name for op in kernel.body.ops[:-1]}
    return "tensor.reduce" in names and names <= {"tensor.reduce", "tensor.map"}
