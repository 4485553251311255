"""Checks a module against the op definitions; gathers all faults and shows the ops around each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.errors import InputError, expect
from tilewright.ir.expr import BinOp, Sym, symbols
from tilewright.ir.modules.printer import show_attr, show_head
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Ref, Value
from tilewright.ir.opdef import OpDef, op_def
from tilewright.ir.tensor.ops import domain
from tilewright.ir.thread.channel_ops import channel_faults
from tilewright.ir.thread.cluster_ops import cluster_faults
from tilewright.ir.thread.launch_ops import (
    CONSTANT_PARAMS,
    IN_PLACE,
    OVERWRITES,
    holder_faults,
    launch_order_faults,
)
from tilewright.ir.thread.role_ops import role_faults
from tilewright.ir.thread.tensor_maps import CLUSTER, RANK, map_attribute_faults
from tilewright.ir.thread.transport_ops import transport_faults
from tilewright.ir.types import MAX_ELEMENTS, TensorType, dtype_name

#: op prefixes a function of each level may hold at its top level and inside bodies
ALLOWED = {
    Level.GRAPH: frozenset({"graph"}),
    Level.TENSOR: frozenset({"tensor", "scalar"}),
    Level.THREAD: frozenset({"thread", "scalar"}),
    Level.PLAN: frozenset({"plan"}),
}
#: faults a message spells out; `VerifyError.faults` holds all
MAX_SHOWN = 20
#: blocks along x, y and z that devices launch (CUDA C++ Programming Guide, technical specifications)
MAX_GRID = (2**31 - 1, 65_535, 65_535)
#: kinds of attributes that hold indices and extents
_INDEX_KINDS = frozenset({"expr", "exprs", "mask", "int", "ints"})
_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_.]*")
_THREAD_SYMBOLS = frozenset({"tid", "bid.x", "bid.y", "bid.z"})


@dataclass(frozen=True)
class Fault:
    """One violation: where it is, what is wrong, and the text of the ops around it.

    line: of the text that the op was parsed from, 0 where it was not parsed.
    """

    func: str
    message: str
    context: str
    loc: str = ""
    line: int = 0

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        origin = f" [{self.loc}]" if self.loc else ""
        return f"@{self.func}{line}{origin}: {self.message}\n{self.context}"


class VerifyError(InputError):
    """A module broke the rules of its level; `faults` holds all of them."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        shown = [str(f) for f in faults[:MAX_SHOWN]]
        if len(faults) > MAX_SHOWN:
            shown.append(f"... and {len(faults) - MAX_SHOWN} more")
        if len(faults) > 1:
            shown.insert(0, f"{len(faults)} faults")
        super().__init__("invalid module: " + "\n".join(shown))


def verify(module: Module) -> None:
    """Raise VerifyError with all faults of the module, or return."""
    faults = faults_of(expect(module, Module, "a Module"))
    if faults:
        raise VerifyError(faults)


def faults_of(module: Module) -> list[Fault]:
    """All faults of a module."""
    faults: list[Fault] = []
    seen: set[str] = set()
    if not _NAME.fullmatch(module.name):
        faults.append(Fault("", f"expected a plain name of the module, got '{module.name}'", ""))
    for f in module.funcs:
        if f.name in seen:
            faults.append(Fault(f.name, "a function of this name exists already", ""))
        if not _NAME.fullmatch(f.name):
            faults.append(Fault(f.name, f"expected a plain name of the function, got '{f.name}'", ""))
        seen.add(f.name)
        faults += _Checker(module, f).run()
    return faults


def fault_at(func: Func, block: Block, at: int, message: str, op: Op | None) -> Fault:
    """A fault at the op number `at` of a block of `func`; `op` is None where the op itself is missing."""
    around = range(max(0, at - 1), min(len(block.ops), at + 2))
    lines = [("  > " if i == at else "    ") + show_head(block.ops[i]) for i in around]
    place = (op.loc, op.line) if op is not None else ("", 0)
    return Fault(func.name, message, "\n".join(lines), *place)


