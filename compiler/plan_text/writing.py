"""Execution plan -> module of the plan level, whose ops are those of `tilewright.ir.plan_ops`.

The text of kernels and their binaries stay apart: the module holds digests of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.ir import Attr, Block, Func, Level, Module, Op, Pairs, TensorType, Value
from tilewright.ir import plan_ops as ops
from tilewright.ir.opdef import op_def
from tilewright.ir.types import dtype_name
from tilewright.plan_text.facts import PlanFacts
from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, KernelCode, KernelContract, Launch

#: hexadecimal digits of a digest: enough that two kernels of one plan never share one by chance
DIGEST_DIGITS = 16
BUFFER_OPS = {
    "input": ops.INPUT,
    "constant": ops.CONSTANT,
    "state": ops.STATE,
    "output": ops.OUTPUT,
    "arena": ops.ARENA,
    "alias": ops.VIEW,
}
KINDS = {name: kind for kind, name in BUFFER_OPS.items()}
KERNEL_OPS = {
    "cuda": ops.KERNEL,
    "opencl": ops.KERNEL,
    "library": ops.LIBRARY,
    "communication": ops.COMMUNICATION,
}
LAUNCH_OPS = {ops.KERNEL: ops.LAUNCH, ops.LIBRARY: ops.CALL, ops.COMMUNICATION: ops.COMMUNICATE}


def plan_module(plan: ExecutionPlan) -> Module:
    """The module of the plan level that says what `plan` says.

    A buffer stands before the first launch that needs it, so that what belongs together stands together.
    Raises InputError for a plan that is malformed.
    """
    validate(plan)
    return _Writer(plan).module()


def digest(data: bytes) -> str:
    """Return the digest that stands in a module for a text or a binary."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]


def _op(
    name: str, attrs: Mapping[str, Attr], operands: Sequence[Value] = (), results: Sequence[Value] = ()
) -> Op:
    return Op(name, tuple(operands), op_def(name).complete(attrs), tuple(results))


def _attr(data: Any) -> Attr:
    """Plain data as an attribute: objects become pairs, lists tuples, element types have the IR's names."""
    if isinstance(data, Mapping):
        return Pairs(tuple((str(k), _attr(v)) for k, v in data.items()))
    if isinstance(data, list | tuple):
        return tuple(map(_attr, data))
    return dtype_name(data) if isinstance(data, str) and data in DTYPES else data


def _contract(contract: KernelContract) -> dict[str, Any]:
    """The fields of a contract, without maps and clusters where there are none."""
    optional = {f.name: f.default for f in dataclasses.fields(contract) if f.metadata.get("optional")}
    plain = dataclasses.asdict(contract)
    return {k: v for k, v in plain.items() if k not in optional or getattr(contract, k) != optional[k]}


class _Writer:
    """Makes the ops of one plan."""

    def __init__(self, plan: ExecutionPlan) -> None:
        self.plan = plan
        self.facts = PlanFacts.of(plan)
        self.positions = {name: i for i, name in enumerate(plan.inputs)}
        self.values: dict[str, Value] = {}
        self.out: list[Op] = []

    def module(self) -> Module:
        plan = self.plan
        place = {b.name: i for i, b in enumerate(plan.buffers)}
        self.out += map(self.kernel, plan.kernels)
        for i, launch in enumerate(plan.launches):
            self.buffers(max((place[name] for name in launch.args), default=-1) + 1)
            self.out.append(self.launch(i, launch))
        self.buffers(len(plan.buffers))
        returned = [self.values[name] for name in plan.outputs]
        self.out.append(_op(ops.RETURN, {}, returned))
        attrs: tuple[tuple[str, Attr], ...] = (("arena_bytes", plan.arena_bytes),)
        main = Func(Level.PLAN, "main", Block((), tuple(self.out)), tuple(v.type for v in returned), attrs)
        return Module("plan", (main,), (("target", plan.target),))

    def buffers(self, end: int) -> None:
        """The buffers of the plan up to the one at `end`, after those that are there."""
        self.out += [self.buffer(b) for b in self.plan.buffers[len(self.values) : end]]

    def buffer(self, b: Buffer) -> Op:
        name = BUFFER_OPS[b.kind]
        t = TensorType(dtype_name(b.dtype), b.shape, "global", b.strides, b.start)
        known: dict[str, Attr] = {
            "position": self.positions.get(b.name, 0),
            "of": b.base,
            "offset": b.offset,
            "bytes": b.nbytes,
            "live": self.facts.live.get(b.name, ()),
            "in_place_of": self.facts.in_place_of.get(b.name, ""),
            "label": b.label,
        }
        value = self.values[b.name] = Value(t, b.name)
        return _op(name, {k: v for k, v in known.items() if k in op_def(name).attrs}, (), (value,))

    def kernel(self, k: KernelCode) -> Op:
        name = KERNEL_OPS[k.language]
        attrs: dict[str, Attr] = {
            "name": k.name,
            "entry": k.entry if k.entry != k.name else None,
            "arch": k.arch,
            "resources": _attr(dataclasses.asdict(k.resources)) if k.resources else None,
            "contract": _attr(_contract(k.contract)) if k.contract else None,
        }
        if name == ops.KERNEL:
            attrs |= {"language": k.language, "source": digest(k.source.encode())}
            attrs |= {"overlaps": k.overlaps, "releases": k.releases}
            attrs["binary"] = None if k.binary is None else digest(k.binary)
        else:
            attrs |= {key: _attr(value) for key, value in json.loads(k.source).items()}
        return _op(name, attrs)

    def launch(self, index: int, launch: Launch) -> Op:
        names, programmatic = self.facts.names, self.facts.programmatic[index]
        attrs: dict[str, Attr] = {
            "kernel": launch.kernel,
            "name": names[index] if names[index] != launch.kernel else "",
            "stream": launch.stream,
            "after": tuple(names[dep] for dep in launch.deps),
            "programmatic": tuple(names[dep] for dep in programmatic),
            "grid": launch.grid,
            "block": launch.block,
            "shared_bytes": launch.shared_bytes,
            "writes": launch.writes,
            "in_place": launch.in_place,
            "origin": launch.origin,
            "maps": _attr([dataclasses.asdict(m) for m in launch.maps]),
            "cluster": launch.cluster,
        }
        name = LAUNCH_OPS[KERNEL_OPS[self.plan.kernel_by_name[launch.kernel].language]]
        return _op(name, attrs, [self.values[name] for name in launch.args])
