"""Plans of training steps as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.cluster.phases import phases_line
from tilewright.cluster.report import execution_lines, pair_text
from tilewright.cluster.text import seconds_text

#: components of an update that streams, in words
_WORDS = {
    "compute": "compute",
    "copy": "copies to the device",
    "read": "reading",
    "write": "writing",
    "wait": "waiting for storage",
    "commit": "keeping the state",
}


def step_text(facts: Mapping[str, Any]) -> str:
    """The plan of a divided step, the other ways and, where it was executed, the comparison."""
    plan, training = facts["plan"], facts["training"]
    source = (
        "by the record's rates" if "execution" not in facts else "kernels by the model, the record's rate"
    )
    if facts["op_seconds"] == "measured":
        sizes = (f"{s['samples']}" + f" x {s['runs']}" * (s["runs"] > 1) for s in facts["measured_sizes"])
        source = f"steps of {', '.join(sizes)} samples measured"
    doubt = (
        ""
        if plan["measured_size"] or facts["op_seconds"] == "record"
        else ", kernels of this size not measured"
    )
    lines = [
        f"{facts['model']}, updates of {training['optimizer']} for {training['loss']} over {facts['batch']} "
        f"samples on {facts['cluster']}; {facts['precision']}, {source}",
        f"plan: {_way(plan)}, predicted {seconds_text(plan['predicted_s'])}, state "
        f"{plan['state_bytes'] / 1e6:.1f} of {plan['memory_capacity_bytes'] / 1e6:.0f} MB per device{doubt}",
        "",
        f"{'division':44}{'state':>12}{'predicted':>15}",
    ]  # fmt: skip
    for c in facts["candidates"]:
        priced = "-" if c["predicted_s"] is None else seconds_text(c["predicted_s"])
        basis = "" if c["measured_size"] or facts["op_seconds"] == "record" else "  in proportion to its work"
        lines.append(f"{_way(c):44}{c['state_bytes'] / 1e6:>9.1f} MB{priced:>15}{basis}")
        if c["not_executable"]:
            lines.append(f"  cannot be executed: {c['not_executable']}")
    if "execution" in facts:
        lines += ["", *execution_lines(facts["execution"], "losses", "step")]
    if "phases" in facts:
        lines += ["", phases_line(facts["phases"])]
    return "\n".join(lines)


def _way(row: Mapping[str, Any]) -> str:
    text = f"dp {row['dp']}, wp {row['wp']}, p {row['p']}"
    text += f", {row['micro_batches']} micro-batches" if row["micro_batches"] > 1 else ""
    return f"{text}, ZeRO-1" if row["zero"] else text


def streamed_text(facts: Mapping[str, Any]) -> str:
    """The plan of a streamed step and, where it was executed, the comparison."""
    plan, record, training = facts["plan"], facts["record"], facts["training"]
    lines = [
        f"{facts['model']}, updates of {training['optimizer']} for {training['loss']} over {facts['batch']} "
        f"samples in {plan['micro_batches']} micro-batches under {facts['memory_cap_bytes'] / 1e6:.1f} MB; "
        f"{facts['precision']}",
        f"storage reads {record['storage_read_bytes_per_s'] / 1e9:.2f} GB/s and writes "
        f"{record['storage_write_bytes_per_s'] / 1e9:.2f} GB/s",
        f"plan: order {plan['order']}, {plan['layers']} layers, {plan['state_bytes'] / 1e6:.1f} MB of state, "
        f"predicted {seconds_text(plan['predicted_s'])}",
    ]
    lines += [f"  order {c['order']}: {seconds_text(c['predicted_s'])}" for c in facts["candidates"]]
    if "execution" not in facts:
        return "\n".join(lines)
    run = facts["execution"]
    lines += [
        "",
        f"executed on {run['target']}, {run['runs']}; relative error of losses against the step that is not "
        f"streamed {run['relative_error']:.1e}",
        f"read {run['read_bytes'] / 1e6:.1f} MB and wrote {run['write_bytes'] / 1e6:.1f} MB in an update",
        f"{'':20}{'predicted':>12}{'measured':>12}{'ratio':>8}{'error':>9}",
    ]
    lines += [f"{_WORDS[c['name']]:20}{pair_text(c)}" for c in run["components"]]
    return "\n".join([*lines, f"{'total':20}{pair_text(run['total'])}"])
