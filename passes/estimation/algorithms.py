"""What an algorithm of a convolution costs by the model: its kernels, cut and chosen as in a network."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, TensorType, Type, Value
from tilewright.ir.nodes import Attr
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.memory_headroom import bytes_of
from tilewright.passes.framework.context import AlgorithmCost
from tilewright.passes.lower import rules  # noqa: F401  (registers the rules)
from tilewright.passes.lower.lowering import RULES
from tilewright.passes.pipelines import ESTIMATES
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.tensor.choose_parameters import least_s


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
        costs = [cast(Pairs, f["cost"]) for f in self.module.funcs if f.get("cost") is not None]
        return sum(cast(float, c["estimate_s"]) for c in costs)

    def working_bytes(self) -> int:
        """The most bytes that one kernel reads and writes of what is not known at compile time."""
        main = self.module.main
        known = set(main.params[len(main.params) - self.known :])
        calls = (op for op in main.body.ops if op.name == "tensor.call")
        return max((bytes_of({*op.operands, *op.results} - known) for op in calls), default=0)

    def bound_s(self, hardware: Hardware) -> float:
        """Seconds that the kernels take at least, whatever their parameters, with warm caches."""
        return sum(least_s(f, hardware) for f in self.module.funcs if f.name != "main")


def estimated_s(
    op: Op, algorithm: str, hardware: Hardware, *, constant_weight: bool, parts: bool = True
) -> float:
    """Seconds of `algorithm_cost`."""
    return algorithm_cost(op, algorithm, hardware, constant_weight=constant_weight, parts=parts).seconds


def algorithm_cost(
    op: Op, algorithm: str, hardware: Hardware, *, constant_weight: bool, parts: bool = True
) -> AlgorithmCost:
    """Cost of all kernels of graph.conv2d `op` by an algorithm that is legal for it. Memoised.

    constant_weight: whether the kernel's transform is done at compile time. parts: long sums are cut into
    parts where the pass split-reductions would do so. On a CPU direct sums read and write images with their
    channels last, as the pass choose-layouts lets them.
    """
    types = tuple(v.type for v in op.operands)
    attrs: dict[str, Attr] = {**dict(op.attrs), "algorithm": algorithm}
    result = op.result.type
    if isinstance(hardware, CpuHardware) and algorithm == "direct" and attrs["data_layout"] == "NCHW":
        attrs["data_layout"] = "NHWC"
        types = (_channels_last(types[0]), *types[1:])
        result = _channels_last(result)
    return _cost(types, tuple(attrs.items()), result, hardware, constant_weight, parts)


def _channels_last(image: Type) -> Type:
    """The type of an image in NCHW as NHWC."""
    assert isinstance(image, TensorType)
    n, c, h, w = image.shape
    return TensorType(image.dtype, (n, h, w, c))


@lru_cache(maxsize=1024)
def _cost(
    types: tuple[Type, ...],
    attrs: tuple[tuple[str, Attr], ...],
    result: Type,
    hardware: Hardware,
    constant_weight: bool,
    parts: bool,
) -> AlgorithmCost:
    op = Op("graph.conv2d", tuple(Value(t) for t in types), attrs, (Value(result),))
    known = [op.operands[1]] if constant_weight else []
    found = alternative([op], known, hardware, parts=parts)
    return AlgorithmCost(found.estimate_s(), found.working_bytes())


def alternative(
    ops: Sequence[Op], known: Collection[Value], hardware: Hardware, *, parts: bool = True
) -> Alternative:
    """The kernels of graph ops, the last of which has the result.

    known: operands that are constants; what can be computed from them is not part of the program. parts: see
    `algorithm_cost`.
    """
    b = Builder("algorithm")
    lowered: dict[Value, Value] = {}
    for op in ops:
        operands = [lowered.get(v, v) for v in op.operands]
        lowered.update(zip(op.results, RULES[op.name](b, op, operands), strict=True))
    result = lowered[ops[-1].result]
    constants, kept = set(known), []
    for o in b.ops:
        if all(v in constants for v in o.operands):
            constants.update(o.results)
        else:
            kept.append(o)
    b = Builder()
    b.do("tensor.return", result)
    live = list(live_ops(Block((), (*kept, *b.ops))))
    made = {r for o in live for r in o.results}
    outer = list(dict.fromkeys(v for o in live for v in o.operands if v not in made))
    given = [v for v in outer if v in constants]
    inputs = [v for v in outer if v not in constants]
    return kernels_of([*inputs, *given], live, len(given), hardware, parts=parts)


def kernels_of(
    params: Sequence[Value], ops: Sequence[Op], known: int, hardware: Hardware, *, parts: bool = False
) -> Alternative:
    """Tensor ops, the last of which returns, as kernels; the last `known` parameters are constants.

    parts: see `algorithm_cost`.
    """
    types = tuple(v.type for v in ops[-1].operands)
    main = Func(Level.TENSOR, "main", Block(tuple(params), tuple(ops)), types)
    context = PassContext(hardware=hardware, reproducer_folder=None)
    pipeline = ESTIMATES["parts" if parts else "program"]
    return Alternative(run_pipeline(Module("algorithm", (main,)), pipeline, context), known)
