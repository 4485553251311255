"""Tensor ops whose element order or addresses depend on data: scan, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import symbols
from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Op, Value
from tilewright.ir.opdef import AttrDef, define
from tilewright.ir.tensor.ops import SHAPED, dims, verify_reads, verify_scalar_body
from tilewright.ir.types import TensorType

#: the ways in which a gather deals with an address outside its data
GATHER_MODES = ("clip", "wrap", "fill")


def _verify_result(op: Op, shape: tuple[int, ...], dtype: str) -> list[str]:
    expected, t = TensorType(dtype, shape), op.result.type
    fits = isinstance(t, TensorType) and (t.dtype, t.shape, t.space) == (dtype, shape, expected.space)
    return [] if fits else [f"expected a result of type {expected}, got {op.result.type}"]


def _verify_scan(op: Op) -> Sequence[str]:
    par = dims(op, "par")
    faults = verify_reads(op)
    if op["dim"] not in par:
        faults.append(f"expected the scanned dimension among {list(par)}, got '{op['dim']}'")
    faults += _verify_result(op, tuple(par.values()), op.result.type.dtype)
    return faults + verify_scalar_body(op, [op.operands[0].type, op.result.type], [op.result.type])


define(
    "tensor.scan",
    ("x",),
    "Running fold along one parallel dimension: result[.., i, ..] folds elements 0..i, without i when "
    "exclusive, from the end when reverse; body(element, accumulator).",
    attrs={
        **SHAPED,
        "dim": AttrDef("str"),
        "init": AttrDef("number", 0.0),
        "exclusive": AttrDef("bool", False),
        "reverse": AttrDef("bool", False),
    },
    verify=_verify_scan,
    body=True,
    work=WorkClass.NORMALISATION,
)


def _verify_addresses(op: Op, target: TensorType, indices: Sequence[Value]) -> list[str]:
    at = op.exprs("at")
    values, names = {f"i{k}" for k in range(len(indices))}, dims(op, "par").keys()
    known = names | values
    faults = (
        [] if len(at) == target.rank else [f"expected {target.rank} index expressions in 'at', got {len(at)}"]
    )
    if values & names:
        both = ", ".join(sorted(values & names))
        faults.append(f"dimensions {both} have the names of values read from the index operands")
    for e in at:
        unknown = sorted(set(symbols(e)) - known)
        if unknown:
            faults.append(f"'at' uses unknown symbols {', '.join(unknown)}")
    for v in indices:
        if not v.type.dtype.startswith(("i", "u")):
            faults.append(f"expected integer indices, got {v.type}")
    return faults + verify_reads(op, first=1)


def _verify_gather(op: Op) -> Sequence[str]:
    data = op.operands[0].type
    if not isinstance(data, TensorType):
        return [f"expected a tensor to gather from, got {data}"]
    faults = _verify_addresses(op, data, op.operands[1:])
    if op["mode"] not in GATHER_MODES:
        faults.append(f"expected mode {', '.join(GATHER_MODES)}, got '{op['mode']}'")
    return faults + _verify_result(op, tuple(dims(op, "par").values()), data.dtype)


define(
    "tensor.gather",
    ("data", "indices*"),
    "result[par] = data[at], where symbols i0, i1, ... in `at` are values read from the index operands.",
    attrs={
        "par": SHAPED["par"],
        "reads": AttrDef("accesses", doc="where each index operand is read"),
        "at": AttrDef("exprs"),
        "mode": AttrDef("str", "clip", "clip, wrap, or fill (with `fill_value`) for addresses out of bounds"),
        "fill_value": AttrDef("number", 0.0),
    },
    verify=_verify_gather,
    work=WorkClass.ELEMENTWISE,
)


def _verify_scatter(op: Op) -> Sequence[str]:
    init = op.operands[0].type
    if not isinstance(init, TensorType):
        return [f"expected a tensor to scatter into, got {init}"]
    faults = _verify_addresses(op, init, op.operands[2:])
    faults += _verify_result(op, init.shape, init.dtype)
    return faults + verify_scalar_body(op, [init, op.operands[1].type], [init])


define(
    "tensor.scatter",
    ("init", "updates", "indices*"),
    "A copy of init where, for each point of par in order, element `at` becomes body(old, update); "
    "addresses out of bounds are dropped.",
    attrs={
        "par": SHAPED["par"],
        "reads": AttrDef("accesses", doc="where updates and each index operand are read"),
        "at": AttrDef("exprs"),
    },
    verify=_verify_scatter,
    body=True,
    work=WorkClass.ELEMENTWISE,
)
