"""Reports of a plan and its execution: plain data with stable keys, and text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol

from tilewright.cluster.measuring.link import LinkSample
from tilewright.cluster.measuring.machine import NetworkTimes
from tilewright.cluster.measuring.run import Execution
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.cluster.planning.prediction import COMPONENTS, RankTimes
from tilewright.cluster.planning.search import PlanningProblem, SearchOutcome
from tilewright.cluster.text import seconds_text

#: components in words
WORDS = {
    "compute": "compute",
    "optimizer": "optimizer",
    "wp": "weight partition",
    "dp": "between replicas",
    "pp": "pipeline transfers",
    "wait": "waiting for others",
    "overhead": "between launches",
}
_SHAPE = ("dp", "wp", "p", "micro_batches", "micro_batch")


def plan_facts(
    problem: PlanningProblem, choice: SearchOutcome, samples: Sequence[LinkSample]
) -> dict[str, Any]:
    """The plan, what was looked at, and the record it comes from; samples: of the link."""
    cluster, best = problem.cluster, choice.best
    measured = bool(problem.seconds.by_location)
    return {
        "model": problem.name,
        "cluster": cluster.name,
        "devices": cluster.devices,
        "batch": problem.batch,
        "precision": problem.precision,
        "mode": "corrected",
        "op_seconds": "measured" if measured else "record",
        "measured_batches": [*choice.sizes.known] if measured else [],
        "record": asdict(cluster),
        "link_samples": [asdict(s) for s in samples],
        "plan": {
            **{key: best.row[key] for key in _SHAPE},
            "cuts": [_op_name(problem, cut) for cut in best.division.cuts],
            "kernel_samples": best.samples,
            "basis": best.basis,
            "predicted_s": best.predicted_s,
            "open_divisions": choice.open_,
            "model_s": best.row["total_s"],
            "memory_bytes": best.row["memory_bytes"],
            "memory_capacity_bytes": best.row["memory_capacity_bytes"],
            "components_s": mean_components(best.ranks),
        },
        "candidates": [
            {
                **{key: c.row[key] for key in _SHAPE},
                "model_s": c.row["total_s"],
                "kernel_samples": c.samples,
                "predicted_s": c.predicted_s if c.ranks else None,
                "basis": c.basis if c.ranks else None,
                "least_s": c.least_s if c.ranks else None,
                "not_executable": c.why or None,
            }
            for c in choice.found
        ],
    }


def _op_name(problem: PlanningProblem, cut: int) -> str:
    op = problem.module.main.body.ops[cut]
    return f"{op.name.removeprefix('graph.')} {op.loc}".strip()


def mean_components(ranks: Sequence[RankTimes]) -> dict[str, float]:
    """Seconds by component, means over ranks."""
    return {name: sum(r.components_s[name] for r in ranks) / len(ranks) for name in COMPONENTS}


class Priced(Protocol):
    """A division with the predicted times of its ranks."""

    @property
    def division(self) -> ParallelPlan: ...

    @property
    def ranks(self) -> tuple[RankTimes, ...]: ...

    @property
    def predicted_s(self) -> float: ...


def execution_facts(
    best: Priced, execution: Execution, times: NetworkTimes, after_s: float, runs: str
) -> dict[str, Any]:
    """Predicted against measured seconds: of the whole, by component (means over ranks), and by rank."""
    predicted, measured = mean_components(best.ranks), mean_components(execution.ranks)
    division = best.division
    return {
        "target": times.target,
        "device": times.device,
        "runs": runs,
        "clock": execution.clock,
        "relative_error": execution.relative_error,
        "whole_network_s": times.total_s,
        "whole_network_after_s": after_s,
        "total": compared(best.predicted_s, execution.total_s),
        "components": [
            {
                "name": name,
                **compared(predicted[name], measured[name]),
                "predicted_share": _share(predicted[name], predicted),
                "measured_share": _share(measured[name], measured),
            }
            for name in COMPONENTS
        ],
        "ranks": [
            {
                "rank": number,
                **asdict(division.coordinates(number)),
                "predicted_s": dict(predicted_times.components_s),
                "measured_s": dict(seen.components_s),
                "memory_bytes": memory,
            }
            for number, (predicted_times, seen, memory) in enumerate(
                zip(best.ranks, execution.ranks, execution.memory_bytes, strict=True)
            )
        ],
    }


def compared(predicted_s: float, measured_s: float) -> dict[str, float | None]:
    """Return a prediction beside what was measured, and their ratio; None where nothing was measured."""
    ratio = predicted_s / measured_s if measured_s else None
    return {"predicted_s": predicted_s, "measured_s": measured_s, "ratio": ratio}


def _share(part: float, whole: Mapping[str, float]) -> float:
    total = sum(whole.values())
    return part / total if total else 0.0


def report_text(facts: Mapping[str, Any]) -> str:
    """The plan, the candidates and, where it was executed, the comparison."""
    plan = facts["plan"]
    source = (
        f"ops measured for batches {facts['measured_batches']}"
        if facts["op_seconds"] == "measured"
        else "by the record's rates"
    )
    lines = [
        f"{facts['model']}, one batch of {facts['batch']} on {facts['cluster']}; {facts['precision']}, "
        f"{source}",
        f"plan: {_shape_text(plan)}, predicted {seconds_text(plan['predicted_s'])} "
        f"(cluster model {seconds_text(plan['model_s'])}), memory {plan['memory_bytes'] / 1e6:.1f} of "
        f"{plan['memory_capacity_bytes'] / 1e6:.0f} MB",
    ]
    lines += [f"  stage {i} begins with {name}" for i, name in enumerate(plan["cuts"], 1)]
    lines += _doubts(plan)
    lines += ["", f"{'division':44}{'cluster model':>15}{'ranks modules':>15}"]
    for c in facts["candidates"]:
        priced = "-" if c["predicted_s"] is None else seconds_text(c["predicted_s"])
        basis = ""
        if c["basis"] == "estimated":
            basis = f"  estimated, at least {seconds_text(c['least_s'])}"
        lines.append(f"{_shape_text(c):44}{seconds_text(c['model_s']):>15}{priced:>15}{basis}")
        if c["not_executable"]:
            lines.append(f"  cannot be executed: {c['not_executable']}")
    if "execution" in facts:
        lines += ["", *execution_lines(facts["execution"])]
    return "\n".join(lines)


def _doubts(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for each thing that the plan rests on and that was not measured."""
    lines, size = [], plan["kernel_samples"]
    if plan["basis"] == "estimated":
        lines.append(f"  estimated: kernels of {size} samples were not measured (see --part-sizes)")
    if plan["basis"] == "shares":
        lines.append(f"  the network cannot be had for {size} samples: a share of what more of them take")
    if plan["open_divisions"]:
        n = plan["open_divisions"]
        lines.append(f"  {n} of the estimated divisions below may be faster (see --part-sizes)")
    return lines


