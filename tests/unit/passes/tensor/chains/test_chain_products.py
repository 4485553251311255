"""Pairs of products as one kernel: which are taken, that results stay, and that no pair waits for itself."""

import numpy as np
import pytest
from decision_samples import template

import tilewright as tw
from tilewright.compilation.lowering import lower
from tilewright.compilation.own_passes import OwnPasses
from tilewright.devices.targets import resolve_target
from tilewright.ir import Module, parse, verify
from tilewright.passes import PassContext, Pipeline, run_pipeline

#: a bottleneck: windows, an expansion with a residual that is read again, a reduction
BOTTLENECK = """module @net {
  graph.func @main(%x: f32[2, 6, 7, 64], %s: f32[2, 6, 7, 128]) -> f32[2, 6, 7, 128] {
    %w0 = graph.constant(name = "w0") : f32[64, 64, 3, 3]
    %w1 = graph.constant(name = "w1") : f32[128, 64, 1, 1]
    %w2 = graph.constant(name = "w2") : f32[64, 128, 1, 1]
    %w3 = graph.constant(name = "w3") : f32[64, 64, 3, 3]
    %w4 = graph.constant(name = "w4") : f32[128, 64, 1, 1]
    %0 = graph.conv2d(%x, %w0, padding = [1, 1, 1, 1], LAST) : f32[2, 6, 7, 64]
    %1 = graph.relu(%0) : f32[2, 6, 7, 64]
    %2 = graph.conv2d(%1, %w1, LAST) : f32[2, 6, 7, 128]
    %3 = graph.add(%2, %s) : f32[2, 6, 7, 128]
    %4 = graph.relu(%3) : f32[2, 6, 7, 128]
    %5 = graph.conv2d(%4, %w2, LAST) : f32[2, 6, 7, 64]
    %6 = graph.relu(%5) : f32[2, 6, 7, 64]
    %7 = graph.conv2d(%6, %w3, padding = [1, 1, 1, 1], LAST) : f32[2, 6, 7, 64]
    %8 = graph.relu(%7) : f32[2, 6, 7, 64]
    %9 = graph.conv2d(%8, %w4, LAST) : f32[2, 6, 7, 128]
    %10 = graph.add(%9, %3) : f32[2, 6, 7, 128]
    graph.return(%10)
  }
}""".replace("LAST", 'data_layout = "NHWC"')


def bottleneck() -> Module:
    module = parse(BOTTLENECK)
    rng = np.random.default_rng(0)
    shapes = {
        str(op["name"]): op.result.tensor.shape for op in module.main.body.ops if op.name == "graph.constant"
    }
    weights = {
        n: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for n, shape in shapes.items()
    }
    module = module.with_constants(module.constants.updated(weights))
    verify(module)
    return module


@pytest.mark.emulator
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_bottleneck_gives_the_same_in_chains(precision):
    module = bottleneck()
    rng = np.random.default_rng(1)
    inputs = [rng.standard_normal(p.tensor.shape).astype(np.float32) for p in module.main.params]
    (want,) = tw.interpret(module, *inputs)
    launches = {}
    for when in ("never", "always"):
        own = f"tensor: chain-products{{when={when}}}"
        options = {"precision": precision, "passes": [own], "progress": False}
        with tw.compile(module, target="emulator:sm_90a", **options) as exe:
            (got,) = exe(*inputs)
            launches[when] = len(exe.plan.launches)
        error = np.linalg.norm(got - want) / np.linalg.norm(want)
        assert error < {"fp16": 2e-3, "bf16": 1.2e-2}[precision]
    assert launches["always"] == launches["never"] - 2


def kernels_of(when: str, precision: str = "fp16") -> list[str | None]:
    own = OwnPasses.of([f"tensor: chain-products{{when={when}}}"])
    lowered = lower(bottleneck(), resolve_target("cuda:sm_90a"), precision=precision, own=own)
    return [template(f) for f in lowered.tensor.funcs if f.name != "main"]


