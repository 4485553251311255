"""The bound is the heaviest set of buffers that clash pairwise, by brute force; layouts stay close to it."""

import random
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_builder import Net

import tilewright as tw
from tilewright.runtime.arena.bound import heaviest_antichain
from tilewright.runtime.arena.lifetimes import Lifetimes, unpacked
from tilewright.runtime.arena.packing import pack
from tilewright.runtime.arena.placement import arena_lower_bound, layout_of, plan_arena
from tilewright.runtime.dag import Dag
from tilewright.runtime.streams import plan_streams

Deps = list[list[int]]


@st.composite
def tasks(draw) -> tuple[Deps, list[list[int]], list[bool], list[int]]:
    """Dependencies, launches that use each buffer, which buffers are kept, and sizes."""
    launches = draw(st.integers(1, 9))
    deps = [sorted(draw(st.sets(st.integers(0, i - 1), max_size=3))) if i else [] for i in range(launches)]
    count = draw(st.integers(1, 9))
    uses = [sorted(draw(st.sets(st.integers(0, launches - 1), min_size=1, max_size=4))) for _ in range(count)]
    kept = [draw(st.booleans()) and draw(st.booleans()) for _ in range(count)]
    return deps, uses, kept, [draw(st.integers(1, 9)) for _ in range(count)]


def reached(deps: Deps) -> set[tuple[int, int]]:
    """Pairs (i, j): launch i finishes before launch j starts."""
    pairs: set[tuple[int, int]] = set()
    for j, own in enumerate(deps):
        for i in own:
            pairs |= {(i, j)} | {(k, j) for k, end in pairs if end == i}
    return pairs


def follows(b: int, c: int, uses: list[list[int]], kept: list[bool], order: set[tuple[int, int]]) -> bool:
    return not kept[b] and all((u, v) in order for u in uses[b] for v in uses[c])


@given(tasks())
def test_lifetimes_and_bound_agree_with_brute_force(task):
    deps, uses, kept, sizes = task
    order, n = reached(deps), len(uses)
    lifetimes = Lifetimes(Dag.of_launches(deps), uses, kept)
    clash = {
        (b, c)
        for b, c in combinations(range(n), 2)
        if not follows(b, c, uses, kept, order) and not follows(c, b, uses, kept, order)
    }
    found = np.unpackbits(lifetimes.clashes, axis=1, bitorder="little", count=n)
    assert {(b, c) for b, c in np.argwhere(found).tolist() if b < c} == clash
    assert (found == found.T).all()
    cliques = (
        chosen
        for k in range(n + 1)
        for chosen in combinations(range(n), k)
        if all(pair in clash for pair in combinations(chosen, 2))
    )
    bound = heaviest_antichain(np.array(sizes), lifetimes)
    assert bound == max(sum(sizes[b] for b in chosen) for chosen in cliques)
    offsets, arena = pack(np.array(sizes), lifetimes, bound)
    assert bound <= arena <= sum(sizes)
    assert max(o + s for o, s in zip(offsets.tolist(), sizes, strict=True)) == arena
    for b, c in clash:
        assert offsets[b] + sizes[b] <= offsets[c] or offsets[c] + sizes[c] <= offsets[b]


@given(tasks())
def test_the_bound_of_a_plan_is_that_of_the_flow(task):
    deps, uses, kept, sizes = task
    touches = [[str(b) for b, own in enumerate(uses) if launch in own] for launch in range(len(deps))]
    names = {str(b): size for b, size in enumerate(sizes)}
    keep = [str(b) for b, keeps in enumerate(kept) if keeps]
    layout = plan_arena(names, touches, deps, keep, alignment=1)
    lifetimes = Lifetimes(Dag.of_launches(deps), uses, kept)
    assert layout.lower_bound == heaviest_antichain(np.array(sizes), lifetimes)


@given(tasks())
def test_bytes_alive_during_a_launch_never_exceed_the_bound(task):
    deps, uses, kept, sizes = task
    order, n = reached(deps), len(deps)
    lifetimes = Lifetimes(Dag.of_launches(deps), uses, kept)
    alive = lifetimes.live_bytes(np.array(sizes))
    for i in range(n):
        expected = 0
        for own, keeps, size in zip(uses, kept, sizes, strict=True):
            begun = any(u == i or (u, i) in order for u in own)
            needed = keeps or any(u == i or (i, u) in order for u in own)
            expected += size if begun and needed else 0
        assert alive[i] == expected
    assert alive.max() <= heaviest_antichain(np.array(sizes), lifetimes)


