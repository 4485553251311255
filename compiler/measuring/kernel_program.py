"""Small programs that run one outlined kernel, as it is timed, and what is known of kernels before."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tilewright.ir import Block, Builder, Func, Level, Module, Ref, Value
from tilewright.measuring.measurer import RandomConstants
from tilewright.passes.analysis.constant_params import constant_positions
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import undecided
from tilewright.passes.rewriting.values import replace_in_op


def kernel_program(kernel: Func, constants: Collection[int]) -> Module:
    """A program that runs one kernel with random constants at these positions of its parameters."""
    b, params = Builder(), tuple(Value(p.type, p.hint) for p in kernel.params)
    results = b.emit("tensor.call", params, {"callee": Ref(kernel.name)}, types=kernel.result_types)
    b.emit("tensor.return", results)
    main = Func(Level.TENSOR, "main", Block(params, tuple(b.ops)), kernel.result_types)
    return with_random_constants(Module("measured", (kernel, main)), constants)


def with_random_constants(program: Module, constants: Collection[int]) -> Module:
    """The program with random constants at these positions of its parameters; the others keep their order."""
    b, known = Builder("measured"), RandomConstants()
    new: dict[Value, Value] = {}
    inputs: list[Value] = []
    for i, p in enumerate(program.main.params):
        if i in constants:
            new[p] = known.constant(b, p.tensor)
        else:
            new[p] = Value(p.type, f"x{i}")
            inputs.append(new[p])
    ops = (*b.ops, *(replace_in_op(op, new) for op in program.main.body.ops))
    main = program.main.with_body(Block(tuple(inputs), ops))
    return known.of(program.with_funcs(tuple(main if f.name == "main" else f for f in program.funcs)))


def constants_of(module: Module) -> Mapping[str, tuple[int, ...]]:
    """Per kernel the positions of its parameters that are constants with data at every call."""
    positions = constant_positions(module)
    return {f.name: positions.get(f.name, ()) for f in module.funcs}


def subject_text(kernel: Func, constants: Collection[int]) -> str:
    """The text that is equal for kernels which a search need not tell apart: all but names and parameters."""
    return f"constants {sorted(constants)}\n{kernel_text(undecided(kernel))}"


def occurrences_of(module: Module) -> dict[str, int]:
    """The number of calls of each kernel in @main."""
    counts: dict[str, int] = {}
    for op in module.main.body.ops:
        ref = op.get("callee")
        if isinstance(ref, Ref):
            counts[ref.name] = counts.get(ref.name, 0) + 1
    return counts
