"""Measured training steps that come with Tilewright: CSV rows with their machines and sources, as arrays."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewright.costmodel.cluster.measured.in_memory import Machine, TrainingRuns
from tilewright.costmodel.cluster.measured.rings import ring_table
from tilewright.ir.errors import InputError

Array = NDArray[np.float64]

_FOLDER = Path(__file__).parent
_RECOMPUTE = {"none": 0.0, "full": 1.0, "selective": 2.0}
_ABSENT = {"interleave": "1", "sequence_parallel": "0", "sharding": "0"}


@dataclass(frozen=True, slots=True)
class MeasuredRows:
    """Steps of one source: configurations, measured seconds, and the model each row trains."""

    source: str
    citation: str
    machine: Machine
    runs: TrainingRuns
    step_s: Array
    models: tuple[str, ...]

    def subset(self, chosen: NDArray[np.bool_]) -> MeasuredRows:
        """The rows where `chosen` (bool, one per row) holds."""
        models = tuple(m for m, keep in zip(self.models, chosen, strict=True) if keep)
        return MeasuredRows(
            self.source,
            self.citation,
            self.machine,
            select_runs(self.runs, chosen),
            self.step_s[chosen],
            models,
        )


def select_runs(runs: TrainingRuns, chosen: NDArray[np.bool_]) -> TrainingRuns:
    """The configurations where `chosen` holds."""
    return TrainingRuns(**{f.name: getattr(runs, f.name)[chosen] for f in fields(TrainingRuns)})


def source_names(kind: str = "steps") -> tuple[str, ...]:
    """All sources of a kind, in the order of the file.

    `steps` name the configuration of each row, `best` are the rates of best configurations, `offload` rates
    with host memory or storage in use (listed, never predicted).
    """
    return tuple(name for name, facts in _description()["sources"].items() if facts["kind"] == kind)


@dataclass(frozen=True, slots=True)
class BestRate:
    """A measured rate of the best configuration on some devices; which configuration it was is not known."""

    source: str
    model: str
    machine: Machine
    layers: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    devices: int
    batch: int
    tflops_per_device: float


def best_rates(source: str) -> list[BestRate]:
    """The rows of a source of best rates; raises InputError naming the known ones."""
    facts = _facts(source, source_names("best"))
    rows = [{**facts["defaults"], **row} for row in _table(facts["file"], source)]
    whole = ("layers", "hidden", "heads", "sequence", "vocabulary", "devices", "batch")
    machine = machine_named(facts["machine"])
    return [
        BestRate(
            source=source,
            model=row["model"],
            machine=machine,
            tflops_per_device=float(row["tflops_per_device"]),
            **{name: int(row[name]) for name in whole},
        )
        for row in rows
    ]


def citation(source: str) -> str:
    """Return the publication that the rows of a source come from."""
    return _facts(source, tuple(_description()["sources"]))["citation"]


@cache
def measured_rows(source: str) -> MeasuredRows:
    """The rows of one source; raises InputError naming the known ones."""
    facts = _facts(source, source_names())
    table = _table(facts["file"], source)
    filled = [
        {**_ABSENT, **facts.get("defaults", {}), **{k: v for k, v in row.items() if v}} for row in table
    ]
    columns = {f.name: _column(filled, f.name) for f in fields(TrainingRuns)}
    runs = TrainingRuns(**columns)
    models = tuple(row.get("model") or f"{row['layers']}x{row['hidden']}" for row in table)
    return MeasuredRows(
        source, facts["citation"], machine_named(facts["machine"]), runs, _step_seconds(filled, runs), models
    )


def machine_named(name: str) -> Machine:
    """The machine of `sources.toml` called `name`."""
    facts = _description()["machines"][name]
    return Machine(
        name=facts["name"],
        peak_flops=facts["peak_flops"],
        memory_bytes_per_s=facts["memory_bytes_per_s"],
        memory_bytes=facts["memory_bytes"],
        devices_per_node=facts["devices_per_node"],
        node_network_bytes_per_s=facts["node_network_bytes_per_s"],
        ring=ring_table(facts["topology"]),
    )


@cache
def _description() -> dict[str, Any]:
    return tomllib.loads((_FOLDER / "sources.toml").read_text(encoding="utf-8"))


def _facts(source: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    if source not in known:
        raise InputError(f"expected a source of measured rows ({', '.join(known)}), got {source!r}")
    return _description()["sources"][source]


def _table(file: str, source: str) -> list[dict[str, str]]:
    with open(_FOLDER / file, encoding="utf-8", newline="") as stream:
        return [row for row in csv.DictReader(stream) if row.get("source", source) == source]


def _column(rows: list[dict[str, Any]], name: str) -> Array:
    if name == "recompute":
        return np.array([_RECOMPUTE[row[name]] for row in rows])
    return np.array([float(row[name]) for row in rows])


def _step_seconds(rows: list[dict[str, Any]], runs: TrainingRuns) -> Array:
    """Measured seconds, from milliseconds or from TF/s per device where a source prints those."""
    seconds = []
    for row, flops, devices in zip(rows, runs.step_flops, runs.devices, strict=True):
        if "step_s" in row:
            seconds.append(float(row["step_s"]))
        elif "step_ms" in row:
            seconds.append(float(row["step_ms"]) / 1e3)
        else:
            seconds.append(flops / (devices * float(row["tflops_per_device"]) * 1e12))
    return np.array(seconds)
