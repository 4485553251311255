"""Opens the lane of the device that a target asks for, and what reads a store into its slots."""

from __future__ import annotations

from pathlib import Path

from tilewright.devices.opening import open_device
from tilewright.ir import UnsupportedError
from tilewright.runtime.interface.placed import Lane
from tilewright.runtime.storage.gpudirect import DeviceReader
from tilewright.runtime.storage.reader import StepReader
from tilewright.runtime.storage.source import IoOptions

#: kinds of targets with lanes
STREAMING = ("cuda", "opencl", "null")


def check_streaming(kind: str) -> None:
    """Raise UnsupportedError for a kind of target that cannot stream."""
    if kind not in STREAMING:
        raise UnsupportedError(f"a memory cap needs a target among {', '.join(STREAMING)}, got '{kind}'")


def check_direct(kind: str) -> None:
    """Raise UnsupportedError for a kind of target that storage cannot write to past the host."""
    if kind != "cuda":
        raise UnsupportedError(f"GPUDirect Storage needs the target cuda, got '{kind}'")


def open_lane(target: str, cap_bytes: int | None, *, direct: bool = False) -> Lane:
    """A lane on the device of a target, which goes with the lane; raises as `open_device` does.

    direct: storage writes to the device's memory past the host, see `open_reader`.
    """
    kind = target.partition(":")[0]
    check_streaming(kind)
    if direct:
        check_direct(kind)
    device = open_device(target)
    try:
        return _lane(kind, device, cap_bytes, direct)
    except BaseException:
        device.close()
        raise


def _lane(kind: str, device: object, cap_bytes: int | None, direct: bool) -> Lane:
    if kind == "cuda":
        from tilewright.runtime.cuda.device import CudaDevice
        from tilewright.runtime.cuda.lane import CudaLane

        assert isinstance(device, CudaDevice)
        return CudaLane(device, cap_bytes, direct=direct)
    if kind == "opencl":
        from tilewright.runtime.opencl.device import OpenClDevice
        from tilewright.runtime.opencl.lane import OpenClLane

        assert isinstance(device, OpenClDevice)
        return OpenClLane(device, cap_bytes)
    from tilewright.runtime.null.device import NullDevice
    from tilewright.runtime.null.lane import NullLane

    assert isinstance(device, NullDevice)
    return NullLane(device, cap_bytes)


def open_reader(store: Path, io: IoOptions, lane: Lane) -> StepReader | DeviceReader:
    """What reads a store into the slots of a lane; raises as its class does."""
    if not getattr(lane, "direct", False):
        return StepReader(store, io)
    from tilewright.runtime.cuda.lane import CudaLane

    assert isinstance(lane, CudaLane)
    return DeviceReader(store, lane.context.current)
