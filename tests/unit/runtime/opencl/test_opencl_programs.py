"""Programs of an OpenCL device: binaries are stored, checked and loaded; groups are the same every time."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from runtime_samples import diamond

from tilewright.codegen.builders.cache import BinaryCache
from tilewright.runtime.opencl.build_process import BuildProcess
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.opencl.programs import GROUP, ProgramBuilder
from tilewright.runtime.plan.execution_plan import KernelCode

KERNELS = diamond().kernels


@pytest.fixture
def device():
    with OpenClDevice() as device:
        if device.builder._late:
            pytest.skip(f"{device.name} compiles when a kernel is launched and keeps files of its own")
        yield device


@pytest.fixture
def built(device, monkeypatch):
    """`built(store)`: builds all kernels; how often from text, and how often from a stored binary."""
    elsewhere = []
    by_process = BuildProcess.build
    monkeypatch.setattr(BuildProcess, "build", lambda p, *a: elsewhere.append(p) or by_process(p, *a))

    def build(store, kernels=KERNELS):
        made = []
        elsewhere.clear()
        program = device.cl.Program
        watched = SimpleNamespace(**{**vars(device.cl), "Program": None})
        watched.Program = lambda context, *given: made.append(len(given)) or program(context, *given)
        programs = ProgramBuilder(watched, device.context, device.device, store).build(
            kernels, lambda _: None
        )
        assert set(programs) == {k.source for k in kernels}
        for kernel in kernels:
            assert device.cl.Kernel(programs[kernel.source], kernel.entry).num_args
        # This process loads the binaries that other processes built.
        return made.count(1) + len(elsewhere), made.count(2) - len(elsewhere)

    return build


def test_what_was_built_is_loaded(built, tmp_path):
    assert built(BinaryCache(tmp_path)) == (1, 0)
    assert built(BinaryCache(tmp_path)) == (0, 1)
    # Another network that has some of the kernels builds the others only.
    other = KernelCode("other", "other", "opencl", "kernel void other(global float* x) { x[0] = 1.0f; }")
    assert built(BinaryCache(tmp_path), [*KERNELS[:2], other]) == (1, 1)
    assert built(None) == (1, 0)


def test_damaged_binaries_are_built_anew(built, tmp_path):
    built(BinaryCache(tmp_path))
    for path in (tmp_path / "binaries").iterdir():
        data = bytearray(path.read_bytes())
        data[-1] ^= 255
        path.write_bytes(data)
    assert built(BinaryCache(tmp_path)) == (1, 0)
    assert built(BinaryCache(tmp_path)) == (0, 1)


def test_a_binary_that_the_driver_refuses_is_built_anew(built):
    class Store(dict):
        put = dict.__setitem__

    store = Store()
    built(store)
    for key, payload in store.items():
        if len(payload) > 64:
            store[key] = b"no binary at all" * 8
    assert built(store) == (1, 1)
    assert built(store) == (0, 1)


def test_groups(device):
    texts = [f"kernel void k{i}(global float* x) {{ x[0] = {'1' * (i + 1)}.0f; }}" for i in range(40)]
    kernels = [KernelCode(f"k{i}", f"k{i}", "opencl", text) for i, text in enumerate(texts)]
    groups = device.builder.groups(kernels)
    assert groups == device.builder.groups(kernels)
    assert sorted((k for g in groups for k in g), key=lambda k: len(k.source)) == kernels
    assert max(map(len, groups)) <= GROUP
    same_entry = [replace(kernels[0], name="again", source=kernels[0].source + "\n"), *kernels[:1]]
    assert len(device.builder.groups(same_entry)) == 2
    assert device.builder.groups([]) == []
