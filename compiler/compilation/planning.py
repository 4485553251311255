"""Thread-level module -> ExecutionPlan: buffers in one arena, launches with their dependencies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from tilewright.codegen import KernelSource
from tilewright.codegen.emit.in_place import in_place_pairs
from tilewright.compilation.kernel_builds import launch_maps
from tilewright.compilation.state_updates import written_state
from tilewright.ir import Func, InputError, Level, Module, Op, Ref, TensorType, Value
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.join_ops import boxes_of
from tilewright.ir.thread.launch_ops import overwrites
from tilewright.ir.types import array_type, itemsize
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.library.template import LibraryParameters
from tilewright.passes.kernels.registry import is_generated
from tilewright.runtime.arena.placement import place_arena
from tilewright.runtime.libraries.kernel import LibraryKernel
from tilewright.runtime.plan.check import validate
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message
from tilewright.runtime.plan.execution_plan import (
    Buffer,
    BufferKind,
    ExecutionPlan,
    KernelCode,
    Launch,
    version_for,
)

_FOREIGN = re.compile(r"[^A-Za-z0-9_.%:/@#-]")
_LONGEST = 150  # of the 200 characters of a name in a plan; numbers and suffixes need some


def plan_module(
    module: Module,
    sources: Mapping[str, KernelSource],
    codes: Mapping[str, KernelCode],
    target: str,
    *,
    placed: bool = True,
) -> ExecutionPlan:
    """The plan that runs @main: one launch per call or communication, in program order, exact dependencies.

    placed: whether buffers get their places in the arena, which streams that are chosen later would change.
    sources, codes: per kernel function, its emitted text and what is stored of it. Each communication also
    depends on the one before, so that their order, which is that of the other ranks, is part of the plan.
    Raises InputError where @main holds anything but calls, communications, joins, parts and constants.
    """
    plan = _Planner(module, sources, codes, target).plan()
    return validate(place_arena(plan)) if placed else plan


class _Planner:
    def __init__(
        self,
        module: Module,
        sources: Mapping[str, KernelSource],
        codes: Mapping[str, KernelCode],
        target: str,
    ) -> None:
        self.module, self.sources, self.codes, self.target = module, sources, codes, target
        self.names: dict[Value, str] = {}
        self.taken: dict[str, int] = {}  # buffer name -> the last number given to another of that name
        self.constants: dict[str, Value] = {}  # what the first op gave that names it
        self.buffers: list[Buffer] = []
        self.launches: list[Launch] = []
        self.writers: dict[Value, frozenset[int]] = {}  # of its elements; a joined array has several
        self.slots = _slots(module)
        self.libraries = library_kernels(module)
        self.communications: dict[str, str] = {}  # text of the kernel -> its name
        self.communicated: int | None = None  # the latest launch that communicates
        self.origins = _origins(module)
        self.in_place = {
            f.name: tuple(sorted({*in_place_pairs(f), *overwrites(f)}))
            for f in module.funcs
            if f.level is Level.THREAD
        }
        self.changes = written_state(module)
        self.new_names: dict[Value, str] = {}  # of state -> what its new value is called
        self.readers: dict[Value, list[int]] = {old: [] for old in self.changes.values()}

    def plan(self) -> ExecutionPlan:
        main = self.module.main
        returned = main.body.ops[-1].operands
        kept = {main.params[p] for p, _ in main.updates}
        for name, p in zip(_distinct(self.module.input_names), main.params, strict=True):
            self.buffer(p, name, "state" if p in kept else "input")
        for op in main.body.ops[:-1]:
            if op.name == "tensor.constant":
                self.constant(op)
            elif op.name == "tensor.call":
                self.call(op)
            elif op.name == "tensor.join":
                self.join(op)
            elif op.name == "tensor.part":
                self.part(op)
            elif op.name == COMMUNICATE:
                self.communicate(op)
            else:
                raise InputError(
                    f"expected calls, communications, joins, parts and constants in @main, got {op.name}",
                    where=op.loc,
                )
        for old, new in ((main.params[i], returned[r]) for i, r in main.updates):
            if new is not old and self.names.get(new) != self.new_names.get(old):
                raise InputError(
                    f"expected a launch that writes the new value of the state '{self.names[old]}'"
                )
        updates = {r for _, r in main.updates}
        outputs = tuple(self.names[v] for i, v in enumerate(returned) if i not in updates)
        used = {launch.kernel for launch in self.launches}
        return ExecutionPlan(
            target=self.target,
            buffers=tuple(self.buffers),
            kernels=(
                *(c for n, c in self.codes.items() if n in used),
                *self.library_codes(),
                *(KernelCode(n, n, "communication", text) for text, n in self.communications.items()),
            ),
            launches=tuple(self.launches),
            inputs=tuple(self.names[p] for p in main.params if p not in kept),
            outputs=outputs,
            arena_bytes=0,
            format_version=version_for(self.buffers, self.launches),
        )

    def constant(self, op: Op) -> None:
        """The buffer of a constant: one, however many ops of @main name it."""
        name, t = str(op["name"]), op.result.tensor
        known = self.constants.get(name)
        if known is None:
            self.buffer(op.result, name, "constant")
            self.constants[name] = op.result
        elif known.tensor == t:
            self.names[op.result] = self.names[known]
        else:
            raise InputError(
                f"expected one type of constant '{name}', got {t} after {known.tensor}", where=op.loc
            )

    def buffer(self, v: Value, name: str, kind: BufferKind) -> None:
        """A buffer for `v`: memory of its own, or its box in the array that it is joined to."""
        slot = self.slots.get(v)
        if slot is None:
            self.named(v, name)
            self.buffers.append(_buffer(self.names[v], v.tensor, kind, name))
            return
        if slot.root not in self.names:
            self.buffer(slot.root, slot.root.hint or "joined", "arena")
        self.named(v, name)
        whole, t = slot.root.tensor, v.tensor
        begin = slot.start - t.start
        if begin < 0 or t.span != t.start + slot.span:
            raise InputError(f"expected a result of the layout of its place in the joined {whole}, got {t}")
        size, base = itemsize(t.dtype), self.names[slot.root]
        nbytes, offset = max(1, t.span * size), begin * size
        box = Buffer(self.names[v], array_type(t).dtype, slot.extents, "alias", nbytes, offset, base)
        self.buffers.append(replace(box, strides=whole.strides, start=t.start))

    def named(self, v: Value, name: str) -> None:
        """Give `v` a name like `name` that a plan may hold and no buffer has yet."""
        name = unique = plain_name(name)
        while unique in self.taken:
            self.taken[name] += 1
            unique = f"{name}.{self.taken[name]}"
        self.taken[unique] = 0
        self.names[v] = unique

    def join(self, op: Op) -> None:
        """Nothing runs: what the operands' launches wrote is the result."""
        if op.result not in self.names:
            self.buffer(op.result, op.result.hint or "joined", "arena")
        self.writers[op.result] = frozenset().union(*(self.writers.get(v, ()) for v in op.operands))

    def part(self, op: Op) -> None:
        """Nothing runs: the result is bytes of its operand's buffer."""
        (whole,), t = op.operands, op.result.tensor
        size = itemsize(t.dtype)
        self.named(op.result, op.result.hint or "part")
        buffer = _buffer(self.names[op.result], t, "alias", "")
        self.buffers.append(replace(buffer, offset=op.integer("start") * size, base=self.names[whole]))
        self.writers[op.result] = self.writers.get(whole, frozenset())

    def call(self, op: Op) -> None:
        ref = op["callee"]
        assert isinstance(ref, Ref)
        for r in op.results:
            self.result(r, r.hint or f"{ref.name}.out")
        args = tuple(self.names[v] for v in (*op.operands, *op.results))
        index = len(self.launches)
        deps = self.waits(op)
        origin = self.origins.get(ref.name, ()) if not op.loc else (op.loc,)
        if ref.name in self.libraries:
            self.launches.append(self.library_launch(ref.name, args, deps, origin))
        else:
            source = self.sources[ref.name]
            self.launches.append(
                Launch(
                    kernel=ref.name,
                    args=args,
                    grid=source.grid,
                    block=source.block,
                    shared_bytes=source.shared_bytes_dynamic,
                    deps=deps,
                    origin=origin,
                    writes=source.writes,
                    in_place=self.in_place[ref.name],
                    maps=launch_maps(source),
                    cluster=source.cluster,
                )
            )
        self.writers.update(dict.fromkeys(op.results, frozenset((index,))))

    def result(self, v: Value, name: str) -> None:
        """The buffer of a launch's result: the state that it is the new value of, or memory of its own."""
        old = self.changes.get(v)
        if old is None:
            self.buffer(v, name, "arena")
            return
        if v in self.slots or old in self.new_names:
            raise InputError(f"expected one launch that writes all of the new value of '{self.names[old]}'")
        state = next(b for b in self.buffers if b.name == self.names[old])  # the first ones
        self.named(v, f"{state.name}.new")
        self.buffers.append(replace(state, name=self.names[v], kind="alias", base=state.name, label=""))
        self.new_names[old] = self.names[v]

    def waits(self, op: Op) -> tuple[int, ...]:
        """The launches that write what an op reads, and those that read the old value of state it writes."""
        deps = set[int]().union(*(self.writers.get(v, ()) for v in op.operands))
        for v in dict.fromkeys(op.operands):
            if v in self.readers:
                if v in self.new_names and all(self.changes.get(r) is not v for r in op.results):
                    raise InputError(
                        f"expected what reads the old '{self.names[v]}' before what writes the new",
                        where=op.loc,
                    )
                self.readers[v].append(len(self.launches))
        for r in op.results:
            if r in self.changes:
                deps.update(i for i in self.readers[self.changes[r]] if i != len(self.launches))
        return tuple(sorted(deps))

    def communicate(self, op: Op) -> None:
        """A launch of the communicator; equal communications are one kernel."""
        kernel = communication_kernel(op)
        text = kernel.to_json()
        if text not in self.communications:
            taken = {*self.codes, *self.libraries, *self.communications.values()}
            name = next(n for i in count() if (n := f"{kernel.kind}_{i}") not in taken)
            self.communications[text] = name
        for r in op.results:
            self.buffer(r, r.hint or f"{kernel.kind}.out", "arena")
        before = () if self.communicated is None else (self.communicated,)
        self.communicated = len(self.launches)
        self.launches.append(
            Launch(
                kernel=self.communications[text],
                args=tuple(self.names[v] for v in (*op.operands, *op.results)),
                grid=(1, 1, 1),
                block=1,
                deps=tuple(sorted({*self.waits(op), *before})),
                origin=(op.loc,) if op.loc else (),
                writes=kernel.writes,
            )
        )
        self.writers.update(dict.fromkeys(op.results, frozenset((self.communicated,))))

    def library_launch(
        self, name: str, args: tuple[str, ...], deps: tuple[int, ...], origin: tuple[str, ...]
    ) -> Launch:
        """A launch with a workspace of its own, which lives as long as the launch."""
        kernel = self.libraries[name]
        workspace = Value(TensorType("u8", (kernel.workspace_bytes,)), f"{name}.workspace")
        self.buffer(workspace, workspace.hint, "arena")
        args = (*args, self.names[workspace])
        return Launch(name, args, (1, 1, 1), 1, deps=deps, origin=origin, writes=kernel.writes)

    def library_codes(self) -> list[KernelCode]:
        """The codes of the library kernels that are called."""
        used = dict.fromkeys(launch.kernel for launch in self.launches)
        return [KernelCode(n, n, "library", self.libraries[n].to_json()) for n in used if n in self.libraries]