def test_a_pair_may_be_ordered_with_no_launch_between():
    """Launches 2 and 3 each follow 0 and 1; one buffer is used by the first two, one by the last two."""
    lifetimes = Lifetimes(Dag.of_launches([[], [], [0, 1], [0, 1]]), [[0, 1], [2, 3]], [False, False])
    assert heaviest_antichain(np.array([5, 3]), lifetimes) == 5


def test_large_sizes_are_rounded_down_to_fit_the_flow():
    lifetimes = Lifetimes(Dag.of_launches([[], []]), [[0], [1], [0, 1]], [False] * 3)
    sizes = np.array([1 << 44, (1 << 44) + 1, 3])
    bound = heaviest_antichain(sizes, lifetimes)
    assert int(sizes.sum()) - 3 * (1 << 16) < bound <= int(sizes.sum())


def test_bit_sets_become_rows():
    assert unpacked([0b101, 0, 0b1000000000], 10).tolist() == [
        [True, False, True, *[False] * 7],
        [False] * 10,
        [*[False] * 9, True],
    ]


def branches(blocks: int, seed: int) -> tuple[dict[str, int], list[list[str]], Deps]:
    """Fork and join again and again, as in Inception, each launch with a buffer of its own."""
    rng = random.Random(seed)
    deps: Deps = [[]]
    for _ in range(blocks):
        start, ends = len(deps) - 1, []
        for _ in range(rng.randrange(2, 6)):
            at = start
            for _ in range(rng.randrange(1, 4)):
                deps.append([at])
                at = len(deps) - 1
            ends.append(at)
        deps.append(ends)
    sizes = {f"t{i}": rng.randrange(1, 1 << 20) for i in range(len(deps))}
    return sizes, [[*(f"t{d}" for d in own), f"t{i}"] for i, own in enumerate(deps)], deps


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", ["exact", "serial", "limited(2)"])
def test_forks_and_joins_are_packed_within_two_percent(seed, policy):
    sizes, touches, deps = branches(12, seed)
    streams = plan_streams(Dag.of(len(deps), [(u, v) for v, own in enumerate(deps) for u in own]), policy)
    place = {node: i for i, node in enumerate(streams.order)}
    ordered = [{place[dep] for dep in deps[node]} for node in streams.order]
    for nodes in streams.streams:
        for before, after in pairwise(nodes):
            ordered[place[after]].add(place[before])
    layout = plan_arena(sizes, [touches[node] for node in streams.order], ordered)
    assert layout.lower_bound <= layout.arena_bytes <= 1.02 * layout.lower_bound


def test_layouts_are_the_same_every_time():
    task = branches(10, 7)
    assert plan_arena(*task) == plan_arena(*task)


def test_networks_meet_their_bound_serial_and_with_streams():
    net = Net()
    x = net.input(1, 8, 16, 16)
    for _ in range(2):
        parts = []
        for k in (1, 3, 5):
            square = f"kernel_size=[{k}, {k}], padding=[{k // 2}, {k // 2}]"
            wide = net(f"nn.conv2d({{}}, {{}}, channels=32, {square})", x, net.weight(32, 8, k, k))
            parts.append(net(f"nn.conv2d({{}}, {{}}, channels=8, {square})", wide, net.weight(8, 32, k, k)))
        x = net("concatenate(({}, {}, {}), axis=1)", *parts)
        x = net("nn.conv2d({}, {}, channels=8, kernel_size=[1, 1])", x, net.weight(8, 24, 1, 1))
    plan = tw.compile(net.module(x), target="null", streams="exact").plan
    in_turn = tuple(replace(launch, deps=(i - 1,) if i else ()) for i, launch in enumerate(plan.launches))
    serial = plan.replace(launches=in_turn)
    for one in (plan, serial):
        layout = layout_of(one)
        assert layout.lower_bound == arena_lower_bound(one)
        assert layout.arena_bytes == layout.lower_bound
    assert arena_lower_bound(serial) < arena_lower_bound(plan)
