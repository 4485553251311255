"""On an NVIDIA GPU: state in graphs, what leaves it alone, sharing it, and the cost of a step on the host."""

import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tilewright as tw
from tests.samples.state_programs import state_modules, step_inputs
from tilewright.devices.opening import OpenedDevice
from tilewright.ir import Constants
from tilewright.ir.interpreter.step import initial_state, interpret_step
from tilewright.running.stateful import StatefulExecutable
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.cuda.graph import edges_of
from tilewright.runtime.cuda.steps import SLOTS
from tilewright.runtime.plan.hazards import find_hazards

BATCH, WIDTH, CLASSES = 32, 64, 10


def mlp_step() -> tw.Module:
    """A step of momentum SGD on a network of two layers."""
    text = f"""module @net(parameters = ["w1", "b1", "w2", "b2"]) {{
      graph.func @main(%x: f32[{BATCH}, {WIDTH}]) -> f32[{BATCH}, {CLASSES}] {{
        %w1 = graph.constant(name = "w1") : f32[{WIDTH}, {WIDTH}]
        %b1 = graph.constant(name = "b1") : f32[{WIDTH}]
        %w2 = graph.constant(name = "w2") : f32[{CLASSES}, {WIDTH}]
        %b2 = graph.constant(name = "b2") : f32[{CLASSES}]
        %0 = graph.dense(%x, %w1) : f32[{BATCH}, {WIDTH}]
        %1 = graph.bias_add(%0, %b1, axis = 1) : f32[{BATCH}, {WIDTH}]
        %2 = graph.relu(%1) : f32[{BATCH}, {WIDTH}]
        %3 = graph.dense(%2, %w2) : f32[{BATCH}, {CLASSES}]
        %4 = graph.bias_add(%3, %b2, axis = 1) : f32[{BATCH}, {CLASSES}]
        graph.return(%4)
      }}
    }}"""
    rng = np.random.default_rng(0)
    arrays = {
        "w1": 0.1 * rng.standard_normal((WIDTH, WIDTH), np.float32),
        "b1": np.zeros(WIDTH, np.float32),
        "w2": 0.1 * rng.standard_normal((CLASSES, WIDTH), np.float32),
        "b2": np.zeros(CLASSES, np.float32),
    }
    network = tw.parse(text).with_constants(Constants(arrays))
    return tw.train_step(network, "cross_entropy", tw.optim.sgd(0.1, momentum=0.9))


def batches(count: int):
    rng = np.random.default_rng(1)
    for _ in range(count):
        x = rng.standard_normal((BATCH, WIDTH), np.float32)
        yield x, rng.integers(0, CLASSES, BATCH).astype(np.int32)


@pytest.fixture(scope="module")
def module():
    return mlp_step()


@pytest.fixture(scope="module")
def compiled(module):
    return tw.compile(module, "cuda", progress=False)


@pytest.fixture(scope="module")
def artifact(compiled):
    return compiled.artifact


@pytest.fixture
def exe(compiled):
    with StatefulExecutable(compiled.artifact, compiled.target) as executable:
        yield executable


def all_state(exe) -> dict[str, bytes]:
    return {name: exe.state[name].tobytes() for name in exe.state}


def test_losses_are_those_of_the_interpreter(module, exe):
    state = initial_state(module)
    lazy, expected = [], []
    for x, y in batches(30):
        lazy.append(exe.step(x, y))
        (loss,), state = interpret_step(module, [x, y], state)
        expected.append(float(loss))
    np.testing.assert_allclose([float(loss) for loss in lazy], expected, rtol=1e-4)
    assert len(set(expected)) == 30, "the state does not move on"


def test_every_way_of_launching_gives_the_same_bits(artifact):
    seen = {}
    for kind in ("checked", "eager", "graph", "capture"):
        with CudaDevice(replay=kind) as device, device.load(artifact.plan, artifact.constants) as loaded:
            for x, y in batches(10):
                results = loaded.run([x, y])
            memory = loaded._state.memory
            seen[kind] = [r.tobytes() for r in results] + [memory.read(n).tobytes() for n in memory.names]
    assert all(bits == seen["checked"] for bits in seen.values())


def test_steps_give_the_bits_of_calls_however_launches_are_made(artifact):
    """The copies are nodes of a graph (small batches, large ones) or are queued around launches."""
    seen = {}
    for way in ("call", "graph", "eager", "capture"):
        with (
            CudaDevice(replay="graph" if way == "call" else way) as device,
            device.load(artifact.plan, artifact.constants) as loaded,
        ):
            run = loaded.run if way == "call" else loaded.step
            results = [run([x, y]) for x, y in batches(2 * SLOTS)]
            memory = loaded._state.memory
            bits = [np.asarray(r).tobytes() for step in results for r in step]
            seen[way] = bits + [memory.read(name).tobytes() for name in memory.names]
    assert all(bits == seen["call"] for bits in seen.values())


