"""How the CUDA device queues library launches, one by one and in graphs, with a stand-in for the driver."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilewright.runtime.cuda.eager import EagerReplay
from tilewright.runtime.cuda.graph import CapturedGraph, ExplicitGraph
from tilewright.runtime.cuda.launch import LibraryLaunch
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.plan.execution_plan import Launch


class FakeContext:
    """Answers driver calls with numbers and notes them; `api` has what is called without a check."""

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self.next = 100
        self.api = SimpleNamespace(
            CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1),
            CUstream_flags=SimpleNamespace(CU_STREAM_NON_BLOCKING=1),
            CUevent_flags=SimpleNamespace(CU_EVENT_DISABLE_TIMING=2),
            CUgraphEdgeData=lambda: SimpleNamespace(type=0, from_port=0),
            CUgraphDependencyType=SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1),
            cuStreamEndCapture=lambda stream: self.log.append(("ended after a failure", stream)),
        )

    def call(self, function: str, *args: Any, doing: str = "") -> Any:
        self.log.append((function, *args))
        self.next += 1
        return self.next

    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]


class FakeCall:
    """What a library has prepared: notes the stream it is queued on."""

    def __init__(self, context: FakeContext, name: str, *, fails: int = 0) -> None:
        self.context, self.name, self.fails = context, name, fails
        self.starts = 0

    def start(self, stream: int) -> None:
        self.context.log.append((self.name, stream))
        self.starts += 1
        if self.starts == self.fails:
            raise DeviceError("cublasLtMatmul (launch 1) failed: CUBLAS_STATUS_EXECUTION_FAILED")

    def close(self) -> None:
        self.context.log.append((f"closed {self.name}",))


def launches(context: FakeContext, *, fails: int = 0, streams: tuple[int, int] = (0, 0)) -> list[Any]:
    one = Launch("a", ("x",), (1, 1, 1), 1, stream=streams[0])
    two = Launch("b", ("x",), (1, 1, 1), 1, deps=(0,), stream=streams[1])
    return [
        LibraryLaunch(one, FakeCall(context, "first"), "launch 0"),
        LibraryLaunch(two, FakeCall(context, "second", fails=fails), "launch 1"),
    ]


def test_step_by_step_they_run_on_the_stream_given() -> None:
    context: Any = FakeContext()
    replay = EagerReplay(context, launches(context), 7)
    replay.launch()
    replay.launch(9)
    ran = [entry for entry in context.log if entry[0] in ("first", "second")]
    assert ran == [("first", 7), ("second", 7), ("first", 9), ("second", 9)]


def test_streams_wait_for_each_other() -> None:
    context: Any = FakeContext()
    replay = EagerReplay(context, launches(context, streams=(0, 1)), 7)
    context.log.clear()
    replay.launch()
    names = context.names()
    assert names.index("first") < names.index("cuEventRecord", 1) < names.index("second")
    other = next(entry[1] for entry in context.log if entry[0] == "second")
    assert other != 7
    assert ("cuStreamWaitEvent", other) in [entry[:2] for entry in context.log]


def test_every_checked_launch_is_waited_for() -> None:
    context: Any = FakeContext()
    EagerReplay(context, launches(context), 7, check_each_launch=True).launch()
    steps = [n for n in context.names() if n in ("first", "second", "cuStreamSynchronize")]
    assert steps == ["first", "cuStreamSynchronize", "second", "cuStreamSynchronize"]


def test_in_a_graph_each_is_a_child_with_plain_edges() -> None:
    context: Any = FakeContext()
    ExplicitGraph(context, launches(context), 7)
    child = ["cuStreamBeginCapture", "first", "cuStreamEndCapture", "cuGraphAddChildGraphNode",
             "cuGraphDestroy"]  # fmt: skip
    other = ["second" if name == "first" else name for name in child]
    tail = ["cuGraphAddDependencies", "cuGraphInstantiate", "cuGraphUpload"]
    warm = ["first", "second", "cuStreamSynchronize"]  # libraries load their kernels before the capture
    assert context.names() == [*warm, "cuGraphCreate", *child, *other, *tail]
    begin, ended, added, destroyed = (
        next(e for e in context.log if e[0] == name)
        for name in (
            "cuStreamBeginCapture",
            "cuStreamEndCapture",
            "cuGraphAddChildGraphNode",
            "cuGraphDestroy",
        )
    )
    assert begin[1:] == (7, 1)
    assert ended[1:] == (7,)
    assert added[4] == destroyed[1]  # the child itself is destroyed once the driver has its clone
    edges = next(e for e in context.log if e[0] == "cuGraphAddDependencies")
    assert [e.type for e in edges[4]] == [0]


def test_a_failure_while_capturing_ends_the_capture() -> None:
    context: Any = FakeContext()
    with pytest.raises(DeviceError, match="EXECUTION_FAILED"):
        ExplicitGraph(context, launches(context, fails=2), 7)  # the first time is before the capture
    assert ("ended after a failure", 7) in context.log


def test_a_captured_plan_holds_them_in_order() -> None:
    context: Any = FakeContext()
    CapturedGraph(context, launches(context), 7)
    order = ["cuStreamBeginCapture", "first", "second", "cuStreamEndCapture"]
    names = context.names()
    assert [n for n in names[names.index("cuStreamSynchronize") :] if n in order] == order
