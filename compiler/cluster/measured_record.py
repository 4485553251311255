"""A measured cluster as a TOML file that the cluster model reads again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from tilewright.costmodel.cluster.machine import Cluster
from tilewright.ir import InputError
from tilewright.runtime.atomic_file import atomic_file


def record_text(cluster: Cluster, notes: Sequence[str]) -> str:
    """The record as TOML that `load_cluster` reads, with six digits; `notes` become comments."""
    d, s = cluster.device, cluster.storage
    lines = [f"# {note}" for note in notes]
    lines += ['kind = "cluster"', f"name = {_quoted(cluster.name)}", f"nodes = {cluster.nodes}"]
    lines += [
        f"devices_per_node = {cluster.devices_per_node}",
        f"printed_link = {_quoted(cluster.printed_link)}",
    ]
    lines += ["", "[device]", f"name = {_quoted(d.name)}", f"memory = {_amount(d.memory_bytes, 'B')}"]
    lines += [
        f"memory_bandwidth = {_amount(d.memory_bytes_per_s, 'B/s')}",
        f"efficiency = {d.efficiency:.6g}",
    ]
    lines += ["", "[device.peak]"]
    lines += [f"{name} = {_amount(peak, 'FLOP/s')}" for name, peak in d.peak_flops_per_s.items()]
    for name, link in (("intra", cluster.intra), ("inter", cluster.inter)):
        lines += [
            "",
            f"[{name}]",
            f"bandwidth = {_amount(link.bytes_per_s, 'B/s')}",
            f"per = {_quoted(link.per)}",
        ]
        lines += [
            f'{key} = "{x * 1e6:.6f} us"' for key, x in (("latency", link.latency_s), ("call", link.call_s))
        ]
    lines += ["", "[storage]", f"read = {_amount(s.read_bytes_per_s, 'B/s')}"]
    lines += [
        f"write = {_amount(s.write_bytes_per_s, 'B/s')}",
        f"capacity = {_amount(s.capacity_bytes, 'B')}",
    ]
    lines += [f"duplex = {_quoted(s.duplex)}", f"devices = {s.devices}", ""]
    return "\n".join(lines)


def write_record(path: str, text: str) -> None:
    """Write a record, whole or not at all; raises InputError where it cannot be written."""
    try:
        with atomic_file(Path(path)) as file:
            file.write(text.encode())
    except OSError as error:
        raise InputError(f"cannot write the record: {error.strerror}", where=path) from error


def _quoted(text: str) -> str:
    return json.dumps(text)


def _amount(value: float, unit: str) -> str:
    """Six digits and a decimal prefix."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f'"{value / scale:.6g} {prefix}{unit}"'
    return f'"{value:.6g} {unit}"'
