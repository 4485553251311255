"""Profiles of plans with launches that cannot stamp: marks where needed, times between neighbours."""

from dataclasses import replace

import numpy as np
import pytest
from kernels_apart import without_chains
from thread_ranks import ThreadCommunicator, ThreadWorld

import tilewright as tw
from tilewright import distributed
from tilewright.codegen import EmulatorBuilder
from tilewright.codegen.builders.nvrtc import compile_cuda
from tilewright.codegen.emit.stamps import ARRIVAL, END, STAMPS_PER_BLOCK, START
from tilewright.profiling.profile import Profile
from tilewright.profiling.stamps import launch_spans, mark_source, marked
from tilewright.running.executable import Executable
from tilewright.runtime.dag import Dag
from tilewright.runtime.emulator.device import EmulatorDevice
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import ExecutionPlan, KernelCode, Launch

NET = """#[version = "0.0.5"]
def @main(%data: Tensor[(4, 8), float32], %w: Tensor[(6, 8), float32]) -> Tensor[(4, 6), float32] {
  %0 = nn.softmax(%data);
  %1 = nn.dense(%0, %w, units=6);
  nn.softmax(%1)
}
"""
X = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)


def plan_of(*kinds: str, deps: tuple[tuple[int, ...], ...]) -> ExecutionPlan:
    """Launches of kernels of our own and of libraries, which wait for each other as `deps` says."""
    kernels = (KernelCode("own", "own", "cuda", ""), KernelCode("library", "library", "library", ""))
    launches = tuple(Launch(kind, (), (1, 1, 1), 1, deps=own) for kind, own in zip(kinds, deps, strict=True))
    return ExecutionPlan("cuda:sm_90a", (), kernels, launches, (), (), 0)


def described(plan: ExecutionPlan) -> list[tuple[str, tuple[int, ...]]]:
    return [(launch.kernel, launch.deps) for launch in marked(plan, "mark").launches]


def test_between_kernels_that_stamp_no_mark_is_needed():
    plan = plan_of("own", "library", "own", deps=((), (0,), (1,)))
    assert described(plan) == [("own", ()), ("library", (0,)), ("own", (1,))]
    also_implied = plan_of("own", "library", "own", deps=((), (0,), (0, 1)))
    assert not marked(also_implied, "mark").marks


def test_the_first_and_the_last_launch_of_a_plan_have_marks():
    plan = plan_of("library", "own", "library", deps=((), (0,), (1,)))
    assert described(plan) == [
        ("mark", ()), ("library", (0,)), ("own", (1,)), ("library", (2,)), ("mark", (3,)),
    ]  # fmt: skip
    alone = marked(plan_of("library", deps=((),)), "mark")
    assert (alone.before, alone.after, alone.places) == ({0: 0}, {0: 2}, (1,))


def test_a_mark_parts_launches_that_cannot_stamp_and_leaves_others_alone():
    plan = plan_of("own", "library", "library", "own", deps=((), (0,), (1,), (1, 2)))
    assert described(plan) == [
        ("own", ()), ("library", (0,)), ("mark", (1,)), ("library", (2,)), ("own", (1, 3)),
    ]  # fmt: skip


