"""Algorithms keep to the peak of memory that their network has without them; prologues in place of arrays."""

import numpy as np
import pytest
from unbuilt_plans import on_one_stream, plan_of

import tilewright as tw
from tilewright.devices.targets import resolve_target
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.memory_headroom import FLOOR_BYTES, MemoryHeadroom, headroom_of, peak_bytes
from tilewright.passes.tensor.fusion import kernel_groups

H100 = resolve_target("cuda:sm_90a")
CONTEXT = PassContext(str(H100), H100.hardware, reproducer_folder=None)


RELAY = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, {c}, {s}, {s}), float32], %a: Tensor[({c}, {c}, 3, 3), float32],
          %b: Tensor[({k}, {c}, 1, 1), float32]) -> Tensor[(1, {k}, {s}, {s}), float32] {{
  %0 = nn.conv2d(%x, %a, padding=[1, 1, 1, 1], channels={c}, kernel_size=[3, 3]);
  %1 = nn.relu(%0);
  nn.conv2d(%1, %b, padding=[0, 0, 0, 0], channels={k}, kernel_size=[1, 1])
}}
"""


@pytest.fixture
def network(tmp_path):
    def make(c, k, s):
        path = tmp_path / f"net{c}_{k}_{s}.relay"
        path.write_text(RELAY.format(c=c, k=k, s=s))
        return tw.frontends.relay.load(str(path), params="random", inputs=("x",))

    return make


def algorithm_of_first(module, options=""):
    out = run_pipeline(module, Pipeline.parse(f"infer-shapes, choose-algorithms{options}"), CONTEXT)
    return next(op["algorithm"] for op in out.main.body.ops if op.name == "graph.conv2d")


def test_transforms_stay_below_the_peak_of_other_kernels(network):
    """512 channels of 56x56: Winograd gains, and holds 51 MB; the direct network 13 MB, or 103 MB if wide."""
    narrow, wide = network(512, 64, 56), network(512, 8192, 56)
    assert algorithm_of_first(narrow, "{workspace=any}").startswith("winograd")
    assert algorithm_of_first(narrow) == "direct"
    assert algorithm_of_first(wide).startswith("winograd")


def test_small_networks_are_not_asked(network):
    small = network(512, 64, 7)
    main = run_pipeline(small, Pipeline.parse("infer-shapes"), CONTEXT).main
    assert headroom_of(main, CONTEXT).peak_bytes < FLOOR_BYTES
    assert algorithm_of_first(small).startswith("winograd")


def test_room_counts_what_lives_beside():
    headroom = MemoryHeadroom(100 << 20, {})
    assert headroom.fits(None, 100 << 20)
    assert not headroom.fits(None, (100 << 20) + 1)
    crowded = MemoryHeadroom(100 << 20, {None: 60 << 20})
    assert crowded.fits(None, 40 << 20)
    assert not crowded.fits(None, 41 << 20)


def test_peaks_are_those_of_the_plan(data_dir):
    """What the headroom takes for the peak is what the planner needs with every convolution direct."""
    for name in ("resnet18", "squeezenet"):
        module = tw.frontends.relay.load(str(data_dir / "relay" / f"{name}.relay"), params="random")
        folded = "infer-shapes, fold-batch-norm, fold-scale-axis, fold-constants, cse, dce"
        main = run_pipeline(module, Pipeline.parse(folded), CONTEXT).main
        planned = on_one_stream(plan_of(module, conv_algorithm="direct"))
        assert planned.arena_bytes == pytest.approx(headroom_of(main, CONTEXT).peak_bytes, rel=0.35), name


PREACTIVATION = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 16, 8, 8), float32], %a: Tensor[(16, 16, {r}, {r}), float32],
          %s: Tensor[(16, 1, 1), float32], %b: Tensor[(16, 16, {r}, {r}), float32])
          -> Tensor[(1, 16, 8, 8), float32] {{
  %0 = nn.conv2d(%x, %a, padding=[{p}, {p}, {p}, {p}], channels=16, kernel_size=[{r}, {r}]);
  %1 = multiply(%0, %s);
  %2 = nn.relu(%1);
  %3 = nn.conv2d(%2, %b, padding=[{p}, {p}, {p}, {p}], channels=16, kernel_size=[{r}, {r}]);
  {last}
}}
"""


