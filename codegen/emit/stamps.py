"""Stamps: what an instrumented kernel writes about each of its blocks, by the GPU's own clock.

A row of the stamp buffer per block, x fastest: nanoseconds at the block's arrival, at its start (after what
it waits for) and at its end (after a barrier of the block), and the multiprocessor it ran on.
"""

from __future__ import annotations

from tilewright.codegen.emit.emission import Emission
from tilewright.codegen.kernel_source import KernelParam
from tilewright.codegen.prelude.registry import helper

ARRIVAL, START, END, PROCESSOR = range(4)
STAMPS_PER_BLOCK = 4

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
    """The statements that stamp one kernel; made before its body is emitted, so that its name is free."""

    def __init__(self, e: Emission, grid: tuple[int, int, int]) -> None:
        x, y, z = grid
        self._e, self._grid, self._name = e, grid, e.name("stamps")
        self.param = KernelParam(self._name, "u64", (x * y * z, STAMPS_PER_BLOCK), True)

    @property
    def pointer(self) -> str:
        """The declaration of the last parameter."""
        return f"{self._e.dialect.mem_type('u64')}* __restrict__ {self._name}"

    def arrival(self) -> list[str]:
        """Before anything else, a wait for earlier kernels included."""
        return [self._write(ARRIVAL, self._now())]

    def start(self) -> list[str]:
        """Return the lines at the begin of the kernel's own work."""
        return [
            self._write(START, self._now()),
            self._write(PROCESSOR, f"{self._e.need('processor')}()"),
        ]

    def end(self) -> list[str]:
        """After the last statement, which every thread of a block reaches."""
        return [f"    {self._e.dialect.barrier}", self._write(END, self._now())]

    def _now(self) -> str:
        return f"{self._e.need('nanoseconds')}()"

    def _write(self, column: int, text: str) -> str:
        x, y, _ = self._grid
        row = f"(blockIdx.x + {x}ull * (blockIdx.y + {y}ull * blockIdx.z))"
        return f"    if (threadIdx.x == 0) {self._name}[{STAMPS_PER_BLOCK} * {row} + {column}] = {text};"
