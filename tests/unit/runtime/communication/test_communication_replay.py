"""Communications in plans: their order, when replays start and finish them, what checks and devices say."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from thread_ranks import ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.runtime.communication.agreement import communications
from tilewright.runtime.communication.replay import CommunicationOrder, beside_compute
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.null.device import NullDevice
from tilewright.runtime.opencl.device import OpenClDevice
from tilewright.runtime.plan.check import find_faults
from tilewright.runtime.plan.execution_plan import ExecutionPlan
from tilewright.runtime.plan.hazards import check_hazards
from tilewright.runtime.plan.json_form import plan_from_json, plan_to_json

#: what comes from rank 1 is needed late; what goes there early; the product needs neither
TEXT = """
module @net {
  graph.func @main(%x: f32[16, 16], %w: f32[16, 16]) -> f32[16, 16], f32[16, 16] {
    %0 = graph.recv(source = 1, tag = 0, dtype = "f32", shape = [16, 16]) : f32[16, 16]
    %1 = graph.softmax(%0, axis = 1) : f32[16, 16]
    %2 = graph.softmax(%x, axis = 1) : f32[16, 16]
    %3 = graph.dense(%2, %w) : f32[16, 16]
    graph.send(%2, to = 1, tag = 0)
    graph.send(%x, to = 1, tag = 0)
    %4 = graph.softmax(%3, axis = 0) : f32[16, 16]
    graph.return(%1, %4)
  }
}
"""


def plan_of(target: str) -> ExecutionPlan:
    (c, _) = ThreadWorld(2).communicators
    return distributed.compile_part(tw.parse(TEXT), c, target=target).plan


@pytest.fixture(scope="module")
def plan() -> ExecutionPlan:
    return plan_of("null")


def test_the_plan_keeps_the_order_of_the_program(plan: ExecutionPlan) -> None:
    kernels = list(communications(plan).values())
    assert [(len(k.sends), len(k.receives)) for k in kernels] == [(0, 1), (1, 0), (1, 0)]
    check_hazards(plan)
    found = communications(plan)
    talking, computing = (
        {x.stream for i, x in enumerate(plan.launches) if (i in found) == one} for one in (True, False)
    )
    assert len(talking) == len(computing) == 1
    assert talking != computing


def test_messages_start_early_and_end_late(plan: ExecutionPlan) -> None:
    with NullDevice() as device, device.load(plan, {}) as loaded:
        device.log.clear()
        loaded.run([np.zeros((16, 16), np.float32)] * 2)
        log = [(o.action, o.launch) for o in device.log if o.action in ("start", "finish", "launch")]
    received, *sent = communications(plan)
    needs = next(i for i, x in enumerate(plan.launches) if received in x.deps and i not in sent)
    feeds = next(d for d in plan.launches[sent[0]].deps if d != received)
    assert log[0] == ("start", received)
    assert log.index(("start", sent[0])) == log.index(("launch", feeds)) + 1
    # Everything that needs no message is launched before the replay waits for one.
    waits = log.index(("finish", received))
    assert log[waits + 1] == ("launch", needs)
    launched = {launch for action, launch in log[:waits] if action == "launch"}
    assert launched == set(range(len(plan.launches))) - {needs, received, *sent}
    assert {launch for action, launch in log if action == "finish"} == {received, *sent}


def test_a_serial_plan_is_waited_for_where_it_says(plan: ExecutionPlan) -> None:
    serial = plan.replace(
        launches=tuple(replace(x, deps=(i - 1,) if i else (), stream=0) for i, x in enumerate(plan.launches))
    )
    order = CommunicationOrder.of(serial)
    first = min(order.kernels)
    assert all(n >= 1 for i, n in enumerate(order.finished_before) if i > first and i not in order.kernels)
    again = beside_compute(plan)
    assert sorted(x.kernel for x in again.launches) == sorted(x.kernel for x in plan.launches)


def test_what_is_received_and_sent_on_is_waited_for() -> None:
    text = """
    module @net {
      graph.func @main(%x: f32[4]) -> f32[4] {
        %0 = graph.recv(source = 1, tag = 0, dtype = "f32", shape = [4]) : f32[4]
        graph.send(%x, to = 1, tag = 1)
        graph.send(%0, to = 1, tag = 0)
        graph.return(%0)
      }
    }
    """
    exe = distributed.compile_part(tw.parse(text), ThreadWorld(2).communicators[0], target="null")
    order = CommunicationOrder.of(exe.plan)
    assert [order.finished_before[i] for i in order.kernels] == [0, 0, 1]


def test_faults_of_plans(plan: ExecutionPlan) -> None:
    assert find_faults(plan) == []
    assert plan_from_json(plan_to_json(plan)) == plan
    index = list(communications(plan))[1]
    launch = plan.launches[index]

    def changed(**changes: object) -> str:
        launches = [*plan.launches]
        launches[index] = replace(launch, **changes)  # type: ignore[arg-type]
        return "; ".join(find_faults(plan.replace(launches=tuple(launches))))

    first = next(iter(communications(plan)))
    free = tuple(d for d in launch.deps if d != first)
    assert "communicates, but no dependency puts it after launch" in changed(deps=free)
    assert "expected 1 arguments of exchange, got 2" in changed(args=(*launch.args, launch.args[0]))
    assert "expected it to write the arguments ()" in changed(writes=(0,))
    small = plan.replace(
        buffers=tuple(replace(b, shape=(16, 8)) if b.name == launch.args[0] else b for b in plan.buffers)
    )
    assert "to hold 256 elements of float32" in "; ".join(find_faults(small))


def test_devices_that_cannot_say_so(plan: ExecutionPlan) -> None:
    builder: Any = SimpleNamespace(missing="", version="none")
    with EmulatorDevice(builder) as emulator, pytest.raises(DeviceError, match=r"exchange from 1.*cannot do"):
        emulator.load(plan, {})
    exe = plan_of("opencl")
    with OpenClDevice() as device:
        with pytest.raises(InputError, match=r"expected a communicator.*\(exchange from 1\).*mpirun"):
            device.load(exe, {})
        on_gpu: Any = SimpleNamespace(space="cuda")
        with pytest.raises(InputError, match=r"between host memory for .*, got one between cuda memory"):
            device.load(exe, {}, communicator=on_gpu)
