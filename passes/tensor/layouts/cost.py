"""Seconds that the orders of values cost each op that reads or makes them, for the choice of layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tilewright.costmodel import CpuHardware, Hardware
from tilewright.ir import Expr, Func, Op, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.tensor.ops import STRUCTURED, dims, domain, reads
from tilewright.ir.types import BYTES, FLOAT8, itemsize
from tilewright.passes import PassContext
from tilewright.passes.analysis.index_sets import identity_read, is_view, sums_samples
from tilewright.passes.analysis.minimum_cut import Energy
from tilewright.passes.tensor.layouts.axes import Order, reordered, stays_view

#: CUDA architecture from which tensor cores are used
FIRST_MATRIX_ARCH = 80
#: dtypes of factors that tensor cores multiply
MATRIX_DTYPES = frozenset({"f16", "bf16"})


def on_tensor_cores(op: Op) -> bool:
    """Return whether this op is a contraction whose factors tensor cores take.

    That are 16-bit ones, float32 where it may be rounded to TF32 or split into pieces, 8-bit floats, and
    bytes that are summed in 32 bits.
    """
    if op.name != "tensor.contract":
        return False
    kinds = {v.tensor.dtype for v in op.operands}
    if kinds <= {*FLOAT8}:
        return op.result.tensor.dtype == "f32"
    if kinds <= {*BYTES}:
        return op.result.tensor.dtype == "i32"
    return (len(kinds) == 1 and kinds <= MATRIX_DTYPES) or (bool(op["factors"]) and kinds == {"f32"})


def has_matrix_units(func: Func, ctx: PassContext) -> bool:
    """Return whether the device has tensor cores that some contraction of the program may use."""
    arch = re.search(r":sm_(\d+)", ctx.target)
    new_enough = arch is not None and int(arch.group(1)) >= FIRST_MATRIX_ARCH
    return new_enough and any(map(on_tensor_cores, func.body.ops))


@dataclass(frozen=True)
class LayoutCosts:
    """Seconds of ops by the orders of what they read and make."""

    orders: Mapping[Value, Order]
    hardware: Hardware

    def energy(self, func: Func) -> Energy[Value]:
        """Return all costs of the program that depend on the orders; values of one op count as its first
        result.
        """
        energy: Energy[Value] = Energy()
        leaders = {r: op.results[0] for op in func.body.ops if op.results for r in op.results}
        for v in self.orders:
            energy.add(leaders[v], 0, 0.0)
        for op in func.body.ops:
            if op.name not in STRUCTURED:
                continue
            self._charge_result(energy, op)
            for i, v in enumerate(op.operands):
                self._charge(energy, op, i, leaders.get(v, v))
        return energy

    def _labels(self, v: Value) -> tuple[int, ...]:
        return (0, 1) if v in self.orders else (0,)

    def _order(self, v: Value, label: int) -> Order | None:
        return self.orders[v] if label else None

    def _charge_result(self, energy: Energy[Value], op: Op) -> None:
        r = op.results[0]
        for label in self._labels(r) if r in self.orders else ():
            energy.add(r, label, self.result_s(op, self._order(r, label)))

    def _charge(self, energy: Energy[Value], op: Op, i: int, leader: Value) -> None:
        v, r = op.operands[i], op.results[0]
        for mine in self._labels(v):
            for other in self._labels(r):
                seconds = self.operand_s(op, i, self._order(v, mine), self._order(r, other))
                if seconds == 0.0:
                    continue
                if v in self.orders and r in self.orders:
                    energy.add_pair(leader, r, (mine, other), seconds)
                elif v in self.orders:
                    energy.add(leader, mine, seconds)
                elif r in self.orders:
                    energy.add(r, other, seconds)

    # -- single terms ----------------------------------------------------------------------------------------
    def result_s(self, op: Op, order: Order | None) -> float:
        """Seconds that the order of an op's result costs by itself."""
        par = dims(op, "par")
        inner = _innermost(reordered_names(op, order), par)
        traffic = self.moved_s(sum(r.tensor.nbytes for r in op.results))
        if op.name == "tensor.contract":
            columns = inner not in _named(reads(op)[0])
            if isinstance(self.hardware, CpuHardware):
                return 0.0 if columns else self.hardware.layout.result_rows_share * traffic
            return 0.0 if columns == on_tensor_cores(op) else traffic
        if op.name == "tensor.window":
            window = set(dims(op, "red"))
            slid = any(inner in set(symbols(e)) and window & set(symbols(e)) for e in reads(op)[0])
            return self.hardware.layout.window_rows_share * traffic if slid else 0.0
        return 0.0

    def operand_s(self, op: Op, i: int, source: Order | None, target: Order | None) -> float:
        """Seconds it costs that an op reads operand `i` in one order and makes its result in another one."""
        v = op.operands[i]
        at = reordered(reads(op)[i], source)
        extents = reordered(v.tensor.shape, source)
        last = next((e for e, n in zip(reversed(at), reversed(extents), strict=True) if n != 1), 0)
        if op.name == "tensor.contract":
            return self._factor_s(op, i, last)
        if is_view(op):
            return (
                0.0
                if stays_view(op, source, target)
                else self.hardware.stream.boundary_s + 4 * self.moved_s(v.tensor.nbytes)
            )
        if op.name == "tensor.reduce" and set(symbols(last)) & set(dims(op, "red")):
            return 0.0
        inner = _innermost(reordered_names(op, target), dims(op, "par"))
        if inner in set(symbols(last)) or inner not in _named(at):
            return 0.0
        scattered = (self.hardware.layout.scattered_sectors - 1) * self.moved_s(v.tensor.nbytes)
        stored = (
            2 * self.moved_s(v.tensor.nbytes) + self.hardware.stream.boundary_s
            if identity_read(op, i)
            else 0.0
        )
        return scattered + stored

    def _factor_s(self, op: Op, i: int, last: Expr) -> float:
        """A contraction with one factor contiguous along `last`."""
        sizes = domain(op)
        flops = 2.0 * prod(sizes.values())
        simt_s = flops / (self.hardware.layout.simt_share * self.hardware.peak_flops_per_s)
        inner = set(symbols(last))
        if isinstance(self.hardware, CpuHardware):
            return (
                self.hardware.layout.factor_rows_share * simt_s
                if i == 0 and inner & set(dims(op, "par"))
                else 0.0
            )
        if not on_tensor_cores(op):
            rows = inner & set(dims(op, "par"))
            return 0.0 if i != 0 or rows or not inner else self.hardware.layout.scattered_share * simt_s
        lanes = ASYNC_COPY_BYTES[0] // itemsize(op.operands[i].tensor.dtype)
        wanted = dims(op, "par") if sums_samples(op) else dims(op, "red")
        channel = [d for d in inner if d in wanted]
        if channel and len(inner) == 1 and sizes[channel[0]] % lanes == 0:
            return 0.0
        return simt_s * (1 - 1 / self.hardware.layout.matrix_rate)

    def moved_s(self, nbytes: int) -> float:
        """Seconds to move so many bytes once."""
        hardware = self.hardware
        if isinstance(hardware, CpuHardware):
            return nbytes / hardware.estimate_dram_bytes_per_s
        return nbytes / (hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency)


