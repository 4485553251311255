"""A training step of a small GPT for a GPU: a smaller budget gives a smaller plan."""

from dataclasses import replace

import tilewright as tw
from tilewright.compilation.lowering import lower, pass_context
from tilewright.compilation.memory_budget import device_bytes
from tilewright.compilation.planning import plan_module
from tilewright.devices.targets import resolve_target
from tilewright.passes.graph.recompute.kernel_view import kernel_view
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.streams.policies import serial

TARGET = resolve_target("cuda:sm_90a")


def test_a_smaller_budget_gives_a_smaller_plan():
    network = tw.frontends.zoo.gpt(batch=8)
    sizes, seconds = [], []
    for budget in (1 << 40, 1_500_000):
        step = tw.train_step(network, optimizer=tw.optim.sgd(lr=0.1), memory_budget=budget)
        lowered = lower(step, TARGET)
        plan = plan_module(lowered.thread, lowered.sources, {}, str(TARGET), placed=False)
        assert serial(plan.dag).order == tuple(range(len(plan.launches)))
        one_stream = [replace(x, deps=(i - 1,) if i else ()) for i, x in enumerate(plan.launches)]
        sizes.append(device_bytes(place_arena(plan.replace(launches=tuple(one_stream)))))
        assert sizes[-1] <= budget
        seconds.append(kernel_view(lowered.graph.main, TARGET.hardware, pass_context(TARGET)).seconds)
    assert seconds == sorted(seconds)
    assert sizes[1] < 0.7 * sizes[0]
