"""On an NVIDIA GPU: graphs against plans, several streams, instances, fixed buffers, failures, leaks."""

import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.codegen.builders.compile_many import compile_many
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.streams import Dag

NETWORKS = ("squeezenet", "pt_googlenet", "mobilenet", "dqn", "mlp", "pt_bilstm")


@pytest.fixture(scope="module")
def load(request):
    folder = request.getfixturevalue("data_dir") / "relay"
    return lambda name: tw.frontends.relay.load(str(folder / f"{name}.relay"), params="random", seed=0)


def random_inputs(exe):
    rng = np.random.default_rng(3)
    return [
        rng.standard_normal(t.shape).astype(t.dtype)
        if "float" in t.dtype
        else rng.integers(0, 10, t.shape).astype(t.dtype)
        for t in exe.input_types
    ]


def edges_of(loaded):
    return Dag.of(len(loaded.plan.launches), [(e.before, e.after) for e in loaded.graph_edges()])


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("policy", ["serial", "exact", "ios"])
def test_every_way_of_launching_gives_the_same_bits(load, name, policy):
    exe = tw.compile(load(name), target="cuda", streams=policy)
    inputs = random_inputs(exe)
    results = {}
    for kind in ("checked", "eager", "graph", "capture"):
        with CudaDevice(replay=kind) as device, device.load(exe.plan, exe.artifact.constants) as loaded:
            loaded.run(inputs)
            results[kind] = loaded.run(inputs)
    for outputs in results.values():
        for got, wanted in zip(outputs, results["checked"], strict=True):
            np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("name", NETWORKS)
def test_graphs_order_what_the_plan_orders_and_no_more(load, name):
    exe = tw.compile(load(name), target="cuda", streams="exact")
    wanted = exe.plan.dag
    with CudaDevice() as device, device.load(exe.plan, exe.artifact.constants) as loaded:
        got = edges_of(loaded)
        assert got.edges == wanted.edges == wanted.reduced
        if device.capability >= (9, 0):
            assert all(e.programmatic for e in loaded.graph_edges())
    with CudaDevice(replay="capture") as device, device.load(exe.plan, exe.artifact.constants) as loaded:
        assert edges_of(loaded).descendants == wanted.descendants


def test_library_work_is_captured_between_kernels(load):
    """A cuBLAS call made through PyTorch on the captured stream becomes part of the graph."""
    torch = pytest.importorskip("torch")
    from tilewright.runtime.cuda.eager import EagerReplay

    a = torch.randn(64, 64, device="cuda")
    out = torch.empty_like(a)
    torch.mm(a, a, out=out)
    exe = tw.compile(load("mlp"), target="cuda")
    inputs = random_inputs(exe)
    plain = EagerReplay.launch

    def with_library(self, stream=None):
        plain(self, stream)
        with torch.cuda.stream(torch.cuda.ExternalStream(int(self._main))):
            torch.mm(a, a, out=out)

    with pytest.MonkeyPatch.context() as patch, CudaDevice(replay="capture") as device:
        patch.setattr(EagerReplay, "launch", with_library)
        with device.load(exe.plan, exe.artifact.constants) as loaded:
            wanted = a @ a
            out.zero_()
            torch.cuda.synchronize()
            loaded.run(inputs)
            torch.testing.assert_close(out, wanted)


def test_equal_weights_are_stored_once(load):
    exe = tw.compile(load("squeezenet"), target="cuda")
    with CudaDevice() as device:
        first = device.load(exe.plan, exe.artifact.constants)
        held = len(device.pool.weights)
        second = device.load(exe.plan, {n: a.copy() for n, a in exe.artifact.constants.items()})
        assert len(device.pool.weights) == held > 0
        inputs = random_inputs(exe)
        wanted = first.run(inputs)
        first.close()
        np.testing.assert_array_equal(second.run(inputs)[0], wanted[0])
        second.close()
        assert len(device.pool.weights) == len(device.pool.modules) == 0


def test_fixed_buffers_and_a_stream_of_the_caller(load):
    torch = pytest.importorskip("torch")
    with tw.compile(load("dqn"), target="cuda") as exe:
        (x,) = random_inputs(exe)
        (wanted,) = exe(x)
        loaded = exe.load()
        given = torch.from_dlpack(loaded.inputs["data"])
        result = torch.from_dlpack(loaded.outputs[0])
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(3):
                given.copy_(torch.from_numpy(x))
                loaded.replay(stream.cuda_stream)
            got = result.cpu().numpy()
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("instances", [1, 3])
def test_threads_calling_one_executable(load, instances):
    with tw.compile(load("dqn"), target="cuda", instances=instances) as exe:
        rng = np.random.default_rng(0)
        xs = [rng.standard_normal(exe.input_types[0].shape).astype(np.float32) for _ in range(6)]
        wanted = [exe(x)[0] for x in xs]
        wrong = []

        def work(k):
            wrong.extend(k for _ in range(100) if not np.array_equal(exe(xs[k])[0], wanted[k]))

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert wrong == []


