"""`tilewright run NET --memory-cap 2GiB`: weights stream from storage; times against the model."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

import numpy as np

from tilewright.commands.network import (
    choices_of,
    load_network,
    random_inputs,
    read_inputs,
    relative_error,
)
from tilewright.ir import InputError, Module, interpret
from tilewright.streaming import StreamedExecutable
from tilewright.streaming import compile as compile_streamed
from tilewright.streaming.memory_size import shown_bytes
from tilewright.streaming.streaming_report import compared

Arrays = list[np.ndarray]


def add_stream_arguments(p: argparse.ArgumentParser) -> None:
    """The arguments of a run under a memory cap."""
    group = p.add_argument_group("weights on storage")
    group.add_argument(
        "--memory-cap",
        metavar="SIZE",
        help="device memory to use at most, such as 2GiB: weights stay on storage and stream through it",
    )
    group.add_argument(
        "--micro-batches",
        type=int,
        metavar="N",
        help="run N inputs of the network's shape in one go (default 1)",
    )
    group.add_argument(
        "--schedule",
        choices=("auto", "pr", "ar"),
        help="fetch weights once for all micro-batches (pr), or again for each (ar); default: the faster",
    )
    group.add_argument(
        "--weights-folder",
        metavar="FOLDER",
        help="where the weights are written and stay (default: a temporary folder, removed at the end)",
    )
    group.add_argument(
        "--host-memory",
        metavar="SIZE",
        help="host memory for values of micro-batches between steps; the rest goes to the folder",
    )
    group.add_argument(
        "--gpudirect",
        action="store_const",
        const=True,
        help="storage writes straight into the GPU's memory (GPUDirect Storage, needs kvikio)",
    )


def reject_stream_arguments(a: argparse.Namespace) -> None:
    """Raise InputError for arguments that only mean something with a memory cap."""
    for option in ("--micro-batches", "--schedule", "--weights-folder", "--host-memory", "--gpudirect"):
        if getattr(a, option[2:].replace("-", "_")) is not None:
            raise InputError("expected --memory-cap with this option", where=option)


def run_streamed(a: argparse.Namespace) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Compile, run once, then timed; results of the first micro-batch and what there is to report."""
    batches = 1 if a.micro_batches is None else a.micro_batches
    if batches < 1:
        raise InputError(f"expected at least 1 micro-batch, got {batches}", where="--micro-batches")
    if a.trace:
        raise InputError("expected a run without --memory-cap: streamed ones have no trace", where="--trace")
    if a.network.endswith(".tw"):
        raise InputError("--memory-cap needs the network itself, a saved executable has its own plan")
    module = load_network(a)
    with compile_streamed(
        module,
        a.target,
        memory_cap=a.memory_cap,
        folder=a.weights_folder,
        host_memory=a.host_memory,
        gpudirect=bool(a.gpudirect),
        **choices_of(a),
    ) as exe:
        names, types = exe.input_names, exe.input_types
        inputs = [
            read_inputs(a.input, names) if a.input else random_inputs(names, types, a.seed + number)
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
