"""Opens the queue of the device that a target asks for, and what reads a store into its slots."""

from __future__ import annotations

from pathlib import Path

from tilewright.devices.opening import open_device
from tilewright.ir import UnsupportedError
from tilewright.runtime.interface.queue import DeviceQueue
from tilewright.runtime.storage.gpudirect import DeviceReader
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoOptions

#: kinds of targets with queues
STREAMING = ("cuda", "opencl", "null")


def check_streaming(kind: str) -> None:
    """Raise UnsupportedError for a kind of target that cannot stream."""
    if kind not in STREAMING:
        raise UnsupportedError(f"a memory cap needs a target among {', '.join(STREAMING)}, got '{kind}'")


def check_direct(kind: str) -> None:
    """Raise UnsupportedError for a kind of target that storage cannot write to past the host."""
    if kind != "cuda":
        raise UnsupportedError(f"GPUDirect Storage needs the target cuda, got '{kind}'")


def open_queue(target: str, cap_bytes: int | None, *, direct: bool = False) -> DeviceQueue:
    """A queue on the device of a target, which goes with the queue; raises as `open_device` does.

    direct: storage writes to the device's memory past the host, see `open_reader`.
    """
    kind = target.partition(":")[0]
    check_streaming(kind)
    if direct:
        check_direct(kind)
    device = open_device(target)
    try:
        return _queue(kind, device, cap_bytes, direct)
    except BaseException:
        device.close()
        raise


def _queue(kind: str, device: object, cap_bytes: int | None, direct: bool) -> DeviceQueue:
    if kind == "cuda":
        from tilewright.runtime.cuda.device import CudaDevice
        from tilewright.runtime.cuda.queue import CudaQueue

        assert isinstance(device, CudaDevice)
        return CudaQueue(device, cap_bytes, direct=direct)
    if kind == "opencl":
        from tilewright.runtime.opencl.device import OpenClDevice
        from tilewright.runtime.opencl.queue import OpenClQueue

        assert isinstance(device, OpenClDevice)
        return OpenClQueue(device, cap_bytes)
    from tilewright.runtime.null.device import NullDevice
    from tilewright.runtime.null.queue import NullQueue

    assert isinstance(device, NullDevice)
    return NullQueue(device, cap_bytes)


def open_reader(store: Path, io: IoOptions, queue: DeviceQueue) -> StepReader | DeviceReader:
    """Return the reader of a store into the slots of a queue; raises as its class does."""
    if not getattr(queue, "direct", False):
        return StepReader(store, io)
    from tilewright.runtime.cuda.queue import CudaQueue

    assert isinstance(queue, CudaQueue)
    return DeviceReader(store, queue.context.current)
