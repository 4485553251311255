"""Pass fold-constant-tensors: tensor ops that depend on nothing but constants become constants."""

from __future__ import annotations

import numpy as np

from tilewright.ir import Block, Constants, Func, Level, Module, Op, Value, interpret
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.tensor.ops import STRUCTURED
from tilewright.ir.types import storage_dtype
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.index_sets import is_copy
from tilewright.passes.graph.simplification.fold_constants import blows_up
from tilewright.passes.lower.tables import LARGEST_CONSTANT
from tilewright.passes.rewriting.dead_ops import live_ops

#: a map without operands is worth storing where it is a small table
MAX_TABLE_ELEMENTS = 65_536


@register_pass(Level.TENSOR)
def fold_constant_tensors(
    module: Module, ctx: PassContext, *, max_elements: int = LARGEST_CONSTANT
) -> Module:
    """Evaluate structured ops of @main whose operands are all constants, with floats held as float64.

    rewrite: tensor.map(tensor.constant(name = "w"), ...) { ... }
        -->   tensor.constant(name = "w.map")

    Results of more than `max_elements` elements stay; so do maps without operands that are larger than a
    table of coefficients, and copies that repeat a small constant often, where an op that stays reads them. A
    chain of ops is evaluated as a whole and rounded once.
    """
    if module.main.level is not Level.TENSOR:
        return module
    computable = _known(module, max_elements)
    known = dict(computable)
    for op in reversed(list(known)):
        if is_copy(op) and blows_up(op) and _is_needed(op, known, module.main):
            del known[op]
    folded = [op for op in known if op.name in STRUCTURED and _is_needed(op, known, module.main)]
    if not folded:
        return module
    pool = ConstantPool(module.constants)
    results = [(op, r) for op in folded for r in op.results]
    # A copy that stays may still be read by ops that become constants.
    arrays = _evaluated(module, computable, [r for _, r in results])
    new: dict[Op, list[Op]] = {op: [] for op in folded}
    for (op, value), array in zip(results, arrays, strict=True):
        name = pool.add(_name(op, computable), array.astype(storage_dtype(value.tensor.dtype)))
        attrs = (("name", name),)
        new[op].append(Op("tensor.constant", (), attrs, (value,), None, op.loc))
    ops = [x for op in module.main.body.ops for x in new.get(op, [op])]
    main = module.main.with_body(module.main.body.with_ops(tuple(ops)))
    main = main.with_body(main.body.with_ops(tuple(live_ops(main.body))))
    funcs = tuple(main if f is module.main else f for f in module.funcs)
    return module.with_funcs(funcs).with_constants(pool.constants)


def _known(module: Module, max_elements: int) -> dict[Op, None]:
    """Ops whose results depend on constants with data alone, in program order."""
    values: set[Value] = set()
    computable: dict[Op, None] = {}
    for op in module.main.body.ops:
        constant = op.name == "tensor.constant" and str(op["name"]) in module.constants
        computed = op.name in STRUCTURED and all(v in values for v in op.operands)
        limit = max_elements if op.operands else MAX_TABLE_ELEMENTS
        if constant or (computed and sum(r.tensor.size for r in op.results) <= limit):
            computable[op] = None
            values.update(op.results)
    return computable


def _is_needed(op: Op, known: dict[Op, None], main: Func) -> bool:
    """Return True where an op that stays reads a result."""
    return any(set(other.operands) & set(op.results) for other in main.body.ops if other not in known)


def _evaluated(module: Module, known: dict[Op, None], values: list[Value]) -> list[np.ndarray]:
    end = Op("tensor.return", tuple(values))
    types = tuple(v.type for v in values)
    ops = tuple(live_ops(Block((), (*known, end))))
    names = {str(op["name"]) for op in ops if op.name == "tensor.constant"}
    arrays = Constants({n: module.constants[n] for n in names if n in module.constants})
    folded = Module(module.name, (Func(Level.TENSOR, "main", Block((), ops), types),), (), arrays)
    return interpret(folded, precision="fp64")


def _name(op: Op, known: dict[Op, None]) -> str:
    """Named after the first constant it is made from, or after the work it belongs to."""
    made = {r: other for other in known for r in other.results}
    short = op.name.partition(".")[2]
    for v in op.operands:
        source = made[v]
        if source.name == "tensor.constant":
            return f"{source['name']}.{short}"
    if op.operands:
        return f"{_name(made[op.operands[0]], known)}.{short}"
    return "table"
