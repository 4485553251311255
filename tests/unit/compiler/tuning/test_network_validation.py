"""The last word in the network: what is compared, what is taken, and plans with one kernel exchanged."""

from types import SimpleNamespace

import numpy as np
import pytest
from decision_samples import template

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.opening import open_device
from tilewright.devices.targets import resolve_target
from tilewright.measuring.budget import Budget
from tilewright.measuring.network_replays import (
    KernelVariants,
    NetworkReplays,
    network_plan,
    random_inputs,
    with_kernels,
)
from tilewright.measuring.network_validation import is_better, validated
from tilewright.passes.kernels.contract.choice import contract_candidates
from tilewright.tuning.kernels.kernel_outcome import CONTENDERS, Outcome, Ranked
from tilewright.tuning.tuner import parameter_changes


def task(name, points, seconds):
    """A search of a kernel that came to these points in the order of their seconds."""
    ranking = tuple(Ranked(p, f"{name}{p}", s) for p, s in zip(points, seconds, strict=True))
    outcome = Outcome(9, len(points), 0, 0, 0, "settled", None, ranking)
    return SimpleNamespace(name=name, outcome=outcome, search=SimpleNamespace(occurrences=1))


TASKS = [task("a", (3, 1, 2, 4), (5.0, 5.1, 5.2, 9.0)), task("b", (7, 8), (2.0, 2.1))]
FASTEST = {"a": 3, "b": 7}


def verdict_of(replays, budget):
    return validated(FASTEST, parameter_changes(TASKS), replays, budget)


class Replays:
    """Times by choice, the sum of what each point takes in the network; counts comparisons."""

    def __init__(self, **costs):
        self.costs, self.asked = costs, []

    def __call__(self, old, new):
        self.asked.append((dict(old), dict(new)))
        return tuple([sum(self.costs[n][p] for n, p in choice.items())] * 5 for choice in (old, new))


def test_the_best_in_the_network_wins_over_the_best_alone():
    replays = Replays(a={0: 6.0, 3: 5.0, 1: 4.5, 2: 5.5}, b={0: 3.0, 7: 2.0, 8: 2.2})
    validation = verdict_of(replays, Budget())
    assert validation.chosen == {"a": 1, "b": 7}
    assert (validation.model_s, validation.isolated_s, validation.arbitrated_s) == (9.0, 7.0, 6.5)
    assert validation.swapped == ["a"]
    assert validation.compared == len(replays.asked) == 1 + (CONTENDERS - 1) + 1
    assert all(new["a"] != 4 for _, new in replays.asked)  # far from the fastest alone


def test_a_small_gain_is_noise():
    replays = Replays(a={0: 6.0, 3: 5.0, 1: 4.999, 2: 5.0}, b={0: 3.0, 7: 2.0, 8: 2.0})
    validation = verdict_of(replays, Budget())
    assert validation.chosen == {"a": 3, "b": 7}
    assert validation.swapped == []


def test_the_model_s_choice_is_where_it_begins_if_that_is_faster():
    replays = Replays(a={0: 4.0, 3: 5.0, 1: 5.5, 2: 5.5}, b={0: 3.0, 7: 2.0, 8: 2.2})
    validation = verdict_of(replays, Budget())
    assert validation.chosen == {"a": 3, "b": 7}
    replays = Replays(a={0: 3.0, 3: 5.0, 1: 5.5, 2: 5.5}, b={0: 2.5, 7: 2.0, 8: 2.2})
    validation = verdict_of(replays, Budget())
    assert validation.chosen == {"a": 0, "b": 7}
    assert validation.arbitrated_s == 5.0


def test_no_time_no_comparison():
    replays = Replays(a={0: 1.0}, b={0: 1.0})
    validation = verdict_of(replays, Budget(0.0))
    assert validation.chosen == {"a": 3, "b": 7}
    assert (validation.compared, validation.arbitrated_s) == (0, None)
    now = iter(range(100))
    replays = Replays(a={0: 6.0, 3: 5.0, 1: 4.0, 2: 3.0}, b={0: 3.0, 7: 2.0, 8: 2.2})
    validation = verdict_of(replays, Budget(3.0, clock=lambda: next(now)))
    assert validation.compared == len(replays.asked) < 4


