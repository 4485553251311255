"""Filters and biases as a library wants them: by a kernel of their own, at compile time where constant."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.ir import Func, Module, Op, Ref, Sym, Value
from tilewright.ir.builder import scalar_body
from tilewright.ir.expr import substitute
from tilewright.ir.interpreter.run import interpret
from tilewright.ir.tensor.ops import domain, reads
from tilewright.libraries.matching.convolution import ConvolutionMatch
from tilewright.libraries.matching.library_call import with_op_before, written_anew
from tilewright.passes.rewriting.values import replace_in_op

#: what names of functions that rearrange filters end with
SUFFIX = "_weights"


def with_packed_weights(kernel: Func, contract: Op, convolution: ConvolutionMatch) -> tuple[Func, Op, Op]:
    """The kernel with its filters rearranged before the contraction; the new contraction; the rearrangement.

    rewrite:  tensor.contract(%x, %w: f32[3, 3, 8, 16], reads = [..., [r, s, c, k]])
              -->   %v = tensor.map(%w, par = (k: 16, c: 8, r: 3, s: 3), reads = [[r, s, c, k]])
                    tensor.contract(%x, %v, reads = [..., [k, c, r, s]])
    """
    weights, sizes = contract.operands[1], domain(contract)
    single = {d: 0 for d, n in sizes.items() if n == 1}
    at = tuple(substitute(e, single) for e in reads(contract)[1])
    extents = {d: sizes[d] for d in convolution.weights}
    rearranged = written_anew(weights, extents, at, "packed", contract.loc)
    names = tuple(Sym(d) for d in convolution.weights)
    fresh = contract.with_operands((contract.operands[0], rearranged.result)).with_attrs(
        reads=(reads(contract)[0], names)
    )
    return with_op_before(kernel, contract, rearranged, fresh), fresh, rearranged


def with_wide_bias(kernel: Func, reader: Op, bias: Value) -> tuple[Func, Op, Op]:
    """The kernel with a vector written in float32 before it is added; the new reader; the op that writes it.

    rewrite:  tensor.map(%s, %bias: f16[768], ...) {^(%a: f16, %b: f16) ...}
              -->   %v = tensor.map(%bias, par = (d0: 768), reads = [[d0]]) : f32[768] {cast}
                    tensor.map(%s, %v, ...) {^(%a: f16, %w: f32) %b = scalar.cast(%w, dtype = "f16") ...}
    """
    extents = {f"d{i}": n for i, n in enumerate(bias.tensor.shape)}
    widening = written_anew(bias, extents, tuple(map(Sym, extents)), "wide", reader.loc, "f32")
    assert reader.body is not None
    position = reader.operands.index(bias)
    params = list(reader.body.params)
    inner, (params[position],) = scalar_body(["f32"])
    narrow = inner.cast(params[position], bias.tensor.dtype)
    rest = (replace_in_op(op, {reader.body.params[position]: narrow}) for op in reader.body.ops)
    body = replace(reader.body, params=tuple(params), ops=(*inner.ops, *rest))
    operands = tuple(widening.result if v is bias else v for v in reader.operands)
    fresh = replace(reader, operands=operands, body=body)
    return with_op_before(kernel, reader, widening, fresh), fresh, widening


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
    others = [
        f for f in module.funcs if f.name != "main" and (Ref(f.name) in called or not f.name.endswith(SUFFIX))
    ]
    entry = main.with_body(main.body.with_ops(tuple(ops)))
    return module.with_funcs((*others, entry)).with_constants(module.constants.updated(arrays))
