"""Every graph op as the fuzzer draws it: gradients by all operands, derived twice, compared three ways."""

import numpy as np
import pytest

import tilewright as tw
from tests.samples.gradient_draws import (
    DIFFERENTIABLE,
    REFUSED_OPERANDS,
    drawers,
    every_instance,
    instances,
    together,
)
from tests.samples.gradients import check_gradient, scalar_module
from tilewright.ir.facts import Gradient
from tilewright.ir.opdef import facts_of, op_defs
from tilewright.ir.types import FLOATS, numpy_dtype

#: ops of several ranks, which have tests of their own, and the adjoint, which second orders meet
ELSEWHERE = {
    *(f"graph.{n}" for n in ("all_gather", "all_reduce", "halo_exchange", "reduce_scatter")),
    "graph.adjoint",
}
#: relative to the norm of a gradient in float64
OWN_AGAINST_DERIVED = 1e-11
COMPILED = 1e-5
#: what float32 itself, or float16 where an op gives that, costs the interpreter at most
NATIVE = 1e-3
#: at the mean of x its derivative is 0, so that nothing but rounding is left
STATIONARY = {("graph.variance", 1)}


def graph_ops(*kinds):
    return {d.name for d in op_defs() if d.name.startswith("graph.") and d.facts.gradient in kinds}


def named(instance):
    return [f"x{i}" for i in instance.floats]


def depends(module, name):
    """Whether the gradient by an input is more than nothing."""
    try:
        tw.grad(module, name)
    except tw.InputError as e:
        if "does not" not in str(e):
            raise
        return False
    return True


def gap(array, other):
    """Norm of the difference over the norm of the other."""
    scale = np.linalg.norm(np.asarray(other, np.float64))
    return np.linalg.norm(np.asarray(array, np.float64) - other) / (scale or 1.0)


def test_every_differentiable_op_is_drawn():
    assert {i.op.name for i in every_instance()} | ELSEWHERE == graph_ops(*DIFFERENTIABLE)


@pytest.mark.parametrize("drawer", drawers())
def test_central_differences(drawer):
    for instance in instances(drawer):
        module, arrays = instance.module(), instance.arrays
        if instance.differentiable:
            check_gradient(module, arrays, named(instance), directions=2)
            continue
        floats = [n for n, v in zip(module.input_names, module.main.params, strict=True)
                  if v.tensor.dtype in FLOATS]  # fmt: skip
        if not floats or not any(t.dtype in FLOATS for t in module.main.result_types):
            continue
        kind = facts_of(instance.op.name).gradient
        refusal = "does not" if kind is Gradient.NONE else "is not differentiable"
        with pytest.raises((tw.InputError, tw.UnsupportedError), match=refusal):
            tw.grad(scalar_module(module)[0], floats)


@pytest.mark.parametrize("name", sorted(REFUSED_OPERANDS))
def test_operands_without_a_gradient(name):
    (instance,) = instances(name, 1)
    for i in REFUSED_OPERANDS[name]:
        with pytest.raises(tw.UnsupportedError, match=f"graph.{name} is not differentiable here: "):
            tw.grad(scalar_module(instance.module())[0], f"x{i}")


@pytest.mark.parametrize(
    "drawer", [d for d in drawers() if facts_of(f"graph.{d.split()[0]}").gradient is Gradient.RULE]
)
def test_own_rule_is_the_derived_adjoint(drawer):
    for instance in instances(drawer):
        scalar, cotangents = scalar_module(instance.module())
        arrays = [*instance.arrays, *cotangents]
        own = tw.interpret(tw.grad(scalar, named(instance), value=False), *arrays, precision="fp64")
        if instance.op.get("reduction") == "mean":  # each update halves what stood there, one after another
            with pytest.raises(tw.UnsupportedError, match=r"no adjoint of graph.scatter_elements"):
                tw.interpret(instance.adjoint(), *arrays, precision="fp64")
            continue
        derived = tw.interpret(instance.adjoint(), *arrays, precision="fp64")
        for i, mine, other in zip(instance.floats, own, derived, strict=True):
            assert gap(mine, other) <= OWN_AGAINST_DERIVED, i


@pytest.mark.parametrize("drawer", drawers())
def test_second_order(drawer):
    """The gradient of a weighted sum of gradients: by the operands, where it follows them, and by weights."""
    for instance in instances(drawer, 1):
        if not instance.differentiable:
            continue
        scalar, weights = scalar_module(instance.module())
        first = tw.grad(scalar, named(instance), value=False)
        again, _ = scalar_module(first)
        arrays = [*instance.arrays, *weights]
        check_gradient(first, arrays, first.input_names[len(instance.arrays) :], directions=1)
        for name in named(instance):
            if depends(again, name):
                check_gradient(first, arrays, [name], directions=1)


GROUPS = 6


@pytest.mark.parametrize("group", range(GROUPS))
def test_compiled_gradients(group):
    """Many ops in one module, so that few kernels are built."""
    several = every_instance()[group::GROUPS]
    module, arrays, names = together(several)
    scalar, cotangents = scalar_module(module)
    types = [p.tensor for p in scalar.main.params[len(arrays) :]]
    arrays += [c.astype(numpy_dtype(t.dtype)) for c, t in zip(cotangents, types, strict=True)]
    gradients = tw.grad(scalar, names, value=False)
    exact = tw.interpret(gradients, *arrays, precision="fp64")
    native = tw.interpret(gradients, *arrays)
    with tw.compile(gradients, target="opencl") as exe:
        results = exe(*arrays)
    owners = [(i.op.name, k) for i in several for k in i.floats]
    wrong = {}
    for owner, result, reference, wide in zip(owners, results, native, exact, strict=True):
        error, own = gap(result, wide), gap(reference, wide)
        if not (error <= COMPILED + 2 * own and own <= NATIVE) and owner not in STATIONARY:
            wrong[owner] = error, own
    assert wrong == {}
