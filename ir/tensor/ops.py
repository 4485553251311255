"""The tensor-op level: iteration domains, affine reads and scalar bodies.

Every structured op computes `result[par...]` for its parallel dimensions `par`; `reads[i]` says which
element of operand i an iteration point reads. A read outside the operand gives `fill[i]`; where `fill` names
no value the read must be in bounds for every point, and the verifier proves it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.expr import Expr, symbols
from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Attr, Op, Pairs, Ref, Value
from tilewright.ir.opdef import AttrDef, define, no_results
from tilewright.ir.simplify import interval
from tilewright.ir.types import ScalarType, TensorType, Type

#: ops that reduce over `red`; the name records the canonical form the verifier checks.
REDUCING = frozenset({"tensor.reduce", "tensor.contract", "tensor.window"})
STRUCTURED = REDUCING | {"tensor.map"}
#: what a contraction of float32 factors may do with them (its attribute `factors`)
TF32, SPLIT = "tf32", "split"


def domain(op: Op) -> dict[str, int]:
    """Extents of all iteration dimensions of a structured op: parallel first, then reduced."""
    out = dims(op, "par")
    out.update(dims(op, "red"))
    return out


def dims(op: Op, key: str) -> dict[str, int]:
    """`par` or `red` of a structured op as a dict name -> extent."""
    for name, value in op.attrs:
        if name == key:
            return dict(value.items) if isinstance(value, Pairs) else {}  # type: ignore[arg-type]
    return {}


def reads(op: Op) -> tuple[tuple[Expr, ...], ...]:
    """Index expressions of each operand."""
    return op["reads"]  # type: ignore[return-value]


def fills(op: Op) -> tuple[float | int | bool | None, ...]:
    """The value each operand has outside its bounds; None where reads are always inside."""
    listed = op.get("fill") or ()
    return tuple(listed) if listed else (None,) * len(op.operands)  # type: ignore[arg-type]


def callee_of(call: Op) -> str:
    """Name of the function that a tensor.call runs."""
    ref = call["callee"]
    assert isinstance(ref, Ref)
    return ref.name


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
    faults += verify_reads(op)
    faults += _verify_body(op)
    if op.name in ("tensor.contract", "tensor.window") and not faults:
        faults += _verify_canonical(op)
    return faults


def verify_reads(op: Op, first: int = 0) -> list[str]:
    """Faults of the accesses of all operands from `first` on: counts, ranks, unknown dimensions, bounds."""
    operands = op.operands[first:]
    outside = fills(op)[first:]
    if len(reads(op)) != len(operands) or len(outside) != len(operands):
        return [f"expected one read and one fill per operand ({len(operands)})"]
    faults: list[str] = []
    for i, (value, at, fill) in enumerate(zip(operands, reads(op), outside, strict=True), first):
        if not isinstance(value.type, TensorType):
            faults.append(f"expected operand {i} to be a tensor, got {value.type}")
        elif len(at) != value.type.rank:
            faults.append(f"expected {value.type.rank} index expressions for operand {i}, got {len(at)}")
        else:
            faults += _verify_access(op, i, value.type, at, fill)
    return faults


def _verify_access(op: Op, i: int, t: TensorType, at: Sequence[Expr], fill: Attr) -> list[str]:
    faults: list[str] = []
    ranges = ranges_of(op)
    if fill is not None and type(fill) not in (int, float, bool):
        faults.append(f"expected a number or none as fill of operand {i}, got {fill!r}")
    for d, (e, size) in enumerate(zip(at, t.shape, strict=True)):
        unknown = sorted(set(symbols(e)) - ranges.keys())
        if unknown:
            faults.append(f"index {d} of operand {i} uses unknown dimensions {', '.join(unknown)}")
            continue
        lo, hi = interval(e, ranges)
        if fill is None and 0 not in shape_of(op) and (lo < 0 or hi >= size):
            faults.append(
                f"operand {i} is read at [{lo}, {hi}] in dimension {d} of size {size} without a fill value"
            )
    return faults


def shape_of(op: Op) -> tuple[int, ...]:
    """Extents of the whole domain."""
    return tuple(domain(op).values())


def _verify_body(op: Op) -> list[str]:
    accumulators = len(op.results) if op.name in REDUCING else 0
    expected = [*op.operands, *op.results[:accumulators]]
    faults = verify_scalar_body(op, [v.type for v in expected], [r.type for r in op.results])
    if accumulators:
        init = op["init"]
        assert isinstance(init, tuple)
        if len(init) != accumulators or any(type(x) not in (int, float, bool) for x in init):
            faults.append(f"expected {accumulators} numbers as initial values")
    return faults


def verify_scalar_body(op: Op, params: Sequence[Type], results: Sequence[Type]) -> list[str]:
    """Faults of a body that takes a scalar per tensor of `params` and yields one per tensor of `results`."""
    if op.body is None:
        return ["expected a body"]
    faults = []
    expected = [ScalarType(t.dtype) for t in params]
    got = [p.type for p in op.body.params]
    if got != expected:
        faults.append(f"expected body parameters {_types(expected)}, got {_types(got)}")
    if not op.body.ops or op.body.ops[-1].name != "scalar.yield":
        return [*faults, "expected the body to end in scalar.yield"]
    expected, got = [ScalarType(t.dtype) for t in results], [v.type for v in op.body.ops[-1].operands]
    if got != expected:
        faults.append(f"expected the body to yield {_types(expected)}, got {_types(got)}")
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
    """Positions of the two factors when the body is `acc + a * b` (each possibly cast), else None."""
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


SHAPED = {
    "par": AttrDef("dims", doc="parallel dimensions and extents: the result's shape"),
    "reads": AttrDef("accesses", doc="index expressions per operand"),
    "fill": AttrDef("list", (), "value per operand outside its bounds, none where always inside"),
}
_REDUCED = {
    "par": SHAPED["par"],
    "red": AttrDef("dims", doc="reduced dimensions and extents"),
    "reads": SHAPED["reads"],
    "fill": SHAPED["fill"],
    "init": AttrDef("list", (0.0,), "initial accumulator per result"),
}


def _work_of_window(op: Op) -> WorkClass:
    """Depthwise convolutions sum products; pooling reduces."""
    return WorkClass.NORMALISATION if contraction(op) is None else WorkClass.CONTRACTION


define(
    "tensor.map",
    ("operands*",),
    "result[par] = body(operand[reads]...); also transposes, slices, broadcasts, pads and concatenates.",
    attrs=SHAPED,
    results=None,
    verify=_verify_structured,
    body=True,
    work=WorkClass.ELEMENTWISE,
)
define(
    "tensor.reduce",
    ("operands*",),
    "result[par] = fold of body(operand[reads]..., accumulator...) over red, in any order.",
    attrs=_REDUCED,
    results=None,
    verify=_verify_structured,
    body=True,
    work=WorkClass.NORMALISATION,
)
define(
    "tensor.contract",
    ("a", "b"),
    "result[par] = sum over red of a[reads] * b[reads]: matrix products and convolutions.",
    attrs={
        **_REDUCED,
        "factors": AttrDef(
            "str",
            "",
            "tf32: float32 factors may be rounded to TF32 before the product; split: they may be multiplied "
            "in pieces of bfloat16, with errors no larger than those of float32 sums",
        ),
    },
    verify=_verify_structured,
    body=True,
    work=WorkClass.CONTRACTION,
)
define(
    "tensor.window",
    ("operands*",),
    "A reduction over a small sliding window: pooling and depthwise convolution.",
    attrs=_REDUCED,
    results=None,
    verify=_verify_structured,
    body=True,
    work=_work_of_window,
)


define(
    "tensor.call",
    ("operands*",),
    "Run a kernel (a function of this module) or a library kernel. Shapes may differ from the callee's "
    "as long as dtype, number of elements and the memory from the first to the last one agree.",
    attrs={"callee": AttrDef("ref")},
    results=None,
)
define(
    "tensor.constant",
    (),
    "A named constant of the module.",
    attrs={"name": AttrDef("str")},
)
define(
    "tensor.return",
    ("values*",),
    "Results of the function.",
    results=0,
    infer=no_results,
    effects=frozenset({"terminator"}),
)
