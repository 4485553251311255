"""The tensor op that communicates with other ranks: dense tensors go out and come in, nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, define
from tilewright.ir.types import TensorType

COMMUNICATE = "tensor.communicate"
KINDS = ("exchange", "all_gather", "all_reduce", "reduce_scatter")
#: the tag of exchanges that stand for collectives, beyond those of programs
COLLECTIVE_TAG = (1 << 23) - 1


def _verify(op: Op) -> Sequence[str]:
    types = [v.type for v in (*op.operands, *op.results)]
    if op["kind"] not in KINDS:
        return [f"expected a kind among {', '.join(KINDS)}, got '{op['kind']}'"]
    if not types or any(not isinstance(t, TensorType) or t.dtype != types[0].dtype for t in types):
        return [f"expected tensors of one element type, got {', '.join(map(str, types)) or 'none'}"]
    if any(isinstance(t, TensorType) and (t.size == 0 or not t.dense) for t in types):
        return [f"expected dense tensors with elements, got {', '.join(map(str, types))}"]
    sizes = [v.tensor.size for v in op.operands], [v.tensor.size for v in op.results]
    return _exchange_faults(op) if op["kind"] == "exchange" else _collective_faults(op, *sizes)


def _exchange_faults(op: Op) -> list[str]:
    faults = []
    for key, values in (("sends", op.operands), ("receives", op.results)):
        messages: Any = op[key]
        good = all(
            isinstance(m, tuple) and len(m) == 3 and all(type(n) is int and n >= 0 for n in m)
            for m in messages
        )
        if not good or {m[2] for m in messages} != set(range(len(values))):
            faults.append(
                f"expected '{key}' of [peer, tag, buffer] for each of {len(values)}, got {messages}"
            )
    if not faults and len(op["receives"]) != len(op.results):  # type: ignore[arg-type]
        faults.append("expected each result to be received once")
    return faults


def _collective_faults(op: Op, operands: Sequence[int], results: Sequence[int]) -> list[str]:
    members: Any = op["members"]
    counts: Any = op["counts"]
    position: Any = op["position"]
    if len(set(members)) != len(members) or not 0 <= position < len(members):
        return [f"expected distinct members and a position among them, got {list(members)}, {position}"]
    if op["reduction"] not in ("sum", "max"):
        return [f"expected a reduction sum or max, got '{op['reduction']}'"]
    if op["kind"] == "all_reduce":
        good = len(operands) == 1 and list(operands) == list(results) and not counts
    else:
        if len(counts) != len(members):
            return [f"expected a count per member, got {list(counts)}"]
        part, whole = [counts[position]], [sum(counts)]
        fitting = (part, whole) if op["kind"] == "all_gather" else (whole, part)
        good = (list(operands), list(results)) == fitting
    return [] if good else [f"expected operands and results that fit the counts, got {operands}, {results}"]


define(
    COMMUNICATE,
    ("operands*",),
    "Communication with other ranks, between dense tensors in row-major order. exchange: every operand "
    "goes to a peer, every result comes from one. all_gather: the members' operands of `counts` elements "
    "one after another. all_reduce: their elementwise sum or maximum. reduce_scatter: this member's "
    "`counts` elements of the elementwise sum.",
    attrs={
        "kind": AttrDef("str", doc=", ".join(KINDS)),
        "sends": AttrDef("list", (), "[global rank, tag, operand] of every message of an exchange"),
        "receives": AttrDef("list", (), "[global rank, tag, result] of every message of an exchange"),
        "members": AttrDef("ints", (), "global ranks of a collective"),
        "position": AttrDef("int", 0, "of this rank among the members"),
        "counts": AttrDef("ints", (), "elements per member"),
        "reduction": AttrDef("str", "sum"),
    },
    results=None,
    verify=_verify,
    effects=frozenset({"communicate"}),
    work=WorkClass.ELEMENTWISE,
)
