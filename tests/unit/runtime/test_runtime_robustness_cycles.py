"""A thousand loads and unloads leave nothing; an interpreter may end with everything still open."""

import gc
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from runtime_samples import diamond, diamond_result, random_floats

import tilewright as tw
from tilewright.runtime.errors import InputError
from tilewright.runtime.null.device import NullDevice
from tilewright.runtime.opencl.device import OpenClDevice

PLAN = diamond()
X, W = random_floats(1), random_floats(2)
#: one forgotten plan takes 28 KiB of buffers, a thousand of them 28 MiB
GROWTH_BYTES = 8 << 20
NETWORK = "module @m { graph.func @main(%x: f32[2, 3]) -> f32[2, 3] { %y = graph.relu(%x) : f32[2, 3] "
NETWORK += "graph.return(%y) } }"

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts in /proc (Linux)")


def used():
    """Resident bytes of this process, its threads, its open files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return (
        pages * os.sysconf("SC_PAGESIZE"),
        len(os.listdir("/proc/self/task")),
        len(os.listdir("/proc/self/fd")),
    )


def check_constant(cycle, warm_up=100, cycles=1000):
    for _ in range(warm_up):
        cycle()
    memory, threads, files = used()
    for _ in range(cycles):
        cycle()
    after = used()
    assert after[0] - memory < GROWTH_BYTES
    assert after[1:] == (threads, files)


@needs_proc
def test_a_thousand_loads_on_opencl_leave_nothing():
    with OpenClDevice() as device, device.load(PLAN, {"w": W}):  # keeps the programs
        held = device.pool.bytes_in_use

        def cycle():
            with device.load(PLAN, {"w": W.copy()}) as loaded:
                loaded.run([X])

        check_constant(cycle)
        assert device.pool.bytes_in_use == held


@needs_proc
def test_failed_loads_and_runs_on_opencl_leave_nothing():
    wrong = replace(PLAN.launches[0], args=("x", "x", "t0"), writes=(2,))
    bad = PLAN.replace(launches=(wrong, *PLAN.launches[1:]))
    with OpenClDevice() as device, device.load(PLAN, {"w": W}) as loaded:
        held = device.pool.bytes_in_use

        def cycle():
            with pytest.raises(InputError):
                device.load(bad, {"w": W})
            with pytest.raises(InputError):
                loaded.run([X[:5]])

        check_constant(cycle, warm_up=30, cycles=200)
        assert device.pool.bytes_in_use == held
        np.testing.assert_allclose(loaded.run([X])[0], diamond_result(X, W), rtol=1e-6)


@needs_proc
def test_a_thousand_loads_on_the_null_device_leave_nothing():
    exe = tw.compile(tw.parse(NETWORK), target="null")

    def cycle():
        with NullDevice() as device, device.load(PLAN, {"w": W}) as loaded:
            loaded.run([X])
        with exe:
            exe(X[:6].reshape(2, 3))

    check_constant(cycle)


SCRIPT = """
import sys, threading
import numpy as np
import tilewright as tw

exe = tw.compile(tw.parse(sys.argv[2]), target=sys.argv[1])
x = np.ones((2, 3), np.float32)
exe(x)
if sys.argv[3] == "busy":
    started = threading.Event()
    def work():
        while True:
            exe(x)
            started.set()
    threading.Thread(target=work, daemon=True).start()
    started.wait()
print("done")
"""


@pytest.mark.parametrize(
    ("target", "how"),
    [
        ("null", "busy"),
        ("opencl", "open"),
        ("opencl", "busy"),
        pytest.param("emulator", "open", marks=pytest.mark.emulator),
    ],
)
def test_an_interpreter_ends_with_an_open_executable(tmp_path, target, how):
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", SCRIPT, target, NETWORK, how],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=env,
    )
    assert (out.returncode, out.stdout, out.stderr) == (0, "done\n", "")
    assert not list(tmp_path.glob("tilewright-emulated-*"))
