"""Choice by measurement: the model's most likely parameters of every contraction kernel are timed."""

from __future__ import annotations

import sys
from typing import cast

from tqdm import tqdm

from tilewright.ir import Block, Builder, Func, Level, Module, Pairs, Ref, Value
from tilewright.measuring import Measurer, RandomConstants
from tilewright.passes.tensor.choose_parameters import contract_candidates

#: candidates per kernel beside the model's choice
CANDIDATES = 8


def measured_choice(module: Module, measurer: Measurer, *, progress: bool | None = None) -> Module:
    """The module with the fastest measured parameters on every contraction kernel.

    module: tensor level, kernels outlined, parameters chosen by the model. The model's choice is among the
    candidates, so a kernel is never slower than with it, apart from noise. Inputs are random.
    """
    kernels = [f for f in module.funcs if f.get("skeleton") == "contract"]
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    best: dict[str, Func] = {}
    for kernel in tqdm(kernels, desc="measuring", unit="kernel", file=sys.stderr, disable=hidden):
        variants = contract_candidates(kernel, measurer.target.hardware, CANDIDATES)
        times = measurer.seconds([_alone(f) for f in variants])
        seconds, winner = min(zip(times, range(len(variants)), strict=True))
        best[kernel.name] = variants[winner].with_attrs(
            measured_s=seconds, candidates=_on_record(variants, times)
        )
    return module.with_funcs(tuple(best.get(f.name, f) for f in module.funcs))


def tuning_facts(module: Module, measurer: Measurer) -> dict[str, int | float]:
    """What a report says of measuring.

    module: tensor level, as `measured_choice` left it. `measured` and `reused` count the programs that were
    timed and that the database knew; `model_s` and `chosen_s` are the measured seconds of the contraction
    kernels of one run, with the model's parameters and with the chosen ones.
    """
    facts: dict[str, int | float] = {"measured": measurer.measured, "reused": measurer.reused}
    model_s = chosen_s = 0.0
    calls = [op["callee"] for op in module.main.body.ops if op.name == "tensor.call"]
    for kernel in (module[ref.name] for ref in calls if isinstance(ref, Ref)):
        candidates = kernel.get("candidates")
        if isinstance(candidates, tuple) and isinstance(candidates[0], Pairs):
            model_s += cast("float", candidates[0]["measured_s"])  # the model's choice comes first
            chosen_s += cast("float", kernel["measured_s"])
    return {**facts, "model_s": model_s, "chosen_s": chosen_s}


def _on_record(variants: list[Func], times: list[float]) -> tuple[Pairs, ...]:
    """Parameters, estimate and seconds of everything that was measured, for reports."""
    rows = []
    for f, seconds in zip(variants, times, strict=True):
        cost = f["cost"]
        assert isinstance(cost, Pairs)
        params, estimate = f["params"], cost["estimate_s"]
        rows.append(Pairs.of({"params": params, "estimate_s": estimate, "measured_s": seconds}))
    return tuple(rows)


def _alone(kernel: Func) -> Module:
    """A program that runs one kernel, weights as a constant."""
    (op,) = (o for o in kernel.body.ops if o.name == "tensor.contract")
    b = Builder("measured")
    weights = RandomConstants()
    inputs: list[Value] = []
    operands: list[Value] = []
    for i, p in enumerate(kernel.params):
        if p is op.operands[1]:
            operands.append(weights.constant(b, p.tensor))
        else:
            inputs.append(Value(p.type, f"x{i}"))
            operands.append(inputs[-1])
    results = b.emit("tensor.call", operands, {"callee": Ref(kernel.name)}, types=kernel.result_types)
    b.emit("tensor.return", results)
    main = Func(Level.TENSOR, "main", Block(tuple(inputs), tuple(b.ops)), kernel.result_types)
    return weights.of(Module("measured", (kernel, main)))
