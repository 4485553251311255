"""Processes that build OpenCL programs beside this one, and what becomes of kernels where one ends."""

import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.codegen.builders.cache import BinaryCache
from tilewright.runtime.errors import KernelBuildError
from tilewright.runtime.opencl import programs
from tilewright.runtime.opencl.build_process import BuildProcess, ProcessEndedError
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.opencl.programs import BUILD_OPTIONS
from tilewright.runtime.plan.execution_plan import KernelCode

KERNELS = [
    KernelCode(f"k{i}", f"k{i}", "opencl", f"kernel void k{i}(global float* x) {{ x[{i}] = 1.0f; }}")
    for i in range(9)
]
#: a compiler that takes an order and ends as the text says
ENDS = "import os, sys; sys.stdin.readline(); {}"


@pytest.fixture
def device(tmp_path):
    with OpenClDevice(store=BinaryCache(tmp_path)) as device:
        if not device.builder._one_at_a_time:
            pytest.skip(f"threads of one process build side by side for {device.name}")
        yield device


@pytest.fixture
def small_shares(monkeypatch):
    """Few characters pay for a process, on any number of cores."""
    monkeypatch.setattr(programs, "PROCESS_CHARACTERS", 200)
    monkeypatch.setattr(programs, "usable_cores", lambda: 2)


def kernels_of(device, built):
    return [device.cl.Kernel(built[k.source], k.entry).num_args for k in KERNELS]


def test_a_process_builds_and_refuses(device):
    process = BuildProcess(device.name)
    binary = process.build(KERNELS[0].source, BUILD_OPTIONS)
    program = device.cl.Program(device.context, [device.device], [binary]).build()
    assert device.cl.Kernel(program, "k0").num_args == 1
    assert process.build("kernel void wrong(", BUILD_OPTIONS) is None
    assert process.build(KERNELS[1].source, BUILD_OPTIONS)
    process.close()
    with pytest.raises(ProcessEndedError):
        process.build(KERNELS[0].source, BUILD_OPTIONS)
    process.close()


def test_one_thread_at_a_time_builds(device, monkeypatch):
    """Intel's compiler crashed where several threads built programs."""
    building, most, made = threading.Semaphore(1), [], device.cl.Program

    class Watched:
        def __init__(self, *args):
            self.program = made(*args)

        def build(self, *args, **options):
            alone = building.acquire(blocking=False)
            try:
                time.sleep(0.01)
                return self.program.build(*args, **options)
            finally:
                most.append(alone)
                if alone:
                    building.release()

    monkeypatch.setattr(device.cl, "Program", Watched)
    with ThreadPoolExecutor(4) as pool:
        for built in [pool.submit(device.builder.build, KERNELS, lambda _: None) for _ in range(4)]:
            assert kernels_of(device, built.result()) == [1] * len(KERNELS)
    assert len(most) >= 4
    assert all(most)


def test_two_processes_share_the_kernels(device, small_shares, monkeypatch):
    by = []
    build = BuildProcess.build
    monkeypatch.setattr(BuildProcess, "build", lambda p, *a: by.append(p) or build(p, *a))
    told = []
    built = device.builder.build(KERNELS, told.append)
    assert kernels_of(device, built) == [1] * len(KERNELS)
    assert sorted(told) == sorted(k.name for k in KERNELS)
    assert by
    assert by[0]._process.poll() is not None
    # What the other process built is stored as well.
    monkeypatch.setattr(programs.ProgramBuilder, "_compiled", None)
    monkeypatch.setattr(programs, "BuildProcess", None)
    assert kernels_of(device, device.builder.build(KERNELS, told.append)) == [1] * len(KERNELS)


def test_few_kernels_start_no_process(device, monkeypatch):
    monkeypatch.setattr(programs, "BuildProcess", None)
    assert kernels_of(device, device.builder.build(KERNELS, lambda _: None)) == [1] * len(KERNELS)


def ending(monkeypatch, text):
    command = (sys.executable, "-c", ENDS.format(text))
    monkeypatch.setattr(programs, "BuildProcess", lambda name: BuildProcess(name, command=command))


def test_kernels_of_a_process_that_was_ended_are_built_here(device, small_shares, monkeypatch):
    ending(monkeypatch, "os.kill(os.getpid(), 9)")
    with pytest.warns(RuntimeWarning, match=r"builds kernels crashed \(SIGKILL\).*are built in this process"):
        built = device.builder.build(KERNELS, lambda _: None)
    assert kernels_of(device, built) == [1] * len(KERNELS)


@pytest.mark.parametrize("text", ["print('what a compiler says')", "print(12); print('short')"])
def test_answers_that_are_none_are_not_taken(device, small_shares, monkeypatch, text):
    ending(monkeypatch, text)
    with pytest.warns(RuntimeWarning, match="builds kernels failed"):
        built = device.builder.build(KERNELS, lambda _: None)
    assert kernels_of(device, built) == [1] * len(KERNELS)


def test_a_crash_of_the_compiler_names_the_kernels(device, small_shares, monkeypatch):
    ending(monkeypatch, "os.kill(os.getpid(), 11)")
    with pytest.raises(KernelBuildError, match=r"kernel 'k\d'.* crashed \(SIGSEGV\)"):
        device.builder.build(KERNELS, lambda _: None)


def test_kernels_on_which_the_compiler_crashes_together_only_are_built_alone(
    device, small_shares, monkeypatch
):
    crash = (sys.executable, "-c", ENDS.format("os.kill(os.getpid(), 11)"))
    commands = [crash, ()]
    monkeypatch.setattr(programs, "BuildProcess", lambda name: BuildProcess(name, command=commands.pop(0)))
    assert kernels_of(device, device.builder.build(KERNELS, lambda _: None)) == [1] * len(KERNELS)
    assert commands == []


def test_a_compiler_that_refuses_a_text_is_quoted(device, small_shares):
    wrong = KernelCode("wrong", "wrong", "opencl", "kernel void wrong(global float* x) { x[0] = y; }")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(KernelBuildError, match=r"kernel 'wrong'.*undeclared identifier 'y'"):
            device.builder.build([*KERNELS, wrong], lambda _: None)
