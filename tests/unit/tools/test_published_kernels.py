"""The kernels of "Data Movement Is All You Need" as the partitioner `maximal` finds them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower, lower_from
from tilewright.devices.targets import resolve_target
from tilewright.frontends import zoo
from tilewright.ir import InputError, Level, interpret, parse
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.pipelines import official_stages
from tilewright.tools.data_movement.fused_encoder import KERNELS
from tilewright.tools.data_movement.operators import operators_of

H200 = resolve_target("cuda:sm_90a:h200")


def launches_of(module):
    """The operators of each launch of a module, as the partition leaves them."""
    stages = official_stages(Level.GRAPH, "cuda", partitioner="maximal").until("place-concats")
    module = lower_from(module, H200, stages).tensor
    kernels = {f.name: f for f in module.funcs}
    called = [kernels[op["callee"].name] for op in module.main.body.ops if op.name == "tensor.call"]
    return [tuple(dict.fromkeys(op.loc.removeprefix("zoo:") for op in f.body.ops[:-1])) for f in called]


@pytest.mark.parametrize("options", ["f16", "bf16,batch=96,sequence=128", "f16,tokens=first"])
def test_the_twelve_kernels_are_found(options):
    dataflow = zoo.build(f"encoder_dataflow{{storage={options}}}")
    products = {o.name for o in operators_of(dataflow) if o.work.work.value == "tensor contraction"}
    launches = launches_of(dataflow)
    assert len(products) == 18
    assert sorted(x for x in launches if set(x) & products) == sorted((p,) for p in products)
    fused = [sorted(x) for x in launches if not set(x) & products]
    assert sorted(fused) == sorted(map(sorted, KERNELS.values()))
    assert len({name.split()[0] for name in KERNELS}) == 12


@pytest.mark.parametrize("tokens", ["last", "first"])
def test_the_kernels_compute_the_layer(tokens):
    options = f"tokens={tokens},batch=2,sequence=6,heads=2,size=4,hidden=8,dropout=0.25"
    exact, stored = (zoo.build(f"encoder_dataflow{{{options},storage={s}}}") for s in ("f32", "f16"))
    rng = np.random.default_rng(0)
    given = []
    for p in stored.main.params:
        scale = 0.3 if p.hint in ("wqkv", "wo", "w1", "w2") else 1.0
        numbers = scale * rng.standard_normal(p.tensor.shape) + (p.hint or "").startswith("scale")
        given.append(
            numbers.astype(np.float16) if p.tensor.dtype == "f16" else np.full_like(numbers, 3, np.uint32)
        )
    lowered = lower(stored, H200, partitioner="maximal")
    wanted = interpret(exact, *(a.astype(np.float32) if a.dtype == np.float16 else a for a in given))
    for a, b in zip(interpret(lowered.tensor, *given), wanted, strict=True):
        assert np.linalg.norm(np.float64(a) - b) < 2e-2 * np.linalg.norm(np.float64(b))


STORED = """module @m {
  tensor.func @main(%%x: %(whole)s, %%y: %(whole)s) -> %(whole)s, %(sums)s, %(sums)s {
    %%s = tensor.map(%%x, %%y, par = (i: %(rows)d, j: %(columns)d), reads = [[i, j], [i, j]]) : %(whole)s {
      ^(%%a: f32, %%b: f32)
      %%t = scalar.add(%%a, %%b) : f32
      scalar.yield(%%t)
    }
    %%p = tensor.reduce(%%s, par = (%(par)s), red = (%(red)s), reads = [[i, j]], init = [0.0]) : %(sums)s {
      ^(%%a: f32, %%acc: f32)
      %%t = scalar.add(%%a, %%acc) : f32
      scalar.yield(%%t)
    }
    %%q = tensor.reduce(%%y, par = (%(par)s), red = (%(red)s), reads = [[i, j]], init = [0.0]) : %(sums)s {
      ^(%%a: f32, %%acc: f32)
      %%t = scalar.add(%%a, %%acc) : f32
      scalar.yield(%%t)
    }
    tensor.return(%%s, %%p, %%q)
  }
}
"""


@pytest.mark.parametrize(
    ("target", "over", "rows", "columns", "template"),
    [
        ("emulator", "j", 12, 64, "rows_kept"),
        ("emulator", "i", 70, 64, "rows_across"),
        ("opencl", "j", 5, 7, "rows"),
    ],
)
def test_sums_store_what_they_add_up_in_one_walk(target, over, rows, columns, template):
    kept, extents = "ij".replace(over, ""), {"i": rows, "j": columns}
    text = STORED % {
        "rows": rows, "columns": columns, "whole": f"f32[{rows}, {columns}]", "sums": f"f32[{extents[kept]}]",
        "par": f"{kept}: {extents[kept]}",
        "red": f"{over}: {extents[over]}",
    }  # fmt: skip
    compiled = tw.compile(parse(text), target, partitioner="maximal", progress=False)
    (kernel,) = compiled.artifact.facts["kernels"]
    assert kernel["template"] == template
    rng = np.random.default_rng(1)
    x, y = (rng.standard_normal((rows, columns)).astype(np.float32) for _ in range(2))
    stored, total, other = compiled(x, y)
    np.testing.assert_array_equal(stored, x + y)
    axis = "ij".index(over)
    np.testing.assert_allclose(total, (x + y).sum(axis, dtype=np.float64), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other, y.sum(axis, dtype=np.float64), rtol=1e-4, atol=1e-5)


def test_attention_is_never_one_kernel():
    """A step whose attention is an op becomes the products and the softmax around them."""
    layer = "encoder_layer{batch=1,sequence=64,width=64,heads=1,hidden=64}"
    step = tw.vjp(zoo.build(layer), storage="f16")
    assert any(op.name == "graph.attention" for op in step.main.body.ops)
    lowered = lower(step, H200, precision="fp16", partitioner="maximal")
    templates = {decision_of(f).template for f in lowered.tensor.funcs if f.name != "main"}
    assert templates <= {"matrix", "contract", "map", "rows", "rows_kept", "rows_across", "rows_staged"}


@pytest.mark.parametrize(
    ("option", "choices"), [("storage", "f32, f16 or bf16"), ("tokens", "last or first")]
)
def test_options_of_the_layer_have_their_values(option, choices):
    with pytest.raises(InputError, match=f"expected {option} {choices}, got 'none'"):
        zoo.build(f"encoder_dataflow{{{option}=none}}")
