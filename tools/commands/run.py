"""`tilewright run NET`: compile (or load) and run a network, check and time it."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.api import compile as compile_module
from tilewright.compilation.option_values import TOLERANCE
from tilewright.ir import Module, WorkError
from tilewright.profiling.profile import Profile
from tilewright.running.checking import largest_error, random_inputs
from tilewright.running.executable import Executable
from tilewright.running.interpreting import interpret
from tilewright.runtime.atomic_file import output_file
from tilewright.streaming import StreamedExecutable
from tilewright.streaming.compiling import compile_network
from tilewright.streaming.memory_size import memory_bytes, shown_bytes
from tilewright.streaming.run import compared
from tilewright.tools.commands.network import (
    choices_of,
    load_network,
    load_saved,
    read_inputs,
    require_device,
)
from tilewright.tools.commands.rank_run import is_rank, on_ranks, rank_lines, run_rank, start_ranks


def run_network(a: argparse.Namespace) -> None:
    """Run once, check where asked, time, report."""
    if on_ranks(a):
        _run_on_ranks(a)
        return
    if a.memory_cap is not None:
        streamed, outputs = run_streamed(a)
        _finish(a, {**streamed, "outputs": [_summary(o) for o in outputs]}, outputs, None)
        return
    module = None
    if Path(a.network).suffix == ".tw":
        exe = load_saved(a)
    else:
        module = load_network(a)
        require_device(a.target)
        exe = compile_module(module, target=a.target, **choices_of(a))
    names, types = exe.input_names, exe.input_types
    inputs = read_inputs(a.input, names, types) if a.input else random_inputs(names, types, a.seed)
    outputs = exe(*inputs)
    result: dict[str, Any] = {
        "target": exe.target,
        "device": exe.device,
        "outputs": [_summary(o) for o in outputs],
    }
    if isinstance(exe, Executable):
        result["seconds_median"] = float(np.median(exe.time(*inputs, repeats=a.repeats)))
    profile = None
    if a.trace:
        profile = exe.profile(*inputs, repeats=a.repeats, compare_serial=True)
        profile.write_trace(a.trace)
        result["profile"] = profile.summary()
    exe.close()
    if a.check and module is not None:
        expected = interpret(module, *inputs, precision="fp64")
        result["relative_error"] = largest_error(outputs, expected)
    _finish(a, result, outputs, profile)


def _run_on_ranks(a: argparse.Namespace) -> None:
    """Run as one of several ranks, of which the first reports; or start them."""
    if not is_rank(a):
        start_ranks(a)
    elif (first := run_rank(a)) is not None:
        result, outputs = first
        _finish(a, {**result, "outputs": [_summary(o) for o in outputs]}, outputs, None)


def _finish(
    a: argparse.Namespace, result: dict[str, Any], outputs: list[np.ndarray], profile: Profile | None
) -> None:
    """Write and report; raises WorkError for a wrong result."""
    if a.output:
        _write(a.output, outputs)
    _report(a, result, profile)
    limit = TOLERANCE[a.precision]
    if result.get("relative_error", 0.0) > limit:
        raise WorkError(
            f"the result is wrong: relative error {result['relative_error']:.3g} is above {limit:g}"
        )


def _summary(o: np.ndarray) -> dict[str, Any]:
    finite = bool(np.isfinite(o).all()) if o.dtype.kind == "f" else True
    return {"shape": list(o.shape), "dtype": o.dtype.name, "finite": finite}


def _write(path: str, outputs: list[np.ndarray]) -> None:
    arrays: dict[str, Any] = {f"out{i}": o for i, o in enumerate(outputs)}
    with output_file(path, "the outputs") as f:
        np.savez(f, **arrays)


def _report(a: argparse.Namespace, result: dict[str, Any], profile: Profile | None) -> None:
    if a.json:
        print(json.dumps(result))
        return
    shapes = ", ".join(f"{o['dtype']}{o['shape']}" for o in result["outputs"])
    print(f"{a.network} on {result['device']}: {shapes}")
    if "seconds_median" in result:
        print(f"median of {a.repeats} runs: {1e3 * result['seconds_median']:.3f} ms")
    if "distributed" in result:
        print(rank_lines(result["distributed"]))
    if "relative_error" in result:
        print(f"relative error against the float64 reference: {result['relative_error']:.2e}")
    if "streaming" in result:
        print(streaming_lines(result["streaming"]))
    if profile is not None:
        print(f"{profile}\nwrote {a.trace}")


Arrays = list[np.ndarray]


def run_streamed(a: argparse.Namespace) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Compile, run once, then timed; results of the first micro-batch and what there is to report."""
    batches = 1 if a.micro_batches is None else a.micro_batches
    cap = memory_bytes(a.memory_cap, where="--memory-cap")
    host = None if a.host_memory is None else memory_bytes(a.host_memory, where="--host-memory")
    module = load_network(a)
    require_device(a.target)
    with compile_network(
        module,
        a.target,
        memory_cap=cap,
        folder=a.weights_folder,
        host_memory=host,
        gpudirect=bool(a.gpudirect),
        **choices_of(a),
    ) as exe:
        names, types = exe.input_names, exe.input_types
        inputs = [
            read_inputs(a.input, names, types) if a.input else random_inputs(names, types, a.seed + number)
            for number in range(batches)
        ]
        outputs = exe.run(inputs, a.schedule or "auto")
        result: dict[str, Any] = {"target": exe.target, "device": exe.device}
        if a.check:
            result["relative_error"] = _largest_error(module, inputs, outputs)
        result["streaming"] = _times(a, exe, inputs)
    result["seconds_median"] = result["streaming"]["seconds_median"]
    return result, outputs[0]


