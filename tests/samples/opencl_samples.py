"""Random plans for OpenCL with exact integer results, and a driver that can be watched and made to fail."""

import random
from functools import cache

import numpy as np

from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, Launch
from tilewright.runtime.streams import plan_streams
from tilewright.runtime.streams.assignment import with_streams

SIZE, GROUP = 512, 64
#: rounds that a kernel takes: launches of different length make hazards show
ROUNDS = (1, 400)
MIX = "for (int r = 0; r < {rounds}; ++r) v = v * 1664525u + 1013904223u;"
SOURCE = "\n".join(
    f"kernel void mix{arity}_{rounds}("
    + "".join(f"global const uint* a{i}, " for i in range(arity))
    + "global uint* y) { int i = get_global_id(0); uint v = "
    + " + ".join(f"{2 * i + 1}u * a{i}[i]" for i in range(arity))
    + f"; {MIX.format(rounds=rounds)} y[i] = v; }}"
    for arity in (1, 2, 3)
    for rounds in ROUNDS
)
KERNELS = tuple(
    KernelCode(f"mix{arity}_{rounds}", f"mix{arity}_{rounds}", "opencl", SOURCE)
    for arity in (1, 2, 3)
    for rounds in ROUNDS
)


@cache
def jump(rounds):
    """The rounds of a kernel as one product and one sum."""
    factor, summand = 1, 0
    for _ in range(rounds):
        factor, summand = factor * 1664525 % 2**32, (summand * 1664525 + 1013904223) % 2**32
    return factor, summand


def mixed(arrays, rounds):
    """What a kernel of `rounds` rounds computes."""
    v = sum((np.uint32(2 * i + 1) * a for i, a in enumerate(arrays)), np.zeros(SIZE, np.uint32))
    factor, summand = jump(rounds)
    return v * np.uint32(factor) + np.uint32(summand)


def random_plan(seed, launches=24, policy="exact"):
    """A random graph of launches over two inputs and a constant, in an arena that reuses bytes."""
    rng = random.Random(seed)
    sources, writer, steps = ["x0", "x1", "w"], {}, []
    for index in range(launches):
        args = rng.sample(sources[-8:], rng.randint(1, 3))
        deps = tuple(sorted({writer[a] for a in args if a in writer}))
        kernel, target = f"mix{len(args)}_{rng.choice(ROUNDS)}", f"t{index}"
        steps.append(
            Launch(kernel, (*args, target), (SIZE // GROUP, 1, 1), GROUP, deps=deps, writes=(len(args),))
        )
        sources.append(target)
        writer[target] = index
    outputs = tuple(rng.sample(sorted(writer), 3))
    kinds = {"x0": "input", "x1": "input", "w": "constant", **dict.fromkeys(outputs, "output")}
    buffers = tuple(Buffer(s, "uint32", (SIZE,), kinds.get(s, "arena"), 4 * SIZE) for s in sources)
    used = {step.kernel for step in steps}
    kernels = tuple(k for k in KERNELS if k.name in used)
    plan = place_arena(ExecutionPlan("test", buffers, kernels, tuple(steps), ("x0", "x1"), outputs, 0))
    return with_streams(plan, plan_streams(plan.dag, policy))


def expected(plan, arrays):
    """The plan's outputs, computed launch by launch; `arrays` by name."""
    values = dict(arrays)
    for step in plan.launches:
        *args, target = step.args
        values[target] = mixed([values[a] for a in args], int(step.kernel.split("_")[1]))
    return [values[name] for name in plan.outputs]


def random_words(seed):
    return np.random.default_rng(seed).integers(0, 2**32, SIZE, dtype=np.uint32)


class WatchedDriver:
    """pyopencl, with every launch and copy noted; launch number `fail_at` of all fails."""

    def __init__(self, cl):
        self._cl = cl
        self.launches, self.copies, self.fail_at = [], [], None

    def __getattr__(self, name):
        return getattr(self._cl, name)

    def enqueue_nd_range_kernel(self, queue, kernel, total, group, offset=None, wait_for=None):
        if self.fail_at == len(self.launches):
            self.fail_at = None
            # A group larger than the device allows: the driver itself refuses.
            group = (self._cl.Device.max_work_group_size.fget(queue.device) * 2, 1, 1)
            total = group
        event = self._cl.enqueue_nd_range_kernel(queue, kernel, total, group, offset, wait_for)
        self.launches.append((event, list(wait_for or ())))
        return event

    def enqueue_copy(self, queue, target, source, **options):
        event = self._cl.enqueue_copy(queue, target, source, **options)
        self.copies.append((event, list(options.get("wait_for") or ())))
        return event
