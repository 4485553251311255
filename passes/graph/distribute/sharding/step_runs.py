"""Several runs of a step as one module: what every run of the number decides alike is decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tilewright.ir.builder import Builder
from tilewright.ir.modules.divisions import Division
from tilewright.ir.nodes import Block, Func, Module, Op, Value
from tilewright.ir.types import FLOATS, TensorType
from tilewright.passes.analysis.backward_pass import LOSS, RECOMPUTED
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.decided import decided
from tilewright.passes.rewriting.run_conditions import decided_conditions
from tilewright.passes.rewriting.zeros import added_to_zeros, zeros_made

#: names of the inputs of each run, by name of the input of the step
RunInputs = dict[str, tuple[str, ...]]


def joined_runs(module: Module, runs: int) -> tuple[Module, RunInputs]:
    """The module that does `runs` runs of a step, one after another, on inputs of their own.

    A step that accumulates so many gradients updates in the last one alone. Sums of gradients that every
    last run leaves as zeros are zeros at first, so a sum over ranks is that of all runs together. Results
    that are one number are means over the runs, others are joined along dimension 0.
    """
    main = module.main
    updated = [main.params[i] for i, _ in main.updates]
    inputs = [p for p in main.params if p not in set(updated)]
    taken = {p.hint for p in main.params}
    given = {p: _of_runs(p, runs, taken) for p in inputs}
    b = Builder("")
    flows = [decided(main, decided_conditions(module, runs, run)) for run in range(runs)]
    now: dict[Value, Value] = {p: p for p in updated}
    for p in updated:
        values: dict[Value, Value] = {}
        for op in _zeros(module, flows[-1], p):
            now[p] = _copied(b, op, values)[0]
    zeros = set(now.values()) - set(updated)
    results: list[list[Value]] = []
    for run, flow in enumerate(flows):
        values = {**now, **{p: given[p][run] for p in inputs}}
        for op in flow.body.ops[:-1]:
            if (term := added_to_zeros(op, values, zeros)) is not None:
                values[op.result] = term
            else:
                _copied(b, op, values)
        end = [values[v] for v in flow.body.ops[-1].operands]
        now = {main.params[i]: end[j] for i, j in main.updates}
        own = {j for _, j in main.updates}
        results.append([v for j, v in enumerate(end) if j not in own])
    b.loc = main.body.ops[-1].loc
    returned = [*(_joined(b, row) for row in zip(*results, strict=True)), *now.values()]
    b.emit("graph.return", returned, types=())
    params = (*(v for p in inputs for v in given[p]), *updated)
    first, own_results = len(params) - len(updated), len(returned) - len(updated)
    pairs = tuple((first + i, own_results + i) for i in range(len(updated)))
    block = Block(params, tuple(b.ops))
    attrs = tuple((k, a) for k, a in main.attrs if k not in ("updates", LOSS, RECOMPUTED))
    func = Func(
        main.level, main.name, block.with_ops(live_ops(block)), tuple(v.type for v in returned), attrs
    ).with_attrs(updates=pairs)
    names = {p.hint: tuple(v.hint for v in given[p]) for p in inputs}
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs)), names


def _copied(b: Builder, op: Op, values: dict[Value, Value]) -> tuple[Value, ...]:
    """Append the op on what stands for its operands; `values` learns what stands for its results."""
    made = tuple(Value(r.type, r.hint) for r in op.results)
    b.append(replace(op, operands=tuple(values[v] for v in op.operands), results=made))
    values.update(zip(op.results, made, strict=True))
    return made


def _of_runs(p: Value, runs: int, taken: set[str]) -> tuple[Value, ...]:
    """The input of every run, under names of their own; one without dimensions is that of all."""
    if not p.tensor.shape:
        return (p,) * runs
    out = [p]
    for run in range(1, runs):
        name = f"{p.hint}.run{run}"
        while name in taken:
            name += "_"
        taken.add(name)
        out.append(Value(p.type, name))
    return tuple(out)


def _zeros(module: Module, last: Func, state: Value) -> list[Op]:
    """The ops that make zeros which a last run leaves of state that begins as zeros; none for other state."""
    if np.any(module.constants[state.hint]):
        return []
    results = last.body.ops[-1].operands
    left = next(results[j] for i, j in last.updates if last.params[i] is state)
    return zeros_made(module, last, left)


def _joined(b: Builder, pieces: Sequence[Value]) -> Value:
    """One result of all runs."""
    t = pieces[0].tensor
    if t.shape:
        return b.value("graph.concatenate", *pieces, axis=0)
    rows = [b.value("graph.reshape", v, newshape=(1,)) for v in pieces]
    joined = b.value("graph.concatenate", *rows, axis=0)
    return b.value("graph.mean", joined, axis=(0,), keepdims=False) if t.dtype in FLOATS else joined


def with_joined_inputs(main: Func, names: RunInputs) -> Func:
    """The function with one parameter for the inputs of all runs, joined along dimension 0."""
    params = {p.hint: p for p in main.params}
    moved: dict[str, Value] = {}
    b = Builder("")
    values: dict[Value, Value] = {}
    for name, own in names.items():
        given = [params[n] for n in dict.fromkeys(own)]
        t = given[0].tensor
        if len(given) == 1:
            continue
        whole = Value(TensorType(t.dtype, (len(given) * t.shape[0], *t.shape[1:])), name)
        moved |= dict.fromkeys(own, whole)
        for run, v in enumerate(given):
            begin = (run * t.shape[0], *(0,) * (t.rank - 1))
            values[v] = (
                whole
                if whole.type == v.type
                else b.value("graph.strided_slice", whole, begin=begin, size=t.shape, strides=(1,) * t.rank)
            )
    kept = tuple(dict.fromkeys(moved.get(p.hint, p) for p in main.params))
    ops = [replace(op, operands=tuple(values.get(v, v) for v in op.operands)) for op in main.body.ops]
    block = Block(kept, (*b.ops, *ops))
    place = {v: i for i, v in enumerate(kept)}
    pairs = tuple((place[main.params[i]], j) for i, j in main.updates)
    return replace(main, body=block.with_ops(live_ops(block))).with_attrs(updates=pairs)


def joined_divisions(divisions: Sequence[Division], names: RunInputs) -> list[Division]:
    """The divisions of inputs of single runs as those of the inputs of all runs."""
    runs = {n: (name, len(dict.fromkeys(own))) for name, own in names.items() for n in own}
    out: dict[str, Division] = {}
    for d in divisions:
        name, count = runs.get(d.name, (d.name, 1))
        if count > 1:
            shape = (count * d.shape[0], *d.shape[1:])
            d = replace(d, name=name, shape=shape, outer=d.outer * (count if d.axis == 0 else 1))
        out[name] = d
    return list(out.values())
