"""The table of docs/gradients.md says of every op how it is differentiated; `--update-golden` renews it."""

import re
import sys
from pathlib import Path

from tilewright.ir.facts import Gradient
from tilewright.ir.opdef import op_defs
from tilewright.passes.graph.gradients import differentiate  # noqa: F401  (registers the rules)
from tilewright.passes.graph.gradients.registry import GRADIENTS

PAGE = Path(__file__).parents[3] / "docs" / "gradients.md"
START, END = "<!-- the table of all ops starts here -->\n", "<!-- it ends here -->\n"
OTHERS = {
    Gradient.DERIVED: "derived from the op's lowering",
    Gradient.NONE: "none: integers, booleans, piecewise constant results, no operand, or stopped on purpose",
    Gradient.REFUSED: "refused",
}


def gradient_of(definition):
    """Where an op stands in the table, and what is said of it."""
    kind = definition.facts.gradient
    if kind is not Gradient.RULE:
        return list(Gradient).index(kind), "", OTHERS[kind]
    rule = GRADIENTS[definition.name]
    doc = (rule.__doc__ or sys.modules[rule.__module__].__doc__).partition("\n\n")[0]
    return 0, rule.__module__, f"rule: {' '.join(doc.split())}".removesuffix(".")


def table():
    """One row per rule, then one for each other way, as Markdown."""
    rows = {}
    for d in op_defs():
        if d.name.startswith("graph."):
            rows.setdefault(gradient_of(d), []).append(f"`{d.name.removeprefix('graph.')}`")
    lines = [f"| {' '.join(sorted(ops))} | {text.replace('|', chr(92) + '|')} |"
             for (_, _, text), ops in sorted(rows.items())]  # fmt: skip
    return "\n".join(["| ops | gradient |", "|---|---|", *lines, ""])


def test_the_table_is_that_of_the_facts(update_golden):
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    renewed = f"{before}{START}\n{table()}\n{END}{after}"
    if update_golden:
        PAGE.write_text(renewed, encoding="utf-8")
        return
    assert text == renewed, "docs/gradients.md: another table (pytest --update-golden renews it)"


def test_the_code_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict[str, object] = {}
    exec(compile(code, str(PAGE), "exec"), names)
    assert list(names["gradient"]) == [2, -4, 6]
