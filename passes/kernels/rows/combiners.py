"""What combines two partial results of a reduction, and from which value it starts."""

from __future__ import annotations

from typing import Any

from tilewright.ir import Op

#: ops that may combine two partial results, with the reductions they finish
COMBINERS = frozenset(f"scalar.{n}" for n in ("add", "mul", "max", "min", "and", "or"))


def combiner(op: Op) -> str | None:
    """The scalar op that merges two partial results of a reduction; None where its body is no such fold."""
    if op.body is None or len(op.results) != 1:
        return None
    acc = op.body.params[-1]
    last = op.body.ops[-2] if len(op.body.ops) > 1 else None
    users = [o for o in op.body.ops if acc in o.operands]
    if last is None or users != [last] or op.body.ops[-1].operands != (last.result,):
        return None
    if last.name == "scalar.fma" and last.operands[2] is acc and acc not in last.operands[:2]:
        return "scalar.add"
    return last.name if last.name in COMBINERS and last.operands.count(acc) == 1 else None


def neutral(op: Op) -> float | int | bool:
    """The value that leaves the reduction's combiner unchanged."""
    return neutral_of(combiner(op), op.result.tensor.dtype)


def first_of(op: Op) -> float | int | bool:
    """The value a reduction with one result starts from."""
    init: Any = op["init"]
    (start,) = init
    first: float | int | bool = start
    return first


def neutral_of(name: str | None, dtype: str) -> float | int | bool:
    """The value of `dtype` that leaves the other operand of a combiner unchanged."""
    if dtype == "bool":
        return name == "scalar.and"
    whole = not dtype.startswith(("f", "bf"))
    bits = int(dtype[1:]) if whole else 0
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype[0] == "i" else (0, (1 << bits) - 1)
    table: dict[str | None, float | int] = {
        "scalar.add": 0, "scalar.mul": 1,
        "scalar.max": low if whole else float("-inf"), "scalar.min": high if whole else float("inf"),
    }  # fmt: skip
    return table[name]
