"""Arithmetic of graph-level ops, as their definitions state it: FLOP of one execution."""

from __future__ import annotations

from tilewright.ir.facts import Elements, no_flops
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import facts_of


def is_moving(op: Op) -> bool:
    """True for ops that compute nothing."""
    return facts_of(op.name).flops is no_flops


def is_contraction(op: Op) -> bool:
    """True for ops that sum products: what a layer of parameters does."""
    return facts_of(op.name).elements is Elements.CONTRACTS


def op_flops(op: Op) -> int:
    """FLOP of a graph-level op; a multiply-add counts two."""
    return facts_of(op.name).flops(op)
