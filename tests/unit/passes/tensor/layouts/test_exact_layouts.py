"""Orders of values by selection: never worse than the cut or shortest paths, results stay, reports say it."""

import importlib

import numpy as np
import pytest
from layout_samples import BLOCKS
from relay_builder import Net

import tilewright as tw
from tilewright.compilation.report_facts import layout_facts, layout_text
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, Level
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.estimation import ESTIMATOR
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.layouts.axes import channels_last_orders
from tilewright.passes.tensor.layouts.candidates import usable_orders
from tilewright.passes.tensor.layouts.cost import scattered_s
from tilewright.passes.tensor.layouts.selection import order_problem

choose_layouts = importlib.import_module("tilewright.passes.tensor.layouts.choose_layouts")
H100 = resolve_target("cuda:sm_90a")
CPU = resolve_target("opencl")

ATTENTION = """
module @net {
  tensor.func @main(%p: f32[2, 3, 8, 8], %v: f32[2, 3, 8, 16], %w: f32[12, 48]) -> f32[2, 8, 12] {
    %0 = tensor.contract(%p, %v, par = (b: 2, h: 3, m: 8, n: 16), red = (k: 8),
                         reads = [[b, h, m, k], [b, h, k, n]]) : f32[2, 3, 8, 16] {
      ^(%a: f32, %f: f32, %acc: f32)
      %s = scalar.fma(%a, %f, %acc) : f32
      scalar.yield(%s)
    }
    %1 = tensor.map(%0, par = (b: 2, m: 8, c: 48), reads = [[b, c // 16, m, c % 16]]) : f32[2, 8, 48] {
      ^(%a: f32)
      scalar.yield(%a)
    }
    %2 = tensor.contract(%1, %w, par = (b: 2, m: 8, o: 12), red = (c: 48),
                         reads = [[b, m, c], [o, c]]) : f32[2, 8, 12] {
      ^(%a: f32, %f: f32, %acc: f32)
      %s = scalar.fma(%a, %f, %acc) : f32
      scalar.yield(%s)
    }
    tensor.return(%2)
  }
}
"""


def lowered(block, target=H100, precision="fp16"):
    """The program that the pass gets, and its context."""
    net = Net()
    module = net.module(BLOCKS[block](net))
    before = official_stages(Level.GRAPH, target.language, precision).until("choose-layouts")
    ctx = PassContext(target=str(target), hardware=target.hardware)
    return run_pipeline(module, before.whole, ctx), ctx, list(net.inputs.values())


def problem_of(module, ctx, **options):
    return order_problem(module.main, module.constants, ctx.hardware, ctx, **options)


def test_exact_is_no_worse_than_the_cut_and_the_shortest_path():
    module, ctx, _ = lowered("mobilenet")
    orders = problem_of(module, ctx)
    best, path = orders.solved("exact"), orders.solved("sssp")
    last = {v: o for v, o in channels_last_orders(module.main).items() if v in orders.values.values()}
    seconds = [orders.problem.seconds(orders.labels(x)) for x in ({}, last)]
    assert best.optimal
    assert orders.problem.free_s <= best.seconds <= min(*seconds, path.seconds) * (1 + 1e-12)
    assert best.seconds < seconds[0]


def test_kernels_are_priced_as_the_partitioner_cuts_them():
    module, ctx, _ = lowered("mobilenet")
    rules, maximal = (problem_of(module, ctx, partitioner=p) for p in ("rules", "maximal"))
    products = [p for p in maximal.pieces if any(op.name == "tensor.contract" for op in p.ops)]
    assert len(rules.pieces) < len(maximal.pieces)
    assert all(len({op.name for op in p.ops if len(op.operands) > 1}) == 1 for p in products)
    text = str(official_stages(Level.GRAPH, "cuda", layouts="sssp", partitioner="maximal").tensor)
    assert "choose-layouts{method=sssp, partitioner=maximal}" in text


def test_orders_that_are_left_out_would_not_be_better():
    """All orders of every value, against those that some op can use."""
    module = tw.parse(ATTENTION)
    ctx = PassContext(target=str(H100), hardware=H100.hardware)
    few, many = problem_of(module, ctx), problem_of(module, ctx, every=True)
    assert few.problem.choices < many.problem.choices
    best = many.solved("exact").seconds
    assert best <= few.solved("exact").seconds <= 1.001 * best


def test_the_copy_of_heads_becomes_a_view():
    module = tw.parse(ATTENTION)
    ctx = PassContext(target=str(H100), hardware=H100.hardware)
    orders = problem_of(module, ctx)
    chosen = orders.chosen(orders.solved("exact"))
    (heads,) = (op.result for op in module.main.body.ops[:1])
    assert chosen == {heads: (0, 2, 1, 3)}


