"""Layouts: results stay, network boundaries stay, conversions are counted, and the cut is the best choice."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_samples import BLOCKS, in_layout, random_network
from relay_builder import Net

import tilewright as tw
from tilewright.compilation.report_facts import layout_text
from tilewright.devices.targets import resolve_target
from tilewright.ir import Level
from tilewright.ir.expr import symbols
from tilewright.ir.tensor.ops import STRUCTURED, dims, reads
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis import minimum_cut as cut
from tilewright.passes.analysis.minimum_cut import Energy, least_cost
from tilewright.passes.pipelines import official_stages
from tilewright.passes.tensor.layouts.axes import channels_last_orders
from tilewright.passes.tensor.layouts.cost import LayoutCosts

H100 = resolve_target("cuda:sm_90a")


def close(got, wanted, tolerance=1e-4):
    for g, w in zip(got, wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        assert np.isfinite(np.asarray(w, np.float64)).all()
        np.testing.assert_allclose(g, w, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("block", BLOCKS)
def test_results_stay(block):
    net = Net()
    module = net.module(BLOCKS[block](net))
    inputs = list(net.inputs.values())
    wanted = tw.interpret(module, *inputs)
    last = in_layout(module, "last")
    assert last.main["layouts"]["channels_last"] > 0
    close(tw.interpret(last, *inputs), wanted)
    if block in ("resnet", "inception", "shuffle"):
        with tw.compile(last, target="opencl") as exe:
            close(exe(*inputs), wanted)


@pytest.mark.parametrize("block", ["mobilenet", "squeeze-excite", "densenet"])
def test_results_stay_on_cuda_text(block):
    net = Net(1)
    module = net.module(BLOCKS[block](net))
    inputs = list(net.inputs.values())
    with tw.compile(in_layout(module, "last"), target="emulator") as exe:
        close(exe(*inputs), tw.interpret(module, *inputs))


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_results_stay_in_random_networks(data):
    net = Net(data.draw(st.integers(0, 1000)))
    module = net.module(random_network(net, data.draw))
    inputs = list(net.inputs.values())
    for layout in ("last", "auto"):
        close(tw.interpret(in_layout(module, layout), *inputs), tw.interpret(module, *inputs))


def test_only_the_order_of_intermediate_values_changes():
    net = Net()
    module = net.module(BLOCKS["resnet"](net))
    before, after = in_layout(module, "first").main, in_layout(module, "last").main
    assert [p.type for p in before.params] == [p.type for p in after.params]
    assert before.result_types == after.result_types
    assert [op.name for op in before.body.ops] == [op.name for op in after.body.ops]
    products = [op for op in after.body.ops if op.name == "tensor.contract"]
    assert all(list(dims(op, "par"))[-1] == "k" for op in products)


def test_layouts_of_a_network_that_is_channels_last_stay():
    net = Net()
    x = net.input(1, 8, 8, 6)
    y = net(
        'nn.conv2d({}, {}, kernel_size=[3, 3], channels=4, data_layout="NHWC", kernel_layout="HWIO")',
        x,
        net.weight(3, 3, 6, 4),
    )
    module = in_layout(net.module(net("nn.relu({})", y)), "first")
    assert run_pipeline(module, Pipeline.parse("choose-layouts{layout=last}")) is module


def tensors(block, precision, target="cuda:sm_90a"):
    """The program that choose-layouts gets for a target."""
    net = Net()
    module = net.module(BLOCKS[block](net))
    resolved = resolve_target(target)
    ctx = PassContext(target=str(resolved), hardware=resolved.hardware)
    before = official_stages(Level.GRAPH, resolved.language, precision).until("choose-layouts")
    return run_pipeline(module, before.whole, ctx), ctx


@pytest.mark.parametrize(
    ("precision", "target"),
    [("fp32", "cuda:sm_90a"), ("fp16", "cuda:sm_75")],
)
def test_nothing_changes_without_tensor_cores(precision, target):
    module, ctx = tensors("resnet", precision, target)
    assert run_pipeline(module, Pipeline.parse("choose-layouts"), ctx) is module


@pytest.mark.parametrize("block", ["resnet", "mobilenet", "densenet"])
def test_cpus_get_channels_last(block):
    module, ctx = tensors(block, "fp32", "opencl")
    chosen = run_pipeline(module, Pipeline.parse("choose-layouts"), ctx)
    anchors = [op for op in chosen.main.body.ops if op.name in ("tensor.contract", "tensor.window")]
    returned = chosen.main.body.ops[-1].operands
    for op in anchors:
        last = list(dims(op, "par"))[-1]
        slid = {d for at in reads(op)[0] for d in symbols(at) if len(list(symbols(at))) > 1}
        assert op.result in returned or last not in slid


@pytest.mark.parametrize("precision", ["tf32", "fp16", "bf16"])
@pytest.mark.parametrize("block", ["resnet", "mobilenet", "densenet"])
def test_tensor_cores_get_channels_last(block, precision):
    module, ctx = tensors(block, precision)
    chosen = run_pipeline(module, Pipeline.parse("choose-layouts"), ctx)
    assert chosen.main["layouts"]["channels_last"] > 0
    assert chosen.main["layouts"]["conversions"] == ()
    _, *read = (op.operands[0] for op in chosen.main.body.ops if op.name == "tensor.contract")
    inner = [v for v in read if v.tensor.rank == 4]
    assert inner
    assert all(v.tensor.shape[-1] % 8 == 0 for v in inner)
    kernels = [len(run_pipeline(m, Pipeline.parse("fuse-kernels"), ctx).funcs) for m in (module, chosen)]
    assert kernels[0] == kernels[1]


def test_a_view_that_mixes_channels_and_pixels_is_a_counted_conversion():
    net = Net()
    y = net.conv(net.input(1, 4, 6, 6), 4, 8, 3)
    z = net("reshape({}, newshape=[1, 288])", net("nn.relu({})", y))
    module = net.module(net("nn.dense({}, {}, units=3)", z, net.weight(3, 288)))
    last = in_layout(module, "last")
    (where,) = last.main["layouts"]["conversions"]
    assert where.startswith("relay:reshape")
    close(tw.interpret(last, *net.inputs.values()), tw.interpret(module, *net.inputs.values()))


def test_a_network_that_ends_in_pixels_converts_at_its_end():
    net = Net()
    y = net.conv(net.input(1, 8, 6, 6), 8, 8, 3)
    last = in_layout(net.module(net("nn.relu({})", y)), "last")
    assert len(last.main["layouts"]["conversions"]) == 1
    assert last.main.result_types[0].shape == (1, 8, 6, 6)


def test_the_cut_is_the_best_of_all_assignments():
    rng = np.random.default_rng(0)
    for _ in range(40):
        energy: Energy[int] = Energy()
        n = int(rng.integers(1, 7))
        for v in range(n):
            for label in (0, 1):
                energy.add(v, label, float(rng.integers(0, 9)) * 1e-6)
        for u, v in product(range(n), repeat=2):
            if u < v and rng.random() < 0.6:
                for labels in ((0, 1), (1, 0)):
                    energy.add_pair(u, v, labels, float(rng.integers(0, 9)) * 1e-6)
        every = ({v for v, bit in enumerate(bits) if bit} for bits in product((0, 1), repeat=n))
        best = min(map(energy.of, every))
        assert energy.of(least_cost(energy)) == pytest.approx(best, abs=1e-12)


def test_small_and_large_graphs_are_cut_alike(monkeypatch):
    rng = np.random.default_rng(1)
    for n in (2, 5, 20, 60) * 5:
        energy: Energy[int] = Energy()
        for v in range(n):
            energy.add(v, int(rng.integers(2)), float(rng.integers(0, 5)) * 1e-6)
            for u in rng.integers(0, n, 3):
                if u != v:
                    energy.add_pair(int(u), v, (0, 1), float(rng.integers(0, 4)) * 1e-6)
        monkeypatch.setattr(cut, "FEW_EDGES", 10**9)
        small = least_cost(energy)
        monkeypatch.setattr(cut, "FEW_EDGES", 0)
        assert least_cost(energy) == small


def test_the_chosen_layouts_cost_no_more_than_all_or_none():
    for block in BLOCKS:
        module, _ = tensors(block, "fp16")
        func = module.main
        energy = LayoutCosts(channels_last_orders(func), H100.hardware).energy(func)
        chosen = energy.of(least_cost(energy))
        assert chosen <= min(energy.of(set()), energy.of(set(energy.single))) + 1e-9


def test_the_facts_stay_with_the_module():
    net = Net()
    last = in_layout(net.module(BLOCKS["resnet"](net)), "last")
    facts = last.main["layouts"]
    structured = [op for op in last.main.body.ops if op.name in STRUCTURED]
    assert facts["values"] == len(structured)
    assert tw.parse(tw.show(last)).main["layouts"] == facts


def test_a_report_tells_of_layouts():
    net = Net()
    module = net.module(BLOCKS["mobilenet"](net))
    report = tw.compile(module, target="null", precision="fp16").report()["layouts"]
    assert report["channels_last"] > 0
    assert report["conversions"] == []
    assert "channels-last, 0 conversion kernels" in layout_text(report)
    named = {"channels_last": 3, "values": 5, "conversions": ["relay:reshape#0"]}
    assert layout_text(named).endswith("1 conversion kernel (relay:reshape#0)")
    plain = tw.compile(module, target="null").report()["layouts"]
    assert layout_text(plain) == ""


def test_gradients_by_weights_get_channels_last():
    text = """module @m {
      graph.func @main(%x: f16[8, 16, 16, 16], %w: f16[32, 16, 1, 1], %g: f16[8, 32, 16, 16])
          -> f16[32, 32, 3, 3] {
        %0 = graph.conv2d(%x, %w) : f16[8, 32, 16, 16]
        %1 = graph.relu(%0) : f16[8, 32, 16, 16]
        %2 = graph.conv2d_weight_grad(%1, %1, kernel_size = [3, 3], padding = [1, 1, 1, 1])
          : f16[32, 32, 3, 3]
        graph.return(%2)
      }
    }"""
    context = PassContext(str(H100), H100.hardware, verify_each=True, reproducer_folder=None)
    out = run_pipeline(
        tw.parse(text), Pipeline.parse("infer-shapes, graph-to-tensor, choose-layouts"), context
    )
    gradient = [op for op in out.main.body.ops if op.name == "tensor.contract"][-1]
    assert [str(at[-1]) for at in reads(gradient)] == ["k", "c"]
