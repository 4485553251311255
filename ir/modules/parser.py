"""Text -> Module for all levels. Every error carries file, line, column and what was expected."""

from __future__ import annotations

import json
import os
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lark import Lark, Token, Transformer, UnexpectedInput
from lark.exceptions import UnexpectedCharacters, UnexpectedToken

from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.constants import Constants, load_constants
from tilewright.ir.errors import InputError, expect, file_path
from tilewright.ir.expr import BinOp, Sym, binary
from tilewright.ir.nodes import Attr, Block, Func, Level, Module, Op, Pairs, Ref, TypedAttr, Value
from tilewright.ir.opdef import op_def
from tilewright.ir.typed_attributes import read_attribute, upgraded
from tilewright.ir.types import TensorType, Type, parse_scalar

MAX_BYTES = 64 << 20
MAX_DEPTH = 100
MAX_DIGITS = 20
MAX_FLOAT_DIGITS = 400

#: names that ops and their attributes had in texts of earlier versions, which saved files hold, and now have
FORMER_OPS = {
    "thread.publish_shared": "thread.fence_async_proxy",
    "thread.renew_rows": "thread.rescale_factors",
}
FORMER_ATTRS = {("thread.scale_rows", "seldom"): "skip_if_one"}

_BRACKET = re.compile(r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"?|#[^\n]*|->|[()\[\]{}<>]')


class _ParsedBody(NamedTuple):
    params: list[tuple[Token, Type]]
    ops: list[_ParsedOp]


class _ParsedOp(NamedTuple):
    results: list[Token]
    name: Token
    operands: list[Token]
    attrs: list[tuple[Token, Attr]]
    types: list[Type]
    loc: str
    body: _ParsedBody | None


class _ParsedFunc(NamedTuple):
    level: Token
    name: Token
    params: list[tuple[Token, Type]]
    attrs: list[tuple[Token, Attr]]
    types: list[Type]
    body: _ParsedBody


class _SyntaxFault(Exception):
    def __init__(self, message: str, token: Token | None = None) -> None:
        super().__init__(message)
        self.token = token


def _number(token: Token) -> int:
    if len(token) > MAX_DIGITS:
        raise _SyntaxFault(
            f"expected a number of at most {MAX_DIGITS} digits, got one of {len(token)}", token
        )
    return int(token)


def _float(token: Token) -> float:
    if len(token) > MAX_FLOAT_DIGITS:
        raise _SyntaxFault(
            f"expected a float of at most {MAX_FLOAT_DIGITS} characters, got {len(token)}", token
        )
    return float(token)


def _text(token: Token, start: int = 0) -> str:
    """The string a quoted token stands for."""
    try:
        (text := str(json.loads(token[start:]))).encode()  # half of a surrogate pair is no character
        return text
    except ValueError as e:
        raise _SyntaxFault(f"expected a string with JSON escapes, got {_short(token)}", token) from e


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."


class _TreeBuilder(Transformer[Token, Any]):
    """Reductions of the LALR parser, without state; names are resolved afterwards, when scopes are known."""

    def start(self, c: list[Any]) -> Any:
        return c[0], c[1] or [], c[2:]

    def attributes(self, c: list[Any]) -> Any:
        return [k for k in c if k is not None]

    def func(self, c: list[Any]) -> _ParsedFunc:
        arguments = [a for a in c[2:-2] if a is not None]
        params = [a[1:] for a in arguments if a[0] == "parameter"]
        attrs = [a for a in arguments if a[0] != "parameter"]
        return _ParsedFunc(c[0], c[1], params, attrs, c[-2] or [], c[-1])

    def parameter(self, c: list[Any]) -> Any:
        return "parameter", c[0], c[1]

    def body(self, c: list[Any]) -> _ParsedBody:
        params = [x[1:] for x in c if x is not None and not isinstance(x, _ParsedOp)]
        return _ParsedBody(params, [x for x in c if isinstance(x, _ParsedOp)])

    def op(self, c: list[Any]) -> _ParsedOp:
        at = next(i for i, x in enumerate(c) if isinstance(x, Token) and x.type == "OP")
        types, loc, body = c[-3:]
        inside = [x for x in c[at + 1 : -3] if x is not None]
        return _ParsedOp(
            [x for x in c[:at] if x is not None],
            c[at],
            [x for x in inside if isinstance(x, Token)],
            [x for x in inside if not isinstance(x, Token)],
            types or [],
            _text(loc) if loc is not None else "",
            body,
        )

    def keyword(self, c: list[Any]) -> Any:
        return c[0], _plain(c[1])

    def types(self, c: list[Any]) -> list[Type]:
        return c

    def scalar_type(self, c: list[Any]) -> Type:
        try:
            return parse_scalar(str(c[0]))
        except InputError as e:
            raise _SyntaxFault(str(e), c[0]) from e

    def tensor_type(self, c: list[Any]) -> Type:
        name, *dims, space, steps, start = c
        shape = tuple(_number(d) for d in dims if d is not None)
        place = (steps or (), _number(start) if start is not None else 0)
        try:
            return TensorType(str(name), shape, str(space) if space is not None else "global", *place)
        except InputError as e:
            raise _SyntaxFault(str(e), name) from e

    def steps(self, c: list[Any]) -> tuple[int, ...]:
        return tuple(map(_number, c))

    def real(self, c: list[Any]) -> float:
        return _float(c[0])

    def negative_real(self, c: list[Any]) -> float:
        return -_float(c[0])

    def string(self, c: list[Any]) -> str:
        return _text(c[0])

    def true(self, _: list[Any]) -> bool:
        return True

    def false(self, _: list[Any]) -> bool:
        return False

    def none(self, _: list[Any]) -> None:
        return None

    def reference(self, c: list[Any]) -> Ref:
        return Ref(str(c[0])[1:])

    def sequence(self, c: list[Any]) -> Any:
        return tuple(map(_plain, c))

    def pairs(self, c: list[Any]) -> Pairs:
        return Pairs(tuple(c))

    def pair(self, c: list[Any]) -> tuple[str, Attr]:
        return str(c[0]), _plain(c[1])

    def typed(self, c: list[Any]) -> TypedAttr:
        try:
            return read_attribute(str(c[0]), Pairs(tuple(x for x in c[1:] if x is not None)))
        except InputError as e:
            raise _SyntaxFault(str(e), c[0]) from e

    def integer(self, c: list[Any]) -> int:
        return _number(c[0])

    def negative_integer(self, c: list[Any]) -> int:
        return -_number(c[0])

    def symbol(self, c: list[Any]) -> Sym:
        try:
            return Sym(str(c[0]))
        except InputError as e:
            raise _SyntaxFault(str(e), c[0]) from e

    def binary(self, c: list[Any]) -> Any:
        return _expr(c[1], c[0], c[2])

    def extreme(self, c: list[Any]) -> Any:
        return _expr(c[0], c[1], c[2])


class _Deep(NamedTuple):
    """An index expression under construction and the depth of its tree."""

    node: BinOp
    depth: int


def _expr(token: Token, lhs: Any, rhs: Any) -> Any:
    depth = 1 + max(x.depth if type(x) is _Deep else 0 for x in (lhs, rhs))
    if depth > MAX_DEPTH:
        raise _SyntaxFault(f"expected an expression nested at most {MAX_DEPTH} deep", token)
    try:
        node = binary(str(token), _plain(lhs), _plain(rhs))
    except InputError as e:
        raise _SyntaxFault(str(e), token) from e
    if isinstance(node, int) and abs(node) >> 64:
        raise _SyntaxFault("expected an index expression whose constants fit into 64 bits", token)
    return _Deep(node, depth) if isinstance(node, BinOp) else node


def _plain(attr: Any) -> Any:
    return attr.node if type(attr) is _Deep else attr


@cache
def _grammar() -> str:
    return files("tilewright.ir.modules").joinpath("grammar.lark").read_text(encoding="utf-8")


class _Names:
    """Resolves names inside one function and builds nodes."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.names: dict[str, Value] = {}
        self.order: list[str] = []

    def fail(self, token: Token, message: str) -> NoReturn:
        raise InputError(message, where=f"{self.where}:{token.line}:{token.column}")

    def define(self, token: Token, type_: Type) -> Value:
        key = str(token)
        if key in self.names:
            self.fail(token, f"{token} is defined twice")
        hint = _text(token, 1) if key.startswith('%"') else ("" if key[1:].isdigit() else key[1:])
        value = self.names[key] = Value(type_, hint)
        self.order.append(key)
        return value

    def leave(self, depth: int) -> None:
        """Forget the names defined since `depth` names were known."""
        while len(self.order) > depth:
            del self.names[self.order.pop()]

    def attrs(self, pairs: list[tuple[Token, Attr]]) -> tuple[tuple[str, Attr], ...]:
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                self.fail(key, f"attribute '{key}' is given twice")
            seen.add(str(key))
        return tuple((str(k), v) for k, v in pairs)

    def block(self, body: _ParsedBody) -> Block:
        params = tuple(self.define(t, type_) for t, type_ in body.params)
        return Block(params, tuple(self.op(o) for o in body.ops))

    def op(self, o: _ParsedOp) -> Op:
        for t in o.operands:
            if str(t) not in self.names:
                self.fail(t, f"use of undefined value {t}")
        operands = tuple(self.names[str(t)] for t in o.operands)
        name = FORMER_OPS.get(o.name, str(o.name))
        named = {FORMER_ATTRS.get((name, k), k): v for k, v in self.attrs(o.attrs)}
        try:
            attrs = op_def(name).complete(named)
        except InputError as e:
            self.fail(o.name, str(e))
        body = None
        if o.body is not None:
            depth = len(self.order)
            body = self.block(o.body)
            self.leave(depth)
        if len(o.results) != len(o.types):
            self.fail(o.name, f"expected one type per result ({len(o.results)}), got {len(o.types)}")
        results = tuple(self.define(t, type_) for t, type_ in zip(o.results, o.types, strict=True))
        return Op(name, operands, attrs, results, body, o.loc, o.name.line or 0)

    def func(self, f: _ParsedFunc) -> Func:
        params = tuple(self.define(t, type_) for t, type_ in f.params)
        if f.body.params:
            self.fail(f.body.params[0][0], "a function body takes no block parameters")
        block = Block(params, tuple(self.op(o) for o in f.body.ops))
        level = Level(str(f.level).partition(".")[0])
        try:
            attrs = upgraded(self.attrs(f.attrs))
        except InputError as e:
            self.fail(f.name, str(e))
        return Func(level, str(f.name)[1:], block, tuple(f.types), attrs)


def parse(text: str, *, constants: Constants | None = None, where: str = "<text>") -> Module:
    """Parse the textual IR of any level.

    constants: arrays for the named constants (the text holds only their names and types).
    where: file name for error messages.
    Raises InputError (`file:line:column: ...`) on anything not well-formed; `verify` checks the meaning.
    """
    if len(expect(text, str, "IR as text")) > MAX_BYTES:
        raise InputError(f"expected at most {MAX_BYTES} characters of IR, got {len(text)}", where=where)
    text = text.removeprefix("\ufeff")
    _check_nesting(text, where)
    try:
        parsed: Any = _parser().parse(text)
        name, attrs, funcs = parsed
        module_attrs = _Names(where).attrs(attrs)
        built = _funcs(funcs, where)
    except UnexpectedInput as e:
        raise _syntax_error(e, where, text) from None
    except _SyntaxFault as e:
        raise _fault(e, where) from None
    return Module(str(name)[1:], built, module_attrs, constants or Constants())


def _funcs(funcs: list[_ParsedFunc], where: str) -> tuple[Func, ...]:
    seen: set[str] = set()
    for f in funcs:
        if str(f.name) in seen:
            _Names(where).fail(f.name, f"function {f.name} is defined twice")
        seen.add(str(f.name))
    return tuple(_Names(where).func(f) for f in funcs)


@cache
def _parser() -> Lark:
    return Lark(
        _grammar(), parser="lalr", lexer="contextual", maybe_placeholders=True, transformer=_TreeBuilder()
    )


def parse_file(path: str | Path) -> Module:
    """Parse an `.ir` file; constants come from the `.safetensors` file of the same name where one exists."""
    path = file_path(path)
    text = decode(read_bounded(path, MAX_BYTES, "file of IR"), str(path))
    side = path.with_suffix(".safetensors")
    constants = load_constants(side) if os.path.exists(side) else None  # a name grown too long is no file's
    return parse(text, constants=constants, where=str(path))


def decode(data: bytes, where: str) -> str:
    """IR text from the bytes of a file; raises InputError when they are too many or no UTF-8."""
    if len(data) > MAX_BYTES:
        raise InputError(f"expected at most {MAX_BYTES} bytes of IR", where=where)
    try:
        return data.decode("utf-8").removeprefix("\ufeff").replace("\r\n", "\n")
    except UnicodeDecodeError as e:
        raise InputError(f"expected UTF-8 text, got other bytes at offset {e.start}", where=where) from e


def _check_nesting(text: str, where: str) -> None:
    """Deep brackets would exhaust the stack of everything that walks the tree later."""
    depth = 0
    for m in _BRACKET.finditer(text):
        ch = m[0]
        if ch in "([{<":
            depth += 1
            if depth > MAX_DEPTH:
                line, column = text.count("\n", 0, m.start()) + 1, m.start() - text.rfind("\n", 0, m.start())
                raise InputError(
                    f"expected brackets nested at most {MAX_DEPTH} deep", where=f"{where}:{line}:{column}"
                )
        elif ch in ")]}>":
            depth = max(0, depth - 1)


def _fault(e: _SyntaxFault, where: str) -> InputError:
    place = f"{where}:{e.token.line}:{e.token.column}" if e.token is not None else where
    return InputError(str(e), where=place)


def _syntax_error(e: UnexpectedInput, where: str, text: str) -> InputError:
    line, column = e.line, e.column
    if isinstance(e, UnexpectedToken) and e.token.type != "$END":
        expected, got = e.accepts or e.expected, repr(str(e.token))
    elif isinstance(e, UnexpectedCharacters):
        expected, got = e.allowed, repr(e.char)
    else:
        expected, got = getattr(e, "expected", set()), "the end of the text"
        lines = text.rstrip().split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    return InputError(f"expected {_names(expected)}, got {got}", where=f"{where}:{line}:{column}")


_TERMINALS = {
    "RBRACE": "'}'", "LBRACE": "'{'", "LPAR": "'('", "RPAR": "')'", "LSQB": "'['", "RSQB": "']'",
    "COMMA": "','", "COLON": "':'", "EQUAL": "'='", "CIRCUMFLEX": "'^'", "VALUE": "a value (%x)",
    "NAME": "a name", "OP": "an op name", "FUNC": "a function", "SYMBOL": "a symbol (@f)",
    "INT": "an integer", "STRING": "a string", "MODULE": "'module'", "FLOAT": "a float", "LOC": "'loc'",
    "IN": "'in'", "__ANON_0": "'->'", "MINUS": "'-'", "ADDITIVE": "'+' or '-'",
    "MULTIPLICATIVE": "'*', '//' or '%'", "EXTREME": "min or max", "DOTTED": "a dotted name",
    "LESSTHAN": "'<'", "MORETHAN": "'>'", "TRUE": "true", "FALSE": "false", "NONE": "none",
    "$END": "the end of the text",
}  # fmt: skip


def _names(expected: Any) -> str:
    skip = {"COMMENT", "WS"}
    names = sorted({_TERMINALS.get(t, t) for t in expected or () if t not in skip})
    return " or ".join(names[:8]) if names else "something else"
