"""On two or more NVIDIA GPUs: communication through NCCL against NumPy, divided networks, hung peers."""

import ctypes
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tilewright.runtime.communication.nccl_api import open_nccl
from tilewright.runtime.errors import DeviceMissingError

WORKER = Path(__file__).parent / "nccl_worker.py"
START = "import sys; from tilewright.distributed.launcher import launch; sys.exit(launch({}, sys.argv[1:]))"


def gpus():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    driver.cuInit(0)
    driver.cuDeviceGetCount(ctypes.byref(count))
    return count.value


def has_nccl():
    try:
        open_nccl()
    except DeviceMissingError:
        return False
    return True


nccl_needed = pytest.mark.skipif(
    gpus() < 2 or not has_nccl(), reason="fewer than two NVIDIA GPUs, or no NCCL"
)


def on_ranks(size, *command):
    pytest.importorskip("mpi4py")
    return subprocess.run(
        [sys.executable, "-c", START.format(size), str(WORKER), *command],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


@cache
def healthy(size):
    """All that ranks do together without a fault, in one start of them: each costs seconds of imports."""
    return on_ranks(size, "collectives", "networks", "shared")


def told_by_healthy(size, case):
    if gpus() < size:
        pytest.skip(f"fewer than {size} GPUs")
    done = healthy(size)
    assert done.stdout.count(f"is done with {case} after") == size, done.stderr[-3000:]
    return done.stdout


@nccl_needed
@pytest.mark.parametrize("size", [2, 4])
def test_every_communication_equals_numpy_in_graphs_and_step_by_step(size):
    told_by_healthy(size, "collectives")


@nccl_needed
@pytest.mark.parametrize("size", [2, 4])
def test_divided_networks_compute_what_whole_ones_do(size):
    told_by_healthy(size, "networks")


@nccl_needed
def test_two_ranks_on_one_gpu_are_refused():
    told = told_by_healthy(2, "shared")
    assert told.count("NCCL takes one rank per GPU: 2 ranks have 1 GPUs") == 2
    assert healthy(2).returncode == 0


@nccl_needed
def test_a_hung_peer_is_told_after_the_timeout():
    done = on_ranks(2, "hung")
    assert "told: rank 0: running" in done.stdout, done.stderr[-3000:]
    assert "with rank 1, whose process" in done.stdout


def test_ranks_that_share_a_gpu_communicate_through_host_memory():
    done = on_ranks(3, "staged")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("is done with staged") == 3
