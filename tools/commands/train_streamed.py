"""`tilewright train --memory-cap`: state on storage, and batches that are cut into micro-batches."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.ir import InputError, Module
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes
from tilewright.streaming.training_compiling import compile_step
from tilewright.streaming.training_executable import StreamedStep
from tilewright.tools.commands.network import choices_of
from tilewright.training.data import Data, fitted
from tilewright.training.loop import Loop, interface_of, measures_of


def micro_batch_network(network: Module, a: argparse.Namespace) -> Module:
    """The network for one of `--micro-batches` parts of its batch; raises InputError where it has none."""
    count = a.micro_batches or 1
    if count == 1:
        return network
    shapes = {n: t.shape for n, t in zip(network.input_names, network.input_types, strict=True)}
    batches = {s[0] for s in shapes.values() if s}
    if any(batch % count for batch in batches):
        raise InputError(
            f"expected a batch that {count} divides, got {', '.join(map(str, sorted(batches)))}",
            where="--micro-batches",
        )
    return with_input_shapes(network, {n: (s[0] // count, *s[1:]) for n, s in shapes.items() if s})


@contextmanager
def streamed_loop(a: argparse.Namespace, step: Module, data: Data) -> Iterator[Loop]:
    """The compiled step of a micro-batch, ready to be trained; it goes on where its folder holds a run."""
    with compile_step(
        step,
        a.target,
        memory_cap=a.memory_cap,
        folder=a.weights_folder,
        host_memory=a.host_memory,
        io=None,
        schedule=a.order or "auto",
        resume=bool(a.resume and a.weights_folder),
        options=choices_of(a),
    ) as exe:
        ports = interface_of(step)
        network = exe.inference()
        runs = exe.micro_batches

        def whole(*arrays: np.ndarray) -> list[np.ndarray]:
            pieces = [
                network(*(x[i * n : (i + 1) * n] for x, n in _extents(arrays, runs))) for i in range(runs)
            ]
            return [np.concatenate(results) for results in zip(*pieces, strict=True)]

        rows = fitted(data, ports.inputs, ports.targets)
        yield Loop(exe, whole, rows, ports, measures_of(a.loss, data), a.seed, runs=runs)


def _extents(arrays: tuple[np.ndarray, ...], runs: int) -> list[tuple[np.ndarray, int]]:
    return [(x, x.shape[0] // runs) for x in arrays]


def streaming_facts(exe: StreamedStep) -> dict[str, Any]:
    """What a streamed run took, and what the model says of its last step."""
    report = exe.report()
    kept = ("memory_cap_bytes", "device_bytes_peak", "layers", "micro_batches", "state_bytes", "plans")
    return {**{k: report[k] for k in kept}, **(exe.compare() if exe.record is not None else {})}


def streaming_text(facts: Mapping[str, Any]) -> str:
    """The same for readers."""
    lines = [
        f"{facts['layers']} layers, {facts['micro_batches']} micro-batches, "
        f"{facts['device_bytes_peak'] / 1e6:.1f} of {facts['memory_cap_bytes'] / 1e6:.1f} MB on the device, "
        f"{facts['state_bytes'] / 1e6:.1f} MB of state on storage"
    ]
    if "total" in facts:
        lines.append(f"last step, {facts['schedule']}:   predicted   measured")
        lines += [
            f"  {n:<8}{1e3 * facts[n]['predicted_s']:12.2f} ms{1e3 * facts[n]['measured_s']:9.2f} ms"
            for n in ("total", "read", "write", "compute", "wait", "commit")
        ]
    return "\n".join(lines)
