"""`tilewright explain NET`: for each kernel the chosen parameters, the bound, and what limits it."""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tilewright.api import compile as compile_module
from tilewright.compilation.kernel_records import KernelRecord
from tilewright.compilation.lowering import Lowered, lower
from tilewright.compilation.option_values import PARTITIONER
from tilewright.compilation.report_facts import (
    chain_facts,
    chain_text,
    compilation_facts,
    layout_facts,
    layout_text,
    parameter_facts,
    recurrence_facts,
    recurrence_text,
)
from tilewright.costmodel import Hardware
from tilewright.costmodel.kernels.explain import LIMITS
from tilewright.devices.opening import open_device
from tilewright.devices.targets import Target, resolve_target
from tilewright.ir import InputError, Module, Ref
from tilewright.passes import Instrument, PassContext, Step
from tilewright.passes.tensor.fusion.partitioners import PARTITIONERS, choose, price
from tilewright.profiling.ledger import Ledger, modelled_ledger
from tilewright.running.checking import random_inputs
from tilewright.running.executable import Executable
from tilewright.runtime.errors import DeviceMissingError
from tilewright.tools.commands.network import load_network, load_saved, passes_of
from tilewright.tools.data_movement.kernel_rows import (
    MovementRow,
    movement_facts,
    movement_rows,
    movement_text,
)
from tilewright.tools.data_movement.operators import operator_facts, operator_text, operators_of
from tilewright.tools.report.facts import hardware_of
from tilewright.tools.report.training_costs import training_costs, training_text
from tilewright.tools.report.wording import hardware_text, weights_text
from tilewright.training import optim
from tilewright.training.step import train_step
from tilewright.training.vjp import vjp


def run_explain(a: argparse.Namespace) -> None:
    """Lower without building, or read what was saved, and print the choices."""
    if a.partitioners:
        module, target = load_network(a), resolve_target(a.target)
        compared = compare_partitioners(module, target)
        print(json.dumps(compared, indent=1) if a.json else partitioner_table(a.network, target, compared))
        return
    if a.train:
        explain_step(a)
        return
    if a.mue:
        explain_movement(a)
        return
    if a.ledger:
        explain_ledger(a)
        return
    if a.operators:
        _print_operators(_network(a), a.network, a)
        return
    name, facts, called = _saved(a) if Path(a.network).suffix == ".tw" else _lowered(a)
    calls = Counter(called)
    try:
        rows = [{**k, "calls": calls[k["name"]]} for k in facts["kernels"]]
        text = _document(f"{a.network} for {name} ({facts['hardware']})", facts, rows, calls.total())
    except (KeyError, TypeError, AttributeError, ValueError) as e:
        raise InputError("expected a saved executable with facts of its kernels", where=a.network) from e
    print(json.dumps(rows, indent=1) if a.json else text)


def explain_ledger(a: argparse.Namespace) -> None:
    """Print the ledger of a network or of what was saved: measured where its device is, else by the model."""
    if Path(a.network).suffix == ".tw":
        with load_saved(a) as exe:
            if _is_here(exe.target):
                ledger = _recorded(exe)
            else:
                thread = exe.artifact.module("thread")
                records = [KernelRecord.read(k) for k in exe.report()["kernels"]]
                target = replace(resolve_target(exe.target), hardware=hardware_of(exe.report()))
                ledger = modelled_ledger(thread, records, target)
    elif _is_here(a.target):
        choices = {
            "precision": a.precision,
            "partitioner": a.partitioner,
            "layouts": a.layouts,
            "relays": a.relays,
        }
        with compile_module(_network(a), target=a.target, **choices, **passes_of(a)) as exe:
            ledger = _recorded(exe)
    else:
        lowered = _lowering(_network(a), a)
        ledger = modelled_ledger(lowered.thread, lowered.records, lowered.target)
    print(json.dumps(ledger.facts(), indent=1) if a.json else f"{a.network}\n{ledger}")


def _network(a: argparse.Namespace) -> Module:
    """The network that the arguments name, with its backward pass where they say so.

    The partitioner of the paper leaves attention as products and a softmax, whose weights are stored.
    """
    if a.vjp is None:
        return load_network(a)
    storage = None if a.vjp == "f32" else a.vjp
    return vjp(load_network(a, training=True), storage=storage, attention=a.partitioner != "maximal")


def _is_here(target: str) -> bool:
    """Return whether this machine has the device of a target, and the device runs kernels."""
    resolved = resolve_target(target)
    try:
        open_device(str(resolved)).close()
    except DeviceMissingError:
        return False
    return resolved.kind != "null"