def plain_name(name: str) -> str:
    """`name` as plans may hold it: other characters become `_`, and what is too long is cut.

    A network's own names may be anything: ONNX has `input ids`, `x[0]` and names of a thousand characters.
    """
    return _FOREIGN.sub("_", name)[:_LONGEST] or "_"


def _distinct(names: tuple[str, ...]) -> list[str]:
    """The names, later ones of two that are equal with a number behind them: callers bind by name."""
    out: list[str] = []
    for name in names:
        numbered = (f"{name}.{i}" for i in count(1))
        out.append(name if name not in out else next(n for n in numbered if n not in {*out, *names}))
    return out


def constants_of(plan: ExecutionPlan, arrays: Mapping[str, object]) -> dict[str, np.ndarray]:
    """The plan's constants by buffer, and what its state starts as, taken from what the network calls them.

    Two buffers may hold the same constant, and a constant may be called as a value is.
    """
    return {b.name: np.asarray(arrays[b.title]) for b in plan.buffers if b.kind in ("constant", "state")}


@dataclass(frozen=True)
class _Slot:
    """The box of a joined array that one value fills: its extents, and elements before and within it."""

    root: Value
    start: int
    extents: tuple[int, ...]

    @property
    def span(self) -> int:
        """Elements from the first to the last one."""
        steps = self.root.tensor.strides
        return 1 + sum((n - 1) * s for n, s in zip(self.extents, steps, strict=True))


