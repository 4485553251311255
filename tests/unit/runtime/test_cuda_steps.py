"""Steps that a GPU queues, on a stand-in for the driver: pinned memory in turns, results, shared state."""

# ruff: noqa: N802, N815 - the names are those of the driver

import ctypes
import gc
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.samples.gpu_samples import SUCCESS, Gpu
from tilewright.runtime.cuda.context import Context
from tilewright.runtime.cuda.memory import CudaPool, CudaState
from tilewright.runtime.cuda.plan import CudaPlan
from tilewright.runtime.cuda.steps import SLOTS, THREADS_BYTES, first_users, in_parts, last_writers
from tilewright.runtime.errors import DeviceError, InputError
from tilewright.runtime.interface.state import PlanState
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch

N = 4
X = np.arange(N, dtype=np.float32)
FAILED = SimpleNamespace(name="CUDA_ERROR_LAUNCH_FAILED")

#: total += x + y; doubled = 2 * total
PLAN = validate(
    ExecutionPlan(
        target="cuda:sm_80",
        buffers=(
            Buffer("x", "float32", (N,), "input", 4 * N),
            Buffer("y", "float32", (), "input", 4),
            Buffer("total", "float32", (N,), "state", 4 * N),
            Buffer("total.new", "float32", (N,), "alias", 4 * N, base="total"),
            Buffer("doubled", "float32", (N,), "arena", 4 * N),
        ),
        kernels=(KernelCode("add", "add", "cuda", "", b"binary", "sm_80"),),
        launches=(
            Launch("add", ("x", "y", "total", "total.new", "doubled"), (1, 1, 1), N, writes=(3, 4),
                   in_place=((2, 3),)),
        ),
        inputs=("x", "y"),
        outputs=("doubled", "total.new"),
        arena_bytes=256,
        format_version=2,
    )
)  # fmt: skip


class Adding(Gpu):
    """Replays of the graph add on the host; `broken` makes them, or the waits for them, fail."""

    def __init__(self) -> None:
        super().__init__(0, [])
        self.plan: CudaPlan | None = None
        self.broken = ""
        #: of graphs and of what was made of them: copies, each with the nodes it waits for
        self.copies: dict[int, list[tuple[SimpleNamespace, list[int]]]] = {}
        self.edges: list[tuple[int, int]] = []

    CUfunction_attribute = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8
    )

    CUDA_KERNEL_NODE_PARAMS = CUDA_MEMCPY3D = SimpleNamespace
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_HOST=1, CU_MEMORYTYPE_DEVICE=2)

    def cuMemAllocHost(self, nbytes: int) -> tuple[Any, int]:
        return self.cuMemAlloc(nbytes)

    def cuMemHostAlloc(self, nbytes: int, flags: int) -> tuple[Any, int]:
        return self.cuMemAlloc(nbytes)

    def cuMemFreeHost(self, address: int) -> tuple[Any]:
        return self.cuMemFree(address)

    def cuFuncGetAttribute(self, attribute: int, function: int) -> tuple[Any, int]:
        return SUCCESS, 1024

    def cuFuncGetParamInfo(self, function: int, position: int) -> tuple[Any, int, int]:
        return (SUCCESS if position < 5 else FAILED), 8 * position, 8

    def cuGraphClone(self, graph: int) -> tuple[Any, int]:
        self.next += 1
        self.copies[self.next] = list(self.copies.get(graph, []))
        return SUCCESS, self.next

    def cuGraphNodeFindInClone(self, node: int, clone: int) -> tuple[Any, int]:
        return SUCCESS, node

    def cuGraphAddMemcpyNode(
        self, graph: int, before: list[int], count: int, box: SimpleNamespace, context: int
    ) -> tuple[Any, int]:
        assert (len(before), box.Height, box.Depth, box.srcPitch) == (count, 1, 1, box.WidthInBytes)
        self.next += 1
        self.copies[graph].append((box, before))
        return SUCCESS, self.next

    def cuGraphAddDependencies(
        self, graph: int, before: list[int], after: list[int], edges: list[Any], count: int
    ) -> tuple[Any]:
        assert len(before) == len(after) == len(edges) == count
        self.edges += zip(before, after, strict=True)
        return (SUCCESS,)

    def cuGraphInstantiate(self, graph: int, flags: int) -> tuple[Any, int]:
        self.next += 1
        self.copies[self.next] = self.copies.get(graph, [])
        return SUCCESS, self.next

    def cuGraphDestroy(self, graph: int) -> tuple[Any]:
        self.copies.pop(graph, None)
        return (SUCCESS,)

    cuGraphExecDestroy = cuGraphDestroy

    def cuGraphLaunch(self, graph: int, stream: int) -> tuple[Any]:
        self.log.append(("cuGraphLaunch", stream))
        if self.broken == "launch":
            return (FAILED,)
        assert self.plan is not None
        for box, before in self.copies[graph]:
            if not before:
                ctypes.memmove(box.dstDevice, getattr(box, "srcHost", 0) or box.srcDevice, box.WidthInBytes)
        x, y, total, doubled = (self._array(name) for name in ("x", "y", "total", "doubled"))
        total += x + y[0]
        doubled[:] = 2 * total
        for box, before in self.copies[graph]:
            if before:
                ctypes.memmove(box.dstHost, box.srcDevice, box.WidthInBytes)
        return (SUCCESS,)

    def cuEventSynchronize(self, event: int) -> tuple[Any]:
        self.log.append(("cuEventSynchronize", event))
        return (FAILED if self.broken == "wait" else SUCCESS,)

    def _array(self, name: str) -> Any:
        buffer, address = PLAN.buffer_by_name[name], self.plan._addresses[name]  # type: ignore[union-attr]
        raw = (ctypes.c_uint8 * (4 * buffer.size)).from_address(address)
        return np.frombuffer(raw, np.float32)


