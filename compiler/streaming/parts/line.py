"""A graph-level @main as a line of ops that can be cut: which constants each needs, what lives where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tilewright.ir import InputError, Level, Module, Op, UnsupportedError, Value
from tilewright.ir.facts import SAME_MEMORY
from tilewright.ir.opdef import facts_of, op_def
from tilewright.passes.rewriting.values import making


@dataclass(frozen=True)
class RowsOf:
    """Rows begin..end of a named constant, which the module does not have as a constant of its own."""

    source: str
    begin: int
    end: int


@dataclass(frozen=True)
class Line:
    """The ops that compute, in program order; `fixed` holds those that make constants, by result.

    parameters, returned: values of @main. rows: constants that are parts of others, by name.
    """

    module: Module
    parameters: tuple[Value, ...]
    ops: tuple[Op, ...]
    fixed: Mapping[Value, Op]
    returned: tuple[Value, ...]
    rows: Mapping[str, RowsOf]

    @classmethod
    def of(cls, module: Module) -> Line:
        """Take a module apart; raises UnsupportedError for one that is not at the graph level."""
        main = module.main
        if main.level is not Level.GRAPH:
            raise UnsupportedError(f"expected a graph-level network to stream, got one at {main.level.value}")
        moving: set[Value] = set(main.params)
        ops: list[Op] = []
        fixed: dict[Value, Op] = {}
        for op in main.body.ops[:-1]:
            if any(v in moving for v in op.operands) or op_def(op.name).effects:
                ops.append(op)
                moving.update(op.results)
            else:
                fixed |= dict.fromkeys(op.results, op)
        returned = main.body.ops[-1].operands
        for v in returned:
            if v in fixed:
                raise UnsupportedError("expected results that depend on the inputs", where=f"@{module.name}")
        if not ops:
            raise InputError("expected a network with at least one op", where=f"@{module.name}")
        return cls(module, main.params, tuple(ops), fixed, returned, {})

    def fixed_ops(self, values: Sequence[Value]) -> list[Op]:
        """The ops that make constant `values`, operands first."""
        return making(self.fixed, values)

    @cached_property
    def constant_bytes(self) -> tuple[Mapping[str, int], ...]:
        """Per op the constants it needs, by name, and their bytes."""
        out: list[Mapping[str, int]] = []
        for op in self.ops:
            made = self.fixed_ops([v for v in op.operands if v in self.fixed])
            named = (f for f in made if f.name == "graph.constant")
            out.append({str(f["name"]): f.result.tensor.nbytes for f in named})
        return tuple(out)

    @cached_property
    def lives(self) -> Mapping[Value, tuple[int, int]]:
        """Of every value but constants: where it is made (inputs: -1) and last read (results: the end)."""
        made = dict.fromkeys(self.parameters, -1)
        last: dict[Value, int] = {}
        for place, op in enumerate(self.ops):
            made |= dict.fromkeys(op.results, place)
            last |= {v: place for v in op.operands if v in made}
        last |= dict.fromkeys(self.returned, len(self.ops))
        return {v: (place, last.get(v, place)) for v, place in made.items()}

    @cached_property
    def cut_bytes(self) -> np.ndarray:
        """Entry i: bytes of the values that live between op i - 1 and op i."""
        steps = np.zeros(len(self.ops) + 2, np.int64)
        for v, (made, last) in self.lives.items():
            steps[made + 1] += v.tensor.nbytes
            steps[last + 1] -= v.tensor.nbytes
        return np.cumsum(steps)[:-1]

    @cached_property
    def working_bytes(self) -> int:
        """An estimate of the largest memory for values at any time, if no two ops share a kernel."""
        own = self.cut_bytes.copy()
        for place, op in enumerate(self.ops):
            if facts_of(op.name).elements not in SAME_MEMORY:
                own[place] += sum(v.tensor.nbytes for v in op.results)
        return int(own[: len(self.ops)].max())

    def constant(self, name: str) -> np.ndarray:
        """The array behind a constant op."""
        part = self.rows.get(name)
        if part is None:
            return self.module.constants[name]
        return np.ascontiguousarray(self.constant(part.source)[part.begin : part.end])

    def crossing(self, begin: int, end: int) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """Return the values that ops begin..end read of earlier ones, and those made for later ones."""
        read: dict[Value, None] = {}
        for op in self.ops[begin:end]:
            read |= {v: None for v in op.operands if v not in self.fixed and self.lives[v][0] < begin}
        return tuple(read), tuple(v for v in self._made(begin, end) if self.lives[v][1] >= end)

    def _made(self, begin: int, end: int) -> Iterator[Value]:
        for op in self.ops[begin:end]:
            yield from op.results
