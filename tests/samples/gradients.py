"""Checks of gradients in float64: central differences, and agreement of two ways to derive one."""

import numpy as np

from tilewright import interpret
from tilewright.ir import Builder, Func, Level, Module, Value
from tilewright.ir.nodes import Block
from tilewright.passes.graph.gradients.differentiate import grad


def scalar_module(module, seed=0):
    """The module with one result: the sum of all results of floats times fixed random numbers.

    The numbers are inputs behind the module's own, named `c` and their position; returned beside the module.
    """
    rng = np.random.default_rng(seed)
    main = module.main
    b = Builder()
    for op in main.body.ops[:-1]:
        b.append(op)
    params, extra, total = list(main.params), [], None
    for v in main.body.ops[-1].operands:
        if v.tensor.dtype not in ("f16", "bf16", "f32", "f64"):
            continue
        weight = Value(v.type, f"c{len(params)}")
        params.append(weight)
        extra.append(rng.standard_normal(v.tensor.shape))
        product = b.value("graph.multiply", v, weight)
        if v.tensor.rank:
            product = b.value("graph.sum", product, axis=tuple(range(v.tensor.rank)), keepdims=False)
        if total is None:
            total = product
            continue
        if product.type != total.type:
            product = b.value("graph.cast", product, dtype=total.tensor.dtype)
        total = b.value("graph.add", total, product)
    assert total is not None, "the module has no result of floats"
    b.emit("graph.return", (total,), types=())
    func = Func(Level.GRAPH, "main", Block(tuple(params), tuple(b.ops)), (total.type,))
    return Module(module.name, (func,), module.attrs, module.constants), extra


def check_gradient(module, inputs, wrt, *, directions=3, seed=0, tolerance=1e-6):
    """Assert that gradients of a random projection of the results agree with central differences.

    inputs: one array per input, floats as float64; wrt: names of inputs of floats. Limits: those of float64
    differences of step 6e-6: |difference| <= tolerance * (|value| + scale).
    """
    scalar, extra = scalar_module(module, seed)
    names = list(scalar.input_names)
    arrays = [*map(np.asarray, inputs), *extra]
    results = interpret(grad(scalar, wrt), *arrays, precision="fp64")
    gradients = dict(zip(wrt, results[1:], strict=True))
    rng = np.random.default_rng(seed + 1)

    def value(moved):
        return float(interpret(scalar, *moved, precision="fp64")[0])

    for name in wrt:
        at = names.index(name)
        x = arrays[at].astype(np.float64)
        assert gradients[name].shape == x.shape
        scale = max(1.0, float(np.abs(x).max(initial=0.0)))
        for _ in range(directions):
            v = rng.standard_normal(x.shape)
            h = 6e-6 * scale
            up, down = list(arrays), list(arrays)
            up[at], down[at] = x + h * v, x - h * v
            numeric = (value(up) - value(down)) / (2 * h)
            own = float((gradients[name] * v).sum())
            norm = float(np.linalg.norm(gradients[name]) * np.linalg.norm(v))
            assert abs(own - numeric) <= tolerance * (abs(own) + norm + scale), (name, own, numeric)
