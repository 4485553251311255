"""Builds blocks op by op: fills in defaults, infers result types, remembers the current location."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr, Sym
from tilewright.ir.nodes import Attr, Block, Op, Pairs, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.types import ScalarType, Type


class Builder:
    """Collects ops of one block. `loc` is given to every op that does not name its own."""

    def __init__(self, loc: str = "") -> None:
        self.ops: list[Op] = []
        self.loc = loc

    @contextmanager
    def at(self, loc: str) -> Iterator[None]:
        """Use `loc` for the ops built inside."""
        before, self.loc = self.loc, loc
        try:
            yield
        finally:
            self.loc = before

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Mapping[str, Attr] | None = None,
        *,
        types: Sequence[Type] | None = None,
        body: Block | None = None,
        hint: str = "",
        loc: str | None = None,
    ) -> tuple[Value, ...]:
        """Append an op and return its results.

        types: result types, needed where the op's definition cannot infer them.
        Raises InputError when attributes or operands do not fit the definition.
        """
        definition = op_def(name)
        full = definition.complete(attrs or {})
        if types is None:
            if definition.infer is None:
                raise InputError(f"{name}: result types cannot be inferred and must be given")
            types = definition.infer([v.type for v in operands], dict(full))
        results = tuple([Value(t, hint) for t in types])
        self.ops.append(Op(name, tuple(operands), full, results, body, self.loc if loc is None else loc))
        return results

    def value(self, name: str, *operands: Value, hint: str = "", **attrs: Attr) -> Value:
        """Append an op with one inferred result: `b.value("scalar.add", x, y)`."""
        (result,) = self.emit(name, operands, attrs, hint=hint)
        return result

    def do(self, name: str, *operands: Value, **attrs: Attr) -> None:
        """Append an op without results: `b.do("thread.store", v, buffer, at=(i,))`."""
        self.emit(name, operands, attrs)

    def append(self, op: Op) -> tuple[Value, ...]:
        """Append an existing op unchanged."""
        self.ops.append(op)
        return op.results

    # -- scalars ---------------------------------------------------------------------------------------------
    def const(self, value: float | int | bool, dtype: str) -> Value:
        """A scalar constant."""
        return self.value("scalar.const", value=_typed(value, dtype), dtype=dtype)

    def index(self, at: Expr, dtype: str = "i32") -> Value:
        """The value of an index expression."""
        return self.value("scalar.index", at=at, dtype=dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        """`value` as `dtype`; itself when it already is."""
        return value if value.type.dtype == dtype else self.value("scalar.cast", value, dtype=dtype)

    # -- thread level ----------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, var: str, extent: int, *, unroll: int = 0) -> Iterator[Builder]:
        """A loop without carried values; ops built on the yielded builder form its body."""
        inner = Builder(self.loc)
        yield inner
        attrs: dict[str, Any] = {"var": Sym(var), "extent": extent, "unroll": unroll}
        self.emit("thread.loop", (), attrs, types=(), body=inner.block())

    @contextmanager
    def when(self, mask: tuple[Attr, ...], condition: Value | None = None) -> Iterator[Builder]:
        """Ops that run where the mask holds, and the condition; without both they run always, in place."""
        if not mask and condition is None:
            yield self
            return
        inner = Builder(self.loc)
        yield inner
        operands = () if condition is None else (condition,)
        self.emit("thread.if", operands, {"mask": mask}, body=inner.block())

    def block(self, params: Sequence[Value] = ()) -> Block:
        """The block built so far."""
        return Block(tuple(params), tuple(self.ops))


def _typed(value: float | int | bool, dtype: str) -> float | int | bool:
    if dtype == "bool":
        return bool(value)
    return float(value) if dtype.startswith(("f", "bf")) else int(value)


def scalar_body(dtypes: Sequence[str], hints: Sequence[str] = ()) -> tuple[Builder, tuple[Value, ...]]:
    """A builder for the body of a tensor op, with one scalar parameter per dtype."""
    names = [*hints, *[""] * (len(dtypes) - len(hints))]
    return Builder(), tuple(Value(ScalarType(d), h) for d, h in zip(dtypes, names, strict=True))


def structured(
    b: Builder,
    name: str,
    operands: Sequence[Value],
    *,
    par: Mapping[str, int],
    reads: Sequence[Sequence[Expr]],
    body: Block,
    types: Sequence[Type],
    red: Mapping[str, int] | None = None,
    fill: Sequence[float | int | bool | None] = (),
    init: Sequence[float | int | bool] | None = None,
    hint: str = "",
) -> tuple[Value, ...]:
    """Append a structured tensor op (`tensor.map`, `tensor.contract`, ...) and return its results."""
    attrs: dict[str, Attr] = {"par": Pairs.of(dict(par)), "reads": tuple(tuple(r) for r in reads)}
    if any(f is not None for f in fill):
        attrs["fill"] = tuple(fill)
    if red is not None:
        attrs["red"] = Pairs.of(dict(red))
    if init is not None:
        attrs["init"] = tuple(init)
    return b.emit(name, operands, attrs, types=types, body=body, hint=hint)
