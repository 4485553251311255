"""Operators of a network before fusion: what each op of the network computes, reads and writes by itself.

The ops of one location are one operator: they are lowered to tensor ops, and these to flop and words, by
iteration domains and index sets alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.ir import InputError, Module, Op
from tilewright.ir.facts import WorkClass
from tilewright.ir.nodes import Func, Value
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.work.operator_work import OperatorWork, operator_work
from tilewright.passes.framework.pipeline import Pipeline

#: to tensor ops, with nothing fused
_LOWERING = Pipeline.parse("infer-shapes, graph-to-tensor, dce")
#: the paper's Gflop
GIGA = float(1 << 30)


@dataclass(frozen=True)
class Operator:
    """One operator: its name (the location of its ops, without where they were read) and its work."""

    name: str
    work: OperatorWork


def operators_of(module: Module, groups: Mapping[str, Sequence[str]] | None = None) -> tuple[Operator, ...]:
    """The operators of a graph-level module in program order; those that only rename memory are left out.

    groups: operators to be fused, by the name of the whole; others stay as they are. What one of a group
    writes and only others of it read is moved by none. Raises InputError for names that are not there.
    """
    main = lowered_operators(module)
    members = grouped(main, groups)
    results = results_of(main, members)
    return tuple(Operator(name, operator_work(ops, results[name])) for name, ops in members.items())


def results_of(main: Func, members: Mapping[str, Sequence[Op]]) -> dict[str, list[Value]]:
    """What the ops of each operator make that @main returns or another operator reads, by its name."""
    readers: dict[Value, set[str]] = {}
    for name, ops in members.items():
        for v in (v for op in ops for v in op.operands):
            readers.setdefault(v, set()).add(name)
    returned = set(main.body.ops[-1].operands)
    return {
        name: [v for op in ops for v in op.results if v in returned or readers.get(v, set()) - {name}]
        for name, ops in members.items()
    }


def lowered_operators(module: Module, *, each: bool = False) -> Func:
    """@main of a graph-level module at the tensor level, with nothing fused; every op has a location.

    each: every graph op has a location of its own, so that it is an operator.
    """
    return run_pipeline(_located(module, each=each), _LOWERING, PassContext()).main


def grouped(main: Func, groups: Mapping[str, Sequence[str]] | None = None) -> dict[str, list[Op]]:
    """The ops of each operator, or of each group of operators, in program order.

    Raises InputError for names of operators that are not there.
    """
    whole = {part: name for name, parts in (groups or {}).items() for part in parts}
    members: dict[str, list[Op]] = {}
    for op in main.body.ops[:-1]:
        if op.name != "tensor.constant":
            name = _name(op.loc)
            members.setdefault(whole.get(name, name), []).append(op)
    if unknown := sorted(set(whole) - {_name(op.loc) for op in main.body.ops}):
        raise InputError(f"expected operators of the network in groups, got '{unknown[0]}'")
    return members


def _located(module: Module, *, each: bool) -> Module:
    """The module whose ops without a location, or all of them, have one of their own."""
    main = module.main
    ops = tuple(
        op if op.loc and not each else replace(op, loc=f"{op.name.partition('.')[2]} #{i}")
        for i, op in enumerate(main.body.ops)
    )
    return module.with_funcs(
        tuple(replace(f, body=f.body.with_ops(ops)) if f is main else f for f in module.funcs)
    )


def _name(location: str) -> str:
    """`softmax` of `zoo:softmax`, `nn.conv2d#4` of `relay:nn.conv2d#4 net.relay:22`."""
    first, _, last = location.rpartition(" ")
    place = first if first and ":" in last else location
    return place.partition(":")[2] or place


def sums_by_class(operators: Sequence[Operator]) -> list[dict[str, Any]]:
    """Per class of work, then of all: operators, flops and their share in percent, words in and out."""
    total = sum(o.work.flops for o in operators)
    groups = [(c.value, [o for o in operators if o.work.work is c]) for c in WorkClass]
    groups.append(("all", list(operators)))
    return [
        {
            "work": name,
            "operators": len(group),
            "flops": sum(o.work.flops for o in group),
            "share": 100.0 * sum(o.work.flops for o in group) / total if total else 0.0,
            "words": sum(o.work.words_in + o.work.words_out for o in group),
        }
        for name, group in groups
        if group
    ]


def operator_facts(operators: Sequence[Operator]) -> dict[str, Any]:
    """The operators and their sums as plain data."""
    rows = [
        {
            "operator": o.name,
            "work": o.work.work.value,
            "flops": o.work.flops,
            "words_in": o.work.words_in,
            "words_out": o.work.words_out,
        }
        for o in operators
    ]
    return {"operators": rows, "totals": sums_by_class(operators)}


def operator_text(operators: Sequence[Operator]) -> str:
    """The operators and sums as a table; Gflop of 2^30 as the paper prints them, words in millions."""
    names = max([len("operator"), *(len(o.name) for o in operators)])
    lines = [f"{'operator':{names}} {'class':26} {'Gi flop':>9} {'in MW':>8} {'out MW':>8} {'flop/word':>9}"]
    for o in operators:
        w = o.work
        words = w.words_in + w.words_out
        lines.append(
            f"{o.name:{names}} {w.work.value:26} {w.flops / GIGA:9.3f} {w.words_in / 1e6:8.1f} "
            f"{w.words_out / 1e6:8.1f} {w.flops / words if words else 0:9.1f}"
        )
    lines.append("")
    for t in sums_by_class(operators):
        lines.append(
            f"{t['work']:26} {t['operators']:4} operators {t['flops'] / GIGA:10.4f} Gi flop "
            f"({t['share']:6.3f} %) {t['words'] / 1e6:8.1f} MW"
        )
    return "\n".join(lines)