def test_inputs_on_a_stream_of_their_own_give_the_same_bits(artifact, monkeypatch):
    seen = []
    for limit in (1 << 40, 1):
        monkeypatch.setattr("tilewright.runtime.cuda.steps.OVERLAP_BYTES", limit)
        with CudaDevice() as device, device.load(artifact.plan, artifact.constants) as loaded:
            results = [loaded.step([x, y]) for x, y in batches(20)]
            assert all(slot.block for slot in loaded._steps._slots) == (limit == 1)
            seen.append([float(loss) for (loss,) in results])
    assert seen[0] == seen[1]


def test_copies_of_the_graph_keep_its_programmatic_edges(exe):
    loaded = exe.load()
    context = loaded._context
    with context.current():
        clone = context.call("cuGraphClone", loaded._replay._graph)
        try:
            kinds = [kind for _, _, kind in edges_of(context, clone)]
        finally:
            context.call("cuGraphDestroy", clone)
    assert sum(map(bool, kinds)) == sum(e.programmatic for e in loaded.graph_edges())


@pytest.mark.parametrize("streams", ["serial", "exact", "limited(2)"])
def test_streams_do_not_change_a_bit(module, compiled, streams):
    exes = [
        tw.compile(module, "cuda", streams=streams, progress=False),
        StatefulExecutable(compiled.artifact, compiled.target),
    ]
    for exe in exes:
        assert find_hazards(exe.plan) == []
        for x, y in batches(10):
            exe(x, y)
    assert all_state(exes[0]) == all_state(exes[1])
    for exe in exes:
        exe.close()


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(module=state_modules())
def test_random_programs_step_as_the_interpreter(device, module):
    compiled = tw.compile(module, "cuda", progress=False)
    with StatefulExecutable(compiled.artifact, compiled.target, device=device) as exe:
        state = initial_state(module)
        for number in range(3):
            inputs = step_inputs(module, number)
            expected, state = interpret_step(module, inputs, state)
            for got, wanted in zip(exe(*inputs), expected, strict=True):
                np.testing.assert_array_equal(got, wanted)
        for name, value in state.items():
            np.testing.assert_array_equal(exe.state[name], value)


@pytest.fixture(scope="module")
def device():
    opened = OpenedDevice("cuda")
    opened.take()
    yield opened
    opened.give_back()


def test_times_and_profiles_leave_the_state(exe):
    (x, y), *_ = batches(1)
    exe(x, y)
    before = all_state(exe)
    exe.time(x, y, repeats=20)
    exe.time_kernels(x, y, repeats=3)
    exe.profile(x, y, repeats=3)
    assert all_state(exe) == before


def test_tuning_in_the_network_starts_from_the_first_state(module):
    tuned = tw.compile(module, "cuda", tune="measure", budget=20, progress=False)
    assert all_state(tuned) == {n: a.tobytes() for n, a in initial_state(module).items()}
    ((x, y),) = batches(1)
    losses = [float(tuned.step(x, y)) for _ in range(30)]
    assert losses[-1] < losses[0]
    tuned.close()


def test_resuming_is_bit_exact(artifact, exe, tmp_path):
    data = list(batches(20))
    for x, y in data[:10]:
        exe.step(x, y)
    exe.save_state(tmp_path / "state")
    rest = [float(exe.step(x, y)) for x, y in data[10:]]
    with StatefulExecutable(artifact, exe.target) as other:
        other.load_state(tmp_path / "state")
        assert [float(other.step(x, y)) for x, y in data[10:]] == rest
        assert all_state(other) == all_state(exe)


def test_steps_of_executables_that_share_state_follow_one_another(artifact, exe):
    with StatefulExecutable(artifact, exe.target) as other, StatefulExecutable(artifact, exe.target) as alone:
        other.share_state(exe)
        for i, (x, y) in enumerate(batches(20)):
            (other if i % 2 else exe).step(x, y)
            alone.step(x, y)
        assert all_state(exe) == all_state(other) == all_state(alone)


def test_ten_thousand_steps_take_no_more_memory(exe):
    data = list(batches(4))
    for x, y in data:
        exe.step(x, y)
    context = exe._open()[0].context
    with context.current():
        free = context.call("cuMemGetInfo")[0]
    for i in range(10_000):
        loss = exe.step(*data[i % 4])
    assert np.isfinite(float(loss))
    with context.current():
        assert context.call("cuMemGetInfo")[0] >= free - (4 << 20)


def test_the_cost_of_a_step_on_the_host(exe, capsys):
    """Reported, not judged: the time until `step` returns while the GPU keeps up."""
    (x, y), *_ = batches(1)
    for _ in range(10):
        exe.step(x, y)
    seconds = []
    for _ in range(200):
        exe.load().synchronize()
        begin = time.perf_counter()
        exe.step(x, y)
        seconds.append(time.perf_counter() - begin)
    rows = [
        f"exe.step on the host: median {1e6 * np.median(seconds):.1f} us, least {1e6 * min(seconds):.1f} us",
        f"on the device: {1e6 * np.median(exe.time(x, y)):.1f} us; {len(exe.plan.launches)} launches",
    ]
    with capsys.disabled():
        print("\n" + "\n".join(rows))
