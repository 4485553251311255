"""The lists `irdump` prints: every pass and every op, as text or JSON."""

from __future__ import annotations

import json
from typing import Any

from tilewright.ir import REQUIRED, OpDef, op_defs
from tilewright.ir.modules.printer import show_attr
from tilewright.passes import PassDef, pass_defs
from tilewright.passes.framework.options import OptionDef, show_option


def pass_list(*, as_json: bool = False) -> str:
    """All passes by name: levels, options with defaults, what they do."""
    records = [_pass(d) for d in pass_defs()]
    if as_json:
        return json.dumps(records, indent=2)
    return "\n".join(_pass_text(r) for r in records)


def _pass(d: PassDef[Any]) -> dict[str, Any]:
    return {
        "name": d.name,
        "levels": [x.value for x in d.levels],
        "to": d.to.value if d.to else None,
        "options": [_option(o) for o in d.options],
        "requires": sorted(d.requires),
        "establishes": sorted(d.establishes),
        "breaks": sorted(d.breaks),
        "summary": d.summary,
        "rewrite": d.rewrite,
        "origin": d.place,
    }


def _option(o: OptionDef) -> dict[str, Any]:
    return {"name": o.name, "default": o.default}


def _pass_text(r: dict[str, Any]) -> str:
    options = ", ".join(f"{o['name']}={show_option(o['default'])}" for o in r["options"])
    levels = ", ".join(r["levels"]) + (f" -> {r['to']}" if r["to"] else "")
    lines = [r["name"] + (f"{{{options}}}" if options else "") + f"  [{levels}]", f"    {r['summary']}"]
    lines += [f"    {k}: {', '.join(r[k])}" for k in ("requires", "establishes", "breaks") if r[k]]
    return "\n".join(lines)


def op_list(*, as_json: bool = False) -> str:
    """All ops by name: operands, attributes with kinds and defaults, effects, what they mean."""
    records = [_op(d) for d in op_defs()]
    if as_json:
        return json.dumps(records, indent=2)
    return "\n".join(_op_text(r) for r in records)


def _op(d: OpDef) -> dict[str, Any]:
    attrs = [
        {
            "name": name,
            "kind": a.kind,
            "required": a.default is REQUIRED,
            "default": None if a.default is REQUIRED else show_attr(a.default),
            "doc": a.doc,
        }
        for name, a in d.attrs.items()
    ]
    return {
        "name": d.name,
        "operands": list(d.operands),
        "attributes": attrs,
        "results": d.results,
        "body": d.body,
        "effects": sorted(d.effects),
        "doc": d.doc,
    }


def _op_text(r: dict[str, Any]) -> str:
    attrs = [f"{a['name']}: {a['kind']}" + ("" if a["required"] else f" = {a['default']}")
             for a in r["attributes"]]  # fmt: skip
    effects = f"  [{', '.join(r['effects'])}]" if r["effects"] else ""
    head = f"{r['name']}({', '.join([*('%' + n for n in r['operands']), *attrs])})"
    return f"{head}{' { ... }' if r['body'] else ''}{effects}\n    {' '.join(r['doc'].split())}"
