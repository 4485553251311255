"""Relay modules from the JSON of `tvm.ir.save_json` (TVM 0.19 and older), and nodes of a text's metadata."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.relay.reading.attrs_schema import LITERAL_FIELDS
from tilewright.frontends.relay.reading.json_graph import JsonGraph, parse_json
from tilewright.frontends.tvm import ast
from tilewright.frontends.tvm.trampoline import Step, run
from tilewright.ir.errors import InputError

_FOREIGN = frozenset({"Match", "Constructor", "RefCreate", "RefRead", "RefWrite", "MetaPattern"})
_NAMED_TYPES = frozenset({"TypeVar", "GlobalTypeVar", "TypeCall", "IncompleteType", "RefType", "TypeData"})
#: before TVM 0.12 these called the channels of the data O and those of the result I
_SWAPPED = frozenset({"attrs.Conv1DTransposeAttrs", "attrs.Conv3DTransposeAttrs"})
_MAX_ATTR_PARTS = 1_000_000
_MAX_ATTR_DEPTH = 32


def read_json(text: str, file: str) -> ast.Module:
    """The module in `text`; raises InputError, which names the node, for anything else."""
    graph = JsonGraph(parse_json(text, file), file)
    kind = graph.kind(graph.root)
    reader = NodeReader(graph)
    if kind == "Function":
        return ast.Module(file, {"main": reader.function(graph.root)})
    if kind not in {"IRModule", "Module"}:
        raise graph.error(f"expected a Relay module, got '{kind}'", graph.root)
    functions: dict[str, ast.Function] = {}
    for name, node in graph.pairs(graph.child(graph.root, "functions")):
        if name in functions:
            raise graph.error(f"expected one function @{name}, got two", node)
        functions[name] = reader.function(node)
    return ast.Module(file, functions)


class NodeReader:
    """Turns nodes of one graph into syntax; a node read twice gives the same object."""

    def __init__(self, graph: JsonGraph) -> None:
        self.graph = graph
        self._exprs: dict[int, ast.Expr] = {}
        self._types: dict[int, ast.Type] = {}
        self._attr_parts = 0

    def function(self, node: int) -> ast.Function:
        """The function at `node`."""
        kind = self.graph.kind(node)
        if kind != "Function":
            origin = (
                " (Relax is another language; Relay left TVM at 0.20)" if kind.startswith("relax") else ""
            )
            raise self.graph.error(f"expected a Relay function, got '{kind}'{origin}", node)
        function = run(self.expr(node))
        assert isinstance(function, ast.Function)
        return function

    def expr(self, node: int) -> Step[ast.Expr]:
        """The expression at `node`, as a step."""
        known = self._exprs.get(node)
        if known is None:
            with self.graph.entered(node):
                known = yield self._expr(node, self.graph.kind(node))
            self._exprs[node] = known
        return known

    def _expr(self, node: int, kind: str) -> Step[ast.Expr]:
        graph, span = self.graph, self.span(node)
        if kind == "Call":
            callee = yield self.expr(graph.child(node, "op"))
            args = yield self._exprs_of(graph.child(node, "args"))
            attrs = self.attributes(graph.child(node, "attrs"))
            return ast.Call(callee, args, attrs, span, self.checked(node))
        if kind == "Var":
            name = graph.string(graph.child(node, "vid"))
            return ast.Var(name, self.optional_type(graph.child(node, "type_annotation")), span)
        if kind == "Function":
            return (yield self._function(node, span))
        if kind == "Let":
            return (yield self._let(node, span))
        if kind == "Tuple":
            fields = yield self._exprs_of(graph.child(node, "fields"))
            return ast.Tuple(fields, span, self.checked(node))
        if kind == "TupleGetItem":
            value = yield self.expr(graph.child(node, "tuple_value"))
            index = graph.integer(graph.literal(node, "index"), node)
            return ast.Projection(value, index, span, self.checked(node))
        if kind == "If":
            parts = []
            for name in ("cond", "true_branch", "false_branch"):
                parts.append((yield self.expr(graph.child(node, name))))
            return ast.If(parts[0], parts[1], parts[2], span)
        if kind == "Constant":
            return ast.Constant(graph.array(graph.literal(node, "data"), node), span)
        if kind == "Op":
            return ast.OpRef(graph.string(node), span)
        if kind == "GlobalVar":
            return ast.GlobalVar(graph.text(node, "name_hint"), span)
        if kind in _FOREIGN:
            return ast.Foreign(kind, span)
        raise graph.error(f"expected a Relay expression, got '{kind or 'null'}'", node)

    def _exprs_of(self, node: int) -> Step[tuple[ast.Expr, ...]]:
        out = []
        for item in self.graph.items(node):
            out.append((yield self.expr(item)))
        return tuple(out)

    def _function(self, node: int, span: ast.Span) -> Step[ast.Expr]:
        graph = self.graph
        params = yield self._exprs_of(graph.child(node, "params"))
        if not all(isinstance(p, ast.Var) for p in params):
            raise graph.error("expected variables as parameters", node)
        body = yield self.expr(graph.child(node, "body"))
        result = self.optional_type(graph.child(node, "ret_type"))
        return ast.Function(params, body, result, self.attributes(graph.child(node, "attrs")), span)

    def _let(self, node: int, span: ast.Span) -> Step[ast.Expr]:
        """A chain of lets, read in a loop; only its first node is marked as entered."""
        graph, first = self.graph, node
        bindings = []
        seen: set[int] = set()
        while graph.kind(node) == "Let" and node not in self._exprs:
            if node in seen or (node != first and node in graph.active):
                raise graph.error("expected a graph without cycles, got a node that contains itself", node)
            seen.add(node)
            variable = yield self.expr(graph.child(node, "var"))
            if not isinstance(variable, ast.Var):
                raise graph.error("expected a variable on the left of a let", node)
            bindings.append((variable, (yield self.expr(graph.child(node, "value")))))
            node = graph.child(node, "body")
        body = yield self.expr(node)
        return ast.Let(tuple(bindings), body, span)

    def attributes(self, node: int) -> Mapping[str, ast.Attr]:
        """Attributes by name of a `relay.attrs.*` or DictAttrs node; the class decides each field's kind."""
        graph = self.graph
        kind = graph.kind(node)
        if not kind:
            return {}
        if kind == "DictAttrs":
            inner = graph.child(node, "__dict__")
            return {name: self.attr(value) for name, value in graph.pairs(inner)} if graph.kind(inner) else {}
        literals = LITERAL_FIELDS.get(kind.removeprefix("attrs."), None)
        if literals is None:
            return {name: graph.literal(node, name) for name in graph.fields(node)}
        out: dict[str, ast.Attr] = {}
        for name in graph.fields(node):
            out[name] = self._field(node, name, literals.get(name, ""))
        layout = out.get("kernel_layout")
        if kind in _SWAPPED and isinstance(layout, str) and graph.is_older_than(0, 12):
            out["kernel_layout"] = layout.translate(str.maketrans("OI", "IO"))
        return out

    def _field(self, node: int, name: str, kind: str) -> ast.Attr:
        graph = self.graph
        if kind == "int":
            return graph.integer(graph.literal(node, name), node)
        if kind == "float":
            return graph.real(graph.literal(node, name), node)
        if kind == "bool":
            return bool(graph.integer(graph.literal(node, name), node))
        if kind == "dtype":
            return graph.literal(node, name)
        if kind == "str":
            return graph.text(node, name)
        return self.attr(graph.child(node, name))

    def attr(self, node: int, depth: int = 0) -> ast.Attr:
        """The attribute value at `node`."""
        graph, kind = self.graph, self.graph.kind(node)
        self._attr_parts += 1
        if self._attr_parts > _MAX_ATTR_PARTS or depth > _MAX_ATTR_DEPTH:
            limits = f"{_MAX_ATTR_PARTS} parts, {_MAX_ATTR_DEPTH} deep"
            raise graph.error(f"expected attributes of at most {limits}, got more", node)
        if not kind:
            return None
        if kind == "IntImm":
            value = graph.integer(graph.literal(node, "value"), node)
            return bool(value) if graph.fields(node).get("dtype") == "bool" else value
        if kind == "FloatImm":
            return graph.real(graph.literal(node, "value"), node)
        if kind == "Array":
            return tuple(self.attr(item, depth + 1) for item in graph.items(node))
        if kind == "Constant":
            return ast.Constant(graph.array(graph.literal(node, "data"), node), self.span(node))
        if kind in {"runtime.BoxInt", "runtime.BoxFloat", "runtime.BoxBool"}:
            text = graph.string(node)
            if kind == "runtime.BoxFloat":
                return graph.real(text, node)
            boxed = graph.integer(text, node)
            return bool(boxed) if kind == "runtime.BoxBool" else boxed
        if kind in {"runtime.String", "StringImm", "tir.StringImm"}:
            return graph.string(node)
        return f"<{kind}>"

    def checked(self, node: int) -> ast.Type | None:
        """The type TVM inferred for `node`, where it was stored."""
        return self.optional_type(self.graph.child(node, "_checked_type_"))

    def optional_type(self, node: int) -> ast.Type | None:
        """The type at `node`; None for null."""
        if not self.graph.kind(node):
            return None
        try:
            return run(self._type(node))
        except InputError as error:
            raise error if error.where else self.graph.error(str(error), node) from None

    def _type(self, node: int) -> Step[ast.Type]:
        known = self._types.get(node)
        if known is None:
            with self.graph.entered(node):
                known = yield self._new_type(node, self.graph.kind(node))
            self._types[node] = known
        return known

    def _new_type(self, node: int, kind: str) -> Step[ast.Type]:
        graph = self.graph
        if kind == "TensorType":
            shape = tuple(self._dim(d) for d in graph.items(graph.child(node, "shape")))
            return ast.TensorType(shape, graph.literal(node, "dtype"))
        if kind == "TupleType":
            return ast.TupleType((yield self._types_of(graph.child(node, "fields"))))
        if kind == "FuncType":
            params = yield self._types_of(graph.child(node, "arg_types"))
            return ast.FunctionType(params, (yield self._type(graph.child(node, "ret_type"))))
        if kind in _NAMED_TYPES:
            return ast.NamedType("_" if kind == "IncompleteType" else f"<{kind}>")
        raise graph.error(f"expected a type, got '{kind or 'null'}'", node)

    def _types_of(self, node: int) -> Step[tuple[ast.Type, ...]]:
        out = []
        for item in self.graph.items(node):
            out.append((yield self._type(item)))
        return tuple(out)

    def _dim(self, node: int) -> int | None:
        if self.graph.kind(node) != "IntImm":
            return None
        value = self.graph.integer(self.graph.literal(node, "value"), node)
        if value < 0:
            raise self.graph.error(f"expected a dimension of at least 0, got {value}", node)
        return value

    def span(self, node: int) -> ast.Span:
        """The node's number, and the source position TVM recorded for it."""
        graph = self.graph
        recorded = graph.child(node, "span")
        if graph.kind(recorded) != "Span":
            return ast.Span(graph.file, node=node)
        name = graph.child(recorded, "source_name")
        source = graph.string(name) if graph.kind(name) else ""
        place = ":".join(graph.literal(recorded, part) for part in ("line", "column"))
        return ast.Span(graph.file, node=node, origin=f"{source}:{place}")


class Metadata:
    """The objects of a text's metadata section, by `meta[type.key][index]`."""

    def __init__(self, text: str, file: str) -> None:
        self._graph = JsonGraph(parse_json(text, file), file)
        self._reader = NodeReader(self._graph)
        self._lists = dict(self._graph.pairs(self._graph.root))

    def node(self, key: str, index: int, where: str) -> int:
        """The number of the node; raises InputError at `where` when there is none."""
        items = self._graph.items(self._lists[key]) if key in self._lists else ()
        if index >= len(items):
            raise InputError(
                f"expected meta[{key}][{index}] in the metadata, it has {len(items)} of them", where=where
            )
        return items[index]

    def expr(self, key: str, index: int, where: str) -> ast.Expr:
        """The expression `meta[key][index]`."""
        return run(self._reader.expr(self.node(key, index, where)))

    def attr(self, key: str, index: int, where: str) -> ast.Attr:
        """The attribute value `meta[key][index]`."""
        return self._reader.attr(self.node(key, index, where))

    def attributes(self, key: str, index: int, where: str) -> Mapping[str, ast.Attr]:
        """The whole attribute object `meta[key][index]`."""
        return self._reader.attributes(self.node(key, index, where))
