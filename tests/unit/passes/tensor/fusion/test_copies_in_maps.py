"""What is computed again for a product is written by the kernel of maps that reads its source."""

from __future__ import annotations

from tilewright.ir import Module, Ref, parse
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.framework.runner import run_pipeline

STEP = """
module @m {
  tensor.func @main(%x: f32[64, 1024, 1024], %w: f32[1024, 1024], loss = 0,
      updates = [[1, 1]], recomputed = 1) -> f32[], f32[1024, 1024], f32[64, 1024, 1024] {
    %loss = tensor.reduce(%x, par = (), red = (n: 64, p: 1024, c: 1024),
      reads = [[n, p, c]], init = [0.0]) : f32[] {
      ^(%a: f32, %acc: f32)
      %t = scalar.add(%a, %acc) : f32
      scalar.yield(%t)
    }
    %r = tensor.map(%x, par = (n: 64, p: 1024, c: 1024),
      reads = [[n, p, c]]) : f32[64, 1024, 1024] {
      ^(%a: f32)
      %t = scalar.exp(%a) : f32
      scalar.yield(%t)
    }
    %dr = tensor.contract(%x, %w, par = (n: 64, p: 1024, c: 1024), red = (k: 1024),
      reads = [[n, p, k], [k, c]]) : f32[64, 1024, 1024] {
      ^(%a: f32, %b: f32, %acc: f32)
      %t = scalar.fma(%a, %b, %acc) : f32
      scalar.yield(%t)
    }
    %masked = tensor.map(%r, %dr, par = (n: 64, p: 1024, c: 1024),
      reads = [[n, p, c], [n, p, c]]) : f32[64, 1024, 1024] {
      ^(%a: f32, %b: f32)
      %t = scalar.mul(%a, %b) : f32
      scalar.yield(%t)
    }
    %sums = tensor.reduce(%masked, par = (c: 1024), red = (n: 64, p: 1024),
      reads = [[n, p, c]], init = [0.0]) : f32[1024] {
      ^(%a: f32, %acc: f32)
      %t = scalar.add(%a, %acc) : f32
      scalar.yield(%t)
    }
    %dx = tensor.map(%masked, %x, %sums, par = (n: 64, p: 1024, c: 1024),
      reads = [[n, p, c], [n, p, c], [c]]) : f32[64, 1024, 1024] {
      ^(%a: f32, %b: f32, %s: f32)
      %t = scalar.fma(%b, %s, %a) : f32
      scalar.yield(%t)
    }
    %g = tensor.contract(%masked, %r, par = (k: 1024, c: 1024), red = (n: 64, p: 1024),
      reads = [[n, p, k], [n, p, c]]) : f32[1024, 1024] {
      ^(%a: f32, %b: f32, %acc: f32)
      %t = scalar.fma(%a, %b, %acc) : f32
      scalar.yield(%t)
    }
    tensor.return(%loss, %g, %dx)
  }
}
"""


def _kernels(text: str) -> Module:
    ctx = PassContext(target="cuda:sm_90a:h200")
    return run_pipeline(parse(text), Pipeline.parse("inline-maps, fuse-kernels"), ctx)


def _makers(module: Module) -> list[tuple[list[str], int]]:
    """Per kernel the ops that it runs, and the number of large arrays that it stores."""
    out = []
    for op in module.main.body.ops:
        ref = op.get("callee")
        if isinstance(ref, Ref):
            large = sum(r.tensor.size == 64 << 20 for r in op.results)
            out.append(([o.name for o in module[ref.name].body.ops[:-1]], large))
    return out


def test_a_copy_for_a_product_is_a_second_result_of_the_map_that_reads_its_source() -> None:
    """The mask behind the product is made of %x; %r is stored with %dx, and no kernel makes it alone."""
    makers = _makers(_kernels(STEP))
    assert (["tensor.map", "tensor.map"], 2) in makers
    assert (["tensor.map"], 1) not in makers


def test_a_copy_that_no_other_map_can_write_stays_where_it_was() -> None:
    """Where the gradient by the source does not read it, the product has a factor of its own."""
    other = STEP.replace("tensor.map(%masked, %x, %sums,", "tensor.map(%masked, %masked, %sums,")
    assert (["tensor.map", "tensor.map"], 2) not in _makers(_kernels(other))
