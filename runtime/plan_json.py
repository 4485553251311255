"""Execution plans as JSON text: deterministic writing, and reading that trusts nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from tilewright.runtime.errors import RuntimeInputError
from tilewright.runtime.plan import Buffer, ExecutionPlan, KernelCode, KernelResources, Launch

T = TypeVar("T")

MAX_JSON_CHARS = 64 << 20
_PLAN_KEYS = (
    "format_version", "target", "arena_bytes", "inputs", "outputs", "kernels", "buffers", "launches",
)  # fmt: skip


def plan_to_json(plan: ExecutionPlan, *, sources: bool) -> str:
    """Deterministic JSON, one buffer, kernel or launch per line so that plans diff well."""
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
        ("buffers", [dict(vars_of(buffer)) for buffer in plan.buffers]),
        ("launches", [dict(vars_of(launch)) for launch in plan.launches]),
    ):
        rows = ",\n".join("  " + json.dumps(item) for item in items)
        lines.append(f' "{key}": [' + (f"\n{rows}\n ]" if rows else "]"))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def vars_of(node: Buffer | Launch) -> dict[str, Any]:
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
    } | ({"source": kernel.source} if sources else {})


def plan_from_json(text: str, *, sources: Mapping[str, str], binaries: Mapping[str, bytes]) -> ExecutionPlan:
    """Parse, type-check and validate a plan; raises `RuntimeInputError` on any fault."""
    if len(text) > MAX_JSON_CHARS:
        raise RuntimeInputError(f"expected a plan of at most {MAX_JSON_CHARS} characters, got {len(text)}")
    try:
        data = json.loads(
            text, parse_constant=_refuse_constant, parse_int=_bounded_int, object_pairs_hook=_unique_keys
        )
    except ValueError as error:
        raise RuntimeInputError(f"the plan is not JSON: {error}") from None
    except RecursionError:
        raise RuntimeInputError("the plan is not JSON of ours: it is nested too deeply") from None
    root = _Fields(data, "plan", _PLAN_KEYS)
    return ExecutionPlan(
        target=root.text("target"),
        buffers=root.each("buffers", _read_buffer),
        kernels=root.each("kernels", lambda item, where: _read_kernel(item, where, sources, binaries)),
        launches=root.each("launches", _read_launch),
        inputs=root.texts("inputs"),
        outputs=root.texts("outputs"),
        arena_bytes=root.integer("arena_bytes"),
        format_version=root.integer("format_version"),
    ).validate()


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of a plan")


def _bounded_int(digits: str) -> int:
    # Python parses integers in quadratic time: refuse those no field can hold before they cost anything.
    if len(digits) > 20:
        raise ValueError("an integer has more than 20 digits")
    return int(digits)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


class _Fields:
    """Typed access to one JSON object with exactly the expected keys."""

    def __init__(self, data: Any, where: str, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> None:
        if not isinstance(data, dict):
            raise RuntimeInputError(f"{where}: expected an object, got {type(data).__name__}")
        missing = [key for key in keys if key not in data]
        extra = [key for key in data if key not in keys and key not in optional]
        if missing or extra:
            fault = f"misses {missing[0]!r}" if missing else f"has the unknown key {extra[0]!r:.100}"
            raise RuntimeInputError(f"{where}: {fault}")
        self.data = data
        self.where = where

    def _typed(self, key: str, kind: type) -> Any:
        value = self.data[key]
        if type(value) is not kind:
            raise RuntimeInputError(
                f"{self.where}: expected {key} to be of type {kind.__name__}, got {type(value).__name__}"
            )
        return value

    def text(self, key: str) -> str:
        return str(self._typed(key, str))

    def integer(self, key: str) -> int:
        return int(self._typed(key, int))

    def flag(self, key: str) -> bool:
        return bool(self._typed(key, bool))

    def _list_of(self, key: str, kind: type) -> tuple[Any, ...]:
        values = self._typed(key, list)
        wrong = next((value for value in values if type(value) is not kind), None)
        if any(type(value) is not kind for value in values):
            raise RuntimeInputError(
                f"{self.where}: expected {key} to hold {kind.__name__} only, got {type(wrong).__name__}"
            )
        return tuple(values)

    def texts(self, key: str) -> tuple[str, ...]:
        return self._list_of(key, str)

    def integers(self, key: str) -> tuple[int, ...]:
        return self._list_of(key, int)

    def each(self, key: str, read: Callable[[Any, str], T]) -> tuple[T, ...]:
        values = self._typed(key, list)
        return tuple(read(value, f"{self.where}.{key}[{index}]") for index, value in enumerate(values))


def _read_buffer(data: Any, where: str) -> Buffer:
    fields = _Fields(data, where, tuple(Buffer.__dataclass_fields__))
    return Buffer(
        name=fields.text("name"),
        dtype=fields.text("dtype"),
        shape=fields.integers("shape"),
        kind=fields.text("kind"),  # type: ignore[arg-type]  # validate() checks the value
        nbytes=fields.integer("nbytes"),
        offset=fields.integer("offset"),
        base=fields.text("base"),
    )


def _read_kernel(
    data: Any, where: str, sources: Mapping[str, str], binaries: Mapping[str, bytes]
) -> KernelCode:
    keys = ("name", "entry", "language", "arch", "has_binary", "resources")
    fields = _Fields(data, where, keys, optional=("source",))
    name = fields.text("name")
    source = fields.text("source") if "source" in data else sources.get(name)
    if source is None:
        raise RuntimeInputError(f"{where}: the source of kernel {name!r:.100} is missing")
    binary = binaries.get(name)
    if fields.flag("has_binary") != (binary is not None):
        state = "is missing" if binary is None else "is not announced"
        raise RuntimeInputError(f"{where}: the binary of kernel {name!r:.100} {state}")
    resources = None
    if data["resources"] is not None:
        counts = _Fields(data["resources"], f"{where}.resources", tuple(KernelResources.__dataclass_fields__))
        resources = KernelResources(
            counts.integer("registers"), counts.integer("spill_bytes"), counts.integer("shared_bytes")
        )
    return KernelCode(
        name=name,
        entry=fields.text("entry"),
        language=fields.text("language"),  # type: ignore[arg-type]  # validate() checks the value
        source=source,
        binary=binary,
        arch=fields.text("arch"),
        resources=resources,
    )


def _read_launch(data: Any, where: str) -> Launch:
    fields = _Fields(data, where, tuple(Launch.__dataclass_fields__))
    grid = fields.integers("grid")
    if len(grid) != 3:
        raise RuntimeInputError(f"{where}: expected a grid of three extents, got {len(grid)}")
    return Launch(
        kernel=fields.text("kernel"),
        args=fields.texts("args"),
        grid=(grid[0], grid[1], grid[2]),
        block=fields.integer("block"),
        shared_bytes=fields.integer("shared_bytes"),
        deps=fields.integers("deps"),
        stream=fields.integer("stream"),
        origin=fields.texts("origin"),
        writes=fields.integers("writes"),
    )
