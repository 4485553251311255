"""Values and their uses: replacing values in a block, and who produces and uses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from tilewright.ir.nodes import Block, Op, Value, walk


def replace_values(block: Block, new: Mapping[Value, Value]) -> Block:
    """The block with every use of a key of `new` replaced, bodies included; the same one if there is none.

    Replacements may themselves be replaced (a -> b -> c); they must not form a cycle.
    """
    return block.with_ops(tuple(replace_in_op(op, new) for op in block.ops)) if new else block


def replace_in_op(op: Op, new: Mapping[Value, Value]) -> Op:
    """The op with its operands and the uses in its body replaced; results and location stay."""
    op = op.with_operands(tuple(resolve(v, new) for v in op.operands))
    if op.body is None:
        return op
    body = replace_values(op.body, new)
    return op if body is op.body else replace(op, body=body)


def resolve(value: Value, new: Mapping[Value, Value]) -> Value:
    """What `value` is finally replaced by."""
    while value in new:
        value = new[value]
    return value


def use_counts(block: Block) -> Counter[Value]:
    """How often each value is an operand in the block, bodies included."""
    return Counter(v for op in walk(block) for v in op.operands)


def producers(block: Block) -> dict[Value, Op]:
    """The op of the block (not of bodies) that defines each value; parameters have none."""
    return {r: op for op in block.ops for r in op.results}
