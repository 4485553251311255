"""The parameters of kernels that are constants, or settled before a launch may start, by the calls of @main.

They are found at the tensor and at the thread level.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.ir.nodes import Module, Ref, Value

#: attribute of a kernel: positions of the parameters that are constants in all its calls
WEIGHTS = "weights"


def constant_positions(module: Module) -> dict[str, tuple[int, ...]]:
    """Per kernel that @main calls, the parameters that are constants at every call."""
    constants: set[Value] = set()
    positions_of: dict[str, set[int]] = {}
    for main in (f for f in module.funcs if f.name == "main"):
        for op in main.body.ops:
            if op.name == "tensor.constant":
                constants.add(op.result)
            ref = op.get("callee")
            if isinstance(ref, Ref):
                here = {i for i, v in enumerate(op.operands) if v in constants}
                positions_of[ref.name] = positions_of.get(ref.name, here) & here
    return {name: tuple(sorted(positions)) for name, positions in positions_of.items()}


def settled_positions(module: Module) -> dict[str, tuple[int, ...]]:
    """Per kernel that @main calls, the parameters whose writers are settled at every call.

    A launch starts when those that it depends on have ended, or at least got past their own waits. So what
    these depend on, at once or later, has ended by then and can be seen: a launch that writes a parameter is
    settled where another one that the call depends on depends on it. Weights that a training step rounds once
    are, for all steps of a recurrence but the first. Parameters and constants of @main are left out.
    """
    main = next((f for f in module.funcs if f.name == "main"), None)
    found: dict[str, set[int]] = {}
    if main is None:
        return {}
    # Sets of launches are numbers with a bit for each: programs have thousands, most behind one another.
    writers: dict[Value, int] = {}
    before: list[int] = []
    for op in main.body.ops:
        given = 0
        for v in op.operands:
            given |= writers.get(v, 0)
        if op.name in ("tensor.join", "tensor.part"):
            writers.update(dict.fromkeys(op.results, given))  # pieces are written and read where they lie
            continue
        above = 0
        for number in _members(given):
            above |= before[number]
        if isinstance(ref := op.get("callee"), Ref):
            # Any launch above one that the call depends on has ended.
            here = {i for i, v in enumerate(op.operands) if writers.get(v) and not writers[v] & ~above}
            found[ref.name] = found.get(ref.name, here) & here
        writers.update(dict.fromkeys(op.results, 1 << len(before)))
        before.append(above | given)
    return {name: tuple(sorted(positions)) for name, positions in found.items()}


def _members(launches: int) -> Iterator[int]:
    """The numbers of the launches of a set."""
    while launches:
        lowest = launches & -launches
        yield lowest.bit_length() - 1
        launches ^= lowest
