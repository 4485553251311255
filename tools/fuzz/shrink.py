"""Makes a failing graph small: fewer results, fewer ops, reference values in place of what computed them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tilewright.ir import Builder, Constants, Func, Level, Module, Value
from tilewright.ir.nodes import Op
from tilewright.running.interpreting import interpret

#: true where a graph fails on its inputs in the way that is looked for
Fails = Callable[[Module, Sequence[np.ndarray]], bool]
Case = tuple[Module, list[np.ndarray]]


def shrink(module: Module, inputs: Sequence[np.ndarray], fails: Fails, attempts: int = 200) -> Case:
    """A smaller graph that still fails, after at most `attempts` tries."""
    case = (module, list(inputs))
    tried = 0
    progress = True
    while progress:
        progress = False
        for smaller in _candidates(*case):
            tried += 1
            if tried > attempts:
                return case
            if fails(*smaller):
                case, progress = smaller, True
                break
    return case


def _candidates(module: Module, inputs: Sequence[np.ndarray]) -> Iterator[Case]:
    """Smaller variants, the boldest first: one result only; an op replaced by inputs; one result fewer."""
    ops, results = module.main.body.ops[:-1], module.main.body.ops[-1].operands
    if len(results) > 1:
        for r in results:
            yield _rebuilt(module, inputs, ops, [r], {})
        for r in results:
            yield _rebuilt(module, inputs, ops, [v for v in results if v is not r], {})
    values = _values(module, inputs)
    for op in reversed(ops):
        if op.name != "graph.constant" and not all(r in results for r in op.results):
            yield _rebuilt(module, inputs, ops, results, {r: values[r] for r in op.results})
    for op in ops:
        if op.name == "graph.constant":
            yield _rebuilt(module, inputs, ops, results, {op.result: values[op.result]})


def _values(module: Module, inputs: Sequence[np.ndarray]) -> dict[Value, np.ndarray]:
    """Every value as the reference computes it."""
    made = [r for op in module.main.body.ops[:-1] for r in op.results]
    whole, _ = _rebuilt(module, inputs, module.main.body.ops[:-1], made, {})
    return dict(zip(made, interpret(whole, *inputs), strict=True))


def _rebuilt(
    module: Module,
    inputs: Sequence[np.ndarray],
    ops: Sequence[Op],
    results: Sequence[Value],
    given: dict[Value, np.ndarray],
) -> Case:
    """The graph of `results` with `given` values as further inputs, without what nothing reads."""
    needed, remaining = set(results), []
    for op in reversed(ops):
        made = [r for r in op.results if r not in given]
        if any(r in needed for r in made):
            remaining.append(op)
            needed.update(op.operands)
    fed = dict(zip(module.main.params, inputs, strict=True)) | given
    fed = {v: a for v, a in fed.items() if v in needed or (not given and v in module.main.params)}
    params = {v: Value(v.type, f"x{i}") for i, v in enumerate(fed)}
    b, env = Builder(), dict(params)
    for op in reversed(remaining):
        types = [r.type for r in op.results]
        made_now = b.emit(op.name, [env[v] for v in op.operands], dict(op.attrs), types=types)
        env.update({old: new for old, new in zip(op.results, made_now, strict=True) if old not in given})
    b.do("graph.return", *(env[r] for r in results))
    block = b.block(tuple(params.values()))
    func = Func(Level.GRAPH, "main", block, tuple(r.type for r in results))
    names = {str(op["name"]) for op in remaining if op.name == "graph.constant"}
    constants = Constants({n: module.constants[n] for n in names})
    return Module(module.name, (func,), constants=constants), list(fed.values())
