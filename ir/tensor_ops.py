"""The tensor-op level: iteration domains, affine reads and scalar bodies.

Every structured op computes `result[par...]` for its parallel dimensions `par`; `reads[i]` says which element of
operand i an iteration point reads. A read outside the operand gives `fill[i]`; where `fill` names no value the read
must be in bounds for every point, and the verifier proves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr, symbols
from tilewright.ir.nodes import Attr, Op, Pairs, Value
from tilewright.ir.opdef import AttrDef, OpDef, define
from tilewright.ir.simplify import interval
from tilewright.ir.types import ScalarType, TensorType

#: ops that reduce over `red`; the name records the canonical form the verifier checks.
REDUCING = frozenset({"tensor.reduce", "tensor.contract", "tensor.window"})
STRUCTURED = REDUCING | {"tensor.map"}


def domain(op: Op) -> dict[str, int]:
    """Extents of all iteration dimensions of a structured op: parallel first, then reduced."""
    out = {k: int(v) for k, v in _pairs(op, "par")}  # type: ignore[arg-type]
    out.update({k: int(v) for k, v in _pairs(op, "red")})  # type: ignore[arg-type]
    return out


def _pairs(op: Op, key: str) -> tuple[tuple[str, Attr], ...]:
    value = op.get(key)
    return value.items if isinstance(value, Pairs) else ()


def dims(op: Op, key: str) -> dict[str, int]:
    """`par` or `red` of a structured op as a dict name -> extent."""
    return {k: int(v) for k, v in _pairs(op, key)}  # type: ignore[arg-type]


def reads(op: Op) -> tuple[tuple[Expr, ...], ...]:
    """Index expressions of each operand."""
    return op["reads"]  # type: ignore[return-value]


def fills(op: Op) -> tuple[float | int | bool | None, ...]:
    """The value each operand has outside its bounds; None where reads are always inside."""
    given = op.get("fill") or ()
    return tuple(given) if given else (None,) * len(op.operands)  # type: ignore[arg-type]


def ranges_of(op: Op) -> dict[str, tuple[int, int]]:
    """Inclusive range of each iteration dimension."""
    return {k: (0, n - 1) for k, n in domain(op).items()}


def _verify_structured(op: Op) -> Sequence[str]:
    faults: list[str] = []
    par, red = dims(op, "par"), dims(op, "red")
    if set(par) & set(red):
        faults.append(f"dimensions {sorted(set(par) & set(red))} are both parallel and reduced")
    shape = tuple(par.values())
    for r in op.results:
        if not isinstance(r.type, TensorType) or r.type.shape != shape:
            faults.append(f"expected results of shape {shape} (the parallel domain), got {r.type}")
    faults += _verify_reads(op)
    faults += _verify_body(op)
    if op.name in ("tensor.contract", "tensor.window") and not faults:
        faults += _verify_canonical(op)
    return faults


def _verify_reads(op: Op) -> list[str]:
    faults: list[str] = []
    names, ranges = set(domain(op)), ranges_of(op)
    if len(reads(op)) != len(op.operands) or len(fills(op)) != len(op.operands):
        return [f"expected one read and one fill per operand ({len(op.operands)})"]
    for i, (value, at, fill) in enumerate(zip(op.operands, reads(op), fills(op), strict=True)):
        t = value.type
        if not isinstance(t, TensorType):
            faults.append(f"expected operand {i} to be a tensor, got {t}")
            continue
        if len(at) != t.rank:
            faults.append(f"expected {t.rank} index expressions for operand {i}, got {len(at)}")
            continue
        for d, e in enumerate(at):
            unknown = sorted(set(symbols(e)) - names)
            if unknown:
                faults.append(f"index {d} of operand {i} uses unknown dimensions {', '.join(unknown)}")
                continue
            lo, hi = interval(e, ranges)
            if fill is None and 0 not in shape_of(op) and (lo < 0 or hi >= t.shape[d]):
                faults.append(
                    f"operand {i} is read at [{lo}, {hi}] in dimension {d} of size {t.shape[d]} without a fill value"
                )
    return faults


def shape_of(op: Op) -> tuple[int, ...]:
    """Extents of the whole domain."""
    return tuple(domain(op).values())


def _verify_body(op: Op) -> list[str]:
    if op.body is None:
        return ["expected a body"]
    accumulators = len(op.results) if op.name in REDUCING else 0
    wanted = [ScalarType(v.type.dtype) for v in op.operands if isinstance(v.type, TensorType)]
    wanted += [ScalarType(r.type.dtype) for r in op.results[:accumulators] if isinstance(r.type, TensorType)]
    got = [p.type for p in op.body.params]
    faults = []
    if got != wanted:
        faults.append(f"expected body parameters {_types(wanted)}, got {_types(got)}")
    if not op.body.ops or op.body.ops[-1].name != "scalar.yield":
        return [*faults, "expected the body to end in scalar.yield"]
    yielded = [v.type for v in op.body.ops[-1].operands]
    results = [ScalarType(r.type.dtype) for r in op.results if isinstance(r.type, TensorType)]
    if yielded != results:
        faults.append(f"expected the body to yield {_types(results)}, got {_types(yielded)}")
    if accumulators and len(op["init"]) != accumulators:  # type: ignore[arg-type]
        faults.append(f"expected {accumulators} initial values")
    return faults


def _types(types: Sequence[object]) -> str:
    return "(" + ", ".join(map(str, types)) + ")"


def _verify_canonical(op: Op) -> list[str]:
    if op.name == "tensor.contract" and contraction(op) is None:
        return ["expected a sum of products of two operands (each possibly cast): scalar.fma(a, b, acc)"]
    if op.name == "tensor.window" and not dims(op, "red"):
        return ["expected at least one reduced (window) dimension"]
    return []


def contraction(op: Op) -> tuple[int, int] | None:
    """Positions of the two multiplied operands when the body is `acc + a * b` (operands possibly cast), else None."""
    if op.body is None or len(op.operands) != 2 or len(op.results) != 1:
        return None
    a, b, acc = op.body.params
    source: dict[Value, Value] = {a: a, b: b, acc: acc}
    for inner in op.body.ops[:-1]:
        if inner.name == "scalar.cast" and inner.operands[0] in source:
            source[inner.result] = source[inner.operands[0]]
        elif inner.name == "scalar.fma" and inner is op.body.ops[-2]:
            x, y, z = (source.get(v) for v in inner.operands)
            if {x, y} == {a, b} and z is acc and op.body.ops[-1].operands == (inner.result,):
                return 0, 1
            return None
        else:
            return None
    return None


_SHAPED = {
    "par": AttrDef("dims", doc="parallel dimensions and extents: the result's shape"),
    "reads": AttrDef("accesses", doc="index expressions per operand"),
    "fill": AttrDef("list", (), "value per operand outside its bounds, none where always inside"),
}
_REDUCED = {
    "par": _SHAPED["par"],
    "red": AttrDef("dims", doc="reduced dimensions and extents"),
    "reads": _SHAPED["reads"],
    "fill": _SHAPED["fill"],
    "init": AttrDef("list", (0.0,), "initial accumulator per result"),
}
define(
    OpDef(
        "tensor.map",
        ("operands*",),
        "result[par] = body(operand[reads]...); also transposes, slices, broadcasts, pads and concatenates.",
        attrs=_SHAPED,
        results=None,
        verify=_verify_structured,
        body=True,
    )
)
define(
    OpDef(
        "tensor.reduce",
        ("operands*",),
        "result[par] = fold of body(operand[reads]..., accumulator...) over red, in any order.",
        attrs=_REDUCED,
        results=None,
        verify=_verify_structured,
        body=True,
    )
)
define(
    OpDef(
        "tensor.contract",
        ("a", "b"),
        "result[par] = sum over red of a[reads] * b[reads]: matrix products and convolutions.",
        attrs=_REDUCED,
        verify=_verify_structured,
        body=True,
    )
)
define(
    OpDef(
        "tensor.window",
        ("operands*",),
        "A reduction over a small sliding window: pooling and depthwise convolution.",
        attrs=_REDUCED,
        results=None,
        verify=_verify_structured,
        body=True,
    )
)


def _verify_scan(op: Op) -> Sequence[str]:
    faults = list(_verify_reads(op))
    if op["dim"] not in dims(op, "par"):
        faults.append(f"expected the scanned dimension among {list(dims(op, 'par'))}, got '{op['dim']}'")
    if op.result.tensor.shape != tuple(dims(op, "par").values()):
        faults.append(f"expected a result of shape {tuple(dims(op, 'par').values())}, got {op.result.type}")
    if op.body is None or len(op.body.params) != 2:
        faults.append("expected a body with the element and the accumulator")
    return faults


define(
    OpDef(
        "tensor.scan",
        ("x",),
        "Running fold along one parallel dimension: result[.., i, ..] folds elements 0..i (0..i-1 when exclusive).",
        attrs={
            **_SHAPED,
            "dim": AttrDef("str"),
            "init": AttrDef("number", 0.0),
            "exclusive": AttrDef("bool", False),
            "reverse": AttrDef("bool", False),
        },
        verify=_verify_scan,
        body=True,
    )
)


def _verify_indexed(op: Op) -> Sequence[str]:
    scatter = op.name == "tensor.scatter"
    names = set(dims(op, "par"))
    indices = op.operands[2:] if scatter else op.operands[1:]
    known = names | {f"i{k}" for k in range(len(indices))}
    target = op.operands[0].type
    faults = []
    if isinstance(target, TensorType) and len(op["at"]) != target.rank:  # type: ignore[arg-type]
        faults.append(f"expected {target.rank} index expressions in 'at', got {len(op['at'])}")  # type: ignore[arg-type]
    for e in op["at"]:  # type: ignore[union-attr]
        unknown = sorted(set(symbols(e)) - known)  # type: ignore[arg-type]
        if unknown:
            faults.append(f"'at' uses unknown symbols {', '.join(unknown)}")
    for v in indices:
        if isinstance(v.type, TensorType) and not v.type.dtype.startswith(("i", "u")):
            faults.append(f"expected integer indices, got {v.type}")
    wanted = len(op.operands) - 1
    if len(reads(op)) != wanted:
        faults.append(f"expected {wanted} reads (all operands but the first), got {len(reads(op))}")
    return faults


define(
    OpDef(
        "tensor.gather",
        ("data", "indices*"),
        "result[par] = data[at], where symbols i0, i1, ... in `at` are values read from the index operands.",
        attrs={
            "par": _SHAPED["par"],
            "reads": AttrDef("accesses", doc="where each index operand is read"),
            "at": AttrDef("exprs"),
            "mode": AttrDef(
                "str", "clip", "clip, wrap, or fill (with `fill_value`) for indices out of bounds"
            ),
            "fill_value": AttrDef("number", 0.0),
        },
        verify=_verify_indexed,
    )
)
define(
    OpDef(
        "tensor.scatter",
        ("init", "updates", "indices*"),
        "A copy of init where, for each point of par in order, element `at` becomes body(old, update); out of bounds is dropped.",
        attrs={
            "par": _SHAPED["par"],
            "reads": AttrDef("accesses", doc="where updates and each index operand are read"),
            "at": AttrDef("exprs"),
        },
        verify=_verify_indexed,
        body=True,
    )
)
define(
    OpDef(
        "tensor.call",
        ("operands*",),
        "Run a kernel (a function of this module) or a library kernel. Buffers are dense: shapes may differ from the "
        "callee's as long as dtype and number of elements agree.",
        attrs={"callee": AttrDef("ref")},
        results=None,
    )
)
define(
    OpDef(
        "tensor.constant",
        (),
        "A named constant of the module.",
        attrs={"name": AttrDef("str")},
    )
)
define(
    OpDef(
        "tensor.return",
        ("values*",),
        "Results of the function.",
        results=0,
        infer=lambda t, a: [],
        effects=frozenset({"terminator"}),
    )
)