@pytest.fixture
def gpu():
    return Adding()


def load(gpu: Adding, state: PlanState | None = None) -> CudaPlan:
    context: Any = Context(gpu, 0)  # type: ignore[arg-type]  # a stand-in for the driver
    values = {"total": np.zeros(N, np.float32)}
    kept = state or PlanState.of(PLAN, values, None, lambda: CudaState(context))
    gpu.plan = CudaPlan(context, CudaPool(), PLAN, {}, state=kept)
    return gpu.plan


def total_of(plan: CudaPlan) -> np.ndarray:
    assert plan._state.memory is not None
    return plan._state.memory.read("total")


@pytest.mark.parametrize("kind", [np.asarray, lambda i, dtype: dtype(i)], ids=["arrays", "others"])
def test_steps_advance_the_state_and_their_results_stay(gpu, kind):
    plan = load(gpu)
    results = [plan.step([X, kind(i, np.float32)]) for i in range(3 * SLOTS)]
    total = np.zeros(N, np.float32)
    for i, (doubled, new) in enumerate(results):
        total += X + np.float32(i)
        np.testing.assert_array_equal(new, total)
        np.testing.assert_array_equal(doubled, 2 * total)
    np.testing.assert_array_equal(total_of(plan), total)
    plan.close()
    assert not gpu.memory


def test_a_step_is_few_calls_of_the_driver_and_takes_no_memory(gpu):
    plan = load(gpu)
    y = np.asarray(1, np.float32)
    for _ in range(2 * SLOTS):
        plan.step([X, y])
    before, graphs = len(gpu.memory), len(gpu.copies)
    gpu.log.clear()
    plan.step([X, y])
    assert [entry[0] for entry in gpu.log] == ["cuEventSynchronize", "cuGraphLaunch", "cuEventRecord"]
    assert (len(gpu.memory), len(gpu.copies)) == (before, graphs)
    plan.close()
    assert not gpu.copies


def test_a_slot_that_was_waited_for_is_not_waited_for_again(gpu):
    plan = load(gpu)
    for _ in range(2 * SLOTS):
        for result in plan.step([X, np.zeros((), np.float32)]):
            result.numpy()
    assert len(gpu.names(["cuEventSynchronize"])) == 2 * SLOTS
    plan.close()


