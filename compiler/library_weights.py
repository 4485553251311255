"""Filters in the order a library wants: rearranged by a kernel, at compile time where they are constant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.ir import Func, Module, Op, Pairs, Ref, Sym, TensorType, Value
from tilewright.ir.builder import scalar_body
from tilewright.ir.expr import substitute
from tilewright.ir.interpreter import interpret
from tilewright.ir.tensor_ops import domain, reads
from tilewright.library_convolution import Convolution
from tilewright.passes.values import replace_in_op

#: what names of functions that rearrange filters end with
SUFFIX = "_weights"


def with_packed_weights(kernel: Func, contract: Op, found: Convolution) -> tuple[Func, Op, Op]:
    """The kernel with its filters rearranged before the contraction; the new contraction; the rearrangement.

    rewrite:  tensor.contract(%x, %w: f32[3, 3, 8, 16], reads = [..., [r, s, c, k]])
              -->   %v = tensor.map(%w, par = (k: 16, c: 8, r: 3, s: 3), reads = [[r, s, c, k]])
                    tensor.contract(%x, %v, reads = [..., [k, c, r, s]])
    """
    weights, sizes = contract.operands[1], domain(contract)
    single = {d: 0 for d, n in sizes.items() if n == 1}
    at = tuple(substitute(e, single) for e in reads(contract)[1])
    extents = {d: sizes[d] for d in found.weights}
    b, (element,) = scalar_body([weights.tensor.dtype])
    b.emit("scalar.yield", [element])
    packed = Value(TensorType(weights.tensor.dtype, tuple(extents.values())), f"{weights.hint}.packed")
    attrs = (("par", Pairs.of(extents)), ("reads", (at,)), ("fill", ()))
    rearranged = Op("tensor.map", (weights,), attrs, (packed,), b.block([element]), contract.loc)
    names = tuple(Sym(d) for d in found.weights)
    fresh = contract.with_operands((contract.operands[0], packed)).with_attrs(
        reads=(reads(contract)[0], names)
    )
    ops = [new for op in kernel.body.ops for new in ((rearranged, fresh) if op is contract else (op,))]
    return replace(kernel, body=kernel.body.with_ops(tuple(ops))), fresh, rearranged


def with_constant_weights(module: Module) -> Module:
    """The module whose rearranged filters are constants where the filters are."""
    main = module.main
    known = {op.result: str(op["name"]) for op in main.body.ops if op.name == "tensor.constant"}
    arrays: dict[str, np.ndarray] = {}
    folded: dict[tuple[str, str], Op] = {}
    new: dict[Value, Value] = {}
    ops: list[Op] = []
    for op in main.body.ops:
        ref = op.get("callee")
        name = known.get(op.operands[0]) if isinstance(ref, Ref) and ref.name.endswith(SUFFIX) else None
        if name is None or name not in module.constants or not isinstance(ref, Ref):
            ops.append(replace_in_op(op, new))
            continue
        if (ref.name, name) not in folded:
            fresh = f"{name}.{ref.name}"
            f = module[ref.name]
            source = np.asarray(module.constants[name]).reshape(f.params[0].tensor.shape)
            (arrays[fresh],) = interpret(Module("weights", (replace(f, name="main"),)), source)
            constant = Op("tensor.constant", (), (("name", fresh),), (Value(op.result.type, op.result.hint),))
            folded[ref.name, name] = constant
            ops.append(constant)
        new[op.result] = folded[ref.name, name].result
    if not folded:
        return module
    called = {op["callee"] for op in ops if op.name == "tensor.call"}
    kept = [
        f for f in module.funcs if f.name != "main" and (Ref(f.name) in called or not f.name.endswith(SUFFIX))
    ]
    entry = main.with_body(main.body.with_ops(tuple(ops)))
    return module.with_funcs((*kept, entry)).with_constants(module.constants.updated(arrays))
