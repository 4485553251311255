"""Smallest layouts by integer programming: against all layouts of small cases, and where greedy ones miss."""

import random
from itertools import permutations

import numpy as np
import pytest
from unbuilt_plans import on_one_stream, plan_of

import tilewright as tw
from tilewright.runtime.arena.exact import MAX_PAIRS, clashing_pairs, smallest_layout
from tilewright.runtime.arena.placement import arena_lower_bound


def packed(dense):
    return np.packbits(dense, axis=1, bitorder="little")


def best_of_all_orders(sizes, dense):
    """Placing each buffer as low as those before it allow gives a smallest layout in some order."""
    best = None
    for order in permutations(range(len(sizes))):
        offsets = {}
        for row in order:
            spans = sorted((offsets[o], offsets[o] + sizes[o]) for o in offsets if dense[row, o])
            at = 0
            for start, end in spans:
                if start - at >= sizes[row]:
                    break
                at = max(at, end)
            offsets[row] = at
        top = max(offsets[i] + sizes[i] for i in range(len(sizes)))
        best = top if best is None else min(best, top)
    return best


def test_as_small_as_any_layout():
    rng = random.Random(4)
    for _ in range(60):
        n = rng.randint(2, 6)
        sizes = np.array([256 * rng.randint(1, 6) for _ in range(n)], dtype=np.int64)
        dense = np.zeros((n, n), dtype=bool)
        for i in range(n):
            for j in range(i + 1, n):
                dense[i, j] = dense[j, i] = rng.random() < 0.6
        pairs = clashing_pairs(packed(dense), n)
        assert [tuple(p) for p in pairs] == [(i, j) for i in range(n) for j in range(i + 1, n) if dense[i, j]]
        wanted = best_of_all_orders(sizes, dense)
        offsets = smallest_layout(sizes, pairs, int(sizes.max()), wanted + 256, 0.0)
        assert int((offsets + sizes).max()) == wanted
        for i, j in pairs:
            assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
        assert smallest_layout(sizes, pairs, int(sizes.max()), wanted, 0.0) is None


def test_a_network_whose_greedy_layouts_miss(data_dir):
    """ResNet-50 at batch 1: greedy orders stay 11 % above the bound."""
    module = tw.frontends.relay.load(str(data_dir / "relay" / "resnet50.relay"), params="random")
    plan = plan_of(module)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tilewright.runtime.arena.packing.MAX_PAIRS", -1)
        greedy = on_one_stream(plan)
    exact = on_one_stream(plan)
    assert exact.arena_bytes == arena_lower_bound(exact) <= greedy.arena_bytes
    assert MAX_PAIRS > 0