def test_copies_wait_for_what_writes_and_go_before_what_reads(gpu):
    plan = load(gpu)
    plan.step([X, np.zeros((), np.float32)])
    ring = plan._steps
    assert ring is not None
    (slot,) = ring._slots
    (kernel,) = plan._replay._nodes  # type: ignore[union-attr]
    arrival, *outputs = gpu.copies[slot.graph]
    assert arrival[1] == []
    assert [before for _, before in outputs] == [[kernel], [kernel]]
    assert [after for _, after in gpu.edges] == [kernel]
    plan.close()


def test_large_inputs_arrive_beside_the_step_before(gpu, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.cuda.steps.OVERLAP_BYTES", 1)
    plan = load(gpu)
    y = np.asarray(1, np.float32)
    results = [plan.step([X * i, y])[1] for i in range(2 * SLOTS)]
    np.testing.assert_array_equal(results[-1], sum(X * i + 1 for i in range(2 * SLOTS)))
    gpu.log.clear()
    plan.step([X, y])
    calls = ["cuEventRecord", "cuStreamWaitEvent", "cuGraphLaunch", "cuEventRecord"]
    assert gpu.names(["cuEventRecord", "cuStreamWaitEvent", "cuGraphLaunch"]) == calls
    (wait,) = (entry for entry in gpu.log if entry[0] == "cuStreamWaitEvent")
    records = [entry for entry in gpu.log if entry[0] == "cuEventRecord"]
    assert records[0][1] == wait[2]  # the step waits for the copy, which is on a stream of its own
    assert records[0][2] != wait[1] == plan._stream == records[1][2]
    plan.close()
    assert not gpu.memory


def test_threads_copy_large_inputs_of_any_layout(gpu, monkeypatch):
    monkeypatch.setattr("tilewright.runtime.cuda.steps.THREADS_BYTES", 1)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(8))
    plan = load(gpu)
    total = np.zeros(N, np.float32)
    for i in range(2 * SLOTS):
        x = np.repeat(X + i, 2)[::2] if i % 2 else X + i
        total += x
        np.testing.assert_array_equal(plan.step([x, np.zeros((), np.float32)])[1], total)
    assert [len(parts) for *_, parts in plan._steps._slots[0].input_arrays] == [2, 0]
    plan.close()


