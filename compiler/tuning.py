"""Choice by measurement: the model's most likely parameters of every contraction kernel are timed."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from tilewright.codegen import KernelSource, emit_cuda, emit_opencl
from tilewright.devices import open_device
from tilewright.executable import clear_errors
from tilewright.ir import Block, Builder, Constants, Func, Level, Module, Pairs, Ref, Value
from tilewright.ir.types import storage_dtype
from tilewright.kernel_builds import build_codes
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.tensor.choose_parameters import contract_candidates
from tilewright.pipelines import stage_texts
from tilewright.planning import plan_module
from tilewright.runtime.device import Device
from tilewright.runtime.plan import ExecutionPlan
from tilewright.targets import Target

#: candidates per kernel beside the model's choice
CANDIDATES = 8
#: launches in one timed replay: boundaries between kernels count, as they do in a network
LAUNCHES = 10
REPLAYS = 12


def measured_choice(module: Module, target: Target, *, progress: bool | None = None) -> Module:
    """The module with the fastest measured parameters on every contraction kernel.

    module: tensor level, kernels outlined, parameters chosen by the model. The model's choice is among the
    candidates, so a kernel is never slower than with it, apart from noise. Inputs are random. Raises
    WorkError without a device.
    """
    kernels = [f for f in module.funcs if f.get("skeleton") == "contract"]
    hidden = not (sys.stderr.isatty() if progress is None else progress)
    best: dict[str, Func] = {}
    with clear_errors(), open_device(str(target)) as device:
        for kernel in tqdm(kernels, desc="measuring", unit="kernel", file=sys.stderr, disable=hidden):
            variants = contract_candidates(kernel, target.hardware, CANDIDATES)
            times = _times(variants, target, device)
            seconds, winner = min(zip(times, range(len(variants)), strict=True))
            best[kernel.name] = variants[winner].with_attrs(
                measured_s=seconds, candidates=_on_record(variants, times)
            )
    return module.with_funcs(tuple(best.get(f.name, f) for f in module.funcs))


def _on_record(variants: list[Func], times: list[float]) -> tuple[Pairs, ...]:
    """Parameters, estimate and seconds of everything that was measured, for reports."""
    rows = []
    for f, seconds in zip(variants, times, strict=True):
        cost = f["cost"]
        assert isinstance(cost, Pairs)
        params, estimate = f["params"], cost["estimate_s"]
        rows.append(Pairs.of({"params": params, "estimate_s": estimate, "measured_s": seconds}))
    return tuple(rows)


def _times(variants: list[Func], target: Target, device: Device) -> list[float]:
    """Seconds per launch of each variant."""
    lowered = [_alone(f, target) for f in variants]
    sources = [_source(m, target) for m in lowered]
    named = {f"{s.entry}#{i}": s for i, s in enumerate(sources)}
    codes = list(build_codes(named, target, progress=False).values())
    out = []
    for module, source, code in zip(lowered, sources, codes, strict=True):
        name = source.entry
        plan = plan_module(module, {name: source}, {name: replace(code, name=name)}, str(target))
        out.append(_seconds(_repeated(plan), module, device))
    return out


def _alone(kernel: Func, target: Target) -> Module:
    """A program that runs one kernel, weights as a constant, lowered to the thread level."""
    (op,) = (o for o in kernel.body.ops if o.name == "tensor.contract")
    rng = np.random.default_rng(0)
    b = Builder("measured")
    inputs: list[Value] = []
    operands: list[Value] = []
    constants: dict[str, np.ndarray] = {}
    for i, p in enumerate(kernel.params):
        if p is op.operands[1]:
            constants["weights"] = rng.standard_normal(p.tensor.shape).astype(storage_dtype(p.tensor.dtype))
            operands += b.emit("tensor.constant", (), {"name": "weights"}, types=[p.type])
        else:
            inputs.append(Value(p.type, f"x{i}"))
            operands.append(inputs[-1])
    results = b.emit("tensor.call", operands, {"callee": Ref(kernel.name)}, types=kernel.result_types)
    b.emit("tensor.return", results)
    main = Func(Level.TENSOR, "main", Block(tuple(inputs), tuple(b.ops)), kernel.result_types)
    context = PassContext(target=str(target), hardware=target.hardware)
    text = f"pack-weights, dce, {stage_texts(Level.TENSOR, target.language)['thread']}"
    module = Module("measured", (kernel, main), (), Constants(constants))
    return run_pipeline(module, Pipeline.parse(text), context)


def _source(module: Module, target: Target) -> KernelSource:
    (func,) = (f for f in module.funcs if f.level is Level.THREAD)
    return emit_cuda(func) if target.language == "cuda" else emit_opencl(func)


def _repeated(plan: ExecutionPlan) -> ExecutionPlan:
    """The same launch several times, one after the other."""
    (launch,) = plan.launches
    chain = tuple(replace(launch, deps=(i - 1,) if i else ()) for i in range(LAUNCHES))
    return plan.replace(launches=chain).validate()


def _seconds(plan: ExecutionPlan, module: Module, device: Device) -> float:
    rng = np.random.default_rng(1)
    arrays = [
        rng.standard_normal(p.tensor.shape).astype(storage_dtype(p.tensor.dtype)) for p in module.main.params
    ]
    names = {b.name for b in plan.buffers if b.kind == "constant"}
    constants = {n: a for n, a in module.constants.items() if n in names}
    with device.load(plan, constants) as loaded:
        return float(np.median(loaded.time(arrays, REPLAYS))) / LAUNCHES
