"""Replays on queues that are out of order: exactly the plan's edges as events, the same bits as in order."""

import numpy as np
import pytest
from opencl_samples import WatchedDriver, expected, random_plan, random_words
from runtime_samples import diamond, diamond_result, random_floats

import tilewright as tw
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.opencl.plan import order_of
from tilewright.runtime.plan.hazards import find_hazards
from tilewright.runtime.streams import plan_streams
from tilewright.runtime.streams.assignment import with_streams

DIAMOND = diamond()
WEIGHTS = {"w": random_words(99)}
BRANCHES = """module @m {
  graph.func @main(%x: f32[1, 8, 9, 9], %k: f32[8, 8, 3, 3], %p: f32[8, 8, 1, 1]) -> f32[1, 24, 9, 9] {
    %a = graph.conv2d(%x, %k, padding = [1, 1, 1, 1]) : f32[1, 8, 9, 9]
    %b = graph.conv2d(%x, %p) : f32[1, 8, 9, 9]
    %c = graph.max_pool2d(%x, pool_size = [3, 3], padding = [1, 1, 1, 1]) : f32[1, 8, 9, 9]
    %d = graph.conv2d(%b, %k, padding = [1, 1, 1, 1]) : f32[1, 8, 9, 9]
    %y = graph.concatenate(%a, %d, %c, axis = 1) : f32[1, 24, 9, 9]
    graph.return(%y)
  }
}"""


@pytest.fixture(scope="module")
def device():
    with OpenClDevice() as device:
        yield device


@pytest.fixture
def watched():
    with OpenClDevice() as device:
        device.cl = WatchedDriver(device.cl)
        yield device


def serial(plan):
    return with_streams(plan, plan_streams(plan.dag, "serial"))


def test_several_streams_run_out_of_order_and_one_stream_in_order(device):
    with device.load(DIAMOND, {"w": random_floats(2)}) as several:
        assert several.out_of_order
        assert several.order == "out of order: the plan has 2 streams"
    with device.load(serial(DIAMOND), {"w": random_floats(2)}) as one:
        assert not one.out_of_order
        assert one.order == "in order: the plan has 1 stream"


def test_a_device_without_such_queues_runs_in_order(monkeypatch):
    monkeypatch.setattr(OpenClDevice, "has_out_of_order", False)
    x, w = random_floats(1), random_floats(2)
    with OpenClDevice() as device, device.load(DIAMOND, {"w": w}) as loaded:
        assert not loaded.out_of_order
        assert loaded.order == f"in order: {device.name} has no queues that are out of order (2 streams)"
        np.testing.assert_allclose(loaded.run([x])[0], diamond_result(x, w), rtol=1e-6)


@pytest.mark.parametrize("wanted", [False, True])
def test_the_caller_may_say_it(wanted):
    order = order_of(DIAMOND, wanted=wanted, supported=True, device="a device")
    assert order.out_of_order == wanted


def test_commands_wait_for_exactly_the_plans_edges(watched):
    for seed in range(4):
        plan = random_plan(seed)
        with watched.load(plan, WEIGHTS) as loaded:
            watched.cl.launches.clear()
            watched.cl.copies.clear()
            loaded.run([random_words(1), random_words(2)])
        events = [event for event, _ in watched.cl.launches]
        copied = dict(zip(plan.inputs, (event for event, _ in watched.cl.copies), strict=False))
        for launch, (_, waits) in zip(plan.launches, watched.cl.launches, strict=True):
            wanted = [events[dep] for dep in launch.deps] + [
                copied[a] for a in plan.inputs if a in launch.args
            ]
            assert set(waits) == set(wanted)
            assert len(waits) == len(wanted)
        awaited = {dep for launch in plan.launches for dep in launch.deps}
        ends = {event for index, event in enumerate(events) if index not in awaited}
        for _, waits in watched.cl.copies[len(plan.inputs) :]:
            assert set(waits) == ends | set(copied.values())


def test_one_stream_needs_no_events(watched):
    with watched.load(serial(random_plan(0)), WEIGHTS) as loaded:
        loaded.run([random_words(1), random_words(2)])
    assert all(waits == [] for _, waits in (*watched.cl.launches, *watched.cl.copies))


def test_random_graphs_give_the_same_bits_in_every_order(device):
    reused = 0
    for seed in range(12):
        plan = random_plan(seed)
        assert find_hazards(plan) == []
        arena = [b for b in plan.buffers if b.kind == "arena"]
        reused += sum(b.nbytes for b in arena) > plan.arena_bytes
        with device.load(plan, WEIGHTS) as several, device.load(serial(plan), WEIGHTS) as one:
            assert (several.out_of_order, one.out_of_order) == (True, False)
            for turn in range(6):
                inputs = [random_words(100 * seed + turn), random_words(7 * seed + turn)]
                wanted = expected(plan, {"x0": inputs[0], "x1": inputs[1], **WEIGHTS})
                for loaded in (several, one):
                    for got, right in zip(loaded.run(inputs), wanted, strict=True):
                        np.testing.assert_array_equal(got, right)
    assert reused == 12


@pytest.mark.parametrize("policy", ["exact", "limited(2)"])
def test_a_network_gives_the_same_bits_in_every_order(device, policy):
    exe = tw.compile(tw.parse(BRANCHES), target="opencl", streams=policy)
    one_by_one = tw.compile(tw.parse(BRANCHES), target="opencl", streams="serial")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(t.shape).astype(t.dtype) for t in exe.input_types]
    with device.load(exe.plan, {}) as several, device.load(one_by_one.plan, {}) as one:
        assert (several.out_of_order, one.out_of_order) == (True, False)
        (first,) = one.run(inputs)
        np.testing.assert_allclose(first, tw.interpret(tw.parse(BRANCHES), *inputs)[0], rtol=1e-4, atol=1e-4)
        for _ in range(10):
            np.testing.assert_array_equal(several.run(inputs)[0], first)


def test_a_failed_launch_leaves_nothing_in_flight(watched):
    """What was enqueued before still reads inputs and arena; the next run may only copy after it is done."""
    plan = random_plan(3)
    inputs = [random_words(1), random_words(2)]
    wanted = expected(plan, {"x0": inputs[0], "x1": inputs[1], **WEIGHTS})
    done = watched.cl.command_execution_status.COMPLETE
    with watched.load(plan, WEIGHTS) as loaded:
        for index in (0, 7, 23):
            watched.cl.launches.clear()
            watched.cl.fail_at = index
            with pytest.raises(
                DeviceError, match=f"launch {index} of kernel '{plan.launches[index].kernel}'"
            ):
                loaded.run(inputs)
            assert len(watched.cl.launches) == index
            assert all(event.command_execution_status == done for event, _ in watched.cl.launches)
            for got, right in zip(loaded.run(inputs), wanted, strict=True):
                np.testing.assert_array_equal(got, right)


def test_timing_out_of_order(device):
    plan = random_plan(5)
    with device.load(plan, WEIGHTS) as loaded:
        assert loaded.out_of_order
        inputs = [random_words(1), random_words(2)]
        assert all(0 < seconds < 60 for seconds in loaded.time(inputs, 3))
        assert len(loaded.time_kernels(inputs, 2)) == len(plan.launches)
