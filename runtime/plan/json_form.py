"""Execution plans as JSON text: deterministic writing, and reading that trusts nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import (
    Buffer,
    ExecutionPlan,
    KernelCode,
    KernelContract,
    KernelResources,
    Launch,
)
from tilewright.runtime.plan.hazards import check_hazards
from tilewright.runtime.strict_json import JsonFields, load_strict_json

_PLAN_KEYS = (
    "format_version", "target", "arena_bytes", "inputs", "outputs", "kernels", "buffers", "launches",
)  # fmt: skip
_CONTRACT = tuple(KernelContract.__dataclass_fields__)


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
        ("buffers", [dict(_fields_of(buffer)) for buffer in plan.buffers]),
        ("launches", [dict(_fields_of(launch)) for launch in plan.launches]),
    ):
        rows = ",\n".join("  " + json.dumps(item) for item in items)
        lines.append(f' "{key}": [' + (f"\n{rows}\n ]" if rows else "]"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _fields_of(node: Buffer | Launch) -> dict[str, Any]:
    """The fields of a buffer or launch in declaration order."""
    return {name: getattr(node, name) for name in node.__dataclass_fields__}


def _kernel_fields(kernel: KernelCode, sources: bool) -> dict[str, Any]:
    resources = kernel.resources
    return {
        "name": kernel.name,
        "entry": kernel.entry,
        "language": kernel.language,
        "arch": kernel.arch,
        "has_binary": kernel.binary is not None,
        "resources": resources
        and {
            "registers": resources.registers,
            "spill_bytes": resources.spill_bytes,
            "shared_bytes": resources.shared_bytes,
        },
        "overlaps": kernel.overlaps,
        "contract": kernel.contract and {f: getattr(kernel.contract, f) for f in _CONTRACT},
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
            buffers=root.each("buffers", _read_buffer),
            kernels=root.each(
                "kernels", lambda item, where: _read_kernel(item, where, sources or {}, binaries or {})
            ),
            launches=root.each("launches", _read_launch),
            inputs=root.texts("inputs"),
            outputs=root.texts("outputs"),
            arena_bytes=root.integer("arena_bytes"),
            format_version=root.integer("format_version"),
        )
    )
    check_hazards(plan)
    return plan


def _read_buffer(data: Any, where: str) -> Buffer:
    # Without these: written before aliases could be boxes, and before names were made safe for a plan.
    optional = ("strides", "start", "label")
    required = tuple(name for name in Buffer.__dataclass_fields__ if name not in optional)
    fields = JsonFields(data, where, required, optional=optional)
    return Buffer(
        name=fields.text("name"),
        dtype=fields.text("dtype"),
        shape=fields.integers("shape"),
        kind=fields.text("kind"),  # type: ignore[arg-type]  # validate() checks the value
        nbytes=fields.integer("nbytes"),
        offset=fields.integer("offset"),
        base=fields.text("base"),
        strides=fields.integers("strides") if "strides" in data else (),
        start=fields.integer("start") if "start" in data else 0,
        label=fields.text("label") if "label" in data else "",
    )


def _read_kernel(
    data: Any, where: str, sources: Mapping[str, str], binaries: Mapping[str, bytes]
) -> KernelCode:
    keys = ("name", "entry", "language", "arch", "has_binary", "resources")
    fields = JsonFields(data, where, keys, optional=("source", "overlaps", "contract"))
    name = fields.text("name")
    source = fields.text("source") if "source" in data else sources.get(name)
    if source is None:
        raise InputError(f"{where}: the source of kernel {name!r:.100} is missing")
    binary = binaries.get(name)
    if fields.flag("has_binary") != (binary is not None):
        state = "is missing" if binary is None else "is not announced"
        raise InputError(f"{where}: the binary of kernel {name!r:.100} {state}")
    return KernelCode(
        name=name,
        entry=fields.text("entry"),
        language=fields.text("language"),  # type: ignore[arg-type]  # validate() checks the value
        source=source,
        binary=binary,
        arch=fields.text("arch"),
        resources=read_resources(data["resources"], f"{where}.resources"),
        overlaps="overlaps" in data and fields.flag("overlaps"),  # absent: written before kernels could
        contract=read_contract(data.get("contract"), f"{where}.contract"),
    )


def read_resources(data: Any, where: str) -> KernelResources | None:
    """Read the resources of a kernel on a GPU from a JSON object of its fields; raises `InputError`."""
    if data is None:
        return None
    counts = JsonFields(data, where, tuple(KernelResources.__dataclass_fields__))
    return KernelResources(
        counts.integer("registers"), counts.integer("spill_bytes"), counts.integer("shared_bytes")
    )


def read_contract(data: Any, where: str) -> KernelContract | None:
    """Read the contract of a kernel's launches from a JSON object of its fields; raises `InputError`."""
    if data is None:
        return None
    fields = JsonFields(data, where, _CONTRACT)
    return KernelContract(
        _grid(fields), fields.integer("block"), fields.integer("shared_bytes"), fields.integers("spans"),
        fields.integers("writes"),
    )  # fmt: skip


def _grid(fields: JsonFields) -> tuple[int, int, int]:
    grid = fields.integers("grid")
    if len(grid) != 3:
        raise InputError(f"{fields.where}: expected a grid of three extents, got {len(grid)}")
    return grid[0], grid[1], grid[2]


def _read_launch(data: Any, where: str) -> Launch:
    # Without `in_place`: written before operands could be overwritten.
    required = tuple(name for name in Launch.__dataclass_fields__ if name != "in_place")
    fields = JsonFields(data, where, required, optional=("in_place",))
    return Launch(
        kernel=fields.text("kernel"),
        args=fields.texts("args"),
        grid=_grid(fields),
        block=fields.integer("block"),
        shared_bytes=fields.integer("shared_bytes"),
        deps=fields.integers("deps"),
        stream=fields.integer("stream"),
        origin=fields.texts("origin"),
        writes=fields.integers("writes"),
        in_place=fields.each("in_place", _read_pair) if "in_place" in data else (),
    )


def _read_pair(data: Any, where: str) -> tuple[int, int]:
    if not isinstance(data, list) or len(data) != 2 or not all(type(n) is int for n in data):
        raise InputError(f"{where}: expected a pair of integers, got {data!r:.100}")
    return data[0], data[1]