@pytest.mark.parametrize(
    ("new", "old", "better"),
    [
        ([0.98] * 5, [1.0] * 5, True),
        ([0.995] * 5, [1.0] * 5, True),
        ([0.995] * 4 + [1.01], [1.0] * 5, False),
        ([0.999] * 5, [1.0] * 5, False),
        ([0.0] * 5, [0.0] * 5, False),
    ],
)
def test_what_counts_as_better(new, old, better):
    assert is_better(new, old) is better


@pytest.fixture(scope="module")
def resnet(data_dir):
    """A network whose kernels are called several times, with other weights each; OpenCL."""
    target = resolve_target("opencl")
    module = tw.frontends.relay.load(
        str(data_dir / "relay" / "resnet20_cifar.relay"), params="random", seed=0
    )
    found = []
    lower(module, target, choose=lambda m: found.append(m) or m)
    return found[0], target


def test_a_plan_with_other_kernels_is_the_plan_of_other_parameters(resnet):
    module, target = resnet
    base = network_plan(module, target)
    kernels = [f for f in module.funcs if template(f) == "contract"]
    variants = {f.name: contract_candidates(f, target.hardware, 3)[-1] for f in kernels[:3]}
    exchanged = with_kernels(base, module, variants, target)
    other = module.with_funcs(tuple(variants.get(f.name, f) for f in module.funcs))
    whole = network_plan(other, target)
    assert {k.name: k.source for k in exchanged.plan.kernels} == {
        k.name: k.source for k in whole.plan.kernels
    }
    for ours, theirs, before in zip(
        exchanged.plan.launches, whole.plan.launches, base.plan.launches, strict=True
    ):
        assert (ours.kernel, ours.grid, ours.block, ours.deps) == (
            theirs.kernel, theirs.grid, theirs.block, theirs.deps
        )  # fmt: skip
        for a, b in zip(ours.args, theirs.args, strict=True):
            assert (a in exchanged.constants) == (b in whole.constants)
            if a in exchanged.constants:
                np.testing.assert_array_equal(exchanged.constants[a], whole.constants[b])
        if ours.kernel not in variants:
            assert ours == before
    assert exchanged.plan.arena_bytes == whole.plan.arena_bytes
    shared = [n for n in exchanged.constants if n in base.constants]
    assert all(exchanged.constants[n] is base.constants[n] for n in shared)


def test_a_kernel_with_tensor_maps_is_exchanged_with_them():
    target, found = resolve_target("cuda:sm_90a"), []
    dense = tw.parse(
        "module @m { graph.func @main(%x: f16[2048, 2048], %w: f16[2048, 2048]) -> f16[2048, 2048] {"
        " %0 = graph.dense(%x, %w) : f16[2048, 2048] graph.return(%0) } }"
    )
    lower(dense, target, precision="fp16", choose=lambda m: found.append(m) or m)
    (module,) = found
    (kernel,) = (f for f in module.funcs if f is not module.main)
    base = network_plan(module, target)
    kinds = set()
    for variant in contract_candidates(kernel, target.hardware, 6):
        exchanged = with_kernels(base, module, {kernel.name: variant}, target).plan
        whole = network_plan(module.with_funcs((variant, module.main)), target).plan
        assert exchanged.launches == whole.launches
        assert exchanged.format_version == whole.format_version
        kinds.add(whole.launches[0].maps)
    assert () in kinds
    assert len(kinds) > 2  # boxes of several sizes, and no maps at all


def test_replays_in_turns_on_a_device():
    module = tw.parse(
        "module @m { graph.func @main(%x: f32[4, 32], %w: f32[48, 32]) -> f32[4, 48] {"
        " %0 = graph.dense(%x, %w) : f32[4, 48] graph.return(%0) } }"
    )
    target, found = resolve_target("opencl"), []
    lower(module, target, choose=lambda m: found.append(m) or m)
    (module,) = found
    kernel = next(f for f in module.funcs if template(f) == "contract")
    points = contract_candidates(kernel, target.hardware, 2)
    variants = KernelVariants(module, {"k": lambda p: (points[p],)}, {"k": 0}, target)
    with (
        open_device("opencl") as device,
        NetworkReplays(variants.plan_of, device, random_inputs(module)) as replays,
    ):
        old, new = replays.pairs({"k": 0}, {"k": 1})
        assert len(old) == len(new) > 4
        assert min(*old, *new) > 0
