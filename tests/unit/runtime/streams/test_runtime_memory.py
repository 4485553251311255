"""The arena planner's laws: safe in every allowed order, never below the bound, near it on chains."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runtime_samples import diamond

from tilewright.runtime.arena.placement import ArenaLayout, place_arena, plan_arena
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch
from tilewright.runtime.plan.hazards import check_hazards, find_hazards


@st.composite
def random_plans(draw) -> ExecutionPlan:
    """Plans whose launch i writes buffer i and reads the buffers of its dependencies, one network input."""
    count = draw(st.integers(1, 12))
    launches, buffers = [], [Buffer("x", "uint8", (8,), "input", 8)]
    for index in range(count):
        earlier = st.lists(st.integers(0, index - 1), max_size=3, unique=True) if index else st.just([])
        deps = tuple(sorted(draw(earlier)))
        # Blocks of 256 bytes, so that the bound can be met; odd sizes are tested apart.
        nbytes = 256 * draw(st.integers(1, 5))
        buffers.append(Buffer(f"t{index}", "uint8", (nbytes,), "arena", nbytes))
        args = (*(f"t{dep}" for dep in deps), "x", f"t{index}")
        launches.append(Launch("k", args, (1, 1, 1), 1, deps=deps, writes=(len(args) - 1,)))
    outputs = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=3, unique=True))
    kernel = KernelCode("k", "k", "opencl", "")
    names = tuple(f"t{index}" for index in outputs)
    return place_arena(ExecutionPlan("test", tuple(buffers), (kernel,), tuple(launches), ("x",), names, 0))


def random_order(plan: ExecutionPlan, rng: random.Random) -> list[int]:
    waiting = {index: set(launch.deps) for index, launch in enumerate(plan.launches)}
    order = []
    while waiting:
        index = rng.choice(sorted(i for i, deps in waiting.items() if not deps))
        del waiting[index]
        for deps in waiting.values():
            deps.discard(index)
        order.append(index)
    return order


def simulate(plan: ExecutionPlan, order: list[int]) -> None:
    """Run the launches on a byte array that remembers who wrote each byte; every read must see its writer."""
    owner = [""] * plan.arena_bytes
    for index in order:
        launch = plan.launches[index]
        for position, name in enumerate(launch.args):
            buffer = plan.buffer_by_name[name]
            if buffer.kind != "arena":
                continue
            place = slice(buffer.offset, buffer.offset + buffer.nbytes)
            if position in launch.writes:
                owner[place] = [name] * buffer.nbytes
            assert set(owner[place]) == {name}
    for name in plan.outputs:
        buffer = plan.buffer_by_name[name]
        assert set(owner[buffer.offset : buffer.offset + buffer.nbytes]) == {name}


@given(random_plans(), st.integers(0, 1 << 30))
def test_no_allowed_order_reads_foreign_bytes(plan, seed):
    validate(plan)
    assert find_hazards(plan) == []
    rng = random.Random(seed)
    for _ in range(5):
        simulate(plan, random_order(plan, rng))


@given(random_plans(), st.data())
def test_the_check_sees_what_the_simulation_sees(plan, data):
    """Moved buffers: where the check is content, no order may go wrong."""
    index = data.draw(st.integers(0, len(plan.launches) - 1))
    blocks = plan.arena_bytes // 256
    moved = tuple(
        replace(b, offset=256 * data.draw(st.integers(0, blocks - b.nbytes // 256)))
        if b.name == f"t{index}"
        else b
        for b in plan.buffers
    )
    plan = plan.replace(buffers=moved)
    if not find_hazards(plan):
        rng = random.Random(0)
        for _ in range(10):
            simulate(plan, random_order(plan, rng))


@given(st.lists(st.integers(1, 5000), min_size=2, max_size=40))
def test_a_chain_needs_no_more_than_its_bound(sizes):
    names = [f"t{index}" for index in range(len(sizes))]
    touches = [names[max(0, index - 1) : index + 1] for index in range(len(sizes))]
    deps = [(index - 1,) if index else () for index in range(len(sizes))]
    layout = plan_arena(dict(zip(names, sizes, strict=True)), touches, deps)
    rounded = [-(-size // 256) * 256 for size in sizes]
    assert layout.lower_bound == max(a + b for a, b in pairwise(rounded))
    assert layout.arena_bytes == layout.lower_bound
    assert all(offset % 256 == 0 for offset in layout.offsets.values())


def test_unordered_branches_share_nothing_and_ordered_ones_do():
    sizes = {"a": 256, "b": 256, "c": 256}
    touches = [["a"], ["b"], ["c"]]
    assert plan_arena(sizes, touches, [(), (), ()]).arena_bytes == 768
    assert plan_arena(sizes, touches, [(), (0,), (1,)]).arena_bytes == 256
    # Serial in the list, but a and c are not ordered: only b may follow a.
    assert plan_arena(sizes, touches, [(), (0,), ()]).arena_bytes == 512


def test_kept_buffers_live_to_the_end():
    sizes = {"a": 256, "b": 512}
    assert plan_arena(sizes, [["a"], ["b"]], [(), (0,)]).arena_bytes == 512
    assert plan_arena(sizes, [["a"], ["b"]], [(), (0,)], keep=["a"]).arena_bytes == 768


def test_edges_of_the_planner():
    assert plan_arena({}, [], []) == ArenaLayout({}, 0, 0)
    assert plan_arena({"a": 0, "unused": 99}, [["a", "x"]], [()]) == ArenaLayout({"a": 0, "unused": 0}, 0, 0)
    assert plan_arena({"a": 1}, [["a"]], [()], alignment=4096).arena_bytes == 4096
    with pytest.raises(InputError, match="at least 0"):
        plan_arena({"a": -1}, [["a"]], [()])
    with pytest.raises(InputError, match="earlier"):
        plan_arena({"a": 1}, [["a"]], [(0,)])


def test_thousands_of_launches_are_planned():
    rng = random.Random(1)
    count = 2000
    deps = [sorted({rng.randrange(max(0, i - 4), i) for _ in range(2)}) if i else [] for i in range(count)]
    sizes = {f"t{i}": rng.randrange(1, 1 << 20) for i in range(count)}
    touches = [[*(f"t{dep}" for dep in own), f"t{i}"] for i, own in enumerate(deps)]
    layout = plan_arena(sizes, touches, deps)
    assert layout.lower_bound <= layout.arena_bytes < sum(sizes.values())


def test_hazards_are_named():
    plan = diamond()
    unordered = list(plan.launches)
    unordered[3] = replace(unordered[3], deps=(1,))
    hazards = find_hazards(plan.replace(launches=tuple(unordered)))
    assert any("no dependency orders them" in hazard for hazard in hazards)
    assert any("no launch before it writes" in hazard for hazard in hazards)
    same_place = tuple(replace(b, offset=0) if b.kind == "arena" else b for b in plan.buffers)
    with pytest.raises(InputError, match="share arena bytes"):
        check_hazards(plan.replace(buffers=same_place))
    silent = plan.replace(launches=plan.launches[:3])
    assert find_hazards(silent) == ["output 'y' is written by no launch"]


def test_disjoint_slices_may_be_written_side_by_side():
    halves = [Buffer(f"h{i}", "uint8", (256,), "alias", 256, 256 * i, "y") for i in range(2)]
    buffers = (Buffer("y", "uint8", (512,), "output", 512), *halves)
    launches = tuple(Launch("k", (f"h{i}",), (1, 1, 1), 1, writes=(0,)) for i in range(2))
    plan = ExecutionPlan("test", buffers, (KernelCode("k", "k", "opencl", ""),), launches, (), ("y",), 0)
    assert find_hazards(validate(plan)) == []
    overlapping = replace(halves[1], offset=128)
    assert find_hazards(plan.replace(buffers=(buffers[0], halves[0], overlapping))) != []