def test_only_products_on_warpgroups_are_chained_and_only_where_it_is_asked_for():
    assert kernels_of("always").count("chained") == 2
    assert "chained" not in kernels_of("never")
    assert "chained" not in kernels_of("always", "tf32")


#: two chains, of which the second products also read what the first product of the other chain gave
CROSSED = """module @net {
  tensor.func @first(%p: f16[64, 64], %q: f16[64, 64]) -> f16[64, 64] {
    PRODUCT
    %1 = tensor.map(%0, par = (m: 64, k: 64), reads = [[m, k]]) : f16[64, 64] {
      ^(%d: f32)
      %e = scalar.cast(%d, dtype = "f16") : f16
      scalar.yield(%e)
    }
    tensor.return(%1)
  }
  tensor.func @second(%p: f16[64, 64], %q: f16[64, 64], %r: f16[64, 64]) -> f16[64, 64] {
    PRODUCT
    %1 = tensor.map(%0, %r, par = (m: 64, k: 64), reads = [[m, k], [m, k]]) : f16[64, 64] {
      ^(%d: f32, %e: f16)
      %f = scalar.cast(%d, dtype = "f16") : f16
      %g = scalar.add(%e, %f) : f16
      scalar.yield(%g)
    }
    tensor.return(%1)
  }
  tensor.func @main(%x: f16[64, 64], %w: f16[64, 64], %z: f16[64, 64]) -> f16[64, 64], f16[64, 64] {
    %a = tensor.call(%x, %w, callee = @first) : f16[64, 64]
    %c = tensor.call(%z, %w, callee = @first) : f16[64, 64]
    %b = tensor.call(%a, %w, %c, callee = @second) : f16[64, 64]
    %d = tensor.call(%c, %w, %a, callee = @second) : f16[64, 64]
    tensor.return(%b, %d)
  }
}""".replace(
    "PRODUCT",
    """%0 = tensor.contract(%p, %q, par = (m: 64, k: 64), red = (c: 64),
                            reads = [[m, c], [k, c]]) : f32[64, 64] {
      ^(%a: f16, %b: f16, %s: f32)
      %x = scalar.cast(%a, dtype = "f32") : f32
      %y = scalar.cast(%b, dtype = "f32") : f32
      %z = scalar.fma(%x, %y, %s) : f32
      scalar.yield(%z)
    }""",
)


def test_chains_that_would_wait_for_each_other_are_not_both_taken():
    ctx = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)
    module = run_pipeline(parse(CROSSED), Pipeline.parse("chain-products{when=always}"), ctx)
    calls = [op for op in module.main.body.ops if op.name == "tensor.call"]
    assert len(calls) == 3
    assert sum(template(f) == "chained" for f in module.funcs) == 1


def test_a_product_that_reads_the_first_one_through_another_kernel_stays_apart():
    """The residual of the second product is computed from the results of the first one."""
    ctx = PassContext(target="cuda:sm_90a", verify_each=True, reproducer_folder=None)
    doubled = """  tensor.func @doubled(%p: f16[64, 64]) -> f16[64, 64] {
    %0 = tensor.map(%p, par = (m: 64, k: 64), reads = [[m, k]]) : f16[64, 64] {
      ^(%d: f16)
      %e = scalar.add(%d, %d) : f16
      scalar.yield(%e)
    }
    tensor.return(%0)
  }
  tensor.func @main("""
    text = CROSSED.replace("  tensor.func @main(", doubled)
    text = text.replace(
        "%c = tensor.call(%z, %w, callee = @first)", "%c = tensor.call(%a, callee = @doubled)"
    )
    text = text.replace("    %d = tensor.call(%c, %w, %a, callee = @second) : f16[64, 64]\n", "")
    text = text.replace("tensor.return(%b, %d)", "tensor.return(%b, %c)")
    module = run_pipeline(parse(text), Pipeline.parse("chain-products{when=always}"), ctx)
    names = [op["callee"].name for op in module.main.body.ops if op.name == "tensor.call"]
    assert names == ["first", "doubled", "second"]