def test_streaming_batches(load):
    with tw.compile(load("dqn"), target="cuda") as exe:
        rng = np.random.default_rng(0)
        xs = [rng.standard_normal(exe.input_types[0].shape).astype(np.float32) for _ in range(20)]
        wanted = [exe(x)[0] for x in xs]
        for got, want in zip(exe.map(xs), wanted, strict=True):
            np.testing.assert_array_equal(got[0], want)
        with pytest.raises(tw.InputError, match="shape"):
            list(exe.map([xs[0], xs[1][:, :1]]))
        np.testing.assert_array_equal(exe(xs[0])[0], wanted[0])


def test_a_hundred_thousand_replays_hold_memory(load):
    torch = pytest.importorskip("torch")
    with tw.compile(load("mlp"), target="cuda") as exe:
        inputs = random_inputs(exe)
        (wanted,) = exe(*inputs)
        loaded = exe.load()
        for _ in range(1000):
            loaded.replay()
        loaded.synchronize()
        device_before, host_before = torch.cuda.mem_get_info()[0], resident_bytes()
        for _ in range(100):
            for _ in range(1000):
                loaded.replay()
            loaded.synchronize()
        assert torch.cuda.mem_get_info()[0] >= device_before
        assert resident_bytes() <= host_before + (4 << 20)
        np.testing.assert_array_equal(exe(*inputs)[0], wanted)


def test_a_thousand_loads_hold_memory(load):
    torch = pytest.importorskip("torch")
    exe = tw.compile(load("mlp"), target="cuda")
    inputs = random_inputs(exe)
    with CudaDevice() as device:
        for _ in range(20):
            device.load(exe.plan, exe.artifact.constants).close()
        free, host = torch.cuda.mem_get_info()[0], resident_bytes()
        for _ in range(1000):
            with device.load(exe.plan, exe.artifact.constants) as loaded:
                loaded.run(inputs)
        assert torch.cuda.mem_get_info()[0] >= free - (8 << 20)
        assert resident_bytes() <= host + (64 << 20)


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * 4096


FAILING = """
import sys, tilewright as tw, numpy as np
sys.path.insert(0, {here!r})
from test_cuda_replay import broken_plan
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.errors import DeviceError
plan, constants = broken_plan({network!r})
x = [np.zeros(plan.buffer_by_name[n].shape, plan.buffer_by_name[n].dtype) for n in plan.inputs]
device = CudaDevice(replay={kind!r})
loaded = device.load(plan, constants)
for attempt in range(2):
    try:
        loaded.run(x)
    except DeviceError as error:
        print("ERROR", error)
try:
    device.load(plan, constants)
except DeviceError as error:
    print("LOST", error)
loaded.close()
device.close()
print("closed")
"""

CRASH = 'extern "C" __global__ void {entry}({params}) {{ *(volatile int*)16 = 1; }}'


def broken_plan(network):
    """A plan whose second launch writes where it must not."""
    exe = tw.compile(tw.frontends.relay.load(network, params="random", seed=0), target="cuda")
    plan = exe.plan
    launch = plan.launches[1]
    kernel = plan.kernel_by_name[launch.kernel]
    params = ", ".join(f"void* p{i}" for i in range(len(launch.args)))
    source = CRASH.format(entry=kernel.entry, params=params)
    (binary,) = compile_many([(kernel.name, source)], arch=kernel.arch)
    bad = replace(kernel, source=source, binary=binary.cubin, overlaps=False, releases=False)
    kernels = tuple(bad if k is kernel else k for k in plan.kernels)
    return plan.replace(kernels=kernels), exe.artifact.constants


@pytest.mark.parametrize("kind", ["graph", "checked"])
def test_a_kernel_that_crashes(request, kind):
    """In a process of its own, since the GPU context is lost afterwards."""
    network = str(request.getfixturevalue("data_dir") / "relay" / "mlp.relay")
    code = FAILING.format(here=str(request.path.parent), network=network, kind=kind)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ERROR", "ERROR", "LOST", "closed"]
    assert "ILLEGAL_ADDRESS" in lines[0]
    if kind == "checked":
        assert "launch 1 of kernel" in lines[0]


def test_out_of_memory_leaves_nothing_behind(load):
    torch = pytest.importorskip("torch")
    exe = tw.compile(load("mlp"), target="cuda")
    with CudaDevice() as device:
        device.load(exe.plan, exe.artifact.constants).close()
        free = torch.cuda.mem_get_info()[0]
        with pytest.raises(DeviceError, match="out of memory: the arena asks for"):
            device.load(exe.plan.replace(arena_bytes=1 << 45), exe.artifact.constants)
        assert torch.cuda.mem_get_info()[0] >= free - (4 << 20)
        assert len(device.pool.weights) == 0
