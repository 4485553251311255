"""Turns the parse tree of a Relay text into syntax nodes with names, numbers, metadata and types resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from lark import Token, Tree

from tilewright.frontends.relay.reading import literals
from tilewright.frontends.relay.reading.json_reader import Metadata
from tilewright.frontends.relay.reading.scan import Source
from tilewright.frontends.tvm import ast
from tilewright.frontends.tvm.trampoline import Step, run
from tilewright.ir.errors import InputError, UnsupportedError

Node = Tree[Token]
_NOTE = re.compile(r"\s*(?:ty=(?P<type>.*?))?\s*(?:span=(?P<origin>.*?))?\s*", re.DOTALL)
_INFIX = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
}
_MAX_LIST_DEPTH = 32


class _Scope:
    """Each name holds its visible value; leaving a scope puts back what its bindings hid."""

    def __init__(self) -> None:
        self._visible: dict[str, ast.Var] = {}
        self._hidden: list[tuple[str, ast.Var | None]] = []

    def bind(self, name: str, value: ast.Var) -> None:
        """Make `value` visible as `name` until the innermost scope is left."""
        self._hidden.append((name, self._visible.get(name)))
        self._visible[name] = value

    def find(self, name: str) -> ast.Var | None:
        """The visible value of `name`."""
        return self._visible.get(name)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A nested scope."""
        depth = len(self._hidden)
        try:
            yield
        finally:
            while len(self._hidden) > depth:
                name, before = self._hidden.pop()
                if before is None:
                    del self._visible[name]
                else:
                    self._visible[name] = before


