"""The text that `tilewright cluster` prints: plans with their components, the table, errors per source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: components below this share of the longest one are left out of a line
_SHOWN_SHARE = 1e-3


def plan_text(facts: Mapping[str, Any]) -> str:
    """The ranked configurations of a plan: a line of choices and a line of components each."""
    lines = [
        f"{facts['model']} on {facts['cluster']} ({facts['devices']} devices), training {facts['training']}, "
        f"mode {facts['mode']}{_stack(facts)}: "
        f"{facts['feasible']} of {facts['configurations']} configurations are feasible"
    ]
    for place, row in enumerate(facts["best"], 1):
        lines += ["", f"{place:3}. {seconds_text(row['total_s']):>10}  {choices_text(row, facts['mode'])}"]
        lines.append(f"     {_components(row['components_s'])}")
        if row["memory_bytes"]:
            lines.append(f"     {_capacities(row)}")
    if any(components_overlap(row) for row in facts["best"]):
        lines += ["", "components overlap in time, so they add up to more than the step takes"]
    against = ", ".join(f"{reason} ({count})" for reason, count in facts["infeasible"].items() if count)
    if against:
        lines += ["", f"not feasible: {against}"]
    return "\n".join(lines)


def components_overlap(row: Mapping[str, Any]) -> bool:
    """Return True where the components of a configuration add up to more than its time, rounding aside."""
    return sum(row["components_s"].values()) > 1.001 * float(row["total_s"])


def choices_text(row: Mapping[str, Any], mode: str) -> str:
    """One configuration in a few words."""
    text = f"{row['schedule']} (dp {row['dp']}, wp {row['wp']}, p {row['p']})"
    if mode != "corrected":
        return text
    parts = [f"micro-batch {row['micro_batch']}"]
    if row["recompute"]:
        parts.append("recompute")
    if row["sharding"]:
        parts.append(f"ZeRO-{row['sharding']}")
    if row["interleave"] > 1:
        parts.append(f"interleave {row['interleave']}")
    if row["gradients"] != "device":
        parts.append(f"gradients on {row['gradients']}")
    return f"{text}, {', '.join(parts)}"


def seconds_text(seconds: float) -> str:
    """Seconds with four digits, small ones in milliseconds or microseconds."""
    for unit, scale in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * scale >= 1 or unit == "us":
            return (
                f"{seconds * scale:.4g} {unit}" if seconds * scale < 1e4 else f"{seconds * scale:.0f} {unit}"
            )
    raise AssertionError("unreachable")


def table_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Blocks of (dp, wp, p) by schedule, one per model and cluster."""
    lines: list[str] = []
    for model, cluster in dict.fromkeys((r["model"], r["cluster"]) for r in rows):
        block = [r for r in rows if (r["model"], r["cluster"]) == (model, cluster)]
        by_shape: dict[tuple[int, int, int], dict[str, float]] = {}
        for r in block:
            by_shape.setdefault((r["dp"], r["wp"], r["p"]), {})[r["schedule"]] = r["normalized"]
        schedules = list(dict.fromkeys(r["schedule"] for r in block))
        lines += [f"{model}, cluster {cluster}", "   dp   wp    p" + "".join(f"{s:>10}" for s in schedules)]
        for (dp, tp, p), values in by_shape.items():
            lines.append(f"{dp:5}{tp:5}{p:5}" + "".join(f"{values[s]:10.3f}" for s in schedules))
        lines.append("")
    return "\n".join(lines).rstrip()


def validation_text(facts: Mapping[str, Any]) -> str:
    """Errors per source, then the best rates, then the knobs."""
    lines = [
        "errors of the step time, predicted against measured",
        f"{'source':22}{'stack':17}{'':13}{'rows':>5}{'mean':>8}{'median':>8}{'worst':>8}{'bias':>9}"
        f"{'rank':>7}{'within':>8}{'regret':>8}",
    ]
    for s in facts["sources"]:
        lines.append(
            f"{s['source']:22}{s['stack']:17}{'fitted' if s['fitted'] else 'transferred':13}{s['rows']:5}"
            f"{_percent(s['mean_absolute_error']):>8}{_percent(s['median_absolute_error']):>8}"
            f"{_percent(s['largest_error']):>8}{_percent(s['bias']):>9}{_digits(s['rank_correlation']):>7}"
            f"{_digits(s['rank_within']):>8}{_percent(s['regret']):>8}"
        )
    lines += ["", *_held_out_lines(facts["sources"])]
    lines += ["", "rates of best configurations, against the best the model finds (TF/s per device)"]
    for source in dict.fromkeys(b["source"] for b in facts["best_rates"]):
        off = [abs(b["error"]) for b in facts["best_rates"] if b["source"] == source]
        lines.append(f"{source}: mean error of the step time {_percent(sum(off) / len(off))}")
    for b in facts["best_rates"]:
        lines.append(
            f"{b['source']:15}{b['model']:>7} on {b['devices']:3} devices: "
            f"measured {b['measured_tflops']:5.1f}, predicted {b['predicted_tflops']:5.1f} "
            f"at (dp {b['data']}, wp {b['tensor']}, p {b['pipeline']}), micro-batch {b['micro_batch']}"
        )
    for stack in facts["stacks"]:
        knobs = ", ".join(f"{name} {value:.4g}" for name, value in stack["fitted_knobs"].items())
        lines += ["", f"{stack['name']} (on {stack['base']}): {knobs}"]
    return "\n".join(lines)


def _stack(facts: Mapping[str, Any]) -> str:
    return f" with the knobs of {facts['stack']}" if facts["stack"] else ""


def _held_out_lines(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        "mean error of rows left out of the fit, by what is left out at once; with the knobs of the base;",
        "and of `cluster plan` without --stack (mode corrected, the record dgx-a100, nothing fitted)",
        f"{'source':22}{'random fifth':>14}{'model':>9}{'source':>9}{'base':>9}{'its bias':>10}"
        f"{'corrected':>11}{'its rank':>10}",
    ]
    for s in sources:
        left_out = [s[f"held_out_{fold}"] for fold in ("random", "model", "source")]
        lines.append(
            f"{s['source']:22}{_percent(left_out[0]):>14}{_percent(left_out[1]):>9}{_percent(left_out[2]):>9}"
            f"{_percent(s['base_error']):>9}{_percent(s['base_bias']):>10}"
            f"{_percent(s['planner_error']):>11}{_digits(s['planner_rank']):>10}"
        )
    return lines


def _components(components: Mapping[str, float]) -> str:
    longest = max(components.values())
    shown = [(n, s) for n, s in components.items() if s > _SHOWN_SHARE * longest]
    return ", ".join(f"{name} {seconds_text(s)}" for name, s in sorted(shown, key=lambda item: -item[1]))


def _capacities(row: Mapping[str, Any]) -> str:
    text = f"memory {row['memory_bytes'] / 1e9:.1f} of {row['memory_capacity_bytes'] / 1e9:.1f} GB"
    if row["storage_bytes"]:
        text += f", storage {row['storage_bytes'] / 1e9:.0f} of {row['storage_capacity_bytes'] / 1e9:.0f} GB"
    return text


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{round(100 * share, 1) + 0.0:.1f} %"  # adding zero: no "-0.0"


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