def _buffer(name: str, t: TensorType, kind: BufferKind, called: str) -> Buffer:
    """Memory of its own for a value of this type that the network calls `called`."""
    array = array_type(t)
    label = called if kind in ("input", "constant", "state") and called != name else ""
    return Buffer(name, array.dtype, array.shape, kind, max(1, t.span * itemsize(t.dtype)), label=label)


def _slots(module: Module) -> dict[Value, _Slot]:
    """The boxes of the operands of joins; joins of joins are boxes of the outermost array."""
    slots: dict[Value, _Slot] = {}
    for op in reversed(module.main.body.ops):
        if op.name != "tensor.join":
            continue
        inside = slots.get(op.result, _Slot(op.result, 0, op.result.tensor.shape))
        for v, (at, extents) in zip(op.operands, boxes_of(op), strict=True):
            if v in slots:
                raise InputError("a value is part of two joins; place-concats copies it", where=op.loc)
            steps = inside.root.tensor.strides
            start = inside.start + sum(a * s for a, s in zip(at, steps, strict=True))
            slots[v] = _Slot(inside.root, start, extents)
    body = module.main.body
    constants = (op.result for op in body.ops if op.name == "tensor.constant")
    if any(v in slots for v in (*body.params, *constants, *body.ops[-1].operands)):
        raise InputError("an input, a constant or a result is part of a join; place-concats copies it")
    return slots


def _origins(module: Module) -> dict[str, tuple[str, ...]]:
    return {f.name: _origin(f) for f in module.funcs}


def _origin(f: Func) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.loc for op in f.body.ops if op.loc))


def communication_kernel(op: Op) -> CommunicationKernel:
    """The kernel of a tensor.communicate."""
    attrs: dict[str, Any] = dict(op.attrs)
    return CommunicationKernel(
        kind=attrs["kind"],
        dtype=array_type((*op.operands, *op.results)[0].tensor).dtype,
        operands=tuple(v.tensor.size for v in op.operands),
        results=tuple(r.tensor.size for r in op.results),
        sends=tuple(Message(*m) for m in attrs["sends"]),
        receives=tuple(Message(*m) for m in attrs["receives"]),
        members=tuple(attrs["members"]),
        position=attrs["position"],
        counts=tuple(attrs["counts"]),
        reduction=attrs["reduction"],
    )


def library_kernels(module: Module) -> dict[str, LibraryKernel]:
    """The library kernels of a module by the names of their functions."""
    out = {}
    for f in module.funcs:
        if not is_generated(f):
            out[f.name] = LibraryKernel.from_json(parameters_of(f, LibraryParameters).kernel)
    return out
