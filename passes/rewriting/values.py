"""Values and their uses: replacing values in a block, copies of ops, and who produces and uses values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from tilewright.ir.expr import Expr, Sym, substitute
from tilewright.ir.nodes import Attr, Block, Func, Op, Pairs, Value, backward_slice, walk
from tilewright.ir.tensor.ops import dims, reads


def replace_values(block: Block, new: Mapping[Value, Value]) -> Block:
    """The block with every use of a key of `new` replaced, bodies included; the same one if there is none.

    Replacements may themselves be replaced (a -> b -> c); they must not form a cycle.
    """
    return block.with_ops(tuple(replace_in_op(op, new) for op in block.ops)) if new else block


def replace_in_op(op: Op, new: Mapping[Value, Value]) -> Op:
    """The op with its operands and the uses in its body replaced; results and location stay."""
    if not new:
        return op
    for v in op.operands:
        if v in new:
            op = op.with_operands(tuple([resolve(v, new) for v in op.operands]))
            break
    if op.body is None:
        return op
    body = replace_values(op.body, new)
    return op if body is op.body else replace(op, body=body)


def with_values(op: Op, new: Mapping[Value, Value]) -> Op:
    """The op with its operands and its results replaced; the same one where nothing is."""
    if not any(v in new for v in (*op.operands, *op.results)):
        return op
    operands = tuple(new.get(v, v) for v in op.operands)
    return replace(op, operands=operands, results=tuple(new.get(r, r) for r in op.results))


def with_types(func: Func, ops: Iterable[Op], new: Mapping[Value, Value]) -> Func:
    """The function with these ops and other values, whose types may differ, in its parameters and results."""
    ops = tuple(with_values(op, new) for op in ops)
    body = Block(tuple(new.get(p, p) for p in func.params), ops)
    return replace(func, body=body, result_types=tuple(v.type for v in ops[-1].operands))


def copied_ops(ops: Iterable[Op], new: dict[Value, Value]) -> list[Op]:
    """Copies of ops that read the values of `new` for its keys; their own results are added to it."""
    out = []
    for op in ops:
        results = tuple(Value(r.type, r.hint) for r in op.results)
        out.append(replace(op, operands=tuple(new.get(v, v) for v in op.operands), results=results))
        new.update(zip(op.results, results, strict=True))
    return out


def with_indices(op: Op, change: Callable[[Expr], Expr]) -> Op:
    """The op with the expression of every `scalar.index` of its body changed."""
    if op.body is None or all(o.name != "scalar.index" for o in op.body.ops):
        return op
    ops = (o.with_attrs(at=change(o.expr("at"))) if o.name == "scalar.index" else o for o in op.body.ops)
    return replace(op, body=op.body.with_ops(tuple(ops)))


def rename_dims(op: Op, names: dict[str, str]) -> Op:
    """A structured op with its dimensions renamed in domain, reads and body; results stay the same."""
    env = {k: Sym(v) for k, v in names.items()}
    attrs: dict[str, Attr] = {
        "reads": tuple(tuple(substitute(e, env) for e in at) for at in reads(op)),
        "par": Pairs(tuple((names.get(k, k), n) for k, n in dims(op, "par").items())),
    }
    if "red" in dict(op.attrs):
        attrs["red"] = Pairs(tuple((names.get(k, k), n) for k, n in dims(op, "red").items()))
    return with_indices(op.with_attrs(**attrs), lambda e: substitute(e, env))


def resolve(value: Value, new: Mapping[Value, Value]) -> Value:
    """Return what `value` is finally replaced by."""
    while value in new:
        value = new[value]
    return value


def use_counts(block: Block) -> Counter[Value]:
    """Count how often each value is an operand in the block, bodies included."""
    return Counter(v for op in walk(block) for v in op.operands)


def readers(block: Block) -> dict[Value, list[Op]]:
    """The ops of the block (not of bodies) that read each value, in program order; empty where none does."""
    out: dict[Value, list[Op]] = defaultdict(list)
    for op in block.ops:
        for v in dict.fromkeys(op.operands):
            out[v].append(op)
    return out


def producers(block: Block) -> dict[Value, Op]:
    """The op of the block (not of bodies) that defines each value; parameters have none."""
    return {r: op for op in block.ops for r in op.results}


def needed(ops: Sequence[Op]) -> list[Op]:
    """The ops that the last one depends on."""
    return [*backward_slice(ops[:-1], ops[-1].operands), ops[-1]]


def making(makers: Mapping[Value, Op], values: Iterable[Value]) -> list[Op]:
    """The ops among `makers` that `values` need, directly or not, operands first."""
    ordered: dict[Op, None] = {}
    todo = [(v, False) for v in reversed(list(values))]
    while todo:
        value, ready = todo.pop()
        op = makers.get(value)
        if op is None or op in ordered:
            continue
        if ready:
            ordered[op] = None
        else:
            todo.append((value, True))
            todo.extend((v, False) for v in reversed(op.operands))
    return list(ordered)
