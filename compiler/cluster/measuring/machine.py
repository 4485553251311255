"""A cluster record of the machine at hand: link, storage, rate of a network, and its ops' seconds, as TOML.

Every rank measures at the same time as the others, so that what they share (cores, memory) is shared.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from tilewright.cluster.measuring.trace import busy_s, end_s, picked
from tilewright.cluster.planning.op_seconds import op_flops_of
from tilewright.compilation.option_values import Pick
from tilewright.costmodel import CpuHardware
from tilewright.costmodel.cluster.inputs.machine import Cluster, ClusterDevice, Storage
from tilewright.costmodel.links import Link
from tilewright.devices.targets import target_here
from tilewright.ir import Module
from tilewright.profiling.kernel_times import TellsLaunchSpans
from tilewright.running.executable import Executable
from tilewright.runtime.communication.communicator import AnyCommunicator
from tilewright.runtime.storage.measure import measure_storage

#: how long storage is measured, and how much of it is taken
STORAGE_S, STORAGE_BYTES = 0.3, 1 << 27


@dataclass(frozen=True)
class NetworkTimes:
    """Seconds of one network on one device while all others run it as well.

    total_s: of a run. launches: origin (locations of ops) and seconds of each kernel, with its share of what
    lies between kernels, `overhead_share` of it all: they add up to total_s.
    """

    total_s: float
    launches: tuple[tuple[tuple[str, ...], float], ...]
    overhead_share: float
    device: str
    target: str


class WholeNetwork:
    """The undivided network on every rank: its outputs, and its times while all ranks run it together."""

    def __init__(
        self,
        exe: Executable,
        communicator: AnyCommunicator,
        inputs: Sequence[np.ndarray],
        *,
        repeats: int,
        pick: Pick,
    ) -> None:
        """exe: it is closed with this."""
        self.exe, self._communicator, self._inputs, self._repeats = exe, communicator, inputs, repeats
        self._pick: Pick = pick

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exe.close()

    def outputs(self) -> list[np.ndarray]:
        """Return the outputs of one run."""
        return self.exe(*self._inputs)

    def times(self) -> NetworkTimes:
        """Seconds of a run and of its launches: means over the ranks, each of its median (or fastest) run."""
        total_s, busy_s, *each = self._together(self._own_times)
        scale = total_s / sum(each) if sum(each) else 0.0
        origins = [launch.origin for launch in self.exe.plan.launches]
        launches = tuple((o, s * scale) for o, s in zip(origins, each, strict=True))
        between = max(0.0, 1 - busy_s / total_s) if total_s else 0.0
        return NetworkTimes(total_s, launches, between, self.exe.device, self.exe.target)

    def _own_times(self) -> list[float]:
        """Return the seconds of this rank: a run, the kernels in it, and each launch.

        All of one run where the device tells when launches ran. Else launches run alone, and what lies
        between kernels in a run counts with them, as where ranks are compared by replays.
        """
        loaded, repeats = self.exe.load(), self._repeats
        if isinstance(loaded, TellsLaunchSpans):
            runs = loaded.launch_spans(self._inputs, repeats)
            spans = runs[picked(list(map(end_s, runs)), self._pick)]
            return [end_s(spans), busy_s(spans), *(end - begin for begin, end in spans)]
        runs_s = loaded.time(self._inputs, repeats)
        run_s = runs_s[picked(runs_s, self._pick)]
        alone = [row[picked(row, self._pick)] for row in loaded.time_kernels(self._inputs, repeats)]
        return [run_s, run_s, *alone]

    def _together(self, measure: Callable[[], list[float]]) -> list[float]:
        """Means over all ranks of what each measures at the same time."""
        self._communicator.gather_texts("", doing="timing the network together")
        own = json.dumps(measure())
        texts = self._communicator.gather_texts(own, doing="comparing times")
        return [float(x) for x in np.mean(list(map(json.loads, texts)), axis=0)]


def measured_cluster(
    module: Module,
    times: NetworkTimes,
    link: Link,
    *,
    devices: int,
    precision: str,
    memory: int | None,
    folder: str | None,
) -> Cluster:
    """The record: one node of equal devices.

    The rate is that of the network: its FLOP over its measured seconds. Peak and memory bandwidth are the
    hardware record's, of a CPU each rank's share. memory: bytes of each device, None for what there is.
    folder: whose storage is measured; None for that of temporary files. Raises WorkError where storage fails.
    """
    hardware = target_here(times.target).hardware
    shared = devices if isinstance(hardware, CpuHardware) else 1
    sustained = op_flops_of(module.main) / times.total_s
    peak = max(hardware.peak_flops_per_s / shared, sustained)
    device = ClusterDevice(
        name=times.device,
        memory_bytes=memory or device_memory_bytes(times.target) / shared,
        memory_bytes_per_s=hardware.dram_bytes_per_s / shared,
        peak_flops_per_s={precision: peak},
        efficiency=sustained / peak,
    )
    storage = _storage(folder or tempfile.gettempdir(), devices)
    return Cluster(f"{devices} x {times.device}", 1, devices, device, link, link, storage, "intra")


def device_memory_bytes(target: str) -> int:
    """Bytes of the device's whole memory."""
    if target.startswith("cuda"):
        from tilewright.runtime.cuda.device import CudaDevice

        with CudaDevice() as gpu, gpu.context.current():
            return int(gpu.context.call("cuMemGetInfo")[1])
    from tilewright.runtime.opencl.trust import find_device

    device, _ = find_device(target.partition(":")[2] or None)
    return int(device.global_mem_size)