def reordered_names(op: Op, order: Order | None) -> list[str]:
    """The parallel dimensions of an op whose result has this order."""
    names = list(dims(op, "par"))
    return names if order is None else [names[axis] for axis in order]


def _innermost(names: list[str], sizes: Mapping[str, int]) -> str:
    """The last dimension of more than one index; '' where there is none."""
    return next((d for d in reversed(names) if sizes[d] != 1), "")


def _named(at: tuple[Expr, ...]) -> set[str]:
    return {d for e in at for d in symbols(e)}


def scattered_s(kernel: Func, hardware: Hardware) -> float:
    """Seconds of accesses apart from each other that estimates of families do not see.

    Those are results of products whose rows lie side by side, windows that slide along the innermost
    dimension, and what maps and windows read along another dimension than the one that their threads share:
    the sectors that come along with an element. On CPUs they are also factors whose rows lie side by side.
    """
    costs = LayoutCosts({}, hardware)
    stored = set(kernel.body.ops[-1].operands)
    seconds = 0.0
    for op in kernel.body.ops[:-1]:
        if op.name == "tensor.contract" and _reaches(op, stored, kernel):
            seconds += costs.result_s(op, None)
            if isinstance(hardware, CpuHardware):
                seconds += sum(costs.operand_s(op, i, None, None) for i in range(len(op.operands)))
        elif op.name in ("tensor.map", "tensor.window"):
            seconds += costs.result_s(op, None)
            inner = _innermost(list(dims(op, "par")), dims(op, "par"))
            for v, at in zip(op.operands, reads(op), strict=True):
                if v in kernel.params and _is_scattered(v, at, inner):
                    bytes_s = costs.moved_s(v.tensor.nbytes)
                    seconds += (hardware.layout.scattered_sectors - 1) * bytes_s
    return seconds


def _is_scattered(v: Value, at: tuple[Expr, ...], inner: str) -> bool:
    """Return whether neighbours along `inner` are read elsewhere than beside each other."""
    last = next((e for e, n in zip(reversed(at), reversed(v.tensor.shape), strict=True) if n != 1), 0)
    return inner not in set(symbols(last)) and inner in _named(at)


def _reaches(op: Op, stored: set[Value], kernel: Func) -> bool:
    """Return whether the result of an op, or what maps make of it over its points, is stored."""
    values = set(op.results)
    for other in kernel.body.ops[:-1]:
        same = other.name == "tensor.map" and tuple(dims(other, "par").values()) == op.result.tensor.shape
        if same and values & set(other.operands):
            values.update(other.results)
    return bool(values & stored)
