"""The kernels of a program before fusion, or fused by groups, as layouts see them: tensors and dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir import Module, Op, Sym
from tilewright.ir.expr import Expr
from tilewright.ir.nodes import Value
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.analysis.work.operator_work import OperatorWork, operator_work
from tilewright.tools.data_movement.operators import grouped, lowered_operators, results_of


@dataclass(frozen=True)
class TensorUse:
    """One tensor of a kernel as one of its reads or writes sees it.

    axes: per axis of the tensor the kernel's dimension that runs along it; empty where none does alone.
    """

    tensor: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]
    written: bool


@dataclass(frozen=True)
class KernelDims:
    """A kernel: its dimensions with their extents, what is reduced, its tensors, and its work.

    factors: of a contraction, positions among `uses` of the tensors that its operands are made of. contract:
    the dimensions of both factors and of the result; None where there is no contraction, or more than one.
    contractions: how many there are.
    """

    name: str
    extents: Mapping[str, int]
    reduced: frozenset[str]
    uses: tuple[TensorUse, ...]
    work: OperatorWork
    factors: tuple[tuple[int, ...], tuple[int, ...]] | None
    contract: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]] | None
    contractions: int


def kernels_of(
    module: Module, groups: Mapping[str, Sequence[str]] | None = None, *, each: bool = False
) -> tuple[KernelDims, ...]:
    """The kernels of a graph-level module: operators, those of each group as one, or each op by itself."""
    main = lowered_operators(module, each=each)
    members = grouped(main, groups)
    names = {p: p.hint or f"input {i}" for i, p in enumerate(main.params)}
    names |= {op.result: str(op["name"]) for op in main.body.ops if op.name == "tensor.constant"}
    for name, ops in members.items():
        for op in ops:
            for v in op.results:
                names[v] = f"{name} {sum(n.startswith(f'{name} ') for n in names.values())}"
    results = results_of(main, members)
    return tuple(_Kernel(name, ops, results[name], names).dims() for name, ops in members.items())


class _Kernel:
    """Finds which dimensions of a kernel's ops are the same: those that a value between them joins."""

    def __init__(
        self, name: str, ops: Sequence[Op], results: Sequence[Value], names: Mapping[Value, str]
    ) -> None:
        self.name, self.ops, self.results, self.names = name, ops, results, names
        self.parent: dict[tuple[int, str], tuple[int, str]] = {}
        self.axes: dict[Value, tuple[tuple[int, str] | None, ...]] = {}
        self.extent: dict[tuple[int, str], int] = {}

    def root(self, d: tuple[int, str]) -> tuple[int, str]:
        while self.parent.get(d, d) != d:
            d = self.parent[d]
        return d

    def join(self, a: tuple[int, str], b: tuple[int, str]) -> None:
        a, b = self.root(a), self.root(b)
        if a != b and self.extent[a] == self.extent[b]:
            self.parent[b] = a

    def dims(self) -> KernelDims:
        own = {v for op in self.ops for v in op.results}
        external: list[tuple[Value, tuple[tuple[int, str] | None, ...], int]] = []
        for n, op in enumerate(self.ops):
            sizes = dims(op, "par") | dims(op, "red")
            self.extent |= {(n, d): extent for d, extent in sizes.items()}
            for v, at in zip(op.operands, _reads(op), strict=False):
                seen = tuple((n, e.name) if isinstance(e, Sym) else None for e in at)
                if v in own:
                    for a, b in zip(self.axes[v], seen, strict=True):
                        if a is not None and b is not None:
                            self.join(a, b)
                else:
                    external.append((v, seen, n))
            for v in op.results:
                self.axes[v] = tuple((n, d) for d in dims(op, "par"))
        if not any(op.name == "tensor.contract" for op in self.ops):
            self.join_alike([seen for _, seen, _ in external], [v.tensor.shape for v, _, _ in external])
        return self.found(external)

    def join_alike(
        self, reads: Sequence[tuple[tuple[int, str] | None, ...]], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        """Let a kernel that multiplies no matrices run alike through all tensors of one shape."""
        first: dict[tuple[int, ...], tuple[tuple[int, str] | None, ...]] = {}
        for seen, shape in zip(reads, shapes, strict=True):
            for a, b in zip(first.setdefault(shape, seen), seen, strict=True):
                if a is not None and b is not None:
                    self.join(a, b)

    def found(self, external: Sequence[tuple[Value, tuple[tuple[int, str] | None, ...], int]]) -> KernelDims:
        label: dict[tuple[int, str], str] = {}

        def named(d: tuple[int, str] | None) -> str:
            if d is None or self.extent[self.root(d)] == 1:
                return ""
            return label.setdefault(self.root(d), f"d{len(label)}")

        uses: list[TensorUse] = []
        sources: dict[int, int] = {}  # use -> op that reads it
        for v, seen, n in external:
            use = TensorUse(self.names[v], v.tensor.shape, tuple(map(named, seen)), False)
            if any(use.axes) and use not in uses:
                sources[len(uses)] = n
                uses.append(use)
        uses += [TensorUse(self.names[v], v.tensor.shape, tuple(map(named, self.axes[v])), True)
                 for v in self.results]  # fmt: skip
        inside = ((n, d) for n, op in enumerate(self.ops) for d in dims(op, "red"))
        reduced = frozenset(filter(None, map(named, inside)))
        factors, contract = self.contraction(uses, sources, named)
        extents = {name: self.extent[d] for d, name in label.items()}
        return KernelDims(
            self.name,
            extents,
            reduced,
            tuple(uses),
            operator_work(self.ops, self.results),
            factors,
            contract,
            sum(op.name == "tensor.contract" for op in self.ops),
        )

    def contraction(
        self,
        uses: Sequence[TensorUse],
        sources: Mapping[int, int],
        named: Callable[[tuple[int, str] | None], str],
    ) -> tuple[Any, Any]:
        """The tensors that each factor of the only contraction is made of, and dimensions of all three;
        nothing where there is none or more than one.
        """
        places = [n for n, op in enumerate(self.ops) if op.name == "tensor.contract"]
        if len(places) != 1:
            return None, None
        op = self.ops[places[0]]
        if not all(isinstance(e, Sym | int) for read in reads(op) for e in read):
            return None, None  # windows
        made: list[list[int]] = []
        for v in op.operands:
            made.append([i for i in sources if self.reaches(sources[i], places[0], v, uses[i].tensor)])
        at = [tuple(filter(None, (named((places[0], e.name)) if isinstance(e, Sym) else "" for e in read)))
              for read in reads(op)]  # fmt: skip
        result = tuple(filter(None, map(named, self.axes[op.result])))
        return (tuple(made[0]), tuple(made[1])), (*at, result)

    def reaches(self, n: int, contract: int, factor: Value, tensor: str) -> bool:
        """Return whether what op n reads of a tensor comes to the contraction as this factor."""
        if n == contract:
            return self.names.get(factor) == tensor
        wanted, producers = [factor], {v: i for i, op in enumerate(self.ops) for v in op.results}
        seen: set[int] = set()
        while wanted:
            i = producers.get(wanted.pop())
            if i is not None and i not in seen:
                seen.add(i)
                wanted += self.ops[i].operands
        return n in seen


def _reads(op: Op) -> tuple[tuple[Expr, ...], ...]:
    """Index expressions of each operand; none for ops that state none."""
    return reads(op) if op.get("reads") is not None else ()
