"""Writes one thread-level kernel: scopes, symbol ranges, masks, and values of tensor ops at points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from tilewright.ir import (
    Attr,
    Block,
    Builder,
    Expr,
    Func,
    InputError,
    Level,
    Op,
    Sym,
    TensorType,
    Value,
)
from tilewright.ir.expr import substitute
from tilewright.ir.hardware_facts import WARP
from tilewright.ir.simplify import interval, simplify
from tilewright.ir.thread.tensor_maps import CLUSTER, MAPS, RANK, ParameterMap

Index = tuple[Expr, ...]
#: conjunction of [expr, low, high]
Mask = tuple[tuple[Expr, Expr, Expr], ...]


class Writer:
    """State of one kernel under construction. Buffers stand for the kernel's parameters and results.

    cluster: blocks along x that form a cluster; symbol `rank` is a block's place in it.
    """

    def __init__(self, kernel: Func, threads: int, grid: tuple[int, int, int], *, cluster: int = 1) -> None:
        self.kernel = kernel
        self.threads, self.grid, self.cluster = threads, grid, cluster
        self.b = Builder()
        self.ranges: dict[str, tuple[int, int]] = {"tid": (0, threads - 1)}
        for axis, extent in zip("xyz", grid, strict=True):
            self.ranges[f"bid.{axis}"] = (0, extent - 1)
        if cluster > 1:
            self.ranges[RANK] = (0, cluster - 1)
        self.inputs = {p: Value(p.tensor, p.hint) for p in kernel.params}
        self.outputs: dict[Value, Value] = {}
        for v in kernel.body.ops[-1].operands:
            self.outputs[v] = Value(v.tensor, v.hint or "out")
        self.producers = {r: op for op in kernel.body.ops for r in op.results}
        self._counter: dict[str, int] = {}
        self._maps: list[ParameterMap] = []

    def add_map(self, parameter: ParameterMap) -> int:
        """Give the kernel a tensor map; returns its number."""
        self._maps.append(parameter)
        return len(self._maps) - 1

    def finish(self) -> Func:
        """The thread-level function: inputs, then outputs, as global buffers."""
        self.b.do("thread.return")
        params = (*self.inputs.values(), *self.outputs.values())
        attrs: tuple[tuple[str, Attr], ...] = (("grid", self.grid), ("block", self.threads))
        if self.cluster > 1:
            attrs = (*attrs, (CLUSTER, (self.cluster, 1, 1)))
        if self._maps:
            attrs = (*attrs, (MAPS, tuple(self._maps)))
        return Func(Level.THREAD, self.kernel.name, Block(params, tuple(self.b.ops)), (), attrs)

    # -- scopes ----------------------------------------------------------------------------------------------
    @contextmanager
    def loop(self, name: str, extent: int, *, unroll: int = 0) -> Iterator[Expr]:
        """A loop; yields its variable (0 for a single iteration, which needs no loop)."""
        if extent == 1:
            yield 0
            return
        number = self._counter.get(name, 0)
        self._counter[name] = number + 1
        var = f"{name}{number}" if number else name
        if var in self.ranges:
            var = f"{name}_{number}"
        outer = self.b
        self.ranges[var] = (0, extent - 1)
        with outer.loop(var, extent, unroll=unroll) as inner:
            self.b = inner
            yield Sym(var)
        self.b = outer
        del self.ranges[var]

    @contextmanager
    def loops(self, name: str, extents: Sequence[int], *, unroll: int = 0) -> Iterator[Index]:
        """Nested loops over `extents`; yields one index per extent."""
        if not extents:
            yield ()
            return
        with (
            self.loop(name, extents[0], unroll=unroll) as first,
            self.loops(name, extents[1:], unroll=unroll) as rest,
        ):
            yield (first, *rest)

    @contextmanager
    def reduction_loops(self, sizes: Mapping[str, int], points: int) -> Iterator[dict[str, Expr]]:
        """Loops over a chunk of reduced dimensions; the innermost `points` of it, at most, are unrolled."""
        unroll: dict[str, int] = {}
        room = max(1, points)
        for d in reversed(list(sizes)):
            whole = sizes[d] <= room
            unroll[d] = 1 if whole else max(f for f in range(1, room + 1) if sizes[d] % f == 0)
            if unroll[d] == 1 and not whole:
                unroll[d] = 0  # a loop that is not unrolled
            room = room // sizes[d] if whole else 1
        with ExitStack() as stack:
            yield {d: stack.enter_context(self.loop(f"r_{d}", n, unroll=unroll[d])) for d, n in sizes.items()}

    @contextmanager
    def role(self, name: str, warps: int, registers: int = 0) -> Iterator[None]:
        """What some warps of the block do: `tid` counts theirs; registers: of a thread, 0 for its share."""
        outer, threads = self.b, self.ranges["tid"]
        self.b, self.ranges["tid"] = Builder(outer.loc), (0, warps * WARP - 1)
        yield
        body = self.b.block()
        self.b, self.ranges["tid"] = outer, threads
        attrs: dict[str, Attr] = {"name": name, "warps": warps, "registers": registers}
        outer.emit("thread.role", (), attrs, body=body)

    @contextmanager
    def when(self, mask: Mask, condition: Value | None = None) -> Iterator[None]:
        """Ops that run where the mask holds, and the condition, a bool value."""
        outer = self.b
        with outer.when(mask, condition) as inner:
            self.b = inner
            yield
        self.b = outer

    # -- indices and masks -----------------------------------------------------------------------------------
    def simple(self, e: Expr) -> Expr:
        """`e` simplified under the ranges in scope."""
        return simplify(e, self.ranges)

    def bounds(self, at: Sequence[Expr], shape: Sequence[int]) -> Mask:
        """The conditions under which `at` lies inside `shape`, without those known to hold."""
        out = []
        for e, extent in zip(at, shape, strict=True):
            lo, hi = interval(self.simple(e), self.ranges)
            if lo < 0 or hi >= extent:
                out.append((self.simple(e), 0, extent))
        return tuple(out)

    def below(self, e: Expr, extent: int) -> Mask:
        """The condition e < extent, where it is not known to hold."""
        return self.bounds((e,), (extent,))

    def unravel(self, linear: Expr, extents: Sequence[int]) -> Index:
        """The row-major index of element `linear` of a box; any index where the box is empty."""
        out: list[Expr] = []
        step = 1
        for i in range(len(extents) - 1, -1, -1):
            e, extent = linear // step, max(1, extents[i])
            out.append(self.simple(e % extent if i else e))
            step *= extent
        return tuple(reversed(out))

    # -- memory ----------------------------------------------------------------------------------------------
    def alloc(
        self,
        shape: Sequence[int],
        dtype: str,
        space: str,
        hint: str,
        *,
        swizzled: bool = False,
        align: int = 0,
    ) -> Value:
        """A shared or register buffer; align: bytes, where more than usual."""
        attrs: dict[str, Attr] = {"swizzled": True} if swizzled else {}
        if align:
            attrs["align"] = align
        (v,) = self.b.emit(
            "thread.alloc", (), attrs, types=[TensorType(dtype, tuple(shape), space)], hint=hint
        )
        return v

    def load(
        self, buffer: Value, at: Sequence[Expr], mask: Mask = (), other: float | int | bool = 0.0
    ) -> Value:
        """One element; `other` where the mask fails."""
        index = tuple(self.simple(e) for e in at)
        return self.b.value("thread.load", buffer, at=index, mask=mask, other=other)

    def store(self, value: Value, buffer: Value, at: Sequence[Expr], mask: Mask = ()) -> None:
        """Write one element where the mask holds."""
        self.b.do("thread.store", value, buffer, at=tuple(self.simple(e) for e in at), mask=mask)

    def condition(self, mask: Mask) -> Value:
        """The mask as a bool value."""
        out: Value | None = None
        for e, low, high in mask:
            v = self.b.index(e)
            for name, edge in (("scalar.ge", low), ("scalar.lt", high)):
                test = self.b.value(name, v, self.b.index(edge))
                out = test if out is None else self.b.value("scalar.and", out, test)
        if out is None:
            raise InputError("expected a mask with at least one condition")
        return out

    def inline(self, op: Op, operands: Sequence[Value], env: Mapping[str, Expr]) -> tuple[Value, ...]:
        """Copy a structured op's body here, with values for its parameters, indices for its dimensions."""
        assert op.body is not None
        values = dict(zip(op.body.params, operands, strict=True))
        with self.b.at(op.loc):
            for o in op.body.ops[:-1]:
                if o.name == "scalar.index":
                    values[o.result] = self.b.index(self.simple(substitute(o["at"], env)), str(o["dtype"]))  # type: ignore[arg-type]
                    continue
                copies = self.b.emit(
                    o.name, [values[v] for v in o.operands], dict(o.attrs), types=[r.type for r in o.results]
                )
                values.update(zip(o.results, copies, strict=True))
        return tuple(values[v] for v in op.body.ops[-1].operands)


def anchor_of(kernel: Func, *names: str) -> Op:
    """The only op of the kernel with one of these names."""
    found = [op for op in kernel.body.ops if op.name in names]
    if len(found) != 1:
        raise InputError(f"expected one {' or '.join(names)}, got {len(found)}", where=f"@{kernel.name}")
    return found[0]
