"""`tilewright run NET --memory-cap 2GiB`: weights stream from storage; times against the model."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import numpy as np

from tilewright.ir import Module, interpret
from tilewright.running.checking import random_inputs, relative_error
from tilewright.streaming import StreamedExecutable
from tilewright.streaming import compile as compile_streamed
from tilewright.streaming.memory_size import memory_bytes, shown_bytes
from tilewright.streaming.run_times import compared
from tilewright.tools.commands.network import choices_of, load_network, read_inputs, require_device

Arrays = list[np.ndarray]


def run_streamed(a: argparse.Namespace) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Compile, run once, then timed; results of the first micro-batch and what there is to report."""
    batches = 1 if a.micro_batches is None else a.micro_batches
    cap = memory_bytes(a.memory_cap, where="--memory-cap")
    host = None if a.host_memory is None else memory_bytes(a.host_memory, where="--host-memory")
    module = load_network(a)
    require_device(a.target)
    with compile_streamed(
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
    wanted = [interpret(module, *given, precision="fp64") for given in inputs]
    pairs = (p for got, want in zip(outputs, wanted, strict=True) for p in zip(got, want, strict=True))
    return max(relative_error(o, w) for o, w in pairs)


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
    """What a person reads of a streamed run: memory, then every part measured and predicted."""
    report, found = streaming["report"], streaming["against_model"]
    lines = [
        f"{report['steps']} steps ({report['plans']} plans), {shown_bytes(report['weight_bytes'])} in all",
        f"{shown_bytes(report['device_bytes_peak'])} of device memory under a cap of "
        f"{shown_bytes(report['memory_cap_bytes'])}",
        f"{found['micro_batches']} micro-batches, {found['schedule']}",
    ]
    for part in ("total", "storage", "copy", "compute"):
        times = found[part]
        got, wanted = 1e3 * times["measured_s"], 1e3 * times["predicted_s"]
        lines.append(f"{part:8s} {got:10.2f} ms, predicted {wanted:10.2f} ms")
    error, share = 100 * found["relative_error"], 100 * found["overlap"]
    lines.append(f"predicted {error:+.1f} %; {share:.1f} % of the rate of the slowest part")
    return "\n".join(lines)
