"""Processes that build OpenCL programs beside this one, and what becomes of kernels where one ends."""

import multiprocessing
import os
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from tilewright.codegen.builders.cache import BinaryCache
from tilewright.runtime.errors import KernelBuildError
from tilewright.runtime.opencl import programs
from tilewright.runtime.opencl.build_process import BuildProcess, ProcessEndedError, shared_process
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
    assert len(set(by)) == 2
    assert sorted(p.ended for p in set(by)) == [False, True]  # the one that all share stays
    # The binaries that processes built are stored.
    monkeypatch.setattr(programs.ProgramBuilder, "_compiled", None)
    monkeypatch.setattr(programs, "BuildProcess", None)
    monkeypatch.setattr(programs, "shared_process", None)
    assert kernels_of(device, device.builder.build(KERNELS, told.append)) == [1] * len(KERNELS)


def test_few_kernels_start_no_process_of_their_own(device, monkeypatch):
    monkeypatch.setattr(programs, "BuildProcess", None)
    monkeypatch.setattr(programs.ProgramBuilder, "_compiled", None)
    before = shared_process(device.name)
    assert kernels_of(device, device.builder.build(KERNELS, lambda _: None)) == [1] * len(KERNELS)
    assert shared_process(device.name) is before


def test_a_shared_process_that_ended_starts_anew(device):
    before = shared_process(device.name)
    before.close()
    assert kernels_of(device, device.builder.build(KERNELS, lambda _: None)) == [1] * len(KERNELS)
    assert shared_process(device.name) is not before


def test_a_fork_has_a_shared_process_of_its_own(device):
    before = shared_process(device.name)
    context = multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        process = context.Process(target=_expect_another, args=(device.name, before._process.pid))
        process.start()
    process.join(60)
    assert process.exitcode == 0
    assert not before.ended
    assert before.build(KERNELS[0].source, BUILD_OPTIONS)


def _expect_another(name, pid):
    other = shared_process(name)
    os._exit(int(other._process.pid == pid or not other.build(KERNELS[0].source, BUILD_OPTIONS)))


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


def first_crash(monkeypatch, count):
    """Let so many processes crash on what they are to build first; what is called starts the others."""
    crash = (sys.executable, "-c", ENDS.format("os.kill(os.getpid(), 11)"))
    commands = [crash] * count
    monkeypatch.setattr(
        programs, "BuildProcess", lambda name: BuildProcess(name, command=commands.pop() if commands else ())
    )
    return commands


def test_kernels_on_which_the_compiler_crashes_together_only_are_built_alone(
    device, small_shares, monkeypatch, recwarn
):
    left = first_crash(monkeypatch, 1)
    assert kernels_of(device, device.builder.build(KERNELS, lambda _: None)) == [1] * len(KERNELS)
    assert left == []
    assert not recwarn


def test_a_kernel_on_which_the_compiler_crashes_is_built_without_optimisations(
    device, small_shares, monkeypatch
):
    left = first_crash(monkeypatch, 2)
    with pytest.warns(RuntimeWarning, match=r"kernel 'k\d' is built without optimisations: the compiler of"):
        built = device.builder.build(KERNELS, lambda _: None)
    assert kernels_of(device, built) == [1] * len(KERNELS)
    assert left == []


def test_a_compiler_that_refuses_a_text_is_quoted(device, small_shares):
    wrong = KernelCode("wrong", "wrong", "opencl", "kernel void wrong(global float* x) { x[0] = y; }")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with pytest.raises(KernelBuildError, match=r"kernel 'wrong'.*undeclared identifier 'y'"):
            device.builder.build([*KERNELS, wrong], lambda _: None)
