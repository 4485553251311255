"""The facts of a report on libraries: who computes the kernels of a network, and what was compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tilewright.compilation.planning import library_kernels
from tilewright.ir import Module, Ref
from tilewright.libraries.candidates import FINDERS
from tilewright.passes.kernels.decision import seconds_of
from tilewright.passes.kernels.registry import is_generated

#: attribute of a function while shares are counted: how many kernels of generated code alone it stands for
OPERATORS = "operators"


def facts_without_measurement() -> dict[str, Any]:
    """The facts on libraries that may compete where nothing is measured."""
    reason = 'tune="model" measures nothing; a library kernel is taken where it is measured to be faster'
    return {"unavailable": dict.fromkeys(FINDERS, reason), "compared": []}


def won_by(module: Module) -> dict[str, Any]:
    """Launches, operators and seconds of one run by who computes them (`generated` or a library), and shares.

    Operators are the kernels that there would be without libraries: a library launch counts as all that it
    takes the place of, and what is generated around it as none. Seconds are measured where the kernel was,
    else the model's estimate.
    """
    libraries = library_kernels(module)
    launches: dict[str, int] = {"generated": 0}
    operators: dict[str, int] = {"generated": 0}
    seconds: dict[str, float] = {"generated": 0.0}
    for op in module.main.body.ops:
        ref = op.get("callee")
        if not isinstance(ref, Ref):
            continue
        f = module[ref.name]
        who = libraries[f.name].provider if f.name in libraries else "generated"
        launches[who] = launches.get(who, 0) + 1
        count = f.get(OPERATORS)
        operators[who] = operators.get(who, 0) + (count if isinstance(count, int) else 1)
        seconds[who] = seconds.get(who, 0.0) + seconds_of(f)
    total, total_s = sum(operators.values()), sum(seconds.values())
    return {
        "launches": launches,
        "operators": operators,
        "seconds": seconds,
        "generated_share_of_operators": operators["generated"] / total if total else 1.0,
        "generated_share_of_time": seconds["generated"] / total_s if total_s else 1.0,
    }


def replacing(program: Module, kernels: int) -> Module:
    """The program whose functions say how many operators they are: those around the library's are none."""
    counts = {f.name: 0 if is_generated(f) else kernels for f in program.funcs}
    return program.with_funcs(
        tuple(f if f.name == "main" else f.with_attrs(**{OPERATORS: counts[f.name]}) for f in program.funcs)
    )


def without_counts(module: Module) -> Module:
    """The module without what `replacing` said."""
    return module.with_funcs(
        tuple(f if f.get(OPERATORS) is None else f.with_attrs(**{OPERATORS: None}) for f in module.funcs)
    )


def library_lines(facts: Mapping[str, Any]) -> list[str]:
    """The facts as lines of text."""
    launches = facts["launches"]
    others = "".join(f", {n} of {who}" for who, n in launches.items() if who != "generated")
    lines = [
        f"libraries: {launches['generated']} of {sum(launches.values())} launches are generated{others}; "
        f"generated kernels take {100 * facts['generated_share_of_time']:.0f} % of the time"
    ]
    compared = facts["compared"]
    if compared:
        candidates = sum(row["candidates"] for row in compared)
        taken = sum(row["chosen"] != "generated" for row in compared)
        failed = sum(row["failed"] for row in compared)
        lines.append(
            f"{len(compared)} kernels compared with {candidates} library kernels: {taken} taken"
            + (f", {failed} refused" if failed else "")
        )
    return lines + [f"{who} does not compete: {reason}" for who, reason in facts["unavailable"].items()]
