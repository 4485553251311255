"""Prefetched weights: where they are marked, which lines are named, and that results do not change."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.ir import parse, walk
from tilewright.ir.expr import evaluate
from tilewright.passes import PassContext, Pipeline, run_pipeline


def dense(m=24, k=300, n=520):
    module = parse(f"""module @m {{
  graph.func @main(%x: f32[{m}, {k}]) -> f32[{m}, {n}] {{
    %w = graph.constant(name = "w") : f32[{n}, {k}]
    %0 = graph.dense(%x, %w) : f32[{m}, {n}]
    graph.return(%0)
  }}
}}
""")
    weights = np.random.default_rng(0).standard_normal((n, k)).astype(np.float32)
    return module.with_constants(module.constants.updated({"w": weights}))


def thread_module(share, target="cuda:sm_90a", **sizes):
    resolved = resolve_target(target)
    context = PassContext(str(resolved), resolved.hardware, reproducer_folder=None)
    text = (
        "infer-shapes, graph-to-tensor, fuse-kernels, merge-dims, choose-parameters, pack-weights, dce, "
        f"prefetch-weights{{share={share}}}, tensor-to-thread, simplify-thread, overlap-launches"
    )
    return run_pipeline(dense(**sizes), Pipeline.parse(text), context)


def kernel_ops(module):
    (kernel,) = (f for f in module.funcs if f.name != "main")
    return kernel, kernel.body.ops


def test_prefetches_stand_before_the_wait():
    _, ops = kernel_ops(thread_module(0.0))
    names = [[o.name for o in (op, *(walk(op.body) if op.body else ()))] for op in ops]
    wait = next(i for i, inside in enumerate(names) if "thread.wait_for_launches" in inside)
    where = [i for i, inside in enumerate(names) if "thread.prefetch" in inside]
    assert where
    assert max(where) < wait


@pytest.mark.parametrize(("share", "target"), [(0.6, "cuda:sm_90a"), (0.0, "opencl")])
def test_networks_that_stay_in_the_cache_and_cpus_prefetch_nothing(share, target):
    kernel, _ = kernel_ops(thread_module(share, target))
    assert all(op.name != "thread.prefetch" for op in walk(kernel.body))
    assert kernel.get("prefetch") is None


def test_every_line_of_the_weights_is_named():
    """All blocks and threads together touch each 128-byte line of the weights at least once, none outside."""
    kernel, _ = kernel_ops(thread_module(0.0, k=150, n=260))
    named = set()
    grid, block = kernel["grid"], kernel["block"]

    def visit(body, env):
        for op in body.ops:
            if op.name == "thread.loop":
                for i in range(op["extent"]):
                    visit(op.body, {**env, str(op["var"]): i})
            elif op.name == "thread.prefetch":
                named.update(lines(op, env))

    def lines(op, env):
        if all(evaluate(a, env) <= evaluate(e, env) < evaluate(b, env) for e, a, b in op["mask"]):
            at = [evaluate(e, env) for e in op["at"]]
            shape = op.operands[0].tensor.shape
            assert all(0 <= i < n for i, n in zip(at, shape, strict=True))
            yield int(np.ravel_multi_index(at, shape)) * 4 // 128

    for bx in range(grid[0]):
        for by in range(grid[1]):
            for tid in range(block):
                visit(kernel.body, {"bid.x": bx, "bid.y": by, "bid.z": 0, "tid": tid})
    weights = next(op.operands[0].tensor for op in walk(kernel.body) if op.name == "thread.prefetch")
    assert named >= set(range(weights.nbytes // 128))


def test_results_do_not_change():
    module = dense()
    x = np.random.default_rng(1).standard_normal((24, 300)).astype(np.float32)
    wanted = tw.interpret(module, x, precision="fp64")[0]
    with tw.compile(module, target="emulator:sm_90a", progress=False) as exe:
        np.testing.assert_allclose(exe(x)[0], wanted, rtol=1e-4, atol=1e-3)
