"""Runs a functional program symbolically: lets, tuples, calls, constant conditions vanish; operators stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from tilewright.frontends.importing.call import Call, Rule
from tilewright.frontends.importing.emitter import Emitter, Result, flatten
from tilewright.frontends.tvm import ast
from tilewright.frontends.tvm.trampoline import Step
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType, dtype_name

#: Bounds on what inlining may produce, so that a small file cannot ask for endless work.
MAX_CALLS = 500_000
MAX_NESTED_CALLS = 1000
MAX_NESTED_CONDITIONS = 64


class Frame:
    """Values of syntax nodes in one activation of a function; what is missing is looked for further out."""

    __slots__ = ("outer", "values")

    def __init__(self, outer: Frame | None = None) -> None:
        self.values: dict[int, Result] = {}
        self.outer = outer

    def find(self, node: ast.Expr) -> Result | None:
        """The value of `node`, here or further out."""
        frame: Frame | None = self
        while frame is not None:
            if (result := frame.values.get(id(node))) is not None:
                return result
            frame = frame.outer
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Closure:
    """A function and the activation its free variables live in."""

    function: ast.Function
    frame: Frame


class Evaluator:
    """Evaluates expressions of one module. Calls with the same operands are evaluated once."""

    def __init__(
        self, module: ast.Module, rules: Mapping[str, Rule], emitter: Emitter, dialect: str = "relay"
    ) -> None:
        self._module = module
        self._dialect = dialect
        self._rules = rules
        self._emitter = emitter
        self._root = Frame()
        self._globals = Frame()
        self._literals: dict[int, Value] = {}
        self._applied: dict[tuple[int, ...], tuple[object, Result]] = {}
        self._calls = 0
        self._nested = 0
        self._conditions = 0

    def main(self, arguments: Mapping[ast.Var, Result]) -> Step[Result]:
        """The result of @main for values of its parameters."""
        main = self._module.functions["main"]
        for variable, value in arguments.items():
            self._root.values[id(variable)] = value
        result = yield self.evaluate(main.body, self._root)
        self._check(result, main.result, main.span)
        return result

    def evaluate(self, node: ast.Expr, frame: Frame) -> Step[Result]:
        """The value of `node`; shared nodes are evaluated once per activation."""
        known = frame.find(node)
        if known is None:
            known = yield self._evaluate(node, frame)
            frame.values[id(node)] = known
        return known

    def _evaluate(self, node: ast.Expr, frame: Frame) -> Step[Result]:
        match node:
            case ast.Call():
                return (yield self._call(node, frame))
            case ast.Tuple(fields):
                values = []
                for item in fields:
                    values.append((yield self.evaluate(item, frame)))
                return tuple(values)
            case ast.Projection():
                return self._project((yield self.evaluate(node.tuple, frame)), node)
            case ast.Let(bindings, body):
                for variable, expr in bindings:
                    value = yield self.evaluate(expr, frame)
                    self._check(value, variable.type, variable.span)
                    frame.values[id(variable)] = value
                return (yield self.evaluate(body, frame))
            case ast.If():
                return (yield self._if(node, frame))
            case ast.Constant():
                return self._literal(node)
            case ast.Function():
                return Closure(node, frame)
            case ast.GlobalVar(name):
                return Closure(self._module.functions[name], self._globals)
            case ast.OpRef():
                return node
            case ast.Var(name):
                raise InputError(f"expected a variable in scope, got %{name}", where=str(node.span))
        raise UnsupportedError(f"expected a tensor expression, got {node}", where=str(node.span))

    def _call(self, node: ast.Call, frame: Frame) -> Step[Result]:
        callee = yield self.evaluate(node.callee, frame)
        args = []
        for arg in node.args:
            args.append((yield self.evaluate(arg, frame)))
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise UnsupportedError(f"expected at most {MAX_CALLS} calls after inlining", where=str(node.span))
        if isinstance(callee, ast.OpRef):
            return self._operator(callee.name, args, node)
        if isinstance(callee, Closure):
            result = yield self._apply(callee, args, node)
            self._check(result, node.checked, node.span)
            return result
        raise InputError("expected a function to call, got a tensor or a tuple", where=str(node.span))

    def _apply(self, closure: Closure, args: list[Result], node: ast.Call) -> Step[Result]:
        """Inlines a call."""
        key = (id(closure.function), id(closure.frame), *map(id, args))
        if key in self._applied:
            return self._applied[key][1]
        params = closure.function.params
        if len(args) != len(params):
            raise InputError(f"expected {len(params)} arguments, got {len(args)}", where=str(node.span))
        if self._nested >= MAX_NESTED_CALLS:
            raise UnsupportedError(
                f"expected calls nested at most {MAX_NESTED_CALLS} deep (is the function recursive?)",
                where=str(node.span),
            )
        frame = Frame(closure.frame)
        for param, arg in zip(params, args, strict=True):
            self._check(arg, param.type, param.span)
            frame.values[id(param)] = arg
        self._nested += 1
        result = yield self.evaluate(closure.function.body, frame)
        self._nested -= 1
        # The operands are kept so that their identities stay theirs.
        self._applied[key] = ((closure, args), result)
        return result

    def _operator(self, name: str, args: list[Result], node: ast.Call) -> Result:
        call, span = Call(args, node.attrs), node.span
        loc = f"{self._dialect}:{name}#{self._emitter.number(name)}"
        file = PurePath(span.file).name
        place = f"{file}:{span.line}" if span.line else f"{file} node {span.node}"
        try:
            with self._emitter.builder.at(" ".join(filter(None, (loc, place, span.origin)))):
                result = self._rules[name](self._emitter, call)
            call.finish()
        except InputError as error:
            raise type(error)(f"{name}: {error}", where=str(span)) from None
        self._check(result, node.checked, span)
        return result

    def _project(self, value: Result, node: ast.Projection) -> Result:
        if not isinstance(value, tuple) or not 0 <= node.index < len(value):
            got = f"a tuple of {len(value)}" if isinstance(value, tuple) else "no tuple"
            raise InputError(f"expected a tuple with field {node.index}, got {got}", where=str(node.span))
        return value[node.index]

    def _if(self, node: ast.If, frame: Frame) -> Step[Result]:
        """The branch a known condition takes; for others both are computed, and their results selected.

        Relay's values have no effects, so computing the branch that is not taken changes nothing.
        """
        condition = yield self.evaluate(node.condition, frame)
        if not isinstance(condition, Value) or condition.tensor.size != 1:
            raise InputError("expected one truth value as the condition of 'if'", where=str(node.span))
        array = self._emitter.computed(condition)
        if array is not None:
            taken = node.then if bool(array.reshape(())) else node.otherwise
            return (yield self.evaluate(taken, frame))
        condition = self._emitter.reshape(condition, ())
        self._conditions += 1
        if self._conditions > MAX_NESTED_CONDITIONS:
            raise UnsupportedError(
                f"expected conditions on data nested at most {MAX_NESTED_CONDITIONS} deep: loops that data "
                "ends are not imported",
                where=str(node.span),
            )
        then = yield self.evaluate(node.then, frame)
        otherwise = yield self.evaluate(node.otherwise, frame)
        self._conditions -= 1
        return self._selected(condition, then, otherwise, node)

    def _selected(self, condition: Value, then: Result, otherwise: Result, node: ast.If) -> Result:
        if isinstance(then, tuple) and isinstance(otherwise, tuple) and len(then) == len(otherwise):
            parts = zip(then, otherwise, strict=True)
            return tuple(self._selected(condition, a, b, node) for a, b in parts)
        if then is otherwise:
            return then
        alike = isinstance(then, Value) and isinstance(otherwise, Value) and then.type == otherwise.type
        if not alike:
            raise UnsupportedError(
                "expected both branches of an 'if' on data to give tensors of the same types, got "
                f"{_describe(then)} and {_describe(otherwise)}",
                where=str(node.span),
            )
        return self._emitter.value("where", condition, then, otherwise)

    def _literal(self, node: ast.Constant) -> Value:
        if id(node) not in self._literals:
            try:
                self._literals[id(node)] = self._emitter.constant(node.value)
            except InputError as error:
                raise UnsupportedError(str(error), where=str(node.span)) from None
        return self._literals[id(node)]

    def _check(self, result: Result, recorded: ast.Type | None, span: ast.Span) -> None:
        """Raise InputError where a result's type is not the one the file records."""
        fault = _mismatch(result, recorded)
        if fault:
            raise InputError(fault, where=str(span))


def _mismatch(result: Result, recorded: ast.Type | None) -> str:
    if isinstance(recorded, ast.TupleType):
        if not isinstance(result, tuple) or len(result) != len(recorded.fields):
            return f"expected the recorded type {recorded}, got {_describe(result)}"
        return next(filter(None, map(_mismatch, result, recorded.fields)), "")
    if not isinstance(recorded, ast.TensorType) or (
        isinstance(result, Value) and _fits(result.tensor, recorded)
    ):
        return ""
    if not isinstance(result, Value | tuple | Closure):
        return ""
    return f"expected the recorded type {recorded}, got {_describe(result)}"


def _fits(inferred: TensorType, recorded: ast.TensorType) -> bool:
    if len(inferred.shape) != len(recorded.shape) or inferred.dtype != dtype_name(recorded.dtype):
        return False
    return all(want is None or want == got for want, got in zip(recorded.shape, inferred.shape, strict=True))


def _describe(result: Result) -> str:
    if isinstance(result, tuple):
        shown = [str(v.type) for v in flatten(result[:4]) if isinstance(v, Value)]
        return f"a tuple of {len(result)} ({', '.join(shown[:4])})"
    return str(result.type) if isinstance(result, Value) else "a function"
