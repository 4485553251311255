"""Products that have their weights first: which ones, beside which launches, with the same results."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.devices.targets import resolve_target
from tilewright.ir import Level, parse, walk
from tilewright.ir.thread.launch_ops import WAIT
from tilewright.ir.thread.shared_layout import shared_layout
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.work.weight_traffic import weight_bytes
from tilewright.passes.kernels.decision import decision_of, with_decision
from tilewright.passes.kernels.matrix.parameters import MatrixParameters

TARGET = "cuda:sm_90a:h200"
CHOSEN = (
    "infer-shapes, graph-to-tensor, fuse-kernels, merge-dims, share-kernels, choose-parameters, "
    "pack-weights, dce"
)


def chain(widths, rows=128, weights="constant"):
    """Products of fp16 one after the other, each between softmaxes of its rows."""
    params, arrays = [f"%x: f16[{rows}, {widths[0]}]"], {}
    ops, value = [f"%y = graph.softmax(%x, axis = 1) : f16[{rows}, {widths[0]}]"], "%y"
    for i, (k, n) in enumerate(pairwise(widths)):
        if weights == "constant":
            ops.append(f'%w{i} = graph.constant(name = "w{i}") : f16[{n}, {k}]')
            arrays[f"w{i}"] = np.random.default_rng(i).standard_normal((n, k)).astype(np.float16) / 32
        else:
            params.append(f"%w{i}: f16[{n}, {k}]")
        ops.append(f"%d{i} = graph.dense({value}, %w{i}) : f16[{rows}, {n}]")
        ops.append(f"%s{i} = graph.softmax(%d{i}, axis = 1) : f16[{rows}, {n}]")
        value = f"%s{i}"
    body = "\n".join(ops)
    module = parse(f"""module @m {{
      graph.func @main({", ".join(params)}) -> f16[{rows}, {widths[-1]}] {{
        {body}
        graph.return({value})
      }}
    }}""")
    return module.with_constants(module.constants.updated(arrays))


def chosen(module, target=TARGET):
    resolved = resolve_target(target)
    context = PassContext(str(resolved), resolved.hardware, reproducer_folder=None)
    return run_pipeline(module, Pipeline.parse(CHOSEN), context), context


def preloaded(module, context, options=""):
    out = run_pipeline(module, Pipeline.parse(f"preload-weights{options}"), context)
    found = {f.name for f in out.funcs if takes_part(f)}
    return out, found


def takes_part(f):
    decision = decision_of(f) if f.name != "main" else None
    parameters = None if decision is None else decision.parameters
    return isinstance(parameters, MatrixParameters) and parameters.preloaded


def called(module):
    return [op["callee"].name for op in module.main.body.ops if op.name == "tensor.call"]


def test_products_behind_others_have_their_weights_first():
    before, context = chosen(chain((768, 2304, 768)))
    after, found = preloaded(before, context)
    assert found
    assert preloaded(after, context)[0] is after
    costs = [sum(decision_of(f).cost.estimate_s for f in m.funcs if f.name in found) for m in (before, after)]
    assert costs[1] < costs[0]


def test_the_first_launch_has_nobody_to_wait_for():
    module = parse("""module @m {
      graph.func @main(%x: f16[128, 768]) -> f16[128, 2304] {
        %w = graph.constant(name = "w") : f16[2304, 768]
        %0 = graph.dense(%x, %w) : f16[128, 2304]
        graph.return(%0)
      }
    }""")
    module = module.with_constants(module.constants.updated({"w": np.ones((2304, 768), np.float16)}))
    assert not preloaded(*chosen(module))[1]


@pytest.mark.parametrize(
    ("module", "target", "options"),
    [
        (chain((768, 2304, 768)), TARGET, "{when=never}"),
        (chain((768, 2304, 768)), "cuda:sm_80", ""),  # starts no kernel early
        (chain((768, 2304, 768)), "opencl", ""),
        (chain((768, 2304, 768), weights="input"), TARGET, ""),
    ],
)
def test_nothing_changes(module, target, options):
    before, context = chosen(module, target)
    assert preloaded(before, context, options)[0] is before


def test_products_of_several_blocks_per_multiprocessor_stay():
    before, context = chosen(chain((768, 2304, 768)))
    smaller = replace(context.hardware, sm_count=context.hardware.sm_count // 2)
    found = [preloaded(before, replace(context, hardware=gpu))[1] for gpu in (context.hardware, smaller)]
    assert found[0]
    assert not found[1]


def test_measured_products_stay():
    before, context = chosen(chain((768, 2304, 768)))
    measured = before.with_funcs(
        tuple(f if f.name == "main" else with_decision(f, measured_s=1e-6) for f in before.funcs)
    )
    assert preloaded(measured, context)[0] is measured


BESIDE = """
%b = graph.softmax(%x, axis = 0) : f16[128, 768]
%2 = graph.dense(%b, %w) : f16[128, 2304]
%3 = graph.softmax(%2, axis = 1) : f16[128, 2304]
"""


@pytest.mark.parametrize(("other", "added"), [("", "%1"), (BESIDE, "%3")])
def test_launches_beside_which_others_could_run_stay(other, added):
    module = parse(f"""module @m {{
      graph.func @main(%x: f16[128, 768]) -> f16[128, 2304] {{
        %w = graph.constant(name = "w") : f16[2304, 768]
        %a = graph.softmax(%x, axis = 1) : f16[128, 768]
        %0 = graph.dense(%a, %w) : f16[128, 2304]
        %1 = graph.softmax(%0, axis = 1) : f16[128, 2304]
        {other}
        %4 = graph.add({added}, %1) : f16[128, 2304]
        graph.return(%4)
      }}
    }}""")
    arrays = {"w": np.ones((2304, 768), np.float16)}
    _, found = preloaded(*chosen(module.with_constants(module.constants.updated(arrays))))
    assert bool(found) != bool(other)


def test_room_is_left_for_launches_beside():
    """Where a kernel's own blocks fill half of a multiprocessor none of its neighbours loses its place."""
    before, context = chosen(chain((768, 3072, 768)))
    after, found = preloaded(before, context)
    gpu = context.hardware
    low = {m: lower_all(m, context) for m in (before, after)}
    assert found
    for name in found:
        taken = [shared_layout(low[m][name]).nbytes for m in (before, after)]
        assert taken[0] < taken[1]
        assert 2 * (taken[1] + gpu.smem_reserved_per_block_bytes) <= gpu.smem_per_sm_bytes


def lower_all(module, context):
    out = run_pipeline(module, Pipeline.parse("tensor-to-thread"), context)
    return {f.name: f for f in out.funcs if f.level is Level.THREAD}


def test_all_weights_are_asked_for_before_the_wait():
    module = chain((768, 2304, 768))
    low = lower(module, resolve_target(TARGET), precision="fp16")
    first = [f for f in low.thread.funcs if takes_part(f)]
    assert first
    for f in first:
        assert weight_bytes(f).exposed == 0
        wait = next(i for i, op in enumerate(f.body.ops) if op.name == WAIT)
        late = [op for o in f.body.ops[wait:] for op in (o, *(walk(o.body) if o.body is not None else ()))]
        assert not any(op.name == "thread.copy_async" and op.operands[0] is f.params[1] for op in late)


@pytest.mark.emulator
def test_networks_compute_the_same_bits():
    module = chain((256, 96, 320), rows=32)
    x = np.random.default_rng(5).standard_normal((32, 256)).astype(np.float16)
    results = []
    for passes in ((), "tensor:preload-weights{when=never}"):
        with tw.compile(module, target="emulator", progress=False, passes=passes) as exe:
            results.append(exe(x))
    np.testing.assert_array_equal(*results)