def _recorded(exe: Executable) -> Ledger:
    return exe.ledger(*random_inputs(exe.input_names, exe.input_types, seed=0))


def explain_movement(a: argparse.Namespace) -> None:
    """Print the data movement of every kernel of a network, or of what was saved."""
    if Path(a.network).suffix == ".tw":
        exe = load_saved(a)
        target, hardware = exe.target, hardware_of(exe.report())
        tensor, thread = exe.artifact.module("tensor"), exe.artifact.module("thread")
        records: Sequence[KernelRecord] = [KernelRecord.read(k) for k in exe.report()["kernels"]]
    else:
        lowered = _lowering(_network(a), a)
        target, hardware = str(lowered.target), lowered.target.hardware
        tensor, thread, records = lowered.tensor, lowered.thread, lowered.records
    _print_movement(
        f"{a.network} for {target}", movement_rows(tensor, thread, records, hardware), hardware, a
    )


def _print_movement(
    head: str, rows: Sequence[MovementRow], hardware: Hardware, a: argparse.Namespace
) -> None:
    if a.json:
        print(json.dumps(movement_facts(rows, hardware), indent=1))
    else:
        print(f"{head}\n{movement_text(rows, hardware)}")


def _print_operators(module: Module, head: str, a: argparse.Namespace) -> None:
    """Print what every operator of a network computes, reads and writes by itself."""
    operators = operators_of(module)
    if a.json:
        print(json.dumps(operator_facts(operators), indent=1))
    else:
        print(f"{head}: operators before fusion\n{operator_text(operators)}")


def explain_step(a: argparse.Namespace) -> None:
    """Print what the training step of a network costs by the model: per op, and of what is saved.

    With --mue, print the data movement of every kernel instead, with --operators that of every operator.
    """
    target = resolve_target(a.target)
    rate = {"lr": 0.1, "momentum": 0.9} if a.train == "sgd" else {}
    if a.train not in optim.NAMED:
        raise InputError(f"--train: expected an optimizer among {', '.join(optim.NAMED)}, got '{a.train}'")
    step = train_step(
        load_network(a, training=True),
        a.loss,
        optim.NAMED[a.train](**rate),
        unused="keep",
        memory_budget=a.memory_budget,
    )
    if a.operators:
        _print_operators(step, f"a step of {a.network} with {a.train}", a)
        return
    lowered = lower(step, target, precision=a.precision, partitioner=a.partitioner, layouts=a.layouts)
    if a.mue:
        rows = movement_rows(lowered.tensor, lowered.thread, lowered.records, target.hardware)
        _print_movement(
            f"a step of {a.network} with {a.train} in {a.precision} for {target}", rows, target.hardware, a
        )
        return
    facts = {
        **training_costs(lowered),
        "parameters": parameter_facts(step),
    }
    if a.json:
        print(json.dumps(facts, indent=1))
        return
    print(f"a step of {a.network} with {a.train} in {a.precision} for {target}")
    print(weights_text(facts))
    if line := layout_text(layout_facts(lowered.thread.main)):
        print(line)
    if line := recurrence_text(recurrence_facts(lowered.thread.main)):
        print(line)
    if line := chain_text(chain_facts(lowered.thread.main)):
        print(line)
    print(training_text(facts))


def _lowering(module: Module, a: argparse.Namespace) -> Lowered:
    chosen = passes_of(a)
    return lower(
        module,
        resolve_target(a.target),
        own=chosen["passes"],
        verify_each=chosen["verify_each"],
        precision=a.precision,
        partitioner=a.partitioner,
        layouts=a.layouts,
        relays=a.relays,
    )


def _lowered(a: argparse.Namespace) -> tuple[str, Mapping[str, Any], list[str]]:
    """Target, facts, and the kernel of every launch of a network."""
    module = _network(a)
    lowered = _lowering(module, a)
    calls = [op["callee"] for op in lowered.thread.main.body.ops if op.name == "tensor.call"]
    return (
        str(lowered.target),
        {**compilation_facts(lowered), "parameters": parameter_facts(module)},
        [ref.name for ref in calls if isinstance(ref, Ref)],
    )


def _saved(a: argparse.Namespace) -> tuple[str, Mapping[str, Any], list[str]]:
    """The same of a saved executable."""
    exe = load_saved(a)
    return exe.target, exe.artifact.facts, [launch.kernel for launch in exe.plan.launches]


