"""What a report says of convolutions: the algorithms that competed, with estimates and measured times."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from tilewright.costmodel import Hardware
from tilewright.ir import Func, Op, Pairs
from tilewright.passes.estimation.algorithms import estimated_s
from tilewright.passes.graph.choose_algorithms import compared


def convolution_facts(main: Func, hardware: Hardware) -> list[dict[str, Any]]:
    """A row for all convolutions alike of a graph-level @main, after their algorithms were chosen.

    origins, data, kernel (shapes), algorithm, and `considered`: of each algorithm that competes `estimate_s`
    and, where a device was asked, `bound_s` and `measured_s` (None where the bound ruled it out).
    """
    constants = {op.result for op in main.body.ops if op.name == "graph.constant"}
    measured = _measured(main)
    rows: dict[Hashable, dict[str, Any]] = {}
    for i, op in enumerate(op for op in main.body.ops if op.name == "graph.conv2d"):
        constant = op.operands[1] in constants
        considered = measured.get(i)
        key = (tuple(v.type for v in op.operands), op.attrs, constant, str(considered))
        if key not in rows:
            data, kernel = (list(v.tensor.shape) for v in op.operands)
            row = {"origins": [], "data": data, "kernel": kernel, "algorithm": op["algorithm"]}
            rows[key] = {**row, "considered": considered or _estimated(op, hardware, constant)}
        rows[key]["origins"].append(op.loc)
    return list(rows.values())


def _measured(main: Func) -> dict[int, list[dict[str, Any]]]:
    """Considered algorithms by position among the convolutions, where `tune="measure"` left them."""
    out: dict[int, list[dict[str, Any]]] = {}
    records = main.get("convolutions")
    for record in records if isinstance(records, tuple) else ():
        assert isinstance(record, Pairs)
        found = record.as_dict()
        considered, at = found["considered"], found["at"]
        assert isinstance(considered, tuple)
        assert isinstance(at, tuple)
        plain = [r.as_dict() for r in considered if isinstance(r, Pairs)]
        out.update((i, plain) for i in at if isinstance(i, int))
    return out


def _estimated(op: Op, hardware: Hardware, constant_weight: bool) -> list[dict[str, Any]]:
    direct = op.with_attrs(algorithm="direct")
    return [
        {"algorithm": name, "estimate_s": estimated_s(op, name, hardware, constant_weight=constant_weight)}
        for name in compared(direct)
    ]
