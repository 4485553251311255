"""From functional syntax to our graph level: one function @main, parameters as inputs or named constants."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence

from tilewright.frontends.importing.call import Rule
from tilewright.frontends.importing.emitter import Absent, Emitter, Result, flatten
from tilewright.frontends.importing.findings import CONSTRUCTS, OPERATORS, Findings
from tilewright.frontends.importing.network import network
from tilewright.frontends.tvm import ast
from tilewright.frontends.tvm.binding import Params, bind, leaves_of
from tilewright.frontends.tvm.evaluate import Evaluator
from tilewright.frontends.tvm.trampoline import run
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Module, Value

#: Why operators of a family (by the start of their names) are not imported
_REASONS: Mapping[str, str] = {
    "auto_scheduler_layout_transform": "made by TVM's tuner: save the module before it",
    "call_lowered": "made by TVM's compilation: save the module before it",
    "contrib.ethosu.": "for one accelerator",
    "memory.": "made by TVM's compilation: save the module before it",
    "meta_schedule_layout_transform": "made by TVM's tuner: save the module before it",
    "random.": "draws random numbers, which here are inputs",
    "relay.op.annotation.simulated_quantize": "made while TVM quantises: save the module after it",
    "torch_op": "calls PyTorch",
    "vm.": "made by TVM's compilation: save the module before it",
}


def _reason(name: str) -> str:
    return next((f", {text}" for start, text in _REASONS.items() if name.startswith(start)), "")


def import_program(
    module: ast.Module,
    rules: Mapping[str, Rule],
    params: Params = None,
    inputs: Sequence[str] | None = None,
    seed: int = 0,
    *,
    dialect: str,
) -> Module:
    """Our module for a module of `dialect`, which places name, by its `rules`.

    The other arguments are those of `relay.load`. Every inferred type is checked against the one the file
    records. Raises UnsupportedError naming all operators that cannot be imported, InputError for parameters
    that do not fit or types that disagree.
    """
    _check(module, rules)
    main = module.functions["main"]
    binding = bind(main, params, inputs, seed, module.file)
    emitter = Emitter(taken=binding.constants)
    arguments = {name: Value(kind, hint=name) for name, kind in binding.inputs.items()}
    leaves = dict(arguments)
    for name, array in binding.constants.items():
        with emitter.builder.at(f"{dialect}:%{name}"):
            leaves[name] = emitter.weight(array, name)
    values = {variable: _assemble(variable, leaves) for variable in main.params}
    results = _results(run(Evaluator(module, rules, emitter, dialect).main(values)), module.file)
    return network(emitter, module.file, arguments, results, prune=False)


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


def _check(module: ast.Module, rules: Container[str]) -> None:
    """Raise UnsupportedError listing all operators, constructs and bodiless functions that @main reaches and
    that cannot be imported; InputError when there is no @main."""
    if "main" not in module.functions:
        raise InputError("expected a function @main, got none", where=module.file)
    findings = Findings()
    for node in _reachable(module):
        if isinstance(node, ast.OpRef) and node.name not in rules:
            findings.add(OPERATORS, node.name + _reason(node.name), str(node.span))
        elif isinstance(node, ast.Foreign):
            findings.add(CONSTRUCTS, node.kind, str(node.span))
        elif isinstance(node, ast.GlobalVar) and node.name not in module.functions:
            findings.add("functions without a body", f"@{node.name}", str(node.span))
    findings.check(module.file)


def _reachable(module: ast.Module) -> list[ast.Expr]:
    """Every node @main reaches, once, in order of the first visit; an operator once per call."""
    seen: set[int] = set()
    out: list[ast.Expr] = []
    todo: list[ast.Expr] = [module.functions["main"]]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        out.append(node)
        if isinstance(node, ast.GlobalVar) and node.name in module.functions:
            todo.append(module.functions[node.name])
        parts = _PARTS.get(type(node))
        if parts is not None:
            children = parts(node)
            if isinstance(node, ast.Call) and isinstance(node.callee, ast.OpRef):
                # JSON shares one node per operator; the call is what counts and what has the place.
                out.append(ast.OpRef(node.callee.name, node.span))
                children = node.args
            todo.extend(reversed(children))
    return out


_PARTS: Mapping[type, Callable[..., tuple[ast.Expr, ...]]] = {
    ast.Call: lambda n: (n.callee, *n.args),
    ast.Tuple: lambda n: n.fields,
    ast.Projection: lambda n: (n.tuple,),
    ast.Let: lambda n: (*(value for _, value in n.bindings), n.body),
    ast.If: lambda n: (n.condition, n.then, n.otherwise),
    ast.Function: lambda n: (n.body,),
}
