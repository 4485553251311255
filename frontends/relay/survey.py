"""Looks over a Relay module before import: everything that cannot be imported is reported in one error."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

from tilewright.frontends.occurrences import Occurrences
from tilewright.frontends.relay.reading import ast
from tilewright.ir.errors import InputError, UnsupportedError

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
    return next((f": {text}" for start, text in _REASONS.items() if name.startswith(start)), "")


def survey(module: ast.Module, known_ops: Container[str]) -> None:
    """Raise UnsupportedError listing all operators, constructs and bodiless functions that @main reaches and
    that cannot be imported; InputError when there is no @main."""
    if "main" not in module.functions:
        raise InputError("expected a function @main, got none", where=module.file)
    operators, constructs, opaque = Occurrences(), Occurrences(), Occurrences()
    for node in _reachable(module):
        if isinstance(node, ast.OpRef) and node.name not in known_ops:
            operators.add(node.name, str(node.span))
        elif isinstance(node, ast.Foreign):
            constructs.add(node.kind, str(node.span))
        elif isinstance(node, ast.GlobalVar) and node.name not in module.functions:
            opaque.add(f"@{node.name}", str(node.span))
    parts = {
        "operators this version does not import": operators,
        "constructs this version does not import": constructs,
        "functions without a body": opaque,
    }
    faults = [f"{title}: {found.listed(_reason)}" for title, found in parts.items() if found]
    if faults:
        raise UnsupportedError("; ".join(faults), where=module.file)


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
