"""The kernels of "Data Movement Is All You Need" as the partitioner `maximal` finds them."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.lowering import lower, lower_from
from tilewright.devices.targets import resolve_target
from tilewright.frontends import zoo
from tilewright.ir import InputError, Level, interpret, parse
from tilewright.passes.analysis.index_sets import is_scaling
from tilewright.passes.kernels.decision import decision_of
from tilewright.passes.pipelines import official_stages
from tilewright.tools.data_movement.fused_encoder import KERNELS
from tilewright.tools.data_movement.operators import operators_of

H200 = resolve_target("cuda:sm_90a:h200")


def called_of(module, *without, precision="fp32"):
    """The kernel of each launch of a module after the partition; without: passes that do not run."""
    stages = official_stages(Level.GRAPH, "cuda", precision, partitioner="maximal")
    module = lower_from(module, H200, stages.until("place-concats").without(*without)).tensor
    kernels = {f.name: f for f in module.funcs}
    return [kernels[op["callee"].name] for op in module.main.body.ops if op.name == "tensor.call"]


def launches_of(module):
    """The operators of each launch of a module."""
    called = called_of(module)
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


#: per launch of a published kernel, what it holds of the gradient of `zoo:encoder_layer`: operators by their
#: places, those that reduce with a plus sign; a prime marks the backward pass
OF_THE_GRADIENT = {
    "aib": {"attention.joined"},
    "sm": {"attention.softmax+", "attention.softmax", "attention.weight dropout"},
    "bdrln 1": {
        "attention.project", "attention.dropout", "attention.residual", "attention.norm+", "attention.norm",
    },
    "brd": {"mlp.up", "mlp.activation", "mlp.hidden dropout"},
    "bdrln 2": {"mlp.down", "mlp.dropout", "mlp.residual", "mlp.norm+", "mlp.norm"},
    "bsb": {"mlp.norm'+", "mlp.norm'"},
    "blnrd 1": {"mlp.norm'+", "mlp.norm'", "mlp.dropout'"},
    "bdrb": {"mlp.hidden dropout'", "mlp.activation'", "mlp.up'+", "mlp.up'"},
    # what comes back to the residual is added where the product's gradient arrives
    "ebsb": {"mlp.down'+", "mlp.down'", "mlp.up'", "attention.norm'+", "attention.norm'"},
    "blnrd 2": {"attention.norm'+", "attention.norm'", "attention.dropout'"},
    "baob": {"attention.project'+", "attention.project'"},
    "bs": {"attention.weight dropout'", "attention.softmax'+", "attention.softmax'", "attention.scores'"},
    "baib": {"attention.joined'+", "attention.joined'"},
    "bei": {"attention.joined'"},
}  # fmt: skip


def gradient_of_the_layer(sizes=""):
    layer = zoo.build(f"encoder_layer{{projections=joined{sizes}}}")
    return tw.vjp(layer, storage="f16", attention=False)


def fused_launches(kernels):
    """What each launch without a product holds, in the form of `OF_THE_GRADIENT`."""
    found = []
    for f in kernels:
        ops = f.body.ops[:-1]
        if all(op.name in ("tensor.map", "tensor.reduce") for op in ops):
            found.append({op.loc.removeprefix("zoo:") + "+" * (op.name == "tensor.reduce") for op in ops})
    return found


@pytest.mark.parametrize("sizes", ["", ",batch=96,sequence=128"])
def test_the_derived_gradient_has_the_twelve_kernels(sizes):
    kernels = called_of(gradient_of_the_layer(sizes), precision="fp16")
    counter, *fused = sorted(fused_launches(kernels), key=len)
    assert counter == {""}  # the number of the run, which dropout draws from
    assert sorted(map(sorted, fused)) == sorted(map(sorted, OF_THE_GRADIENT.values()))
    assert len(kernels) - len(fused) - 1 == 18
    for f in kernels:
        scaled = [op for op in f.body.ops[:-1] if op.name != "tensor.contract"]
        if len(scaled) < len(f.body.ops) - 1:  # a product takes nothing but scaling and rounding
            assert all(is_scaling(op) for op in scaled)


def test_a_decoder_layer_has_as_many_kernels():
    """Masks, another activation and norms before the parts need no passes of their own."""
    layer = zoo.build("decoder_layer{projections=joined}")
    kernels = called_of(tw.vjp(layer, storage="f16", attention=False), precision="fp16")
    assert (len(kernels), len(fused_launches(kernels))) == (33, 15)


def test_bsb_reads_the_statistics_of_the_forward_pass():
    """Norms are computed once: their backward kernels take no mean of the input and no root."""
    kernels = called_of(gradient_of_the_layer(), precision="fp16")
    places = ("zoo:mlp.norm'", "zoo:attention.norm'")
    norms = [f for f in kernels if any(op.loc in places for op in f.body.ops)]
    assert len(norms) == 4
    roots = [o.name for f in norms for op in f.body.ops if op.body for o in op.body.ops]
    assert "scalar.rsqrt" not in roots
    wide = [v for f in norms for v in f.params if v.tensor.dtype == "f32" and v.tensor.size > 8 * 512]
    assert wide == []  # nothing of the whole array is stored in float32


@pytest.mark.parametrize("left_out", ["expand-norms", "split-viewed-dims", "widen-where-read"])
def test_each_pass_is_needed_for_the_twelve_kernels(left_out):
    kernels = called_of(gradient_of_the_layer(), left_out, precision="fp16")
    fused = sorted(map(sorted, fused_launches(kernels)))
    assert fused != sorted([[""], *map(sorted, OF_THE_GRADIENT.values())])
    assert len(kernels) > 33


def test_the_kernels_compute_the_gradient():
    step = gradient_of_the_layer(",batch=2,sequence=6,width=8,heads=2,hidden=16,dropout=0.25")
    rng = np.random.default_rng(0)
    x, dy = (rng.standard_normal((2, 6, 8)).astype(np.float16) for _ in range(2))
    lowered = lower(step, H200, precision="fp16", partitioner="maximal")
    exact, _ = tw.interpret_step(step, [x, dy], precision="fp64")
    state = [step.constants[p.hint] for p in step.main.params[2:]]
    got = interpret(lowered.tensor, x, dy, *state)
    for a, b in zip(got, exact, strict=False):  # the state follows the results
        assert np.linalg.norm(np.float64(a) - b) < 2e-2 * np.linalg.norm(np.float64(b))


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
