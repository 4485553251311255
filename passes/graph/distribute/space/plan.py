"""Plans of single layers as text: `3:h=0-57,55-112; 5:whole`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Func, Op
from tilewright.passes.graph.distribute.rows.layer_axes import INNER, checked_direction, is_layer
from tilewright.passes.graph.distribute.rows.spreading import PlannedLayer

_ENTRY = re.compile(r"(\d+):([a-z]+)(?:\+([a-z]+))?(?:=([\d,\s-]+))?")


def layer_ops(func: Func) -> tuple[Op, ...]:
    """The layers of a function in program order; plans number them from 0."""
    return tuple(op for op in func.body.ops if is_layer(op))


def read_plan(func: Func, text: str) -> Mapping[Op, PlannedLayer]:
    """Return the plans of single layers, by op.

    Entries are separated by `;`: a layer's number, then `whole`, or a direction with, after `=`, one interval
    per rank; without intervals the rows are cut in proportion to the speeds. `inner` cuts what a layer sums
    over; its sums are whole on all ranks, or with `inner+h` kept in rows. Raises InputError.
    """
    layers = layer_ops(func)
    out: dict[Op, PlannedLayer] = {}
    for entry in filter(None, (part.strip() for part in text.split(";"))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise InputError(f"option 'plan' expects entries as 3:h=0-57,57-112 or 5:whole, got '{entry}'")
        number = int(match[1])
        if number >= len(layers):
            raise InputError(f"option 'plan' names layer {number}; @{func.name} has {len(layers)} layers")
        if layers[number] in out:
            raise InputError(f"option 'plan' names layer {number} twice")
        rows = _intervals(match[4] or "", entry)
        if match[2] == "whole":
            out[layers[number]] = PlannedLayer(None, rows)
        elif match[2] == INNER:
            direction = checked_direction(match[3]) if match[3] else None
            out[layers[number]] = PlannedLayer(INNER, rows, direction)
        else:
            out[layers[number]] = PlannedLayer(checked_direction(match[2]), rows)
    return out


def _intervals(text: str, entry: str) -> tuple[tuple[int, int], ...]:
    out = []
    for part in filter(None, (p.strip() for p in text.split(","))):
        start, dash, end = part.partition("-")
        if not (dash and start.isdigit() and end.isdigit()):
            raise InputError(f"option 'plan' expects intervals as 0-57, got '{part}' in '{entry}'")
        out.append((int(start), int(end)))
    return tuple(out)
