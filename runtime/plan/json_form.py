"""Execution plans as JSON text: deterministic writing, and reading that trusts nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import (
    Buffer,
    ExecutionPlan,
    KernelCode,
    KernelContract,
    Launch,
)
from tilewright.runtime.plan.hazards import check_hazards
from tilewright.runtime.plan.tensor_map import LaunchMap
from tilewright.runtime.strict_json import JsonFields, load_strict_json, read_dataclass

_PLAN_KEYS = (
    "format_version", "target", "arena_bytes", "inputs", "outputs", "kernels", "buffers", "launches",
)  # fmt: skip
#: fields that older files lack: aliases were no boxes, names were not made safe, no kernel started early, no
#: operand was overwritten
_NEW = {
    "buffers": ("strides", "start", "label"),
    "kernels": ("overlaps", "releases"),
    "launches": ("in_place",),
}
#: fields of launches and contracts that are written where they are not the default, as is `releases` of a
#: kernel, so that a plan without them is the text that earlier versions read
_LATE = ("maps", "cluster")


def plan_to_json(plan: ExecutionPlan, *, sources: bool = True) -> str:
    """Deterministic JSON without binaries, and with `sources=False` without the text of kernels.

    A buffer, kernel or launch takes one line, so that plans diff well.
    """
    head = {
        "format_version": plan.format_version,
        "target": plan.target,
        "arena_bytes": plan.arena_bytes,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
    }
    lines = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    for key, items in (
        ("kernels", [_kernel_fields(kernel, sources) for kernel in plan.kernels]),
        ("buffers", [vars(buffer) for buffer in plan.buffers]),
        ("launches", [_without_defaults(launch) for launch in plan.launches]),
    ):
        rows = ",\n".join("  " + json.dumps(item) for item in items)
        lines.append(f' "{key}": [' + (f"\n{rows}\n ]" if rows else "]"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _without_defaults(item: Launch | KernelContract) -> dict[str, Any]:
    """The fields of a launch or contract as JSON writes them."""
    late = {key for key in _LATE if getattr(item, key) == type(item).__dataclass_fields__[key].default}
    plain = {key: value for key, value in vars(item).items() if key not in _LATE}
    return plain | {key: _plain(getattr(item, key)) for key in _LATE if key not in late}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    return asdict(value) if isinstance(value, LaunchMap) else value


def _kernel_fields(kernel: KernelCode, sources: bool) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "entry": kernel.entry,
        "language": kernel.language,
        "arch": kernel.arch,
        "has_binary": kernel.binary is not None,
        "resources": kernel.resources and vars(kernel.resources),
        "overlaps": kernel.overlaps,
        "contract": kernel.contract and _without_defaults(kernel.contract),
        **({"releases": True} if kernel.releases else {}),
    } | ({"source": kernel.source} if sources else {})


def plan_from_json(
    text: str, *, sources: Mapping[str, str] | None = None, binaries: Mapping[str, bytes] | None = None
) -> ExecutionPlan:
    """Parse, type-check and validate a plan, and check that its order keeps data whole.

    `sources` and `binaries` map kernel names to what was kept apart. Raises `InputError` on anything
    but a well-formed plan, in bounded time and memory.
    """
    data = load_strict_json(text, "the plan")
    root = JsonFields(data, "plan", _PLAN_KEYS)
    plan = validate(
        ExecutionPlan(
            target=root.text("target"),
            buffers=root.each("buffers", partial(read_dataclass, Buffer, optional=_NEW["buffers"])),
            kernels=root.each(
                "kernels", lambda item, where: _read_kernel(item, where, sources or {}, binaries or {})
            ),
            launches=root.each(
                "launches", partial(read_dataclass, Launch, optional=(*_NEW["launches"], *_LATE))
            ),
            inputs=root.texts("inputs"),
            outputs=root.texts("outputs"),
            arena_bytes=root.integer("arena_bytes"),
            format_version=root.integer("format_version"),
        )
    )
    check_hazards(plan)
    return plan


def _read_kernel(
    data: Any, where: str, sources: Mapping[str, str], binaries: Mapping[str, bytes]
) -> KernelCode:
    names = tuple(name for name in KernelCode.__dataclass_fields__ if name not in ("name", "binary"))
    fields = JsonFields(data, where, ("name", "has_binary"), names)
    name = fields.text("name")
    source, binary = data.get("source", sources.get(name)), binaries.get(name)
    if source is None:
        raise InputError(f"{where}: the source of kernel {name!r:.100} is missing")
    if fields.flag("has_binary") != (binary is not None):
        state = "is missing" if binary is None else "is not announced"
        raise InputError(f"{where}: the binary of kernel {name!r:.100} {state}")
    own = {key: value for key, value in data.items() if key != "has_binary"}
    return read_dataclass(KernelCode, {**own, "source": source, "binary": binary}, where, _NEW["kernels"])