class _Checker:
    def __init__(self, module: Module, func: Func) -> None:
        self.module, self.func = module, func
        self.faults: list[Fault] = []

    def run(self) -> list[Fault]:
        f = self.func
        scope = set(_THREAD_SYMBOLS) if f.level is Level.THREAD else set()
        if f.level is Level.THREAD and f.get(CLUSTER) is not None:
            scope.add(RANK)
        self.block(f.body, set(), scope, top=True)
        last = f.body.ops[-1] if f.body.ops else None
        if last is None or last.name != f"{f.level.value}.return":
            self.report(
                None, f.body, len(f.body.ops) - 1, f"expected the function to end in {f.level.value}.return"
            )
        elif f.level is not Level.THREAD and tuple(v.type for v in last.operands) != f.result_types:
            got = _listed([v.type for v in last.operands])
            message = f"expected to return {_listed(f.result_types)}, got {got}"
            self.report(last, f.body, len(f.body.ops) - 1, message)
        if f.get("updates") is not None:
            self.faults += [Fault(f.name, message, "") for message in _update_faults(f)]
        loss, count = f.get("loss"), len(f.result_types)
        positions = loss if isinstance(loss, tuple) and loss else (loss,)
        if loss is not None and not all(type(p) is int and 0 <= p < count for p in positions):
            message = f"expected loss to be positions among {count} results, got {show_attr(loss)}"
            self.faults.append(Fault(f.name, message, ""))
        if f.level is Level.THREAD:
            self.launch_shape()
            self.launch_order()
            self.roles()
            self.maps()
        return self.faults

    def launch_shape(self) -> None:
        grid, block = self.func.get("grid"), self.func.get("block")
        if not (isinstance(grid, tuple) and len(grid) == 3 and all(type(g) is int and g > 0 for g in grid)):
            self.faults.append(Fault(self.func.name, f"expected grid = [x, y, z], got {grid!r}", ""))
        elif any(isinstance(g, int) and g > most for g, most in zip(grid, MAX_GRID, strict=True)):
            message = f"expected a grid of at most {list(MAX_GRID)} blocks, got {list(grid)}"
            self.faults.append(Fault(self.func.name, message, ""))
        if type(block) is not int or not 0 < block <= 1024:
            self.faults.append(Fault(self.func.name, f"expected block = 1..1024 threads, got {block!r}", ""))
        if self.func.result_types:
            self.faults.append(Fault(self.func.name, "a thread-level function returns nothing", ""))

    def launch_order(self) -> None:
        listed, count = self.func.get(CONSTANT_PARAMS, ()), len(self.func.params)
        if not (isinstance(listed, tuple) and all(type(i) is int and 0 <= i < count for i in listed)):
            message = f"expected {CONSTANT_PARAMS} to be positions among {count} parameters, got {listed!r}"
            self.faults.append(Fault(self.func.name, message, ""))
        for name in (OVERWRITES, IN_PLACE):
            pairs = self.func.get(name, ())
            if not isinstance(pairs, tuple) or not all(
                isinstance(p, tuple) and len(p) == 2 and all(type(i) is int and 0 <= i < count for i in p)
                for p in pairs
            ):
                message = f"expected {name} to pair positions among {count} parameters, got {pairs!r}"
                self.faults.append(Fault(self.func.name, message, ""))
        for message in holder_faults(self.func):
            self.faults.append(Fault(self.func.name, message, ""))
        for at, message in launch_order_faults(self.func):
            self.report(self.func.body.ops[at], self.func.body, at, message)

    def roles(self) -> None:
        if self.faults:
            return  # what roles and channels are made of may be missing
        for faults in (role_faults(self.func), channel_faults(self.func), cluster_faults(self.func)):
            for at, message in faults:
                self.report(self.func.body.ops[at], self.func.body, at, message)

    def maps(self) -> None:
        """Tensor maps of parameters, clusters, and the ops that use them."""
        faults = list(map_attribute_faults(self.func))
        self.faults += [Fault(self.func.name, message, "") for message in faults]
        if not self.faults:
            for at, message in transport_faults(self.func):
                self.report(self.func.body.ops[at], self.func.body, at, message)

    def report(self, op: Op | None, block: Block, at: int, message: str) -> None:
        self.faults.append(fault_at(self.func, block, at, message, op))

    def block(self, block: Block, live: set[Value], scope: set[str], *, top: bool = False) -> None:
        live = live | set(block.params)
        for i, op in enumerate(block.ops):
            for fault in self.op(op, live, scope, last=i == len(block.ops) - 1, top=top):
                self.report(op, block, i, fault)
            if op.body is not None:
                self.body(op, live, scope)
            live.update(op.results)

    def body(self, op: Op, live: set[Value], scope: set[str]) -> None:
        inner = set(scope)
        if op.name == "thread.loop":
            var = op.get("var")
            if isinstance(var, Sym):
                inner.add(var.name)
        if op.level == "tensor" and op.body is not None:
            self.block(op.body, set(), set(domain(op)))
        elif op.body is not None:
            self.block(op.body, live, inner)

    def op(self, op: Op, live: set[Value], scope: set[str], *, last: bool, top: bool) -> list[str]:
        try:
            d = op_def(op.name)
        except InputError as e:
            return [str(e)]
        faults = []
        if op.level not in ALLOWED[self.func.level]:
            faults.append(f"{op.name} does not belong to the {self.func.level.value} level")
        elif self.func.level is Level.TENSOR and (op.level == "scalar") is top:
            faults.append(f"{op.name} does not belong {'at the top of a function' if top else 'into a body'}")
        faults += [
            f"operand {i} is not defined before this op" for i, v in enumerate(op.operands) if v not in live
        ]
        if any(r in live for r in op.results):
            faults.append("a result of this op is already defined")
        if "terminator" in d.effects and not last:
            faults.append(f"{op.name} must be the last op of its block")
        if d.body != (op.body is not None):
            faults.append("expected a body" if d.body else "this op takes no body")
        if not faults:
            faults += self.schema(op, d)
        if not faults:
            faults += self.symbols(op, scope)
        return faults

    def schema(self, op: Op, d: OpDef) -> list[str]:
        low, high = d.operand_range
        if len(op.operands) < low or (high is not None and len(op.operands) > high):
            wanted_count = (
                f"{low}" if low == high else f"{low} or more" if high is None else f"{low} to {high}"
            )
            names = ", ".join(d.operands)
            return [f"expected {wanted_count} operands ({names}), got {len(op.operands)}"]
        if d.results is not None and len(op.results) != d.results and d.infer is None:
            return [f"expected {d.results} results, got {len(op.results)}"]
        try:
            if d.complete(op.attributes) != op.attrs:
                return [f"expected all attributes in this order: {', '.join(d.attrs)}"]
            if d.infer is not None:
                inferred = tuple(d.infer([v.type for v in op.operands], op.attributes))
                got = tuple(r.type for r in op.results)
                if inferred != got:
                    return [f"expected result types {_listed(inferred)}, got {_listed(got)}"]
        except InputError as e:
            return [str(e)]
        faults = list(d.verify(op)) if d.verify is not None else []
        if op.name.endswith(".constant") and "name" in d.attrs:
            faults += self.constant(op)
        if op.name == "tensor.call":
            faults += self.call(op)
        return faults

    def constant(self, op: Op) -> list[str]:
        form = self.module.constants.form(str(op["name"]))
        t = op.result.type
        if not isinstance(t, TensorType):
            return [f"expected a tensor constant, got {t}"]
        if form is None:
            return []
        shape, dtype = form
        if shape != t.shape or dtype_name(dtype) != t.dtype:
            return [f"constant '{op['name']}' is {dtype}{list(shape)}, the op says {t}"]
        return []

    def call(self, op: Op) -> list[str]:
        ref = op["callee"]
        callee = next((f for f in self.module.funcs if isinstance(ref, Ref) and f.name == ref.name), None)
        if callee is None:
            return [f"the module has no function {show_attr(ref)}"]
        if any(inner.name == "tensor.call" for inner in callee.body.ops):
            return [f"expected a kernel that makes no calls itself, got @{callee.name}"]
        expected = [p.type for p in callee.params]
        if callee.level is not Level.THREAD:
            expected += callee.result_types
        got = [v.type for v in (*op.operands, *op.results)]
        if len(expected) != len(got):
            return [f"@{callee.name} takes {len(expected)} buffers, got {len(got)}"]
        return [
            f"buffer {i} of @{callee.name} is {w}, got {g}"
            for i, (w, g) in enumerate(zip(expected, got, strict=True))
            if not (
                isinstance(w, TensorType)
                and isinstance(g, TensorType)
                and w.dtype == g.dtype
                and (w.size, w.start, w.span) == (g.size, g.start, g.span)
            )
        ]

    def symbols(self, op: Op, scope: set[str]) -> list[str]:
        faults: list[str] = []
        if op.level == "thread" or op.name == "scalar.index":
            used = {n for k, a in op.attrs if k != "var" for n in _attr_symbols(a)}
            faults += [f"symbol '{n}' is not in scope" for n in sorted(used - scope)]
            kinds = op_def(op.name).attrs
            faults += [
                f"expected {name} within {MAX_ELEMENTS}, which no memory exceeds, got {large}"
                for name, a in op.attrs
                if kinds[name].kind in _INDEX_KINDS and (large := _largest(a)) > MAX_ELEMENTS
            ]
        if op.name == "thread.loop":
            var = op.get("var")
            if isinstance(var, Sym) and var.name in scope:
                faults.append(f"loop variable '{var.name}' hides another symbol")
            if op.integer("extent") < 0 or op.integer("unroll") < 0:
                faults.append("expected extent and unroll to be at least 0")
        return faults


