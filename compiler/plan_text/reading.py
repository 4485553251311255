"""Module of the plan level -> execution plan, and everything that is wrong with it, each fault at its op."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from tilewright.ir import Attr, Fault, InputError, Level, Module, Op, Pairs, VerifyError
from tilewright.ir import plan_ops as ops
from tilewright.ir.modules.verifier import fault_at, faults_of
from tilewright.ir.opdef import op_def
from tilewright.ir.types import array_type, dtype_name
from tilewright.plan_text.facts import PlanFacts
from tilewright.plan_text.writing import BUFFER_OPS, KERNEL_OPS, LAUNCH_OPS, digest
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.plan.check import located_faults
from tilewright.runtime.plan.communication_kernel import CommunicationKernel
from tilewright.runtime.plan.execution_plan import (
    Buffer,
    ExecutionPlan,
    KernelCode,
    KernelContract,
    KernelResources,
    Launch,
    PlanFault,
    version_for,
)
from tilewright.runtime.plan.hazards import located_hazards
from tilewright.runtime.plan.tensor_map import LaunchMap
from tilewright.runtime.strict_json import read_dataclass

_KINDS = {name: kind for kind, name in BUFFER_OPS.items()}

T = TypeVar("T")


def plan_of_module(
    module: Module,
    *,
    sources: Mapping[str, str] | None = None,
    binaries: Mapping[str, bytes] | None = None,
) -> ExecutionPlan:
    """The plan that a module of the plan level says; `plan_of_module(plan_module(p), ...) == p`.

    sources, binaries: the text and the binary of every kernel that has one, by the kernel's name.
    Raises VerifyError with all faults of the module, and InputError where the text or the binary of a kernel
    is missing or is another one than the module was made with.
    """
    faults = module_faults(module)
    if faults:
        raise VerifyError(faults)
    plan = _Reader(module).read()[0]
    codes = {op["name"]: op for op in module.main.body.ops if op.name == ops.KERNEL}
    kernels = []
    for kernel in plan.kernels:
        if (op := codes.get(kernel.name)) is not None:
            source = _kept(op, "source", sources or {}, str.encode)
            kernel = dataclasses.replace(
                kernel, source=source, binary=_kept(op, "binary", binaries or {}, bytes)
            )
        kernels.append(kernel)
    return plan.replace(kernels=tuple(kernels))


def module_faults(module: Module) -> list[Fault]:
    """All faults of a module of any level."""
    if not isinstance(module, Module):
        raise InputError(f"expected a Module, got {type(module).__name__}")
    faults = faults_of(module)
    if faults or all(f.level is not Level.PLAN for f in module.funcs):
        return faults
    return _Reader(module).read()[1]


def _kept(op: Op, what: str, contents: Mapping[str, Any], to_bytes: Callable[[Any], bytes]) -> Any:
    """The text or the binary of a kernel, known to be the one that its op names."""
    name, expected = str(op["name"]), op[what]
    content = contents.get(name)
    if expected is None:
        return None
    if content is None:
        raise InputError(f"expected the {what} of kernel '{name}', got none", where=ops.KERNEL)
    got = digest(to_bytes(content))
    if got != expected:
        raise InputError(
            f"expected the {what} of kernel '{name}' of digest {expected}, got {got}", where=ops.KERNEL
        )
    return content


def _data(attr: Attr, where: str) -> Any:
    """An attribute as plain data that JSON can write; raises InputError for anything else.

    Element types get the names that plans have; those are read as well, older texts have them.
    """
    if isinstance(attr, Pairs):
        if len(dict(attr.items)) != len(attr.items):
            raise InputError(f"{where}: a name occurs twice")
        return {k: _data(v, where) for k, v in attr.items}
    if isinstance(attr, tuple):
        return [_data(x, where) for x in attr]
    if isinstance(attr, str):
        return _DTYPES.get(attr, attr)
    if attr is None or isinstance(attr, bool | int | float):
        return attr
    raise InputError(f"{where}: expected numbers, texts, lists and pairs, got {attr}")


def _read(kind: type[T], attr: Attr, where: str) -> T | None:
    """The object that an attribute describes; None where there is none."""
    return None if attr is None else read_dataclass(kind, _data(attr, where), where)


#: the names that a plan has for element types, by those of the IR
_DTYPES = {dtype_name(name): name for name in DTYPES}


class _Reader:
    """Makes a plan of the ops of a module that is well-formed, and gathers what is wrong with it."""

    def __init__(self, module: Module) -> None:
        self.module, self.faults = module, list[Fault]()
        self.at: dict[str, list[int]] = {"kernels": [], "buffers": [], "launches": []}  # positions of ops
        self.names: list[str] = []  # of launches
        self.func = next((f for f in module.funcs if f.name == "main"), module.funcs[0])

    def read(self) -> tuple[ExecutionPlan, list[Fault]]:
        """The plan without the text of its kernels, and every fault."""
        target, arena_bytes = self.module.get("target"), self.func.get("arena_bytes")
        if len(self.module.funcs) != 1 or self.func.name != "main" or self.func.params:
            self.fail(None, "expected a plan to be one plan.func @main without parameters")
        if type(target) is not str:
            self.fail(None, f"expected the module to name its target, got {target!r:.60}")
        if type(arena_bytes) is not int:
            self.fail(None, f"expected arena_bytes of the function, got {arena_bytes!r:.60}")
        if {k for k, _ in self.func.attrs} - {"arena_bytes"}:
            self.fail(None, f"expected no attribute but arena_bytes, got {[k for k, _ in self.func.attrs]}")
        body = list(enumerate(self.func.body.ops))
        kernels = [self.kernel(i, op) for i, op in body if op.name in LAUNCH_OPS]
        buffers = [self.buffer(i, op) for i, op in body if op.name in _KINDS]
        launches = list(self.launches())
        plan = ExecutionPlan(
            target=str(target),
            buffers=tuple(buffers),
            kernels=tuple(k for k in kernels if k is not None),
            launches=tuple(launches),
            inputs=self.inputs(),
            outputs=tuple(v.hint for v in self.func.body.ops[-1].operands),
            arena_bytes=arena_bytes if type(arena_bytes) is int else 0,
            format_version=version_for(buffers, launches),
        )
        if not self.faults:
            self.check(plan)
        return plan, self.faults

    def fail(self, at: int | None, message: str) -> None:
        """Note a fault of the op at a position, or of the whole function."""
        if at is None:
            self.faults.append(Fault(self.func.name, message, ""))
        else:
            body = self.func.body
            self.faults.append(fault_at(self.func, body, at, message, body.ops[at]))

    def check(self, plan: ExecutionPlan) -> None:
        """Note what is wrong with the plan as such, then where the text misstates what follows from it."""
        try:
            faults: list[PlanFault] = located_faults(plan) or list(located_hazards(plan))
        except InputError as e:
            faults = [PlanFault(str(e))]
        for fault in faults:
            self.fail(self.at[fault.part][fault.index] if fault.part else None, fault.text)
        if not self.faults:
            for at, message in self.misstated(plan):
                self.fail(at, message)

    def misstated(self, plan: ExecutionPlan) -> Iterator[tuple[int, str]]:
        """Attributes that follow from others, where they are given and say something else."""
        facts, body = PlanFacts.of(plan, self.names), self.func.body.ops
        for at, b in zip(self.at["buffers"], plan.buffers, strict=True):
            yield from _unlike(at, body[at], "live", facts.live.get(b.name, ()))
            yield from _unlike(at, body[at], "in_place_of", facts.in_place_of.get(b.name, ""))
        for i, at in enumerate(self.at["launches"]):
            names = tuple(facts.names[dep] for dep in facts.programmatic[i])
            yield from _unlike(at, body[at], "programmatic", names)

    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs in calling order."""
        inputs = [(at, op) for at, op in enumerate(self.func.body.ops) if op.name == ops.INPUT]
        by_position: dict[int, str] = {}
        for at, op in inputs:
            position = op.integer("position")
            if not 0 <= position < len(inputs):
                self.fail(at, f"expected a position among {len(inputs)} inputs, got {position}")
            elif position in by_position:
                self.fail(
                    at, f"expected one input at position {position}, {by_position[position]!r} is there too"
                )
            else:
                by_position[position] = op.result.hint
        return tuple(by_position[p] for p in sorted(by_position))

    def buffer(self, at: int, op: Op) -> Buffer:
        self.at["buffers"].append(at)
        t = op.result.tensor
        return Buffer(
            name=op.result.hint,
            dtype=array_type(t).dtype,
            shape=t.shape,
            kind=_KINDS[op.name],  # type: ignore[arg-type]  # the keys are the kinds
            nbytes=op.integer("bytes"),
            offset=op.integer("offset") if op.name in (ops.ARENA, ops.VIEW) else 0,
            base=str(op["of"]) if op.name == ops.VIEW else "",
            strides=t.steps,
            start=t.start,
            label=str(op["label"]),
        )

    def kernel(self, at: int, op: Op) -> KernelCode | None:
        """The kernel of an op; its text, where it has one, is left out. None where it is no kernel."""
        name, language = str(op["name"]), next((k for k, v in KERNEL_OPS.items() if v == op.name))
        self.at["kernels"].append(at)
        source = ""
        try:
            if op.name == ops.KERNEL:
                language = str(op["language"])
                if KERNEL_OPS.get(language) != ops.KERNEL:
                    raise InputError(f"expected the language cuda or opencl, got {language!r:.60}")
            else:
                own = {k: v for k, v in op.attrs if k not in op_def(ops.KERNEL).attrs}
                text = json.dumps({k: _data(v, k) for k, v in own.items()})
                read = LibraryKernel.from_json if op.name == ops.LIBRARY else CommunicationKernel.from_json
                source = read(text).to_json()
            resources = _read(KernelResources, op["resources"], "resources")
            contract = _read(KernelContract, op["contract"], "contract")
        except InputError as e:
            self.fail(at, f"kernel {name!r:.60}: {e}")
            return None
        entry = name if op["entry"] is None else str(op["entry"])
        return KernelCode(
            name=name,
            entry=entry,
            language=language,  # type: ignore[arg-type]  # one of the keys above
            source=source,
            arch=str(op["arch"]),
            resources=resources,
            overlaps=op.get("overlaps") is True,
            contract=contract,
            releases=op.get("releases") is True,
        )

    def launches(self) -> Iterator[Launch]:
        kinds = {str(op["name"]): op.name for op in self.func.body.ops if op.name in LAUNCH_OPS}
        index: dict[str, int] = {}
        for at, op in enumerate(self.func.body.ops):
            if op.name not in LAUNCH_OPS.values():
                continue
            self.at["launches"].append(at)
            kernel = str(op["kernel"])
            name = str(op["name"]) or kernel
            if kernel not in kinds:
                self.fail(at, f"there is no kernel {kernel!r:.100}")
            elif LAUNCH_OPS[kinds[kernel]] != op.name:
                self.fail(at, f"expected {LAUNCH_OPS[kinds[kernel]]} of a {kinds[kernel]}, got {op.name}")
            if name in index:
                self.fail(at, f"two launches are called {name!r:.100}")
            grid, after = op.integers("grid"), op["after"]
            assert isinstance(after, tuple)
            unknown = [dep for dep in after if dep not in index]
            if unknown:
                self.fail(at, f"expected after to name launches above this one, got {unknown[0]!r:.100}")
            index[name] = len(index)
            self.names.append(name)
            yield Launch(
                kernel=kernel,
                args=tuple(v.hint for v in op.operands),
                grid=grid,  # type: ignore[arg-type]  # the plan's check counts them
                block=op.integer("block"),
                shared_bytes=op.integer("shared_bytes"),
                deps=tuple(index[str(dep)] for dep in after if dep not in unknown),
                stream=op.integer("stream"),
                origin=op["origin"],  # type: ignore[arg-type]  # of kind strs
                writes=op.integers("writes"),
                in_place=op["in_place"],  # type: ignore[arg-type]  # verified to be pairs
                maps=self.maps(at, op),
                cluster=op.integers("cluster"),  # type: ignore[arg-type]  # the plan's check counts them
            )

    def maps(self, at: int, op: Op) -> tuple[LaunchMap, ...]:
        """The tensor maps of a launch; none, and a fault, where one is not described well."""
        listed = op["maps"]
        assert isinstance(listed, tuple)
        try:
            return tuple(
                read_dataclass(LaunchMap, _data(m, "maps"), f"maps[{i}]") for i, m in enumerate(listed)
            )
        except InputError as e:
            self.fail(at, str(e))
            return ()


def _unlike(at: int, op: Op, name: str, expected: Attr) -> Iterator[tuple[int, str]]:
    value = op.get(name)
    if value and value != expected:
        shown = list(expected) if isinstance(expected, tuple) else expected
        got = list(value) if isinstance(value, tuple) else value
        yield (
            at,
            f"expected {name} = {shown!r:.200}, which follows from the rest of the plan, got {got!r:.200}",
        )
