"""Emitters of the order of launches, and the pointers that exist only once a kernel has waited for it."""

from __future__ import annotations

from tilewright.codegen.emit.emission import Emission, emitter
from tilewright.codegen.prelude.registry import helper
from tilewright.ir.nodes import Func, Op, Value, walk
from tilewright.ir.thread.launch_ops import PREFETCH, RELEASE, WAIT, holder_axis, holders_of

for _name, _instruction in (
    ("wait_for_launches", "griddepcontrol.wait"),
    ("release_dependents", "griddepcontrol.launch_dependents"),
):
    helper(
        _name,
        f"""
FN void NAME() {{
#if __CUDA_ARCH__ >= 900
    asm volatile("{_instruction};" ::: "memory");
#endif
}}
""",
        "cuda",
        emulated=True,
    )
helper(
    "stay",
    """
FN void NAME(int cycles) {
#if __CUDA_ARCH__ >= 900
    for (long long begin = clock64(); clock64() - begin < cycles;) {}
#endif
}
""",
    "cuda",
    emulated=True,
)
# The compiler may read through `const T* __restrict__` before any instruction, and by a path that is not
# coherent. A pointer that comes out of a volatile statement after the wait has no history: nothing can be
# read through it earlier, and nothing is known about who else writes there.
helper(
    "after_wait",
    """
template <class T>
FN T* NAME(T* given) {
    asm volatile("" : "+l"(given) :: "memory");
    __builtin_assume(__isGlobal(given));
    return given;
}
""",
    "cuda",
    emulated=True,
)
helper(
    "prefetch",
    """
FN void NAME(const void* place) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(place));
}
""",
    "cuda",
    emulated=True,
)


def early_params(func: Func) -> frozenset[Value]:
    """Parameters read before the wait.

    The GPU's compiler moves loads it takes for invariant behind the wait, so the promise that nothing else
    writes there is not made for them. A prefetch it moves nowhere: those that are only for an early start
    leave the loads that follow as they are.
    """
    ops = func.body.ops
    wait = next((i for i, op in enumerate(ops) if op.name == WAIT), 0)
    before = [op for op in walk(func.body.with_ops(ops[:wait])) if not (op.name == PREFETCH and op["early"])]
    return frozenset(v for op in before for v in op.operands if v in func.params)


def holding_lines(e: Emission, func: Func, grid: tuple[int, int, int]) -> list[str]:
    """What blocks behind those of the grid do: they keep their places until the next launch has taken others.

    They wait and release as all blocks do, so that no more than two launches are on the GPU.
    """
    blocks, cycles = holders_of(func)
    if not blocks:
        return []
    axis, _ = holder_axis(grid)
    return [
        f"    if (blockIdx.{'xyz'[axis]} >= {grid[axis]}) {{",
        f"        {e.need('wait_for_launches')}();",
        f"        {e.need('release_dependents')}();",
        f"        {e.need('stay')}({cycles});",
        "        return;",
        "    }",
    ]


@emitter(WAIT)
def _wait(e: Emission, op: Op) -> None:
    """OpenCL starts a kernel when those it depends on have finished, so there is nothing to wait for."""
    if e.dialect.native_vectors:
        return
    e.line(f"{e.need('wait_for_launches')}();")
    for pointer, given in e.late_pointers:
        e.line(f"{pointer} = {e.need('after_wait')}({given});")
    e.lines += e.after_wait


@emitter(RELEASE)
def _release(e: Emission, op: Op) -> None:
    if not e.dialect.native_vectors:
        e.line(f"{e.need('release_dependents')}();")


@emitter(PREFETCH)
def _prefetch(e: Emission, op: Op) -> None:
    """A CPU's own prefetching sees such streams; OpenCL text has none of it."""
    if e.dialect.native_vectors:
        return
    condition = e.condition(op)
    if condition != "0":
        at = op.exprs("at")
        guard = f"if ({condition}) " if condition else ""
        e.line(f"{guard}{e.need('prefetch')}(&{e.element(e.buffer(op.operands[0]), at)});")
