"""Stamps: what an instrumented kernel writes about each of its blocks, by the GPU's own clock.

A row of the stamp buffer per block, x fastest: nanoseconds at the block's arrival, at its start (after what
it waits for) and at its end (after a barrier of the block), and the multiprocessor it ran on. With phases
two more, 0 where the kernel has no such point: its first data are at hand, its main loop is done.
"""

from __future__ import annotations

from tilewright.codegen.emit.emission import Emission
from tilewright.codegen.emit.phases import PhaseMarks
from tilewright.codegen.kernel_source import KernelParam
from tilewright.codegen.prelude.registry import helper
from tilewright.ir.expr import Sym
from tilewright.ir.nodes import Op

ARRIVAL, START, END, PROCESSOR, DATA, LOOP = range(6)
#: columns of a row without and with the phases of a kernel
STAMPS_PER_BLOCK, STAMPS_WITH_PHASES = 4, 6

helper(
    "nanoseconds",
    """
FN $u64 NAME() {
    $u64 t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t) :: "memory");
    return t;
}
""",
    "cuda",
    emulated=True,
)
helper(
    "processor",
    """
FN $u32 NAME() {
    $u32 p;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(p));
    return p;
}
""",
    "cuda",
    emulated=True,
)


class Stamps:
    """The statements that stamp one kernel; made before its body is emitted, so that its name is free.

    marks: where its phases end, None for stamps without phases.
    """

    def __init__(self, e: Emission, grid: tuple[int, int, int], marks: PhaseMarks | None = None) -> None:
        x, y, z = grid
        self._e, self._grid, self._name, self._marks = e, grid, e.name("stamps"), marks
        self._columns = STAMPS_PER_BLOCK if marks is None else STAMPS_WITH_PHASES
        self.param = KernelParam(self._name, "u64", (x * y * z, self._columns), True)

    @property
    def pointer(self) -> str:
        """The declaration of the last parameter."""
        return f"{self._e.dialect.mem_type('u64')}* __restrict__ {self._name}"

    def arrival(self) -> list[str]:
        """Before anything else, a wait for earlier kernels included."""
        lines = [self._write(ARRIVAL, self._now())]
        if self._marks is not None:  # by the thread that stamps them, so that nothing must be waited for
            lines += [self._write(column, "0", self._marks.thread) for column in (DATA, LOOP)]
        return lines

    def start(self) -> list[str]:
        """Return the lines at the begin of the kernel's own work."""
        return [
            self._write(START, self._now()),
            self._write(PROCESSOR, f"{self._e.need('processor')}()"),
        ]

    def end(self) -> list[str]:
        """After the last statement, which every thread of a block reaches."""
        return [f"    {self._e.dialect.barrier}", self._write(END, self._now())]

    def behind(self, op: Op) -> list[str]:
        """Return the lines behind an op of the body, where a phase ends there."""
        marks = self._marks
        if marks is None or op not in (marks.data, marks.loop):
            return []
        if op is marks.loop:
            return [self._write(LOOP, self._now(), marks.thread)]
        first_turn = tuple((Sym(loop["var"].name), 0, 1) for loop in marks.around)  # type: ignore[union-attr]
        condition = self._e.index.condition(first_turn, self._e.ranges)
        return [] if condition == "0" else [self._write(DATA, self._now(), marks.thread, condition)]

    def _now(self) -> str:
        return f"{self._e.need('nanoseconds')}()"

    def _write(self, column: int, text: str, thread: int = 0, condition: str | None = None) -> str:
        x, y, _ = self._grid
        row = f"(blockIdx.x + {x}ull * (blockIdx.y + {y}ull * blockIdx.z))"
        also = "" if condition is None else f" && {condition}"
        place = f"{self._name}[{self._columns} * {row} + {column}]"
        return f"    if (threadIdx.x == {thread}{also}) {place} = {text};"
