"""From a live Relax module to the syntax that the Relay importer evaluates.

Dataflow and other binding blocks become lets, shapes and numbers among operands become constants. Everything
that cannot be imported (operators without a rule, calls of tensor programs and packed functions, dimensions
that are not constant) is collected over all functions reached and reported in one error.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from tilewright.frontends.importing.findings import CONSTRUCTS, OPERATORS, Findings
from tilewright.frontends.relax import tvm_objects as tvm
from tilewright.frontends.tvm import ast
from tilewright.ir.errors import InputError

OPAQUE = "calls whose body TVM does not tell"
DYNAMIC = "dimensions that are not constant"
#: calls of something that is not a Relax operator; the first argument names it
_OPAQUE_CALLS = frozenset(
    """
    call_tir call_tir_inplace call_tir_with_grad call_dps_packed call_pure_packed call_inplace_packed
    call_builtin_with_ctx call_py_func make_closure invoke_closure invoke_pure_closure
    """.split()  # noqa: SIM905 (shorter to read than a list)
)


def read_module(module: Any, entry: str, rules: Container[str]) -> ast.Module:
    """The syntax of what function `entry` of a live Relax module reaches; it is called @main.

    `rules` holds the operators that can be imported. Raises InputError where there is no such function,
    UnsupportedError naming all that cannot be imported.
    """
    functions = tvm.functions(module)
    known = [name for name, function in functions.items() if tvm.is_relax_function(function)]
    if entry not in known:
        have = ", ".join(f"@{name}" for name in known) or "none"
        raise InputError(f"expected a Relax function @{entry}, got {have}", where="module")
    reader = _Reader(functions, entry, rules)
    reader.findings.check("module")
    return ast.Module("module", reader.done)


class _Reader:
    """Reads functions as they are reached."""

    def __init__(self, functions: dict[str, Any], entry: str, rules: Container[str]) -> None:
        self.findings = Findings()
        self.done: dict[str, ast.Function] = {}
        self._functions = functions
        self._entry = entry
        self._rules = rules
        self._variables: dict[int, ast.Var] = {}
        # Handles are kept: an identity is free for reuse once nothing holds the object.
        self._held: list[Any] = []
        self._function, self._binding, self._count = entry, "", 0
        todo = [entry]
        while todo:
            name = todo.pop()
            if self._key(name) not in self.done:
                self._function, self._binding, self._count = name, "", 0
                self._reached: list[str] = []
                self.done[self._key(name)] = self._read_function(functions[name])
                todo.extend(self._reached)

    def _key(self, name: str) -> str:
        """The name of a function in the result, where the entry is @main."""
        if name == self._entry:
            return "main"
        return f"{name} " if name == "main" else name

    def _span(self) -> ast.Span:
        return ast.Span(f"@{self._function}{self._binding and '.' + self._binding}", node=self._count)

    def _note(self, title: str, name: str) -> None:
        self.findings.add(title, name, self._span().file)

    def _read_function(self, function: Any) -> ast.Function:
        parameters = tuple(self._variable(p, parameter=True) for p in function.params)
        self._binding = ""
        body = self._expr(function.body)
        self._binding = "result"
        return ast.Function(parameters, body, tvm.type_of(tvm.result_type(function)), {}, self._span())

    def _variable(self, variable: Any, *, parameter: bool = False) -> ast.Var:
        name, raw = tvm.name_of(variable), tvm.raw_type(variable)
        self._binding = name
        for text in dict.fromkeys(tvm.dynamic_dimensions(raw)):
            self._note(DYNAMIC, text)
        kind = tvm.type_of(raw)
        if parameter and self._function == self._entry and isinstance(kind, ast.NamedType):
            self._note(CONSTRUCTS, f"a parameter that is no tensor of known rank: {tvm.tensor_text(raw)}")
        made = ast.Var(name, kind, self._span())
        self._variables[tvm.identity(variable)] = made
        self._held.append(variable)
        return made

    def _expr(self, expr: Any) -> ast.Expr:
        kind = tvm.kind(expr)
        if kind in tvm.VARIABLES:
            return self._use(expr)
        if kind in tvm.CONSTANTS:
            return ast.Constant(tvm.array(expr), self._span())
        if kind in tvm.NUMBERS:
            return self._number(expr)
        match kind:
            case "Call":
                return self._call(expr)
            case "Tuple":
                return ast.Tuple(tuple(self._expr(field) for field in expr.fields), self._span())
            case "TupleGetItem":
                return ast.Projection(self._expr(expr.tuple_value), int(expr.index), self._span())
            case "ShapeExpr":
                return self._shape(expr)
            case "SeqExpr":
                return self._sequence(expr)
            case "If":
                condition = self._expr(expr.cond)
                return ast.If(
                    condition, self._expr(expr.true_branch), self._expr(expr.false_branch), self._span()
                )
            case "Function":
                parameters = tuple(self._variable(p) for p in expr.params)
                return ast.Function(parameters, self._expr(expr.body), None, {}, self._span())
            case "GlobalVar":
                return self._global(expr)
        self._note(CONSTRUCTS, kind)
        return ast.Foreign(kind, self._span())

    def _use(self, variable: Any) -> ast.Expr:
        known = self._variables.get(tvm.identity(variable))
        if known is None:
            # A variable of a shape, used as a number: no tensor variable is unbound.
            self._note(DYNAMIC, tvm.name_of(variable))
            return ast.Foreign("a symbolic dimension", self._span())
        return known

    def _number(self, value: Any) -> ast.Expr:
        known = tvm.number(value)
        if known is None:
            self._note(DYNAMIC, str(value))
            return ast.Foreign("a symbolic number", self._span())
        return ast.Constant(known, self._span())

    def _shape(self, shape: Any) -> ast.Expr:
        entries = tvm.shape_values(shape)
        symbols = [entry for entry in entries if isinstance(entry, str)]
        for text in dict.fromkeys(symbols):
            self._note(DYNAMIC, text)
        if symbols:
            return ast.Foreign("a symbolic shape", self._span())
        return ast.Constant(np.asarray(entries, np.int64), self._span())

    def _sequence(self, sequence: Any) -> ast.Expr:
        bindings = []
        for block in sequence.blocks:
            for binding in block.bindings:
                self._count += 1
                self._binding = tvm.name_of(binding.var)
                value = self._expr(binding.value)
                bindings.append((self._variable(binding.var), value))
        body = self._expr(sequence.body)
        return ast.Let(tuple(bindings), body, self._span()) if bindings else body

    def _global(self, variable: Any) -> ast.Expr:
        name = tvm.name_of(variable)
        function = self._functions.get(name)
        if function is None or not tvm.is_relax_function(function):
            self._note(OPAQUE, f"@{name}")
            return ast.Foreign("a tensor program", self._span())
        self._reached.append(name)
        return ast.GlobalVar(self._key(name), self._span())

    def _call(self, call: Any) -> ast.Expr:
        kind = tvm.kind(call.op)
        if kind == "ExternFunc":
            self._note(OPAQUE, f'packed function "{call.op.global_symbol}"')
            return ast.Foreign("a packed function", self._span())
        if kind != "Op":
            args = tuple(self._expr(arg) for arg in call.args)
            return ast.Call(self._expr(call.op), args, {}, self._span())
        name = str(call.op.name).removeprefix("relax.")
        if name in _OPAQUE_CALLS:
            self._note(OPAQUE, f"{name} of {_callee(call.args[0]) if len(call.args) else 'nothing'}")
            return ast.Foreign(name, self._span())
        if name not in self._rules:
            self._note(OPERATORS, name)
            return ast.Foreign(name, self._span())
        args = tuple(self._expr(arg) for arg in call.args)
        attrs = tvm.attributes(call.attrs)
        return ast.Call(
            ast.OpRef(name, self._span()), args, attrs, self._span(), tvm.type_of(tvm.raw_type(call))
        )


def _callee(callee: Any) -> str:
    """The thing that an opaque call calls, in words."""
    match tvm.kind(callee):
        case "GlobalVar":
            return f"@{tvm.name_of(callee)}"
        case "ExternFunc":
            return f'packed function "{callee.global_symbol}"'
        case "StringImm":
            return f'"{callee.value}"'
    return tvm.kind(callee)
