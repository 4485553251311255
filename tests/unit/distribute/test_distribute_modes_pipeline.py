"""split-pipeline: exact cuts, messages between stages, micro-batches in one module."""

from itertools import combinations_with_replacement

import pytest
from distributed_networks import Graph, check, cnn, communications, mlp, names_of, ranks_of, transformer
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.passes.graph.distribute.pipeline.cuts import OpRow, StageLimits, best_cuts
from tilewright.passes.graph.distribute.split_pipeline import split_pipeline


@pytest.mark.parametrize("devices", [2, 3, 4])
@pytest.mark.parametrize("network", [mlp, cnn, transformer])
def test_equals_the_whole(network, devices):
    modules = check(network(), split_pipeline, devices)
    assert all({"send", "recv"} & set(names_of(m)) for m in modules)


@pytest.mark.parametrize(("network", "batch"), [(mlp, 5), (cnn, 4), (transformer, 3)])
@pytest.mark.parametrize("micro_batches", [2, 3])
def test_micro_batches_equal_the_whole(network, batch, micro_batches):
    check(network(batch=batch), split_pipeline, 2, micro_batches=micro_batches)


def chain(batch=4, layers=4):
    g = Graph()
    x = g.input(batch, 8)
    for _ in range(layers):
        x = g("relu", g("dense", x, g.weight(8, 8)))
    return g.module(x)


def test_stages_overlap():
    """The first stage sends a micro-batch before it begins the next, and never waits for the others' work."""
    first, second = check(chain(), split_pipeline, 2, micro_batches=4)
    names = [op.name.removeprefix("graph.") for op in first.main.body.ops]
    assert names_of(first) == ["send"] * 4 + ["recv"]
    assert names.index("send") < len(names) - 1 - names[::-1].index("dense")
    assert names_of(second) == ["recv", "recv", "recv", "recv", "send"]
    assert names_of(second).count("send") == 1


def meet_in_order(modules):
    """Whether all messages pass where a send waits for its receive."""
    queues = [[dict(attrs) | {"name": name} for name, attrs in communications(m)] for m in modules]
    moved = True
    while moved:
        moved = False
        for source, queue in enumerate(queues):
            if not queue or queue[0]["name"] != "send":
                continue
            other = queues[queue[0]["to"]]
            wanted = {"name": "recv", "source": source, "tag": queue[0]["tag"]}
            if other and wanted.items() <= other[0].items():
                queue.pop(0)
                other.pop(0)
                moved = True
    return not any(queues)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("network", [mlp, cnn, transformer])
def test_waiting_sends_do_not_lock(network, micro_batches):
    modules = ranks_of(network(batch=3), split_pipeline, 3, micro_batches=micro_batches, link_gbs=1e6)
    assert all(communications(m) for m in modules)
    assert meet_in_order(modules)
    assert not meet_in_order([modules[0], modules[2], modules[1]])


def test_constants_are_held_by_their_stage_alone():
    module = chain()
    modules = check(module, split_pipeline, 4, micro_batches=2, link_gbs=1e6)
    assert [set(m.constants) for m in modules] == [{f"w{i}"} for i in range(4)]


def test_shortcuts_go_straight_to_the_stage_that_uses_them():
    g = Graph()
    x = g.input(2, 8)
    a = g("relu", g.linear(x, 8))
    y = g("add", g.linear(g.linear(g.linear(a, 8), 8), 8), a)
    modules = check(g.module(y), split_pipeline, 3, cuts="3,6")
    sends = [[op["to"] for op in m.main.body.ops if op.name == "graph.send"] for m in modules]
    assert sends == [[1, 2], [2], [0, 1]]


def test_values_without_samples_are_made_and_sent_once():
    g = Graph()
    x, bias = g.input(4, 8), g.input(1, 8)
    shift = g("tanh", bias)
    y = g("add", g("relu", g("add", x, shift)), shift)
    modules = check(g.module(y), split_pipeline, 2, micro_batches=2, cuts="3")
    assert [op.name for op in modules[0].main.body.ops].count("graph.tanh") == 1
    assert names_of(modules[0]) == ["send", "send", "send", "recv"]


def test_outputs_of_inputs_and_of_several_stages():
    g = Graph()
    x = g.input(4, 8)
    a = g.linear(x, 8)
    b = g("tanh", g.linear(a, 8))
    module = g.module(a, b, x, a)
    for micro_batches in (1, 2):
        check(module, split_pipeline, 2, micro_batches=micro_batches, cuts="2")


def test_what_mixes_samples_is_refused_by_name():
    g = Graph()
    x = g.input(4, 8)
    y = g.module(g("softmax", g.linear(x, 8), axis=0))
    check(y, split_pipeline, 2)
    with pytest.raises(UnsupportedError, match=r"one by one, got graph\.softmax"):
        ranks_of(y, split_pipeline, 2, micro_batches=2)


