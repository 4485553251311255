"""The driver of pattern rewrites: to a fixed point, refusing rewrites that make no progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.errors import WorkError
from tilewright.ir.modules.compare import same_attrs
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.nodes import Attr, Block, Func, Module, Op, Value
from tilewright.ir.types import Type
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.values import replace_in_op, resolve, use_counts

MAX_ROUNDS = 32


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rewrite of ops of certain names.

    `apply` returns the values that replace the op's results, built with the rewriter; None where it does not
    match.
    """

    name: str
    ops: frozenset[str]
    apply: Callable[[Op, Rewriter], Sequence[Value] | None]


def pattern(*ops: str) -> Callable[[Callable[[Op, Rewriter], Sequence[Value] | None]], Pattern]:
    """Make a pattern of a function `(op, rewriter) -> replacement values | None` for ops of these names."""
    return lambda fn: Pattern(fn.__name__, frozenset(ops), fn)


class Rewriter:
    """The view of a pattern: the producer and the uses of a value, constants; it builds new ops, too.

    New ops get the location of the op that is being rewritten.
    """

    def __init__(self, pool: ConstantPool) -> None:
        self.pool = pool
        self.producers: dict[Value, Op] = {}
        self.counts: dict[Value, int] = {}
        self.builder = Builder()

    def producer(self, value: Value) -> Op | None:
        """The op that defines `value`; None for parameters."""
        return self.producers.get(value)

    def uses(self, value: Value) -> int:
        """The number of times that `value` is an operand (an upper bound while a round is under way)."""
        return self.counts.get(value, 0)

    def constant(self, value: Value) -> np.ndarray | None:
        """The array behind `value` where it is a named constant of the module."""
        return self.pool.array(self.producers.get(value))

    def emit(
        self,
        name: str,
        operands: Sequence[Value] = (),
        attrs: Mapping[str, Attr] | None = None,
        *,
        types: Sequence[Type] | None = None,
        body: Block | None = None,
        hint: str = "",
    ) -> tuple[Value, ...]:
        """Build an op in front of the one being rewritten; arguments as `Builder.emit`."""
        results = self.builder.emit(name, operands, attrs, types=types, body=body, hint=hint)
        for r in results:
            self.producers[r] = self.builder.ops[-1]
        return results

    def value(self, name: str, *operands: Value, hint: str = "", **attrs: Attr) -> Value:
        """Build an op with one inferred result."""
        (result,) = self.emit(name, operands, attrs, hint=hint)
        return result

    def new_constant(self, level: str, name: str, array: np.ndarray, type_: Type) -> Value:
        """A constant op for a new array; it is named `name` or, where that is taken, `name.2`, ..."""
        (result,) = self.emit(f"{level}.constant", (), {"name": self.pool.add(name, array)}, types=[type_])
        return result


def rewrite_module(
    module: Module, patterns: Sequence[Pattern], *, level: str, max_rounds: int = MAX_ROUNDS
) -> Module:
    """Apply patterns to every function of `level` until none matches; see `rewrite_func`."""
    pool = ConstantPool(module.constants)
    funcs = tuple(
        rewrite_func(f, patterns, pool, max_rounds=max_rounds) if f.level.value == level else f
        for f in module.funcs
    )
    return module.with_funcs(funcs).with_constants(pool.constants)


def rewrite_func(
    func: Func, patterns: Sequence[Pattern], pool: ConstantPool | None = None, *, max_rounds: int = MAX_ROUNDS
) -> Func:
    """Apply patterns to all ops of a function, bodies included, until none matches; the same one if none did.

    Each round walks the ops in program order; ops that a pattern builds are tried at once. Ops that a rewrite
    leaves without a use are dropped. Raises WorkError naming the pattern when a rewrite rebuilds what it
    replaces, when its values do not fit, or when there is no fixed point within `max_rounds` rounds.
    """
    driver = _Driver(patterns, pool if pool is not None else ConstantPool(), max_rounds)
    for _ in range(max_rounds):
        block = driver.round(func.body)
        if block is func.body:
            return func
        func = func.with_body(block.with_ops(live_ops(block)))
    raise WorkError(f"pattern '{driver.last}' still matches after {max_rounds} rounds in @{func.name}")


class _Driver:
    def __init__(self, patterns: Sequence[Pattern], pool: ConstantPool, max_rounds: int) -> None:
        self.by_op: dict[str, list[Pattern]] = {}
        for p in patterns:
            for name in sorted(p.ops):
                self.by_op.setdefault(name, []).append(p)
        self.pool, self.limit = pool, max_rounds
        self.last = ""

    def round(self, block: Block) -> Block:
        self.rewriter = Rewriter(self.pool)
        self.rewriter.counts = dict(use_counts(block))
        self.new: dict[Value, Value] = {}
        return self.block(block)

    def block(self, block: Block) -> Block:
        out: list[Op] = []
        todo = [(op, 0) for op in reversed(block.ops)]
        while todo:
            op, depth = todo.pop()
            op = replace_in_op(op, self.new)
            if op.body is not None:
                body = self.block(op.body)
                op = op if body is op.body else replace(op, body=body)
            built = self.try_patterns(op, depth)
            if built is None:
                out.append(op)
                self.rewriter.producers.update((r, op) for r in op.results)
            else:
                todo += [(new, depth + 1) for new in reversed(built)]
        return block.with_ops(tuple(out))

    def try_patterns(self, op: Op, depth: int) -> list[Op] | None:
        """Ops that replace `op`, in order; None where no pattern matches."""
        for p in self.by_op.get(op.name, ()):
            self.rewriter.builder = Builder(op.loc)
            values = p.apply(op, self.rewriter)
            if values is None:
                continue
            built = self.rewriter.builder.ops
            self.last = p.name
            if depth >= self.limit:
                raise WorkError(f"pattern '{p.name}' keeps matching what it builds, at {op.name} [{op.loc}]")
            self.check(p, op, tuple(values), built)
            self.replace(op, tuple(values), built)
            return built
        return None

    def check(self, p: Pattern, op: Op, values: tuple[Value, ...], built: list[Op]) -> None:
        expected, got = [r.type for r in op.results], [v.type for v in values]
        if expected != got:
            types = [", ".join(map(str, t)) for t in (expected, got)]
            raise WorkError(f"pattern '{p.name}' replaces ({types[0]}) of {op.name} by ({types[1]})")
        again = any(_same_op(op, new) and new.results == values for new in built)
        if again or (op.results and any(v in op.results for v in values)):
            raise WorkError(f"pattern '{p.name}' makes no progress: it replaces {op.name} by itself")

    def replace(self, op: Op, values: tuple[Value, ...], built: list[Op]) -> None:
        counts = self.rewriter.counts
        for v in op.operands:
            counts[v] = counts.get(v, 0) - 1
        for new in built:
            for v in new.operands:
                counts[v] = counts.get(v, 0) + 1
        for old, value in zip(op.results, values, strict=True):
            value = resolve(value, self.new)
            self.new[old] = value
            counts[value] = counts.get(value, 0) + counts.get(old, 0)


def _same_op(a: Op, b: Op) -> bool:
    same_operands = len(a.operands) == len(b.operands) and all(
        x is y for x, y in zip(a.operands, b.operands, strict=True)
    )
    return a.name == b.name and same_operands and same_attrs(a.attrs, b.attrs) and a.body is b.body