def test_results_are_the_same_bits():
    """Orders of sums do not change on the interpreter: every element adds the same numbers in order."""
    module = tw.parse(ATTENTION)
    ctx = PassContext(target=str(CPU), hardware=CPU.hardware, verify_each=True)
    after = run_pipeline(module, Pipeline.parse("choose-layouts{method=exact}"), ctx)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]
    (wanted,), (got,) = tw.interpret(module, *inputs), tw.interpret(after, *inputs)
    np.testing.assert_array_equal(got, wanted)
    with tw.compile(after, target="opencl") as exe:
        np.testing.assert_allclose(exe(*inputs)[0], wanted, rtol=1e-5, atol=1e-5)


def test_a_network_in_chosen_orders_computes_the_same():
    module, ctx, inputs = lowered("resnet", CPU, "fp32")
    after = run_pipeline(module, Pipeline.parse("choose-layouts{method=exact}, fold-constant-tensors"), ctx)
    assert after.main["layouts"]["reordered"] > 0
    (wanted,), (got,) = tw.interpret(module, *inputs), tw.interpret(after, *inputs)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)


def test_results_in_another_order_than_what_windows_read_have_a_price():
    """The family of windows estimates bytes; the sectors that come along are seen beside it."""
    text = """
    module @net {
      tensor.func @main(%x: f16[2, 9, 9, 16]) -> f16[PAR] {
        %0 = tensor.window(%x, par = (NAMED), red = (r: 2, s: 2),
                           reads = [[n, y + r, x + s, c]]) : f16[PAR] {
          ^(%a: f16, %acc: f16)
          %m = scalar.max(%a, %acc) : f16
          scalar.yield(%m)
        }
        tensor.return(%0)
      }
    }
    """
    beside = "n: 2, y: 8, x: 8, c: 16"
    apart = "n: 2, c: 16, y: 8, x: 8"
    seconds = []
    for named in (beside, apart):
        shape = ", ".join(d.split(": ")[1] for d in named.split(", "))
        kernel = tw.parse(text.replace("PAR", shape).replace("NAMED", named)).main
        seconds.append(scattered_s(kernel, H100.hardware))
    assert seconds[0] == 0.0 < seconds[1]


def test_the_cut_is_taken_where_the_whole_program_takes_less_time_so(monkeypatch):
    """Its pieces alone cannot say that the whole program becomes other kernels."""
    module = tw.parse(ATTENTION)
    ctx = PassContext(target=str(H100), hardware=H100.hardware)
    monkeypatch.setattr(
        choose_layouts, "program_s", lambda func, constants, orders, *device: float(len(orders))
    )
    after = run_pipeline(module, Pipeline.parse("choose-layouts{method=exact}"), ctx)
    facts = after.main["layouts"]
    assert (facts["choice"]["taken"], facts["reordered"]) == ("cut", 0)
    assert [op.result.type for op in after.main.body.ops[:-1]] == [
        op.result.type for op in module.main.body.ops[:-1]
    ]


def test_the_choice_is_reported():
    module = tw.parse(ATTENTION)
    ctx = PassContext(target=str(H100), hardware=H100.hardware)
    after = run_pipeline(module, Pipeline.parse("choose-layouts{method=exact}"), ctx)
    assert tw.parse(tw.show(after)).main["layouts"] == after.main["layouts"]
    facts = layout_facts(after.main)
    text = layout_text(facts)
    assert "1 of 3 values in another order (exact, by elimination of width 0" in text
    assert "no choice is better" in text
    choice = facts["choice"]
    assert choice["whole_s"] <= choice["cut_whole_s"]
    assert choice["taken"] == "exact"
    worse = {**choice, "whole_s": 2 * choice["cut_whole_s"], "taken": "cut"}
    assert "so the cut's orders are taken" in layout_text({**facts, "choice": worse})
    stopped = {**facts["choice"], "bound_s": 0.9 * facts["choice"]["seconds"], "note": "stopped"}
    assert "another choice may be 10.0 % better; stopped" in layout_text({**facts, "choice": stopped})


def test_forced_layouts_have_no_method():
    with pytest.raises(InputError, match="expected layout=auto with method=exact, got layout=last"):
        run_pipeline(tw.parse(ATTENTION), Pipeline.parse("choose-layouts{layout=last, method=exact}"))


def test_parameters_and_results_have_no_other_order():
    module = tw.parse(ATTENTION)
    main = module.main
    usable = usable_orders(main)
    assert not set(usable) & {*main.params, *main.body.ops[-1].operands}
    assert set(main.params) <= set(usable_orders(main, boundary=True))
    assert all(orders[0] == tuple(range(v.tensor.rank)) for v, orders in usable.items())
    assert ESTIMATOR.inlined(module, PassContext()).main.body.ops[-1].operands == main.body.ops[-1].operands