def _update_faults(func: Func) -> list[str]:
    """Faults of the attribute `updates`: which parameter becomes which result."""
    pairs, count, results = func.get("updates"), len(func.params), func.result_types
    if func.level is Level.THREAD:
        return ["a thread-level function has no updates"]
    if not isinstance(pairs, tuple) or not all(
        isinstance(p, tuple) and len(p) == 2 and all(type(n) is int for n in p) for p in pairs
    ):
        return [f"expected updates as pairs [parameter, result], got {show_attr(pairs)}"]
    faults = []
    for pair in func.updates:
        parameter, result = pair
        if not (0 <= parameter < count and 0 <= result < len(results)):
            faults.append(
                f"expected an update among {count} parameters and {len(results)} results, got {pair}"
            )
        elif func.params[parameter].type != results[result]:
            types = f"{func.params[parameter].type} and {results[result]}"
            faults.append(
                f"expected a parameter and a result of one type in update {show_attr(pair)}, got {types}"
            )
    for what, position in (("parameter", 0), ("result", 1)):
        named = [p[position] for p in func.updates]
        faults += [f"{what} {n} is updated twice" for n in sorted(set(named)) if named.count(n) > 1]
    return faults


def _listed(items: Sequence[object]) -> str:
    return f"({', '.join(map(str, items))})"


def _largest(a: object) -> int:
    """The largest magnitude of a number in an attribute."""
    largest, stack = 0, [a]
    while stack:
        x = stack.pop()
        if isinstance(x, BinOp):
            stack += (x.lhs, x.rhs)
        elif isinstance(x, tuple):
            stack += x
        elif type(x) is int:
            largest = max(largest, abs(x))
    return largest


def _attr_symbols(a: object) -> set[str]:
    if isinstance(a, Sym | BinOp):
        return set(symbols(a))
    if isinstance(a, tuple):
        return {n for x in a for n in _attr_symbols(x)}
    return set()