def _largest_error(module: Module, inputs: list[Arrays], outputs: list[Arrays]) -> float:
    expected = (interpret(module, *arrays, precision="fp64") for arrays in inputs)
    return max(map(largest_error, outputs, expected))


def _times(a: argparse.Namespace, exe: StreamedExecutable, inputs: list[Arrays]) -> dict[str, Any]:
    """Runs after the first, which compares checksums and binds plans; the median one against the model."""
    prediction = exe.predict(len(inputs), a.schedule or "auto")
    runs = []
    for _ in range(a.repeats):
        exe.run(inputs, prediction.schedule)
        assert exe.record is not None
        runs.append(exe.record)
    middle = sorted(runs, key=lambda r: r.total_s)[len(runs) // 2]
    return {
        "seconds_median": float(np.median([r.total_s for r in runs])),
        "seconds": [r.total_s for r in runs],
        "against_model": compared(middle, prediction),
        "prediction": asdict(prediction),
        "report": exe.report(),
    }


def streaming_lines(streaming: dict[str, Any]) -> str:
    """The text about a streamed run: memory, then every part measured and predicted."""
    report, comparison = streaming["report"], streaming["against_model"]
    lines = [
        f"{report['steps']} steps ({report['plans']} plans), {shown_bytes(report['weight_bytes'])} in all",
        f"{shown_bytes(report['device_bytes_peak'])} of device memory under a cap of "
        f"{shown_bytes(report['memory_cap_bytes'])}",
        f"{comparison['micro_batches']} micro-batches, {comparison['schedule']}",
    ]
    for part in ("total", "storage", "copy", "compute"):
        times = comparison[part]
        got, predicted = 1e3 * times["measured_s"], 1e3 * times["predicted_s"]
        lines.append(f"{part:8s} {got:10.2f} ms, predicted {predicted:10.2f} ms")
    error, share = 100 * comparison["relative_error"], 100 * comparison["overlap"]
    lines.append(f"predicted {error:+.1f} %; {share:.1f} % of the rate of the slowest part")
    return "\n".join(lines)
