"""Opens the lane of the device that a target asks for."""

from __future__ import annotations

from tilewright.devices import open_device
from tilewright.ir import UnsupportedError
from tilewright.runtime.placed import Lane

#: kinds of targets with lanes
STREAMING = ("cuda", "opencl", "null")


def check_streaming(kind: str) -> None:
    """Raise UnsupportedError for a kind of target that cannot stream."""
    if kind not in STREAMING:
        raise UnsupportedError(f"a memory cap needs a target among {', '.join(STREAMING)}, got '{kind}'")


def open_lane(target: str, cap_bytes: int | None) -> Lane:
    """A lane on the device of a target, which goes with the lane; raises as `open_device` does."""
    kind = target.partition(":")[0]
    check_streaming(kind)
    device = open_device(target)
    try:
        return _lane(kind, device, cap_bytes)
    except BaseException:
        device.close()
        raise


def _lane(kind: str, device: object, cap_bytes: int | None) -> Lane:
    if kind == "cuda":
        from tilewright.runtime.cuda import CudaDevice
        from tilewright.runtime.cuda_lane import CudaLane

        assert isinstance(device, CudaDevice)
        return CudaLane(device, cap_bytes)
    if kind == "opencl":
        from tilewright.runtime.opencl import OpenClDevice
        from tilewright.runtime.opencl_lane import OpenClLane

        assert isinstance(device, OpenClDevice)
        return OpenClLane(device, cap_bytes)
    from tilewright.runtime.null import NullDevice
    from tilewright.runtime.null_lane import NullLane

    assert isinstance(device, NullDevice)
    return NullLane(device, cap_bytes)