def _storage(folder: str, devices: int) -> Storage:
    rates = measure_storage(folder, seconds=STORAGE_S, max_bytes=STORAGE_BYTES)
    free = shutil.disk_usage(folder).free
    return Storage(rates.read_bytes_per_s, rates.write_bytes_per_s, float(max(free, 1)), "half", devices)


def record_text(cluster: Cluster, notes: Sequence[str]) -> str:
    """The record as TOML that `load_cluster` reads, with six digits; `notes` become comments."""
    d, s = cluster.device, cluster.storage
    links: dict[str, dict[str, str | int | float]] = {
        name: {
            "bandwidth": _amount(link.bytes_per_s, "B/s"),
            "per": link.per,
            "latency": f"{link.latency_s * 1e6:.6f} us",
            "call": f"{link.call_s * 1e6:.6f} us",
        }
        for name, link in (("intra", cluster.intra), ("inter", cluster.inter))
    }
    tables: dict[str, dict[str, str | int | float]] = {
        "": {
            "kind": "cluster",
            "name": cluster.name,
            "nodes": cluster.nodes,
            "devices_per_node": cluster.devices_per_node,
            "printed_link": cluster.printed_link,
        },
        "device": {
            "name": d.name,
            "memory": _amount(d.memory_bytes, "B"),
            "memory_bandwidth": _amount(d.memory_bytes_per_s, "B/s"),
            "efficiency": float(f"{d.efficiency:.6g}"),
        },
        "device.peak": {name: _amount(peak, "FLOP/s") for name, peak in d.peak_flops_per_s.items()},
        **links,
        "storage": {
            "read": _amount(s.read_bytes_per_s, "B/s"),
            "write": _amount(s.write_bytes_per_s, "B/s"),
            "capacity": _amount(s.capacity_bytes, "B"),
            "duplex": s.duplex,
            "devices": s.devices,
        },
    }
    lines = [f"# {note}" for note in notes]
    for name, table in tables.items():
        lines += ["", f"[{name}]"] if name else []
        lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join([*lines, ""])


def _amount(value: float, unit: str) -> str:
    """Six digits and a decimal prefix."""
    for prefix, scale in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= scale:
            return f"{value / scale:.6g} {prefix}{unit}"
    return f"{value:.6g} {unit}"
