"""Strategies for the IR: attributes, index expressions, and modules that are well-formed but mean nothing."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st

from tilewright.ir import Block, Func, Level, Module, Op, Pairs, Ref, ScalarType, Sym, TensorType, Type, Value
from tilewright.ir.expr import OPERATORS, Expr, binary
from tilewright.ir.nodes import Attr
from tilewright.ir.opdef import ORIGINS, REQUIRED, OpDef, op_defs
from tilewright.ir.types import DTYPES, LANES, SPACES

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True)
KEYS = st.one_of(
    NAMES, st.sampled_from(["loc", "in", "module", "true", "inf", "min", "graph", "r.b0_n", "row.0"])
)
SYMBOL_NAMES = st.sampled_from(
    ["i", "kh", "tid", "bid.x", "bid.y", "min", "max", "module", "loc", "in", "inf1", "N_0"]
)
SYMBOLS = SYMBOL_NAMES.map(Sym)
FLOATS = st.one_of(
    st.floats(), st.sampled_from([0.0, -0.0, 1e-7, 1e16, 5e-324, -1.5e300, float("inf"), -float("inf")])
)


@st.composite
def _operation(draw: st.DrawFn, parts: st.SearchStrategy[Expr]) -> Expr:
    op, lhs, rhs = draw(st.sampled_from(OPERATORS)), draw(parts), draw(parts)
    if op in ("//", "%") and isinstance(rhs, int):
        rhs = abs(rhs) + 1
    e = binary(op, lhs, rhs)
    return lhs if isinstance(e, int) and abs(e) >> 63 else e


EXPRS: st.SearchStrategy[Expr] = st.recursive(
    st.one_of(SYMBOLS, st.integers(-9, 99), INT64), _operation, max_leaves=8
)


def _nested(parts: st.SearchStrategy[Attr]) -> st.SearchStrategy[Attr]:
    pairs = st.lists(st.tuples(KEYS, parts), max_size=3).map(lambda items: Pairs(tuple(items)))
    return st.one_of(st.lists(parts, max_size=3).map(tuple), pairs)


ATTRS: st.SearchStrategy[Attr] = st.recursive(
    st.one_of(st.none(), st.booleans(), INT64, FLOATS, st.text(max_size=8), EXPRS, NAMES.map(Ref)),
    _nested,
    max_leaves=6,
)
TYPES: st.SearchStrategy[Type] = st.one_of(
    st.builds(ScalarType, st.sampled_from(sorted(DTYPES | {"index"})), st.sampled_from(sorted(LANES))),
    st.builds(
        TensorType,
        st.sampled_from(sorted(DTYPES)),
        st.lists(st.integers(0, 999), max_size=4).map(tuple),
        st.sampled_from(sorted(SPACES)),
    ),
)
HINTS = st.one_of(
    st.sampled_from(
        ["", "", "x", "x", "0", "7", "a.b", "a b", 'quo"te', "\\", "é", "1x", "%x", "conv/weight:0"]
    ),
    st.text(max_size=5),
)
VALUES = st.builds(Value, TYPES, HINTS)

_tuples: Callable[..., st.SearchStrategy[Attr]] = lambda s: st.lists(s, max_size=3).map(tuple)  # noqa: E731
KINDS: dict[str, st.SearchStrategy[Attr]] = {
    "int": INT64,
    "float": FLOATS,
    "number": st.one_of(INT64, FLOATS, st.booleans()),
    "bool": st.booleans(),
    "str": st.text(max_size=8),
    "strs": _tuples(st.text(max_size=8)),
    ORIGINS: _tuples(st.text(max_size=8)),
    "dtype": st.sampled_from(sorted(DTYPES)),
    "ints": _tuples(INT64),
    "expr": EXPRS,
    "exprs": _tuples(EXPRS),
    "accesses": _tuples(_tuples(EXPRS)),
    "mask": _tuples(st.tuples(EXPRS, EXPRS, EXPRS)),
    "dims": st.dictionaries(KEYS, st.integers(0, 2**40), max_size=3).map(Pairs.of),
    "pairs": st.dictionaries(KEYS, ATTRS, max_size=3).map(Pairs.of),
    "sym": SYMBOLS,
    "ref": NAMES.map(Ref),
    "list": _tuples(ATTRS),
}


def _known(d: OpDef) -> bool:
    return all(a.kind.removesuffix("?") in KINDS for a in d.attrs.values())


@st.composite
def ops(draw: st.DrawFn, level: Level, live: list[Value], depth: int) -> Op:
    """An op of any definition of the level; operands and result types are arbitrary."""
    prefixes = (level.value, "scalar") if level is not Level.GRAPH else ("graph",)
    d = draw(st.sampled_from([d for d in op_defs() if d.name.partition(".")[0] in prefixes and _known(d)]))
    given = {
        name: draw(KINDS[a.kind.removesuffix("?")])
        for name, a in d.attrs.items()
        if a.default is REQUIRED or draw(st.booleans())
    }
    operands = tuple(draw(st.lists(st.sampled_from(live), max_size=3))) if live else ()
    body = draw(blocks(level, live, depth - 1)) if depth and draw(st.booleans()) else None
    results = tuple(draw(st.lists(VALUES, max_size=2)))
    return Op(d.name, operands, d.complete(given), results, body, draw(st.text(max_size=6)))


@st.composite
def blocks(draw: st.DrawFn, level: Level, live: list[Value], depth: int) -> Block:
    """A block whose ops use values defined before them, here or outside."""
    params = tuple(draw(st.lists(VALUES, max_size=2)))
    live = [*live, *params]
    out: list[Op] = []
    for _ in range(draw(st.integers(0, 3))):
        op = draw(ops(level, live, depth))
        out.append(op)
        live += op.results
    return Block(params, tuple(out))


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """Functions of every level, attributes of every kind."""
    keyed = st.dictionaries(NAMES, ATTRS, max_size=3).map(lambda d: tuple(d.items()))
    funcs = []
    for name in draw(st.lists(NAMES, unique=True, max_size=2)):
        level = draw(st.sampled_from(list(Level)))
        body = draw(blocks(level, [], 2))
        types = tuple(draw(st.lists(TYPES, max_size=2)))
        funcs.append(Func(level, name, body, types, draw(keyed)))
    return Module(draw(NAMES), tuple(funcs), draw(keyed))