@pytest.mark.parametrize(("rows", "cores", "parts"), [(1, 8, 0), (2, 8, 2), (9, 2, 2), (9, 1, 0), (9, 16, 2)])
def test_parts_are_all_rows_once(monkeypatch, rows, cores, parts):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(cores))
    slices = in_parts(np.zeros((rows, THREADS_BYTES), np.uint8))
    assert len(slices) == parts
    assert not parts or [i for s in slices for i in range(rows)[s]] == list(range(rows))
    assert in_parts(np.zeros((2, THREADS_BYTES // 2 - 1), np.uint8)) == []


def test_results_that_nobody_read_outlive_their_slot_and_the_plan(gpu):
    plan = load(gpu)
    first = plan.step([X, np.float32(0)])[1]
    for _ in range(SLOTS + 1):
        last = plan.step([X, np.float32(0)])[1]
    plan.close()
    np.testing.assert_array_equal(first, X)
    np.testing.assert_array_equal(last, (SLOTS + 2) * X)


def test_what_nobody_holds_is_not_copied(gpu):
    plan = load(gpu)
    for _ in range(SLOTS):
        plan.step([X, np.float32(0)])
    gc.collect()
    ring = plan._steps
    assert ring is not None
    assert all(reference() is None for slot in ring._slots for reference in slot.results)
    plan.close()


@pytest.mark.parametrize(
    "wrong", [[X], [X, 1.0], [X[:2], np.float32(1)], [X.astype(np.float64), np.float32(1)]]
)
def test_wrong_inputs_queue_nothing_and_leave_the_state(gpu, wrong):
    plan = load(gpu)
    plan.step([X, np.float32(0)])
    gpu.log.clear()
    with pytest.raises(InputError):
        plan.step(wrong)
    assert gpu.names(["cuGraphLaunch"]) == []
    np.testing.assert_array_equal(total_of(plan), X)
    plan.step([X, np.float32(0)])
    plan.close()


def test_other_layouts_and_types_of_arrays_are_copied_one_by_one(gpu):
    plan = load(gpu)
    (_, new) = plan.step([np.repeat(X, 2)[::2], np.float32(2)])
    np.testing.assert_array_equal(new, X + 2)
    plan.close()


def test_the_first_users_and_the_last_writers_of_memory():
    def launch(args, deps, writes):
        return Launch("k", args, (1, 1, 1), 1, deps=deps, writes=writes)

    launches = (
        launch(("a", "s"), (), (1,)),  # 0
        launch(("x", "a"), (), (1,)),  # 1
        launch(("a", "x.tail", "b"), (0, 1), (2,)),  # 2: after 1, which has read x before
        launch(("x", "a"), (0,), (1,)),  # 3: a writer of a that nothing follows
        launch(("b", "s.new"), (2,), (1,)),  # 4
    )
    buffers = (
        Buffer("a", "float32", (N,), "arena", 16),
        Buffer("b", "float32", (N,), "arena", 16, 256),
        Buffer("x", "float32", (N,), "input", 16),
        Buffer("x.tail", "float32", (1,), "alias", 4, 12, "x"),
        Buffer("s", "float32", (N,), "state", 16),
        Buffer("s.new", "float32", (N,), "alias", 16, base="s"),
    )
    plan = PLAN.replace(buffers=buffers, launches=launches)
    assert first_users(plan, {"x"}) == (1, 3)
    assert first_users(plan, {"b"}) == (2,)
    assert sorted(last_writers(plan, "a")) == [1, 3]
    assert last_writers(plan, "s") == (4,)
    assert last_writers(plan, "x") == ()


@pytest.mark.parametrize("broken", ["launch", "wait"])
def test_a_failure_loses_the_state_until_all_of_it_is_written(gpu, broken):
    plan = load(gpu)
    memory = plan._state.memory
    assert memory is not None
    plan.step([X, np.float32(0)])
    gpu.broken = broken
    with pytest.raises(DeviceError, match="CUDA_ERROR_LAUNCH_FAILED"):
        float(plan.step([X, np.float32(0)])[0].numpy()[0])
    gpu.broken = ""
    with pytest.raises(DeviceError, match="the state was lost when a run failed"):
        plan.step([X, np.float32(0)])
    with pytest.raises(DeviceError, match="the state was lost when a run failed"):
        memory.read("total")
    memory.write_all({"total": X})
    plan.step([X, np.float32(0)])
    np.testing.assert_array_equal(memory.read("total"), 2 * X)
    plan.close()


def test_memory_that_is_missing_for_steps_leaves_the_state(gpu, monkeypatch):
    plan = load(gpu)
    full = SimpleNamespace(name="CUDA_ERROR_OUT_OF_MEMORY")
    monkeypatch.setattr(gpu, "cuMemAllocHost", lambda nbytes: (full,))
    with pytest.raises(DeviceError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        plan.step([X, np.float32(0)])
    monkeypatch.undo()
    np.testing.assert_array_equal(total_of(plan), np.zeros(N))
    plan.step([X, np.float32(0)])
    np.testing.assert_array_equal(total_of(plan), X)
    plan.close()
    assert not gpu.memory


def test_times_leave_the_state(gpu):
    plan = load(gpu)
    plan.step([X, np.float32(0)])
    plan.time([X, np.float32(5)], 3)
    plan.time_kernels([X, np.float32(5)], 2)
    np.testing.assert_array_equal(total_of(plan), X)
    plan.close()


def test_plans_of_one_state_share_its_memory_and_its_stream(gpu):
    context: Any = Context(gpu, 0)  # type: ignore[arg-type]
    memory = CudaState(context)
    memory.add(PLAN.buffer_by_name["total"], np.ones(N, np.float32))
    one, other = (load(gpu, PlanState.of(PLAN, {}, memory, lambda: memory)) for _ in range(2))
    assert one._addresses["total"] == other._addresses["total"] == other._addresses["total.new"]
    assert one._addresses["x"] != other._addresses["x"]
    assert one._stream == other._stream == memory.stream
    other.step([X, np.float32(0)])
    one.close()
    np.testing.assert_array_equal(memory.read("total"), X + 1)
    other.close()
    np.testing.assert_array_equal(memory.read("total"), X + 1)
    memory.close()
    assert not gpu.memory
