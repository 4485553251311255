"""Thread-level module -> ExecutionPlan: buffers in one arena, launches with their dependencies."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.codegen import KernelSource
from tilewright.codegen.in_place import in_place_pairs
from tilewright.ir import Func, InputError, Level, Module, Op, Ref, Value
from tilewright.ir.types import array_type
from tilewright.runtime.memory import place_arena
from tilewright.runtime.plan import Buffer, BufferKind, ExecutionPlan, KernelCode, Launch


def plan_module(
    module: Module, sources: Mapping[str, KernelSource], codes: Mapping[str, KernelCode], target: str
) -> ExecutionPlan:
    """The plan that runs @main: one launch per call, in program order, with exact dependencies.

    sources, codes: per kernel function, its emitted text and what is stored of it. Raises InputError where
    @main holds anything but calls and constants.
    """
    return _Planner(module, sources, codes, target).plan()


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
        self.buffers: list[Buffer] = []
        self.launches: list[Launch] = []
        self.writer: dict[str, int] = {}
        self.origins = _origins(module)
        self.in_place = {f.name: in_place_pairs(f) for f in module.funcs if f.level is Level.THREAD}

    def plan(self) -> ExecutionPlan:
        main = self.module.main
        returned = main.body.ops[-1].operands
        for name, p in zip(self.module.input_names, main.params, strict=True):
            self.buffer(p, name, "input")
        for op in main.body.ops[:-1]:
            if op.name == "tensor.constant":
                self.buffer(op.result, str(op["name"]), "constant")
            elif op.name == "tensor.call":
                self.call(op)
            else:
                raise InputError(f"expected calls and constants in @main, got {op.name}", where=op.loc)
        outputs = tuple(self.names[v] for v in returned)
        used = {launch.kernel for launch in self.launches}
        plan = ExecutionPlan(
            target=self.target,
            buffers=tuple(self.buffers),
            kernels=tuple(c for n, c in self.codes.items() if n in used),
            launches=tuple(self.launches),
            inputs=tuple(self.names[p] for p in main.params),
            outputs=outputs,
            arena_bytes=0,
        )
        return place_arena(plan).validate()

    def buffer(self, v: Value, name: str, kind: BufferKind) -> None:
        unique = name
        while unique in self.taken:
            self.taken[name] += 1
            unique = f"{name}.{self.taken[name]}"
        self.taken[unique] = 0
        t = array_type(v.tensor)
        self.names[v] = unique
        self.buffers.append(Buffer(unique, t.dtype, t.shape, kind, max(1, v.tensor.nbytes)))

    def call(self, op: Op) -> None:
        ref = op["callee"]
        assert isinstance(ref, Ref)
        source = self.sources[ref.name]
        for r in op.results:
            self.buffer(r, r.hint or f"{ref.name}.out", "arena")
        args = tuple(self.names[v] for v in (*op.operands, *op.results))
        deps = sorted({self.writer[a] for a in args if a in self.writer})
        index = len(self.launches)
        self.launches.append(
            Launch(
                kernel=ref.name,
                args=args,
                grid=source.grid,
                block=source.block,
                shared_bytes=source.shared_bytes_dynamic,
                deps=tuple(deps),
                origin=self.origins.get(ref.name, ()) if not op.loc else (op.loc,),
                writes=source.writes,
                in_place=self.in_place[ref.name],
            )
        )
        for r in op.results:
            self.writer[self.names[r]] = index


def _origins(module: Module) -> dict[str, tuple[str, ...]]:
    return {f.name: _origin(f) for f in module.funcs}


def _origin(f: Func) -> tuple[str, ...]:
    return tuple(dict.fromkeys(op.loc for op in f.body.ops if op.loc))