def _document(head: str, facts: Mapping[str, Any], rows: list[dict[str, Any]], launches: int) -> str:
    bound = sum(k["calls"] * k["cost"]["bound_s"] for k in rows)
    estimate = sum(k["calls"] * k["cost"]["estimate_s"] for k in rows)
    lines = [
        f"{head}: {len(rows)} kernels, {launches} launches",
        weights_text(facts),
        hardware_text(facts),
        layout_text(facts["layouts"]),
        recurrence_text(facts.get("recurrences", ())),
        chain_text(facts.get("chains", ())),
        *(f"refused {r['kernel']} with {r['params']}: {r['reason']}" for r in facts.get("refused", ())),
        *map(_text, rows),
        f"sum over launches: bound {1e6 * bound:.1f} us, estimate {1e6 * estimate:.1f} us",
    ]
    return "\n".join(filter(None, lines))


def _text(k: dict[str, Any]) -> str:
    cost = k["cost"]
    limit = cost["limit"]
    template = k["template"] if "template" in k else k["skeleton"]  # older files say skeleton
    return (
        f"\n{k['name']}  x{k['calls']}  [{template}]  grid {k['grid']} x {k['block']} threads\n"
        f"  from    {', '.join(k['origins'])}\n"
        f"  cut     {_params(k['params'])}\n"
        f"  bound   {1e6 * cost['bound_s']:.2f} us ({100 * cost['fraction_of_peak']:.1f} % of peak), "
        f"limited by {LIMITS.get(limit, limit)}{_warm(cost)}\n"
        f"  expect  {1e6 * cost['estimate_s']:.2f} us, best of {cost['considered']} candidates"
    )


def _warm(cost: dict[str, Any]) -> str:
    """What a launch takes at least that finds its data in the caches, where that is less."""
    warm = cost.get("warm_bound_s")
    return "" if warm is None or warm >= cost["bound_s"] else f"; {1e6 * warm:.2f} us from caches"


def _params(p: dict[str, Any]) -> str:
    parts = []
    for name, value in p.items():
        text = "x".join(f"{d}:{n}" for d, n in value.items()) if isinstance(value, dict) else str(value)
        parts.append(f"{name}={text}")
    return " ".join(parts)


class _BeforeFusion(Instrument):
    """Keeps the flat tensor program that the pass fuse-kernels is given."""

    def __init__(self) -> None:
        self.module: Module | None = None

    def before(self, step: Step, module: Module) -> None:
        """Remember what the pass sees."""
        if step.configured.name == "fuse-kernels":
            self.module = module


def compare_partitioners(module: Module, target: Target) -> list[dict[str, Any]]:
    """One row per partitioner: kernels launched, estimated seconds, whether it is known to be the cheapest
    partition, seconds to choose it.

    Raises InputError where the module holds kernels already.
    """
    seen = _BeforeFusion()
    lower(module, target, [seen], partitioner=PARTITIONER)
    if seen.module is None or any(op.name == "tensor.call" for op in seen.module.main.body.ops):
        raise InputError("expected a network whose ops are not kernels yet", where=f"@{module.name}")
    start = time.perf_counter()
    priced = price(seen.module.main, PassContext(target=str(target), hardware=target.hardware))
    pricing = time.perf_counter() - start
    rows = []
    others = ("tensor.join", "tensor.communicate")  # no kernels
    joins = sum(1 << i for i, op in enumerate(priced.graph.ops) if op.name in others)
    for name in PARTITIONERS:
        start = time.perf_counter()
        cover = choose(priced, name)
        rows.append(
            {
                "partitioner": name,
                "kernels": sum(not joins & s for s in cover.sets),
                "estimate_s": cover.seconds,
                "cheapest": name == "exact" and cover.exact,
                "ops": len(priced.graph.ops),
                "candidates": len(priced.seconds),
                "pricing_s": pricing,
                "choosing_s": time.perf_counter() - start,
            }
        )
    return rows


def partitioner_table(network: str, target: Target, rows: list[dict[str, Any]]) -> str:
    """The rows as text."""
    first = rows[0]
    lines = [
        f"{network} for {target}: {first['ops']} ops, {first['candidates']} sets of ops can be one kernel "
        f"(priced in {first['pricing_s']:.1f} s)",
        f"{'partitioner':12} {'kernels':>8} {'estimate us':>12} {'chosen in s':>12}",
    ]
    for r in rows:
        estimate_us, note = 1e6 * r["estimate_s"], "  cheapest of all partitions" if r["cheapest"] else ""
        lines.append(
            f"{r['partitioner']:12} {r['kernels']:8} {estimate_us:12.1f} {r['choosing_s']:12.2f}{note}"
        )
    return "\n".join(lines)
