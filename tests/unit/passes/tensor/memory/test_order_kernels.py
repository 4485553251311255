"""Orders of steps by the bytes alive: never worse than the given one, and near the best of all."""

from itertools import pairwise

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import pass_context
from tilewright.devices.targets import resolve_target
from tilewright.ir import Block, Func, Level, Module, TensorType, Value
from tilewright.ir.graph_code import GraphWriter
from tilewright.passes import Pipeline, run_pipeline
from tilewright.passes.pipelines import GRAPH
from tilewright.passes.tensor.memory import order_kernels
from tilewright.passes.tensor.memory.order_kernels import Steps, in_order, least_memory_order


def graph(reads, nbytes, kept=(), overwrites=None) -> Steps:
    """Step i makes array i of `nbytes[i]` from arrays `reads[i]`."""
    touches = [(*r, i) for i, r in enumerate(reads)]
    return Steps(
        touches, nbytes, [frozenset(r) for r in reads], frozenset(kept), overwrites or [()] * len(reads)
    )


def drawn(rng: np.random.Generator, count: int) -> Steps:
    reads = [tuple(np.flatnonzero(rng.random(i) < 1.5 / max(1, i)).tolist()) for i in range(count)]
    return graph(reads, rng.integers(1, 50, count).tolist(), kept=(count - 1,))


def least_peak(steps: Steps) -> int:
    """The least peak of all orders: over all sets of steps that may have run, the best way to each."""
    count = len(steps.after)
    peaks = {0: 0}
    for _ in range(count):
        further: dict[int, int] = {}
        for ran, peak in peaks.items():
            done = [i for i in range(count) if ran >> i & 1]
            for i in range(count):
                if not ran >> i & 1 and all(ran >> b & 1 for b in steps.after[i]):
                    during = max(peak, steps.alive_bytes([*done, i])[-1])
                    now = ran | 1 << i
                    further[now] = min(during, further.get(now, during))
        peaks = further
    return peaks[(1 << count) - 1]


def is_valid(steps: Steps, order) -> bool:
    place = {step: i for i, step in enumerate(order)}
    return sorted(order) == list(range(len(steps.after))) and all(
        place[b] < place[i] for i, before in enumerate(steps.after) for b in before
    )


def test_orders_are_valid_and_not_worse_and_mostly_the_best_of_all():
    rng = np.random.default_rng(7)
    best = 0
    for _ in range(60):
        steps = drawn(rng, int(rng.integers(3, 10)))
        order = least_memory_order(steps)
        least, peak = least_peak(steps), steps.peak_bytes(order)
        assert is_valid(steps, order)
        assert least <= peak <= steps.peak_bytes(range(len(steps.after)))
        assert peak <= 1.5 * least
        best += peak == least
    assert best >= 45


@pytest.mark.parametrize("layers", [4, 16])
def test_what_is_computed_again_comes_right_before_its_reader(layers):
    """A forward chain that keeps every value for the backward chain, against one that makes them again."""
    reads, nbytes = [()], [10]
    for i in range(layers):
        reads.append((i,))
        nbytes.append(10)
    reads += [(0,)] * layers  # copies of the values, each from the one input, as a sort by levels has them
    nbytes += [10] * layers
    for i in range(layers):  # the backward pass: the last copy first
        reads.append((layers if i == 0 else 2 * layers + i, 2 * layers - i))
        nbytes.append(10)
    steps = graph(reads, nbytes, kept=(len(reads) - 1,))
    assert steps.peak_bytes(range(len(reads))) > 10 * layers
    assert steps.peak_bytes(least_memory_order(steps)) <= 40


def test_gradients_of_weights_end_at_once():
    """Each gradient is followed by the update that ends it."""
    reads = [(), (0,), (0,), (0,), (1,), (2,), (3,)]
    steps = graph(reads, [8, 64, 64, 64, 1, 1, 1], kept=(4, 5, 6))
    order = least_memory_order(steps)
    assert all(b == a + 3 for a, b in pairwise(order) if a in (1, 2, 3))
    assert steps.peak_bytes(order) == 8 + 64 + 2  # the input, or what it ends with, and two results


def test_results_in_place_of_operands_take_no_bytes():
    steps = graph([(), (0,), (1,)], [10, 10, 10], kept=(2,), overwrites=[(), (0,), ()])
    assert steps.alive_bytes(range(3)) == [10, 10, 20]


def test_ready_steps_run_by_their_keys():
    assert in_order([set(), set(), {0}, {1}], lambda step: ((3, 1, 0, 2)[step],)) == [1, 3, 0, 2]


def test_compiled_steps_give_the_same_bits_in_either_order(monkeypatch):
    rng = np.random.default_rng(3)
    w = GraphWriter()
    x = Value(TensorType("f32", (4096, 32)), "x")
    h = w.tensor(x)
    names = [f"w{i}" for i in range(4)]
    for name in names:
        weight = (rng.standard_normal((32, 32)) / 6).astype(np.float32)
        h = w.op("relu", w.op("dense", h, w.constant(weight, name)))
    w.builder.emit("graph.return", [h.value], types=())
    main = Func(Level.GRAPH, "main", Block((x,), w.ops), (h.value.type,))
    network = Module("net", (main,), (("parameters", tuple(names)),), w.constants)
    step = tw.train_step(network, loss="mse", optimizer=tw.optim.sgd(lr=0.01))
    context = pass_context(resolve_target("opencl"))
    step = run_pipeline(step, GRAPH + Pipeline.parse("choose-saved{checkpoint=blocks}"), context)
    batch = [rng.standard_normal((4096, 32)).astype(np.float32) for _ in range(2)]
    runs = []
    for ordered in (True, False):
        if not ordered:
            monkeypatch.setattr(order_kernels, "least_memory_order", lambda s: [*range(len(s.touches))])
        with tw.compile(step, "opencl", progress=False) as exe:
            losses = [np.asarray(exe.step(*batch)) for _ in range(2)]
            runs.append((exe.plan.arena_bytes, [*losses, *exe.state.values()]))
    (fewer, first), (more, second) = runs
    assert fewer < more
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def test_parts_of_a_batch_run_to_their_end_in_turn():
    """Two chains of five kernels, listed by depth, whose arrays grow behind the second."""
    sizes = [100, 50, 60, 70, 80]
    n, joined = len(sizes), 2 * len(sizes)
    touches, after = [], []
    for i in range(n):
        for part in (0, 1):
            made = part * n + i
            touches.append((made - 1, made) if i else (made,))
            after.append(frozenset({2 * (i - 1) + part} if i else ()))
    touches += [(n - 1, joined), (2 * n - 1, joined), (joined,)]
    after += [frozenset({joined - 2}), frozenset({joined - 1}), frozenset({joined, joined + 1})]
    steps = Steps(touches, [*sizes, *sizes, 16], after, frozenset(), [()] * len(touches))
    order = least_memory_order(steps)
    assert order == [0, 2, 4, 6, 8, 10, 1, 3, 5, 7, 9, 11, 12]
    assert steps.peak_bytes(order) == 166
