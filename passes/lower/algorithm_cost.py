"""What an algorithm of a convolution costs by the model: its kernels, cut and chosen as in a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from tilewright.costmodel import Hardware
from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Type, Value
from tilewright.ir.nodes import Attr
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.dead_ops import live_ops
from tilewright.passes.lower.lowering import RULES

#: tensor ops to kernels with chosen parameters
_KERNELS = "forward-copies, cse, dce, fuse-kernels, merge-dims, choose-parameters"


def estimated_s(op: Op, algorithm: str, hardware: Hardware, *, constant_weight: bool) -> float:
    """Seconds of all kernels of graph.conv2d `op` by an algorithm that is legal for it. Memoised.

    constant_weight: whether the kernel's transform is done at compile time.
    """
    attrs = tuple((k, algorithm if k == "algorithm" else v) for k, v in op.attrs)
    types = tuple(v.type for v in op.operands)
    return _estimated_s(types, attrs, op.result.type, hardware, constant_weight)


@lru_cache(maxsize=1024)
def _estimated_s(
    types: tuple[Type, ...],
    attrs: tuple[tuple[str, Attr], ...],
    result: Type,
    hardware: Hardware,
    constant_weight: bool,
) -> float:
    op = Op("graph.conv2d", tuple(Value(t) for t in types), attrs, (Value(result),))
    module = alternative(op, hardware, constant_weight=constant_weight)
    costs = [cast(Pairs, f["cost"]) for f in module.funcs if f.get("cost") is not None]
    return sum(cast(float, c["estimate_s"]) for c in costs)


def alternative(op: Op, hardware: Hardware, *, constant_weight: bool) -> Module:
    """A program of graph.conv2d `op` alone, as kernels with chosen parameters.

    Its inputs are the op's data, and whatever a network has at hand when it runs: the kernel, or what can be
    computed from it at compile time.
    """
    b = Builder("algorithm")
    results = tuple(RULES[op.name](b, op, op.operands))
    data, weight = op.operands
    known = {weight} if constant_weight else set()
    ops: list[Op] = []
    for o in b.ops:
        if all(v in known for v in o.operands):
            known.update(o.results)
        else:
            ops.append(o)
    b = Builder()
    b.do("tensor.return", *results)
    ops = list(live_ops(Block((), (*ops, *b.ops))))
    given = [v for o in ops for v in o.operands if v in known]
    params = (data, *dict.fromkeys([*given, *(() if constant_weight else (weight,))]))
    return _kernels(params, ops, hardware)


def _kernels(params: Sequence[Value], ops: Sequence[Op], hardware: Hardware) -> Module:
    types = tuple(v.type for v in ops[-1].operands)
    main = Func(Level.TENSOR, "main", Block(tuple(params), tuple(ops)), types)
    context = PassContext(hardware=hardware, reproducer_folder=None)
    return run_pipeline(Module("algorithm", (main,)), Pipeline.parse(_KERNELS), context)
