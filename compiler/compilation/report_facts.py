"""Facts of a compilation for its report: hardware, kernels, algorithms of convolutions, layouts of values."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from tilewright.compilation.lowering import Lowered
from tilewright.costmodel import Hardware
from tilewright.costmodel.hardware.calibration import calibrated_constants
from tilewright.costmodel.hardware.provenance import borrowed_constants
from tilewright.costmodel.selection.problem import TOLERANCE
from tilewright.ir import Func, Module, Op, Pairs
from tilewright.ir.nodes import INFERENCE
from tilewright.passes.estimation import ESTIMATOR
from tilewright.passes.graph.products.choose_algorithms import compared
from tilewright.passes.kernels.decision import is_measured


def parameter_facts(module: Module) -> dict[str, int]:
    """What a graph-level network, or the network of a training step, has in its constants, before any pass.

    trainable: numbers that training may change; total: all numbers, running statistics and tables included;
    bytes: of all.
    """
    network = module.inference() if any(f.name == INFERENCE for f in module.funcs) else module
    types = {str(op["name"]): op.result.tensor for op in network.main.body.ops if op.name == "graph.constant"}
    return {
        "trainable": sum(types[name].size for name in network.parameters if name in types),
        "total": sum(t.size for t in types.values()),
        "bytes": sum(t.nbytes for t in types.values()),
    }


def convolution_facts(main: Func, hardware: Hardware, factors: str = "") -> list[dict[str, Any]]:
    """A row for each group of equal convolutions of a graph-level @main, after their algorithms were chosen.

    factors: what float32 factors of products are allowed.
    origins, data, kernel (shapes), algorithm, and `considered`: of each algorithm that competes `estimate_s`
    and, where a device was asked, `bound_s` and `measured_s` (None where the bound ruled it out).
    """
    constants = {op.result for op in main.body.ops if op.name == "graph.constant"}
    measured = _measured(main)
    rows: dict[Hashable, dict[str, Any]] = {}
    for i, op in enumerate(op for op in main.body.ops if op.name == "graph.conv2d"):
        constant = op.operands[1] in constants
        considered = measured.get(i)
        key = (tuple(v.type for v in op.operands), op.attrs, constant, str(considered))
        if key not in rows:
            data, kernel = (list(v.tensor.shape) for v in op.operands)
            row = {"origins": [], "data": data, "kernel": kernel, "algorithm": op["algorithm"]}
            rows[key] = {**row, "considered": considered or _estimated(op, hardware, constant, factors)}
        rows[key]["origins"].append(op.loc)
    return list(rows.values())


def _measured(main: Func) -> dict[int, list[dict[str, Any]]]:
    """Considered algorithms by position among the convolutions, where `tune="measure"` left them."""
    out: dict[int, list[dict[str, Any]]] = {}
    records = main.get("convolutions")
    for record in records if isinstance(records, tuple) else ():
        assert isinstance(record, Pairs)
        fields = record.as_dict()
        considered, at = fields["considered"], fields["at"]
        assert isinstance(considered, tuple)
        assert isinstance(at, tuple)
        plain = [r.as_dict() for r in considered if isinstance(r, Pairs)]
        out.update((i, plain) for i in at if isinstance(i, int))
    return out


def _estimated(op: Op, hardware: Hardware, constant_weight: bool, factors: str) -> list[dict[str, Any]]:
    direct = op.with_attrs(algorithm="direct")
    costs = {
        name: ESTIMATOR.algorithm_cost(op, name, hardware, constant_weight=constant_weight, factors=factors)
        for name in compared(direct)
    }
    return [{"algorithm": name, "estimate_s": cost.seconds} for name, cost in costs.items()]


def layout_facts(main: Func) -> dict[str, Any]:
    """The number of values of @main that keep their channels last, and of all; origins of ops that convert.

    The pass choose-layouts leaves the numbers at @main; without them every value is as the network has it.
    """
    attribute = main.get("layouts")
    layouts: dict[str, Any] = attribute.as_dict() if isinstance(attribute, Pairs) else {}
    facts = {
        "channels_last": int(layouts.get("channels_last", 0)),
        "values": int(layouts.get("values", 0)),
        "conversions": [str(loc) for loc in layouts.get("conversions", ())],
    }
    choice = layouts.get("choice")
    if isinstance(choice, Pairs):
        facts |= {"reordered": int(layouts["reordered"]), "choice": choice.as_dict()}
    return facts


def layout_text(facts: dict[str, Any]) -> str:
    """One line about `layout_facts`; empty where no value changed its layout and no orders were compared."""
    if "choice" in facts:
        return _choice_text(facts)
    if not facts["channels_last"]:
        return ""
    converting = facts["conversions"]
    named = f" ({', '.join(converting)})" if converting else ""
    count = f"{len(converting)} conversion kernel{'' if len(converting) == 1 else 's'}{named}"
    return f"layouts: {facts['channels_last']} of {facts['values']} values channels-last, {count}"


def recurrence_facts(main: Func) -> list[dict[str, Any]]:
    """The recurrences that join-recurrences found, with the kernel of each or the reason that it has none."""
    records = main.get("recurrences")
    return [r.as_dict() for r in records if isinstance(r, Pairs)] if isinstance(records, tuple) else []


def recurrence_text(facts: Sequence[dict[str, Any]]) -> str:
    """A line about each of `recurrence_facts`; empty where there are none."""
    lines = []
    for f in facts:
        head = f"recurrence of {f['products']} products in {f['calls']} kernels from {f['first'] or 'here'}: "
        if "kernel" in f:
            seconds = f"{1e6 * f['estimate_s']:.1f} us by the model, {1e6 * f['separate_s']:.1f} apart"
            lines.append(f"{head}{f['kernel']}, {seconds}")
        else:
            lines.append(f"{head}apart, since {f['reason']}")
    return "\n".join(lines)


def chain_facts(main: Func) -> list[dict[str, Any]]:
    """The chains on tensor cores that chain-tiles looked at, with both estimates or the reason for none."""
    records = main.get("chains")
    return [r.as_dict() for r in records if isinstance(r, Pairs)] if isinstance(records, tuple) else []


def chain_text(facts: Sequence[dict[str, Any]]) -> str:
    """A line about each of `chain_facts`; empty where there are none."""
    lines = []
    for f in facts:
        if "reason" in f:
            lines.append(f"chain {f['kernels']}: apart, since {f['reason']}")
            continue
        seconds = f"{1e6 * f['estimate_s']:.1f} us by the model, {1e6 * f['separate_s']:.1f} apart"
        lines.append(f"chain {f['kernels']}: {'one kernel' if f['taken'] else 'not taken'}, {seconds}")
    return "\n".join(lines)


def _choice_text(facts: dict[str, Any]) -> str:
    """What was chosen over all orders, what it costs by the model, and how much better a choice may be."""
    c = facts["choice"]
    by = c["by"] + (f" of width {c['width']}, largest table {c['largest_table']}" if "width" in c else "")
    gap = max(0.0, c["seconds"] - c["bound_s"]) / c["seconds"] if c["seconds"] else 0.0
    proof = "no choice is better" if gap <= TOLERANCE else f"another choice may be {100 * gap:.1f} % better"
    note = f"; {c['note']}" if "note" in c else ""
    if "taken" in c:
        whole = f"{1e6 * c['whole_s']:.1f} us as a whole program, the cut's {1e6 * c['cut_whole_s']:.1f}"
        note += f"; {whole}" + (", so the cut's orders are taken" if c["taken"] == "cut" else "")
    count = f"{facts['reordered']} of {facts['values']}"
    return (
        f"layouts: {count} values in another order ({c['method']}, by {by}): "
        f"{1e6 * c['seconds']:.1f} us by the model, unchanged {1e6 * c['unchanged_s']:.1f}, every kernel for "
        f"itself {1e6 * c['free_s']:.1f}; {proof}{note}"
    )


def _factors(module: Module) -> str:
    """What float32 factors of the program's products are allowed, where any are allowed anything."""
    ops = (op for func in module.funcs for op in func.body.ops if op.name == "tensor.contract")
    return next((str(op["factors"]) for op in ops if op["factors"]), "")


def compilation_facts(lowered: Lowered) -> dict[str, Any]:
    """The facts of a compilation for its report.

    The hardware record, whether it was calibrated, the constants that were measured, those of another device,
    and the device without a record that it is used for. Of each kernel the
    template, parameters, bound, estimate and limit; of each convolution the algorithms;
    how many values changed their layout; which recurrences and chains were found.
    """
    hardware = lowered.target.hardware
    return {
        "hardware": hardware.name,
        "hardware_origin": hardware.origin,
        "hardware_constants": calibrated_constants(hardware),
        "hardware_borrowed": borrowed_constants(hardware),
        "hardware_stands_for": hardware.stands_for,
        "chosen_by": "measurement" if any(map(is_measured, lowered.tensor.funcs)) else "model",
        "convolutions": convolution_facts(lowered.graph.main, hardware, _factors(lowered.tensor)),
        "layouts": layout_facts(lowered.thread.main),
        "recurrences": recurrence_facts(lowered.thread.main),
        "chains": chain_facts(lowered.thread.main),
        "kernels": [record.facts() for record in lowered.records],
    }
