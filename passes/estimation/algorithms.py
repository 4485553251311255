"""The kernels of a few ops alone, such as a convolution by one algorithm, cut and chosen as in a network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tilewright.costmodel import Hardware
from tilewright.ir import Block, Builder, Func, Level, Module, Op, Value
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.memory_headroom import bytes_of
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.registry import least_s
from tilewright.passes.lower import rules  # noqa: F401  (registers the rules)
from tilewright.passes.lower.lowering import RULES
from tilewright.passes.pipelines import estimates
from tilewright.passes.rewriting.dead_ops import live_ops


def kernels_s(module: Module) -> float:
    """Seconds of all kernels of a module by the model, with the parameters it chose."""
    return sum(map(estimate_of, module.funcs))


@dataclass(frozen=True)
class Alternative:
    """A program of a few ops alone, as kernels with chosen parameters.

    The last `known` parameters of @main stand for constants: kernels of convolutions and whatever else can be
    computed at compile time.
    """

    module: Module
    known: int

    def estimate_s(self) -> float:
        """Seconds of all kernels by the model, with the parameters it chose."""
        return kernels_s(self.module)

    def working_bytes(self) -> int:
        """The most bytes that one kernel reads and writes of what is not known at compile time."""
        main = self.module.main
        known = set(main.params[len(main.params) - self.known :])
        calls = (op for op in main.body.ops if op.name == "tensor.call")
        return max((bytes_of({*op.operands, *op.results} - known) for op in calls), default=0)

    def bound_s(self, hardware: Hardware) -> float:
        """Seconds that the kernels take at least, whatever their parameters, with warm caches."""
        return sum(least_s(f, hardware) for f in self.module.funcs if f.name != "main")


def alternative(
    ops: Sequence[Op], known: Collection[Value], hardware: Hardware, *, parts: bool = True, factors: str = ""
) -> Alternative:
    """The kernels of graph ops, the last of which has the results.

    known: operands that are constants; what can be computed from them is not part of the program. parts: long
    sums are cut into parts where the pass split-reductions would do so. factors: what float32 factors of
    products are allowed.
    """
    b = Builder("algorithm")
    lowered: dict[Value, Value] = {}
    for op in ops:
        operands = [lowered.get(v, v) for v in op.operands]
        lowered.update(zip(op.results, RULES[op.name](b, op, operands), strict=True))
    results = [lowered[r] for r in ops[-1].results]
    constants, remaining = set(known), []
    for o in b.ops:
        if all(v in constants for v in o.operands):
            constants.update(o.results)
        else:
            remaining.append(o)
    b = Builder()
    b.do("tensor.return", *results)
    live = list(live_ops(Block((), (*remaining, *b.ops))))
    made = {r for o in live for r in o.results}
    outer = list(dict.fromkeys(v for o in live for v in o.operands if v not in made))
    constant_params = [v for v in outer if v in constants]
    inputs = [v for v in outer if v not in constants]
    return kernels_of(
        [*inputs, *constant_params], live, len(constant_params), hardware, parts=parts, factors=factors
    )


def kernels_of(
    params: Sequence[Value],
    ops: Sequence[Op],
    known: int,
    hardware: Hardware,
    *,
    parts: bool = False,
    factors: str = "",
) -> Alternative:
    """Tensor ops, the last of which returns, as kernels; the last `known` parameters are constants.

    parts, factors: see `alternative`.
    """
    types = tuple(v.type for v in ops[-1].operands)
    main = Func(Level.TENSOR, "main", Block(tuple(params), tuple(ops)), types)
    context = PassContext(hardware=hardware, reproducer_folder=None)
    pipeline = estimates("parts" if parts else "program", factors)
    return Alternative(run_pipeline(Module("algorithm", (main,)), pipeline, context), known)