@pytest.mark.parametrize(
    ("taps", "last", "arrays"),
    [
        (1, "add(%3, %0)", 1),  # %0 is stored for the sum, %2 never (what is small is taken for large here)
        (1, "nn.relu(%3)", 1),  # %2 in place of %0
        (3, "add(%3, %0)", 2),  # each element of %2 is read nine times
        (1, "add(%3, %2)", 1),  # %2 is read twice, so it is stored, and %0 is not
    ],
)
def test_what_one_product_reads_is_not_stored(tmp_path, monkeypatch, taps, last, arrays):
    monkeypatch.setattr(kernel_groups, "CACHED_ARRAY_BYTES", 0)
    path = tmp_path / "net.relay"
    path.write_text(PREACTIVATION.format(r=taps, p=taps // 2, last=last))
    module = tw.frontends.relay.load(str(path), params="random", inputs=("x",))
    x = np.random.default_rng(1).standard_normal((1, 16, 8, 8)).astype(np.float32)
    with tw.compile(module, target="opencl", conv_algorithm="direct") as exe:
        stored = [b for b in exe.plan.buffers if b.kind == "arena" and b.name not in exe.plan.outputs]
        assert len(stored) == arrays
        np.testing.assert_allclose(exe(x)[0], tw.interpret(module, x)[0], rtol=1e-4, atol=1e-5)


def test_what_caches_hold_is_stored(tmp_path):
    path = tmp_path / "net.relay"
    path.write_text(PREACTIVATION.format(r=1, p=0, last="add(%3, %0)"))
    module = tw.frontends.relay.load(str(path), params="random", inputs=("x",))
    plan = tw.compile(module, target="null", conv_algorithm="direct").plan
    assert len([b for b in plan.buffers if b.kind == "arena" and b.name not in plan.outputs]) == 2


BLOCK = """module @m {
  graph.func @main(%x: f32[1, 64, 56, 56], %a: f32[256, 64, 1, 1], %s: f32[256, 1, 1], %b: f32[64, 256, 1, 1],
                   %c: f32[256, 64, 1, 1]) -> f32[1, 256, 56, 56] {
    %0 = graph.conv2d(%x, %a) : f32[1, 256, 56, 56]
    %1 = graph.multiply(%0, %s) : f32[1, 256, 56, 56]
    %2 = graph.relu(%1) : f32[1, 256, 56, 56]
    %3 = graph.conv2d(%2, %b) : f32[1, 64, 56, 56]
    %4 = graph.conv2d(%3, %c) : f32[1, 256, 56, 56]
    %5 = graph.add(%4, %0) : f32[1, 256, 56, 56]
    graph.return(%5)
  }
}"""
ARRAY = 4 * 256 * 56 * 56


@pytest.mark.parametrize(
    ("options", "peak"),
    [
        ("", ARRAY + ARRAY // 4),  # %2 is computed where it is read; %5 takes the place of %0
        ("{slower=0.0, worth=1000.0}", 2 * ARRAY + ARRAY // 4),  # it may take no time
        ("{share=0.5}", 2 * ARRAY + ARRAY // 4),  # and must halve the peak
        ("{prologues=false}", 2 * ARRAY + ARRAY // 4),
    ],
)
def test_what_makes_the_peak_is_not_stored_although_caches_hold_it(options, peak):
    """A factor of tensor cores that stands beside the sum it is made of, in a network of 7 MB."""
    before = "infer-shapes, graph-to-tensor, allow-tf32, forward-copies, cse, dce, choose-layouts"
    module = tw.parse(BLOCK)
    kernels = run_pipeline(module, Pipeline.parse(f"{before}, fuse-kernels{options}"), CONTEXT)
    assert peak_bytes(kernels) == peak
    inputs = [
        np.random.default_rng(2).standard_normal(t.shape).astype(np.float32) for t in module.input_types
    ]
    wanted = tw.interpret(module, *inputs)[0]
    np.testing.assert_allclose(tw.interpret(kernels, *inputs)[0], wanted, rtol=1e-3, atol=1e-2)


def test_a_caller_may_give_memory_for_speed(network):
    module = network(512, 64, 56)
    kept, free = (on_one_stream(plan_of(module, workspace=w)) for w in ("network", "any"))
    assert kept.arena_bytes < free.arena_bytes
    assert len(kept.launches) < len(free.launches), "the transforms of Winograd are launches of their own"
    with pytest.raises(tw.InputError, match="expected workspace among network, any, got 'much'"):
        tw.compile(module, target="null", workspace="much")
