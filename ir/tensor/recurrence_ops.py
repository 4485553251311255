"""The tensor op whose results depend on earlier results along a line: recur."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import symbols
from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, define
from tilewright.ir.tensor.ops import SHAPED, dims, reads, verify_reads, verify_scalar_body
from tilewright.ir.types import TensorType


def history(op: Op) -> str:
    """The dimension that counts the earlier results of a recurrence."""
    (name,) = dims(op, "red")
    return name


def _verify_recur(op: Op) -> Sequence[str]:
    par, red = dims(op, "par"), dims(op, "red")
    if op["dim"] not in par:
        return [f"expected the dimension of the recurrence among {list(par)}, got '{op['dim']}'"]
    if len(red) != 1 or set(red) & set(par) or set(red.values()) != {par[str(op["dim"])]}:
        return [f"expected one dimension of extent {par[str(op['dim'])]} in 'red', got {red}"]
    faults = verify_reads(op)
    expected = TensorType(op.operands[0].type.dtype, tuple(par.values()))
    if op.result.type != expected:
        faults.append(f"expected a result of type {expected}, got {op.result.type}")
    if not faults and history(op) in {s for e in reads(op)[0] for s in symbols(e)}:
        faults.append(f"expected the start to be read without '{history(op)}'")
    elements = [v.type for v in op.operands[1:]]
    return faults + verify_scalar_body(op, [*elements, op.result.type, op.result.type], [op.result.type])


define(
    "tensor.recur",
    ("start", "operands*"),
    "Results along `dim`, each from all earlier ones: result[.., i, ..] folds body(operand[reads]..., "
    "result[.., t, ..], accumulator) over t = 0..i-1 in order, from start[reads] on; `red` names t.",
    attrs={
        "par": SHAPED["par"],
        "red": AttrDef("dims", doc="the dimension t of earlier results, as long as `dim`"),
        "reads": SHAPED["reads"],
        "fill": SHAPED["fill"],
        "dim": AttrDef("str"),
    },
    verify=_verify_recur,
    body=True,
    work=WorkClass.CONTRACTION,
)
