"""Kernels are proven in a process of their own: a crash is an error naming the kernel, and leaves nothing."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from runtime_samples import diamond, floats, launch

from tilewright.runtime.errors import KernelBuildError
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.opencl.proof import Prover
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelCode

PLAN = diamond()
GROUP = [list(PLAN.kernels)]
#: what the process of a test does with each order; `say` answers, `names` are the kernels of each group
FAKE = """
import json, os, signal, sys, time
from pathlib import Path
def say(**facts): print(json.dumps(facts), flush=True)
def crash(): os.kill(os.getpid(), signal.SIGSEGV); time.sleep(60)
folder = Path(os.environ["POCL_CACHE_DIR"])
for line in sys.stdin:
    names = [[kernel["name"] for kernel in group] for group in json.loads(line)]
    (folder / "AB").mkdir(exist_ok=True)
    (folder / "AB" / "program.bc").write_text("half a program")
"""
CRASH_AT_SHIFT = """
    for group in names:
        for name in group:
            say(begins=[name])
            if name == "shift": crash()
    say(finished=True)
"""
CRASH_ON_GROUPS = """
    for group in names:
        say(begins=group)
        if len(group) > 1 or group == ["join"]: crash()
    say(finished=True)
"""
CRASH_TOGETHER_ONLY = """
    for group in names:
        say(begins=group)
        if len(group) > 1: crash()
    say(finished=True)
"""
HANG = """
    say(begins=names[0][:1])
    time.sleep(60)
"""
GOOD = """
    print("a compiler talks")
    say(finished=True)
"""


class Store(dict):
    put = dict.__setitem__


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """`fake(text)`: a prover for a device of PoCL, whose process runs `text` for each order."""
    monkeypatch.setenv("POCL_CACHE_DIR", str(tmp_path / "pocl"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    platform = SimpleNamespace(name="Portable Computing Language", version="OpenCL 3.0 PoCL")
    device = SimpleNamespace(name="cpu", platform=platform, version="3", driver_version="3.0")
    provers = []

    def make(text, store=None, **options):
        command = [sys.executable, "-I", "-c", FAKE + text]
        provers.append(Prover(device, store, command=command, **options))
        return provers[-1]

    yield make
    for prover in provers:
        prover.close()
    assert not list(tmp_path.glob("tilewright-proof-*"))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CRASH_AT_SHIFT, r"^kernel 'shift': cpu \(Portable Computing Language\) crashed \(SIGSEGV\) when"),
        (CRASH_ON_GROUPS, r"^kernel 'join': .* crashed \(SIGSEGV\)"),
        (CRASH_TOGETHER_ONLY, r"^kernels 'scale', 'shift', 'join': .* crashed \(SIGSEGV\)"),
        ("    sys.exit(3)", r"^kernel of a plan: .* failed"),
    ],
)
def test_a_crash_names_the_kernel_and_leaves_nothing(fake, tmp_path, text, says):
    store = Store()
    for _ in range(2):  # what crashed once is tried anew, in another process
        with pytest.raises(KernelBuildError, match=says):
            fake(text, store).prove(PLAN, GROUP)
    assert store == {}
    assert not (tmp_path / "pocl").exists()
    assert not list(tmp_path.glob("tilewright-proof-*"))


def test_a_compiler_that_does_not_end_is_ended(fake, tmp_path):
    with pytest.raises(KernelBuildError, match=r"^kernel 'scale': .* took more than 0 s"):
        fake(HANG, most_s=0.3).prove(PLAN, GROUP)
    assert not (tmp_path / "pocl").exists()


def test_what_came_out_well_moves_to_the_cache_and_is_not_proven_again(fake, tmp_path):
    store = Store()
    prover = fake(GOOD, store)
    prover.prove(PLAN, GROUP)
    assert (tmp_path / "pocl/AB/program.bc").read_text() == "half a program"
    assert len(store) == len(PLAN.kernels)
    fake("    crash()", store).prove(PLAN, GROUP)  # another process of the user: all is known
    prover.prove(PLAN, GROUP)
    wider = PLAN.replace(launches=tuple(replace(step, grid=(1, 2, 1)) for step in PLAN.launches))
    with pytest.raises(KernelBuildError, match="crashed"):
        fake("    crash()", store).prove(wider, GROUP)  # launched otherwise, so compiled otherwise


def test_what_is_in_the_cache_stays(fake, tmp_path):
    Path(tmp_path, "pocl/AB").mkdir(parents=True)
    (tmp_path / "pocl/AB/program.bc").write_text("whole")
    fake(GOOD).prove(PLAN, GROUP)
    assert (tmp_path / "pocl/AB/program.bc").read_text() == "whole"


def test_a_kernel_that_crashes_when_it_runs():
    """The real process on this machine's device: two good kernels, then one that writes where nothing is."""
    text = "kernel void wild(global float* x) { *(global int*)16 = 1; }"
    wild = KernelCode("wild", "wild", "opencl", text)
    plan = ExecutionPlan("test", (floats("y", "output"),), (wild,), (launch("wild", "y"),), (), ("y",), 0)
    with OpenClDevice() as device:
        prover = Prover(device.device, None)
        prover.prove(PLAN, GROUP)
        with pytest.raises(KernelBuildError, match=r"^kernel 'wild': .* crashed \(SIG"):
            prover.prove(plan, [[wild]])
        prover.close()