class Builder:
    """Builds one module. `read_note_type` parses the type in a comment, None where it is not one."""

    def __init__(self, source: Source, read_note_type: Callable[[str], ast.Type | None]) -> None:
        self._source = source
        self._read_note_type = read_note_type
        self._note_types: dict[str, ast.Type | None] = {}
        self._locals = _Scope()
        self._graph: dict[str, ast.Expr] = {}
        self._free: list[ast.Var] = []
        self._metadata: Metadata | None = None

    def module(self, tree: Node) -> ast.Module:
        """The module of a whole parse tree."""
        functions: dict[str, ast.Function] = {}
        for item in tree.children:
            if isinstance(item, Token):
                self._check_version(item)
            elif item.data == "body":
                functions["main"] = self._lone_expression(item)
            elif item.data == "external":
                name = next(str(t) for t in item.children if isinstance(t, Token))
                raise UnsupportedError(
                    f"expected a Relay function, got {name} in another form", where=self._at(item)
                )
            elif item.data == "function":
                name_token = cast(Token, item.children[0])
                name = str(name_token)[1:]
                if name in functions:
                    raise self._error(f"expected one definition of @{name}, got two", name_token)
                self._graph.clear()
                functions[name] = run(self._function(item, self._span(name_token)))
        if not functions:
            raise InputError("expected at least one function, got none", where=self._source.file)
        return ast.Module(self._source.file, functions)

    def _check_version(self, token: Token) -> None:
        version = token.split('"')[1]
        if version != "0.0.5":
            raise self._error(f"expected Relay text of version 0.0.5, got {version}", token)

    def _lone_expression(self, body: Node) -> ast.Function:
        expr: ast.Expr = run(self._body(body))
        if isinstance(expr, ast.Function) and not self._free:
            return expr
        return ast.Function(tuple(self._free), expr, None, {}, ast.Span(self._source.file, 1, 1))

    def _function(self, tree: Node, span: ast.Span) -> Step[ast.Function]:
        """A definition or a literal: parameters, attributes, result type, body."""
        attrs: dict[str, ast.Attr] = {}
        params: list[ast.Var] = []
        result: ast.Type | None = None
        with self._locals.entered():
            for child in tree.children:
                if isinstance(child, Token) or child.data == "generics":
                    continue
                if child.data == "param":
                    params.append(self._variable(child))
                elif child.data == "attr":
                    self._attr(child, attrs)
                elif child.data == "body":
                    body = yield self._body(child)
                else:
                    result = self.type(child)
        names = {p.name for p in params}
        if len(names) != len(params):
            raise InputError("expected distinct parameter names, got one twice", where=str(span))
        return ast.Function(tuple(params), body, result, attrs, span)

    def _variable(self, tree: Node) -> ast.Var:
        """Declares the variable of a parameter, a let or a free_var."""
        token = _token(tree)
        types = [c for c in tree.children if isinstance(c, Tree) and c.data not in {"attr", "body"}]
        annotation = self.type(types[0]) if types and types[0].data.endswith("_type") else None
        variable = ast.Var(str(token)[1:], annotation, self._span(token))
        self._locals.bind(variable.name, variable)
        return variable

    def _body(self, tree: Node) -> Step[ast.Expr]:
        bindings: list[tuple[ast.Var, ast.Expr]] = []
        *statements, last = cast(list[Node], tree.children)
        with self._locals.entered():
            for statement in statements:
                value, variable = None, None
                if statement.data != "free_var":
                    tree = cast(Node, statement.children[-1])
                    if statement.data == "let" and tree.data == "lambda_":
                        variable = self._variable(statement)  # a function may call itself
                    value = yield self.expr(tree)
                first = statement.children[0]
                if statement.data == "bind":
                    self._graph[str(first)] = cast(ast.Expr, value)
                elif statement.data == "let":
                    bindings.append((variable or self._variable(statement), cast(ast.Expr, value)))
                elif statement.data == "free_var":
                    self._free.append(self._variable(statement))
            result = yield self.expr(last)
        return ast.Let(tuple(bindings), result, bindings[0][0].span) if bindings else result

    def expr(self, tree: Node) -> Step[ast.Expr] | ast.Expr:
        """The expression of a tree: itself where it is a leaf, else the step that builds it."""
        build = getattr(self, f"_expr_{tree.data}")
        return cast("Step[ast.Expr] | ast.Expr", build(tree))

    def _expr_number(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        value, dtype = self._literal(literals.number, token)
        with np.errstate(over="ignore"):
            return ast.Constant(np.asarray(value, dtype), self._span(token))

    def _expr_boolean(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        return ast.Constant(np.asarray(token == "True"), self._span(token))

    def _expr_local(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        name = str(token)[1:]
        fields: list[int] = []
        while (variable := self._locals.find(name)) is None:
            name, dot, index = name.rpartition(".")
            if not dot or not index.isdigit() or len(index) > 9:
                hint = " (write spaces around '-' to subtract)" if "-" in token else ""
                raise self._error(f"expected a declared variable, got '{token[:60]}'{hint}", token)
            fields.append(int(index))
        expr: ast.Expr = variable
        for field in reversed(fields):
            expr = ast.Projection(expr, field, self._span(token), self._checked(token))
        return expr

    def _expr_graph(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        if (value := self._graph.get(str(token))) is None:
            raise self._error(f"expected a value bound before its use, got '{token}'", token)
        return value

    def _expr_global_(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        return ast.GlobalVar(str(token)[1:], self._span(token))

    def _expr_operator(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        if token[0].isupper() and "." not in token:
            return ast.Foreign("Constructor", self._span(token))
        return ast.OpRef(str(token), self._span(token))

    def _expr_meta(self, tree: Node) -> ast.Expr:
        token = _token(tree)
        key, index = self._literal(literals.meta, token)
        return self._metadata_for(token).expr(key, index, self._where(token))

    def _expr_call(self, tree: Node) -> Step[ast.Expr]:
        head, *rest = tree.children
        callee = yield self.expr(cast(Node, head))
        args: list[ast.Expr] = []
        attrs: dict[str, ast.Attr] = {}
        for item in rest[:-1]:
            arg = cast(Node, item)
            if arg.data == "attr":
                self._attr(arg, attrs)
            elif arg.data == "meta" and (loaded := self._attribute_object(arg)) is not None:
                attrs.update(loaded)
            elif attrs:
                raise InputError("expected attributes behind all arguments", where=self._at(arg))
            else:
                args.append((yield self.expr(arg)))
        attrs.pop("attrs_type_key", None)
        close = cast(Token, rest[-1])
        span = callee.span if isinstance(callee, ast.OpRef | ast.GlobalVar) else self._span(close)
        return ast.Call(callee, tuple(args), attrs, self._with_origin(span, close), self._checked(close))

    def _expr_projection(self, tree: Node) -> Step[ast.Expr]:
        value = yield self.expr(cast(Node, tree.children[0]))
        field = cast(Token, tree.children[1])
        index = int(field) if len(field) < 10 else -1
        return ast.Projection(value, index, self._span(field), self._checked(field))

    def _expr_infix(self, tree: Node) -> Step[ast.Expr]:
        left, sign, right = tree.children
        args = []
        for side in (left, right):
            args.append((yield self.expr(cast(Node, side))))
        span = self._span(cast(Token, sign))
        return ast.Call(ast.OpRef(_INFIX[str(sign)], span), tuple(args), {}, span)

    def _expr_tuple(self, tree: Node) -> Step[ast.Expr]:
        *items, close = tree.children
        fields = []
        for item in items:
            fields.append((yield self.expr(cast(Node, item))))
        token = cast(Token, close)
        span = fields[0].span if fields else self._span(token)
        return ast.Tuple(tuple(fields), self._with_origin(span, token), self._checked(token))

    def _expr_block(self, tree: Node) -> Step[ast.Expr]:
        return (yield self._body(cast(Node, tree.children[0])))

    def _expr_lambda_(self, tree: Node) -> Step[ast.Expr]:
        return (yield self._function(tree, self._span(_token(tree))))

    def _expr_if_(self, tree: Node) -> Step[ast.Expr]:
        parts = []
        start, *bodies, _ = tree.children
        for body in bodies:
            parts.append((yield self._body(cast(Node, body))))
        return ast.If(parts[0], parts[1], parts[2], self._span(cast(Token, start)))

    def _expr_match(self, tree: Node) -> ast.Expr:
        return ast.Foreign("Match", self._span(_token(tree)))

    def _expr_reference(self, tree: Node) -> ast.Expr:
        kinds = {"ref": "RefCreate", "ref_read": "RefRead", "ref_write": "RefWrite"}
        token = _token(tree)
        return ast.Foreign(kinds[str(token)], self._span(token))

    def _attr(self, tree: Node, into: dict[str, ast.Attr]) -> None:
        name, value = tree.children
        if str(name) in into:
            raise self._error(f"expected attribute '{name}' once, got it twice", cast(Token, name))
        into[str(name)] = self._value(cast(Node, value), 0)

    def _value(self, tree: Node, depth: int) -> ast.Attr:
        if depth > _MAX_LIST_DEPTH:
            raise InputError(f"expected lists nested at most {_MAX_LIST_DEPTH} deep", where=self._source.file)
        if tree.data == "list":
            return tuple(self._value(cast(Node, item), depth + 1) for item in tree.children)
        if tree.data == "mapping":
            entries = [cast(Node, entry).children for entry in tree.children]
            return tuple((str(name), self._value(cast(Node, value), depth + 1)) for name, value in entries)
        token = _token(tree)
        if tree.data == "number":
            value, _ = self._literal(literals.number, token)
            return cast(ast.Attr, value)
        if tree.data == "boolean":
            return token == "True"
        if tree.data == "string":
            return literals.string(token)
        if tree.data == "meta":
            key, index = self._literal(literals.meta, token)
            return self._metadata_for(token).attr(key, index, self._where(token))
        return None

    def _attribute_object(self, tree: Node) -> Mapping[str, ast.Attr] | None:
        token = _token(tree)
        key, index = self._literal(literals.meta, token)
        if not key.startswith("relay.attrs.") and key != "DictAttrs":
            return None
        return self._metadata_for(token).attributes(key, index, self._where(token))

    def _metadata_for(self, token: Token) -> Metadata:
        if self._metadata is None:
            if not self._source.metadata.strip():
                text = (
                    f"expected a #[metadata] section for '{token}', got none: print with show_meta_data=True"
                )
                raise self._error(text, token)
            self._metadata = Metadata(self._source.metadata, f"{self._source.file} metadata")
        return self._metadata

    def type(self, tree: Node) -> ast.Type:
        """The type of a tree; raises InputError with its place."""
        try:
            return _type_of(tree)
        except InputError as error:
            raise InputError(str(error), where=self._at(tree)) from None

    def _note(self, token: Token) -> re.Match[str] | None:
        note = self._source.notes.get(token.end_pos or -1)
        return _NOTE.fullmatch(note) if note is not None else None

    def _checked(self, token: Token) -> ast.Type | None:
        note = self._note(token)
        text = note["type"] if note else None
        if not text:
            return None
        if text not in self._note_types:
            self._note_types[text] = self._read_note_type(text)
        return self._note_types[text]

    def _span(self, token: Token) -> ast.Span:
        return self._with_origin(ast.Span(self._source.file, token.line or 0, token.column or 0), token)

    def _with_origin(self, span: ast.Span, token: Token) -> ast.Span:
        note = self._note(token)
        origin = (note["origin"] or "") if note else ""
        return ast.Span(span.file, span.line, span.column, origin=origin) if origin else span

    def _where(self, token: Token) -> str:
        return f"{self._source.file}:{token.line}:{token.column}"

    def _at(self, tree: Node) -> str:
        """The place of a tree's first token."""
        todo: list[Node | Token] = [tree]
        while todo:
            item = todo.pop()
            if isinstance(item, Token):
                return self._where(item)
            todo.extend(reversed(item.children))
        return self._source.file

    def _error(self, message: str, token: Token) -> InputError:
        return InputError(message, where=self._where(token))

    def _literal(self, read: Callable[[str], Any], token: Token) -> Any:
        try:
            return read(str(token))
        except ValueError as error:
            raise self._error(str(error), token) from None


def _token(tree: Node) -> Token:
    """The first child of a tree, known to be a token."""
    return cast(Token, tree.children[0])


def _type_of(tree: Node, depth: int = 1) -> ast.Type:
    """The type a tree spells; raises InputError for too deep nesting or a bad dimension."""
    if depth > ast.MAX_TYPE_DEPTH:
        raise InputError(f"expected types nested at most {ast.MAX_TYPE_DEPTH} deep, got more")
    kind = tree.data
    if kind == "tensor_type":
        *dims, dtype = cast(list[Token], tree.children)
        return ast.TensorType(tuple(_dim(d) for d in dims), str(dtype))
    if kind == "unknown_type":
        return ast.NamedType("_")
    parts = tuple(
        _type_of(t, depth + 1) for t in tree.children if isinstance(t, Tree) and t.data != "generics"
    )
    if kind == "tuple_type":
        return ast.TupleType(parts)
    if kind == "function_type":
        return ast.FunctionType(parts[:-1], parts[-1])
    if kind == "ref_type":
        return ast.NamedType("ref", parts)
    name = str(tree.children[0])
    return ast.NamedType(name, parts) if parts or not _is_dtype(name) else ast.TensorType((), name)


def _is_dtype(name: str) -> bool:
    return name == "bool" or (
        name.rstrip("0123456789") in {"int", "uint", "float", "bfloat"} and name[-1].isdigit()
    )


def _dim(token: Token) -> int | None:
    if token.type != "NUMBER":
        return None
    try:
        value, _ = literals.number(str(token))
    except ValueError as error:
        raise InputError(str(error)) from None
    if type(value) is not int or value < 0:
        raise InputError(f"expected a dimension of at least 0, got {token}")
    return value
