"""Module -> text. `parse(show(m))` is structurally equal to `m`, and `show(parse(show(m))) == show(m)`."""

from __future__ import annotations

import json
import re
from dataclasses import replace

from tilewright.ir.errors import expect
from tilewright.ir.expr import BinOp, Sym, show_expr
from tilewright.ir.modules.compare import same_attr
from tilewright.ir.nodes import Attr, Block, Func, Module, Op, Pairs, Ref, TypedAttr, Value, print_with
from tilewright.ir.opdef import ORIGINS, is_defined, op_def

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


def show_attr(a: Attr) -> str:
    """Text of one attribute value."""
    match a:
        case None:
            return "none"
        case bool():
            return "true" if a else "false"
        case int():
            return str(a)
        case float():
            return repr(a)
        case str():
            return json.dumps(a)
        case Sym() | BinOp():
            return show_expr(a)
        case Ref(name):
            return f"@{name}"
        case Pairs(items):
            return f"({_show_items(items)})"
        case TypedAttr():
            return f"{a.attribute}<{_show_items(a.pairs().items)}>"
        case tuple():
            return "[" + ", ".join(map(show_attr, a)) + "]"


def _show_items(items: tuple[tuple[str, Attr], ...]) -> str:
    return ", ".join(f"{k}: {show_attr(v)}" for k, v in items)


class _TextWriter:
    """Names values of one function and collects lines."""

    def __init__(self, locations: bool) -> None:
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()
        self.counter = 0
        self.locations = locations
        self.lines: list[str] = []

    def name(self, v: Value) -> str:
        known = self.names.get(v)
        if known is not None:
            return known
        hint = v.hint
        if not hint or hint in self.taken:
            text = str(self.counter)
            self.counter += 1
        else:
            self.taken.add(hint)
            text = hint if _PLAIN.fullmatch(hint) else json.dumps(hint)
        self.names[v] = "%" + text
        return self.names[v]

    def attrs(self, op: Op) -> list[tuple[str, Attr]]:
        """The attributes of an op to print; those that say where it came from are locations."""
        pairs = shown_attrs(op)
        if self.locations or not is_defined(op.name):
            return pairs
        kinds = op_def(op.name).attrs
        return [(k, a) for k, a in pairs if k not in kinds or kinds[k].kind != ORIGINS]

    def block(self, b: Block, indent: str, show_params: bool = True) -> None:
        if show_params and b.params:
            self.lines.append(f"{indent}^({', '.join(f'{self.name(v)}: {v.type}' for v in b.params)})")
        for op in b.ops:
            self.op(op, indent)

    def op(self, op: Op, indent: str) -> None:
        inside = [self.name(v) for v in op.operands] + [f"{k} = {show_attr(a)}" for k, a in self.attrs(op)]
        lhs = ", ".join(self.name(v) for v in op.results)
        line = f"{indent}{lhs} = " if lhs else indent
        line += f"{op.name}({', '.join(inside)})"
        if op.results:
            line += " : " + ", ".join(str(v.type) for v in op.results)
        if op.loc and self.locations:
            line += f" loc {json.dumps(op.loc)}"
        if op.body is None:
            self.lines.append(line)
            return
        self.lines.append(line + " {")
        self.block(op.body, indent + "  ")
        self.lines.append(indent + "}")


def shown_attrs(op: Op) -> list[tuple[str, Attr]]:
    """Attributes worth printing: below the graph level not the defaults, which parsing fills in."""
    defs = op_def(op.name).attrs if op.level != "graph" and is_defined(op.name) else {}
    return [(k, a) for k, a in op.attrs if k not in defs or not same_attr(a, defs[k].default)]


def show_func(f: Func, *, locations: bool = True) -> str:
    """Text of one function, indented as inside a module."""
    w = _TextWriter(locations)
    head = [f"{w.name(v)}: {v.type}" for v in f.params] + [f"{k} = {show_attr(a)}" for k, a in f.attrs]
    arrow = " -> " + ", ".join(map(str, f.result_types)) if f.result_types else ""
    w.lines.append(f"  {f.level.value}.func @{f.name}({', '.join(head)}){arrow} {{")
    w.block(f.body, "    ", show_params=False)
    w.lines.append("  }")
    return "\n".join(w.lines)


def show(m: Module, *, locations: bool = True) -> str:
    """Text of a module; `locations=False` leaves out where ops came from."""
    expect(m, Module, "a Module")
    attrs = f"({', '.join(f'{k} = {show_attr(a)}' for k, a in m.attrs)})" if m.attrs else ""
    return (
        "\n".join([f"module @{m.name}{attrs} {{", *(show_func(f, locations=locations) for f in m.funcs), "}"])
        + "\n"
    )


def show_op(op: Op) -> str:
    """One op on its own, body included."""
    w = _TextWriter(locations=True)
    w.op(op, "")
    return "\n".join(w.lines)


def show_head(op: Op) -> str:
    """One op on its own in one line, the body left out."""
    w = _TextWriter(locations=True)
    w.op(replace(op, body=None), "")
    return w.lines[0] + (" { ... }" if op.body is not None else "")


print_with(Func, show_func)
print_with(Module, show)
