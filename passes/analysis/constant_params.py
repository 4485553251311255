"""The parameters of kernels that are constants, by the calls of @main; at the tensor and the thread level."""

from __future__ import annotations

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