def _shape_text(row: Mapping[str, Any]) -> str:
    text = f"dp {row['dp']}, wp {row['wp']}, p {row['p']}"
    return f"{text}, {row['micro_batches']} micro-batches" if row["micro_batches"] > 1 else text


def execution_lines(run: Mapping[str, Any], compared: str = "", whole: str = "network") -> list[str]:
    """The comparison of what was predicted and measured. compared: with what results it was checked."""
    of = f" of {compared}" if compared else ""
    lines = [
        f"executed on {run['device']}, {run['runs']}; relative error{of} against the whole {whole} "
        f"{run['relative_error']:.1e}",
        f"the whole {whole} on every rank at once: {seconds_text(run['whole_network_s'])} before, "
        f"{seconds_text(run['whole_network_after_s'])} after",
        f"{'':20}{'predicted':>12}{'measured':>12}{'ratio':>8}{'error':>9}"
        f"{'share predicted':>17}{'measured':>10}",
    ]
    for c in run["components"]:
        shares = f"{100 * c['predicted_share']:15.1f} %{100 * c['measured_share']:8.1f} %"
        lines.append(f"{WORDS[c['name']]:20}{pair_text(c)}{shares}")
    lines.append(f"{'total':20}{pair_text(run['total'])}")
    for r in run["ranks"]:
        seen = ", ".join(
            f"{WORDS[n]} {seconds_text(r['predicted_s'][n])} / {seconds_text(r['measured_s'][n])}"
            for n in COMPONENTS
            if r["predicted_s"][n] or r["measured_s"][n]
        )
        lines.append(
            f"rank {r['rank']} (stage {r['stage']}, replica {r['replica']}, part {r['part']}): {seen}"
        )
    if run["clock"] == "replays":
        lines.append(
            "compute is a replay without communications; of what the total takes longer, transfers are at "
            "most what the link takes for them, and the rest is waiting"
        )
    return lines


def pair_text(c: Mapping[str, Any]) -> str:
    """Predicted and measured seconds, their ratio, and how far the prediction is off in per cent."""
    ratio, error = "-", "-"
    if c["ratio"] is not None:
        ratio, error = f"{c['ratio']:.2f}", f"{100 * (c['ratio'] - 1):+.1f} %"
    return f"{seconds_text(c['predicted_s']):>12}{seconds_text(c['measured_s']):>12}{ratio:>8}{error:>9}"
