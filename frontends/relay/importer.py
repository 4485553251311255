"""From Relay syntax to our graph level: one function @main, parameters as inputs or named constants."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from tilewright.frontends.deferred import made
from tilewright.frontends.emitter import Absent, Emitter, Result, flatten
from tilewright.frontends.relay.binding import Params, bind, leaves_of
from tilewright.frontends.relay.evaluate import Evaluator, Rule
from tilewright.frontends.relay.reading import ast
from tilewright.frontends.relay.reading.trampoline import run
from tilewright.frontends.relay.rule_table import RULES
from tilewright.frontends.relay.survey import survey
from tilewright.ir.constants import Constants
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value


def import_module(
    module: ast.Module,
    params: Params = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
    *,
    rules: Mapping[str, Rule] = RULES,
    dialect: str = "relay",
) -> Module:
    """Our module for a Relay module, or one of another `dialect` (named in places) with its own `rules`.

    The other arguments are those of `load`.

    Every inferred type is checked against the one the file records. Raises UnsupportedError naming all
    operators that cannot be imported, InputError for parameters that do not fit or types that disagree.
    """
    survey(module, rules)
    main = module.functions["main"]
    binding = bind(main, params, inputs, seed, module.file)
    emitter = Emitter(taken=binding.constants)
    leaves: dict[str, Value] = {name: Value(kind, hint=name) for name, kind in binding.inputs.items()}
    arguments = tuple(leaves.values())
    for name, array in binding.constants.items():
        with emitter.builder.at(f"{dialect}:%{name}"):
            leaves[name] = emitter.constant(array, name)
    values = {variable: _assemble(variable, leaves) for variable in main.params}
    results = _results(run(Evaluator(module, rules, emitter, dialect).main(values)), module.file)
    emitter.builder.do("graph.return", *results)
    ops = _without_unused_constants(emitter.builder.ops)
    func = Func(Level.GRAPH, "main", Block(arguments, ops), tuple(v.type for v in results))
    used = {str(op["name"]) for op in ops if op.name == "graph.constant"}
    constants = Constants({name: made(array) for name, array in emitter.constants.items() if name in used})
    return Module(_module_name(module.file), (func,), (), constants)


def _assemble(variable: ast.Var, leaves: dict[str, Value]) -> Result:
    """The value of a parameter: its leaf, or the tuple of its leaves."""
    names: Iterator[str] = (leaf.name for leaf in leaves_of(variable))

    def build(kind: ast.Type | None) -> Result:
        if isinstance(kind, ast.TupleType):
            return tuple(build(field) for field in kind.fields)
        return leaves[next(names)]

    return build(variable.type)


def _results(result: Result, file: str) -> list[Value]:
    values = flatten(result)
    for value in values:
        if isinstance(value, Absent):
            raise UnsupportedError(f"expected @main to return computed values, got {value.what}", where=file)
        if not isinstance(value, Value):
            raise UnsupportedError("expected @main to return tensors, got a function", where=file)
    return values


def _without_unused_constants(ops: list[Op]) -> tuple[Op, ...]:
    used = {operand for op in ops for operand in op.operands}
    return tuple(op for op in ops if op.name != "graph.constant" or op.result in used)


def _module_name(file: str) -> str:
    stem = PurePath(file).name.split(".")[0]
    name = re.sub(r"[^A-Za-z0-9_]", "_", stem)
    return name if re.match(r"[A-Za-z_]", name) else f"net_{name}"
