"""What an algorithm of a convolution costs by the model: its kernels, cut and chosen as in a network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.costmodel.geometry import WARP
from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Type, Value
from tilewright.ir.nodes import Attr
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.dead_ops import live_ops
from tilewright.passes.lower import rules  # noqa: F401  (registers the rules)
from tilewright.passes.lower.lowering import RULES

#: instructions that one read of a transform costs, with its address and bounds checks: fitted to 20 Winograd
#: convolutions timed on an H100
_INSTRUCTIONS_PER_READ = 17.0
#: the same on a core of a CPU, in clock cycles: an estimate
_CPU_CLK_PER_READ = 16.0

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
    return sum(cast(float, c["estimate_s"]) for c in costs) + _reading_s(module, hardware)


def _reading_s(module: Module, hardware: Hardware) -> float:
    """What maps of many reads cost beyond their traffic, which is all that their kernels' estimates know."""
    maps = [op for f in module.funcs for op in f.body.ops if op.name == "tensor.map"]
    count = sum(op.result.tensor.size * len(op.operands) for op in maps)
    if isinstance(hardware, CpuHardware):
        return count * _CPU_CLK_PER_READ / (hardware.cores * hardware.estimate_clock_hz)
    slots = hardware.sm_count * hardware.schedulers_per_sm * WARP
    return count * _INSTRUCTIONS_PER_READ / (slots * hardware.clock_hz)


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