def test_an_end_that_only_a_join_would_tell_has_a_mark_beside_it():
    plan = plan_of("own", "library", "own", "own", deps=((), (0,), (0,), (1, 2)))
    assert described(plan) == [
        ("own", ()), ("library", (0,)), ("mark", (1,)), ("own", (0,)), ("own", (1, 3)),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_the_launch_whatever_the_plan(seed):
    """Replays as the dependencies allow, every launch with a length of its own and a pause before it."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 9))
    deps = tuple(tuple(int(d) for d in range(i) if rng.random() < 0.4) for i in range(n))
    plan = plan_of(*rng.choice(["own", "library"], n), deps=deps)
    found = marked(plan, "mark")
    before, ours = (
        Dag.of_launches([x.deps for x in found.launches]).ancestors,
        Dag.of_launches(deps).ancestors,
    )
    assert all(
        before[found.places[i]] >> found.places[j] & 1 for i in range(n) for j in range(n) if ours[i] >> j & 1
    )
    times: list[tuple[int, int]] = []
    rows, first = [], []
    for launch in found.launches:
        start = max((times[d][1] for d in launch.deps), default=1000) + int(rng.integers(1, 9))
        times.append((start, start + int(rng.integers(1, 50))))
        first.append(len(rows))
        if launch.kernel != "library":
            row = np.zeros(STAMPS_PER_BLOCK, np.uint64)
            row[[ARRIVAL, START, END]] = start, *times[-1]
            rows.append(row)
    stamps = np.array(rows)
    zero = int(stamps[:, ARRIVAL].min())
    spans = launch_spans(plan, stamps, first, found)
    assert [x.kernel for x in spans] == [x.kernel for x in plan.launches]
    for i, x in enumerate(spans):
        start, end = (round(1e9 * t) + zero for t in (x.start_s, x.end_s))
        ran = times[found.places[i]]
        assert x.bounded == (x.kernel == "library")
        assert (start, end) == ran if not x.bounded else start < ran[0] < ran[1] < end
        assert bool(x.processors) != x.bounded


def test_marks_compile():
    (built,) = compile_cuda(mark_source("mark").source, arch="sm_90a").kernels.values()
    assert (built.spill_bytes, built.static_shared_bytes) == (0, 0)


class StandIn(EmulatorDevice):
    """Runs communications as the kernels whose place they took."""

    def __init__(self, codes: dict[str, KernelCode]) -> None:
        super().__init__(EmulatorBuilder())
        self.codes = codes

    def load(self, plan, constants, **options):
        validate(plan)
        own = tuple(self.codes.get(k.name, k) for k in plan.kernels)
        options.pop("communicator", None)
        loaded = super().load(plan.replace(kernels=own), constants, **options)
        loaded.plan = plan
        return loaded

    def take(self):
        return self

    def give_back(self):
        self.close()


def summed(size: int) -> str:
    return CommunicationKernel("all_reduce", "float32", (size,), (size,), members=(0, 1)).to_json()


@pytest.mark.emulator
def test_a_plan_with_launches_of_others_is_profiled(tmp_path):
    path = tmp_path / "net.relay"
    path.write_text(NET)
    module = tw.frontends.relay.load(str(path), params="random", inputs=("data",), seed=0)
    with without_chains():
        exe = tw.compile(module, target="emulator:sm_90a", progress=False)
    first, _, last = exe.plan.launches
    codes = {x.kernel: exe.plan.kernel_by_name[x.kernel] for x in (first, last)}
    sizes = {x.kernel: exe.plan.buffer_by_name[x.args[-1]].size for x in (first, last)}
    kernels = tuple(
        replace(k, language="communication", overlaps=False, releases=False, source=summed(sizes[k.name]))
        if k.name in codes
        else k
        for k in exe.plan.kernels
    )
    launches = tuple(replace(x, in_place=()) if x.kernel in codes else x for x in exe.plan.launches)
    plan = exe.plan.replace(kernels=kernels, launches=launches)
    with Executable(replace(exe.artifact, plan=plan), exe.target, device=StandIn(codes)) as foreign:
        profile = foreign.profile(X, repeats=1)
        np.testing.assert_array_equal(foreign(X)[0], exe(X)[0])
    exe.close()
    a, b, c = profile.launches
    assert [x.bounded for x in (a, b, c)] == [True, False, True]
    assert (a.end_s, b.end_s) == (b.start_s, c.start_s)
    assert 0 < a.start_s < b.start_s < b.end_s < c.end_s
    assert profile.summary()["bounded_launches"] == 2
    assert (profile.boundaries, profile.processor_idle_share) == (0, None)
    assert "2 launches of libraries or communications: bounded by neighbours" in str(profile)
    kernels_told = [e for e in profile.trace()["traceEvents"] if e.get("cat") == "kernel"]
    assert [e["args"].get("bounded_by_neighbours", False) for e in kernels_told] == [True, False, True]


def test_ranks_that_communicate_profile_together():
    """On OpenCL the events of its copies tell when a communication ran."""

    def part(rank: int) -> tw.Module:
        group = f"rank = {rank}, ranks = [0, 1]"
        return tw.parse(f"""module @net {{
          graph.func @main(%x: f32[4, 8]) -> f32[4, 8] {{
            %0 = graph.relu(%x) : f32[4, 8]
            %1 = graph.all_reduce(%0, {group}, reduction = "sum") : f32[4, 8]
            %2 = graph.exp(%1) : f32[4, 8]
            graph.return(%2)
          }}
        }}""")

    def work(c: ThreadCommunicator) -> Profile:
        with distributed.compile_part(part(c.rank), c, target="opencl") as exe:
            return exe.profile(X, repeats=2, compare_serial=True)

    for profile in ThreadWorld(2, timeout_s=60).run(work):
        assert [x.deps for x in profile.launches] == [(), (0,), (1,)]
        assert profile.bounded_launches == 0
        assert all(0 <= x.start_s <= x.end_s for x in profile.launches)
        assert profile.serial_s is not None
