"""A small program that runs one outlined kernel, as a search times it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.ir import Block, Builder, Func, Level, Module, Pairs, Ref, Value
from tilewright.measuring.measurer import RandomConstants
from tilewright.passes.analysis.constant_params import constant_positions
from tilewright.passes.tensor.share_kernels import kernel_text

#: attributes that a search changes, or that say where a choice comes from
_CHOSEN = ("skeleton", "params", "cost", "measured_s", "candidates")


def alone(kernel: Func, constants: Collection[int]) -> Module:
    """A program that runs one kernel with random constants at these positions of its parameters."""
    b = Builder("measured")
    known = RandomConstants()
    inputs: list[Value] = []
    operands: list[Value] = []
    for i, p in enumerate(kernel.params):
        if i in constants:
            operands.append(known.constant(b, p.tensor))
        else:
            inputs.append(Value(p.type, f"x{i}"))
            operands.append(inputs[-1])
    results = b.emit("tensor.call", operands, {"callee": Ref(kernel.name)}, types=kernel.result_types)
    b.emit("tensor.return", results)
    main = Func(Level.TENSOR, "main", Block(tuple(inputs), tuple(b.ops)), kernel.result_types)
    return known.of(Module("measured", (kernel, main)))


def constants_of(module: Module) -> Mapping[str, tuple[int, ...]]:
    """Per kernel the positions of its parameters that are constants with data at every call."""
    found = constant_positions(module)
    return {f.name: found.get(f.name, ()) for f in module.funcs}


def subject_text(kernel: Func, constants: Collection[int]) -> str:
    """What is the same for kernels that a search need not tell apart: all but names and parameters."""
    bare = kernel.with_attrs(**{name: None for name in _CHOSEN if kernel.get(name) is not None})
    return f"constants {sorted(constants)}\n{kernel_text(bare)}"


def occurrences_of(module: Module) -> dict[str, int]:
    """How often @main calls each kernel."""
    counts: dict[str, int] = {}
    for op in module.main.body.ops:
        ref = op.get("callee")
        if isinstance(ref, Ref):
            counts[ref.name] = counts.get(ref.name, 0) + 1
    return counts


def estimate_of(kernel: Func) -> float:
    """Seconds of a kernel by the model, 0 where it says nothing."""
    return _cost(kernel, "estimate_s")


def bound_of(kernel: Func) -> float:
    """Seconds that a kernel takes at least by the model, 0 where it says nothing."""
    return _cost(kernel, "bound_s")


def seconds_of(kernel: Func) -> float:
    """Seconds of a kernel as they were measured, else by the model."""
    measured = kernel.get("measured_s")
    return measured if isinstance(measured, float) else estimate_of(kernel)


def _cost(kernel: Func, name: str) -> float:
    cost = kernel.get("cost")
    seconds = cost[name] if isinstance(cost, Pairs) and name in cost else None
    return seconds if isinstance(seconds, float) else 0.0
