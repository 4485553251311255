"""The null device records what a real one would do, in order."""

import numpy as np
import pytest
from runtime_samples import diamond, random_floats

from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.null.device import NullDevice, Operation

PLAN = diamond()
X, W = random_floats(1), random_floats(2)


def test_it_records_the_operations_in_order():
    built = []
    with (
        NullDevice() as device,
        device.load(PLAN, {"w": W}, progress=lambda *step: built.append(step)) as loaded,
    ):
        (y,) = loaded.run([X])
    assert y.shape == (1024,)
    assert y.dtype == np.float32
    assert built == [(1, 3, "scale"), (2, 3, "shift"), (3, 3, "join")]
    assert Operation("allocate", "arena", PLAN.arena_bytes) in device.log
    steps = [
        (op.action, op.what, op.launch, op.stream) for op in device.log if op.action in ("launch", "wait")
    ]
    assert steps == [
        ("launch", "scale", 0, 0),
        ("launch", "shift", 1, 0),
        ("wait", "scale", 0, 1),
        ("launch", "scale", 2, 1),
        ("wait", "scale", 2, 0),
        ("launch", "join", 3, 0),
    ]
    actions = [op.action for op in device.log]
    assert actions.index("copy-in") < actions.index("launch") < actions.index("copy-out")
    assert actions[-1] == "free"


def test_it_checks_like_a_real_device():
    device = NullDevice()
    with pytest.raises(InputError, match="malformed"):
        device.load(PLAN.replace(arena_bytes=0), {"w": W})
    with pytest.raises(InputError, match="constant 'w'"):
        device.load(PLAN, {})
    loaded = device.load(PLAN, {"w": W})
    with pytest.raises(InputError, match="expected 1 inputs"):
        loaded.run([])
    with pytest.raises(InputError, match="positive number of repeats"):
        loaded.time([X], 0)
    assert loaded.time([X], 2) == [0.0, 0.0]
    assert loaded.time_kernels([X], 2) == [[0.0, 0.0]] * 4
    loaded.close()
    loaded.close()
    with pytest.raises(DeviceError, match="closed"):
        loaded.run([X])
    device.close()
    with pytest.raises(DeviceError, match="closed"):
        device.load(PLAN, {"w": W})