def test_faster_devices_do_more():
    modules = ranks_of(chain(layers=6), split_pipeline, 2, speeds="2,1", link_gbs=1e6)
    assert [[op.name for op in m.main.body.ops].count("graph.dense") for m in modules] == [4, 2]


def test_slow_links_keep_a_network_on_one_device():
    modules = ranks_of(chain(), split_pipeline, 2, link_gbs=1e-3)
    assert [[op.name for op in m.main.body.ops].count("graph.dense") for m in modules] in ([0, 4], [4, 0])


def test_operations_or_traffic_decide():
    """A product of matrices does more operations than elementwise work that moves as much."""
    g = Graph()
    x = g.input(64, 64)
    y = g("dense", x, g.weight(64, 64))
    for _ in range(3):
        y = g("sigmoid", y)
    module = g.module(y)
    by_flops, by_bytes = (
        ranks_of(module, split_pipeline, 2, link_gbs=1e6, balance=b) for b in ("flops", "seconds")
    )
    counts = [
        [[op.name for op in m.main.body.ops].count("graph.sigmoid") for m in ms]
        for ms in (by_flops, by_bytes)
    ]
    assert counts == [[0, 3], [1, 2]]


def test_given_costs_decide():
    modules = ranks_of(chain(layers=3), split_pipeline, 2, costs="1,1,1,1,1,5")
    assert [[op.name for op in m.main.body.ops].count("graph.relu") for m in modules] == [2, 1]


def test_memory_moves_the_cut():
    g = Graph()
    x = g.input(1, 8)
    y = g.module(g.linear(g.linear(x, 64), 64))
    free, tight = (ranks_of(y, split_pipeline, 2, memory=m) for m in ("", "16000,20000"))
    sizes = [[sum(a.nbytes for a in m.constants.values()) for m in ranks] for ranks in (free, tight)]
    assert sizes[1][0] <= 16000
    assert sizes[1][1] <= 20000
    with pytest.raises(UnsupportedError, match="expected a cut into 2 stages whose devices have 9000, 9000"):
        ranks_of(y, split_pipeline, 2, memory="9000")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"micro_batches": 0}, "at least 1"),
        ({"micro_batches": 9}, "at most 4, one per sample, got 9"),
        ({"cuts": "1,2"}, "expects 1 rising places among 8 ops"),
        ({"cuts": "9"}, "expects 1 rising places among 8 ops"),
        ({"costs": "1,2"}, "'costs' expects 8 numbers, got 2"),
        ({"link_gbs": 0.0}, "positive rates"),
        ({"memory": "1,2,3"}, "'memory' expects 1 or 2 numbers"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        split_pipeline(devices=2, **options)(chain())


@st.composite
def rows(draw):
    count = draw(st.integers(1, 6))
    costs = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    made, used, kept = [], [], []
    for _ in range(draw(st.integers(0, 6))):
        m = draw(st.integers(-1, count - 1))
        made.append(m)
        used.append(sorted(draw(st.sets(st.integers(m + 1, count - 1), max_size=3)) if m < count - 1 else ()))
        kept.append(draw(st.sampled_from([-1, count - 1])))
    sizes = draw(st.lists(st.integers(1, 9), min_size=len(made), max_size=len(made)))
    return OpRow(costs, made, used, sizes, kept)


def evaluated(row, limits, cuts):
    """The slowest stage's time and the bytes received, straight from the definitions."""
    bounds = [0, *cuts, len(row.costs)]
    times, total = [], 0.0
    values = list(zip(row.made, row.used, row.value_bytes, row.kept, strict=True))
    for d, speed in enumerate(limits.speeds):
        own = range(bounds[d], bounds[d + 1])
        received = sum(n for m, u, n, _ in values if 0 <= m < bounds[d] and set(u) & set(own))
        constants = sum(n for m, u, n, _ in values if m < 0 and set(u) & set(own))
        alive = [sum(n for m, u, n, k in values if 0 <= m <= p <= max([m, k, *u])) for p in own]
        work = sum(row.costs[p] for p in own)
        time = work / speed if speed else (float("inf") if own else 0)
        if constants + max(alive, default=0) > limits.memory_bytes[d]:
            time = float("inf")
        times.append(max(time, received * limits.cost_per_byte))
        total += received
    return max(times), total


@settings(max_examples=80, deadline=None)
@given(
    rows(),
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=2, max_size=3),
    st.sampled_from([float("inf"), 25.0]),
    st.sampled_from([0.0, 0.5]),
)
def test_no_other_cut_is_better(row, speeds, memory, cost_per_byte):
    limits = StageLimits(speeds, [memory] * len(speeds), cost_per_byte)
    places = combinations_with_replacement(range(len(row.costs) + 1), len(speeds) - 1)
    best = min(evaluated(row, limits, cuts) for cuts in places)
    if best[0] == float("inf"):
        with pytest.raises(UnsupportedError):
            best_cuts(row, limits)
    else:
        assert evaluated(row, limits, best_cuts(row, limits)) == pytest.approx(best)
