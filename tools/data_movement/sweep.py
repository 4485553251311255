"""Every configuration of every kernel of a network priced by the model: orders of dimensions times knobs.

A kernel that multiplies matrices has the configurations that are one (batched) matrix product, each priced
by the estimator; of all others every order of every tensor's dimensions counts, with every dimension of
vectors and of lanes (`costmodel/sweep`). What comes out feeds the selection of layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from math import prod
from typing import Any

import numpy as np

from tilewright.costmodel import GpuHardware, RowReduceProblem, StreamProblem, choose_map, choose_row_reduce
from tilewright.costmodel.selection.exact import exact
from tilewright.costmodel.selection.problem import Problem, Table
from tilewright.costmodel.selection.shortest_path import shortest_path
from tilewright.costmodel.sweep.gemm_orders import gemm_orders
from tilewright.costmodel.sweep.kernel_space import FloatArray, SweptKernel, SweptTensor, layout_costs
from tilewright.ir import Builder, Func, InputError, Level, Module, Sym, TensorType
from tilewright.ir.builder import scalar_body, structured
from tilewright.ir.nodes import Value
from tilewright.ir.types import itemsize
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.registry import choices_in_order
from tilewright.tools.data_movement.kernel_dims import KernelDims, kernels_of

#: shares of the configurations below which the seconds in the JSON document lie, in percent
QUANTILES = tuple(range(0, 101, 5))


@dataclass(frozen=True, eq=False)
class SweptCosts:
    """What the sweep found of one kernel: seconds of all its configurations, and tables for the selection.

    best: the names of the best configuration's knob and orders. pruned: configurations that need no
    measurement, as their bytes at the memory's peak take longer than the best one is estimated to;
    pruned_bound_s: the least of these bounds.
    """

    kernel: str
    work: str
    seconds: FloatArray
    best: Mapping[str, str]
    pruned: int
    pruned_bound_s: float
    tables: tuple[Table, ...]
    equal: tuple[tuple[str, str], ...]
    domains: Mapping[str, tuple[str, ...]]

    @property
    def configurations(self) -> int:
        """How many there are."""
        return self.seconds.size

    @property
    def best_s(self) -> float:
        """Seconds of the best one."""
        return float(self.seconds.min())


@dataclass(frozen=True)
class Sweep:
    """The kernels that were priced, and why others were not."""

    costs: tuple[SweptCosts, ...]
    refused: Mapping[str, str]


def sweep(
    module: Module,
    hardware: GpuHardware,
    dtype: str = "f16",
    groups: Mapping[str, Sequence[str]] | None = None,
    *,
    each: bool = False,
) -> Sweep:
    """Price every configuration of the kernels of a graph-level module, stored in `dtype`.

    groups: operators that are one kernel, by its name. each: every op is a kernel. A kernel that no order of
    dimensions describes (several contractions, windows, no dimensions) is refused with its reason. Raises
    InputError for names in groups that are not there, and where nothing can be priced.
    """
    kernels = kernels_of(module, groups, each=each)
    free = _free_axes(kernels)
    backward = False
    costs: list[SweptCosts] = []
    refused: dict[str, str] = {}
    for k in kernels:
        backward = backward or any(u.tensor.startswith("cotangent") for u in k.uses)
        priced = _contraction if k.contractions else _streaming
        try:
            costs.append(priced(k, free, hardware, dtype, "backward" if backward else "forward"))
        except InputError as e:
            refused[k.name] = str(e)
    if not costs:
        raise InputError(f"expected kernels whose layouts can be swept: {'; '.join(refused.values())}")
    return Sweep(tuple(costs), refused)


def selection_problem(costs: Sequence[SweptCosts]) -> Problem:
    """The choice of one order for every tensor at the least sum of seconds."""
    domains: dict[str, tuple[str, ...]] = {}
    for c in costs:
        for name, labels in c.domains.items():
            if domains.setdefault(name, labels) != labels:
                raise InputError(f"expected one set of orders of tensor '{name}'")
    return Problem(
        domains, tuple(t for c in costs for t in c.tables), tuple(e for c in costs for e in c.equal)
    )


def _free_axes(kernels: Sequence[KernelDims]) -> dict[str, tuple[int, ...]]:
    """Per tensor the axes whose order is chosen: one dimension runs along each in every kernel.

    Others, of one index or cut by a kernel, stay outermost.
    """
    free: dict[str, set[int]] = {}
    for u in (u for k in kernels for u in k.uses):
        along = {i for i, d in enumerate(u.axes) if d}
        free[u.tensor] = free.get(u.tensor, along) & along
    return {name: tuple(sorted(axes)) for name, axes in free.items()}


def _labels(axes: Sequence[int]) -> tuple[str, ...]:
    """All orders of axes as text."""
    return tuple(",".join(map(str, order)) for order in permutations(axes))


def _streaming(
    k: KernelDims, free: Mapping[str, tuple[int, ...]], hardware: GpuHardware, dtype: str, phase: Any
) -> SweptCosts:
    """A kernel that multiplies no matrices: seconds by knob and by order, tensor by tensor."""
    size = itemsize(dtype)
    names = _use_names(k)
    held = [u for u in k.uses if free[u.tensor]]
    tensors = tuple(
        SweptTensor(names[i], tuple(u.axes[a] for a in free[u.tensor]), size, u.written)
        for i, u in enumerate(k.uses) if free[u.tensor]
    )  # fmt: skip
    dims = tuple(d for d in k.extents if any(d in t.dims for t in tensors))
    if not dims:
        raise InputError(f"expected dimensions in kernel '{k.name}'")
    costs = layout_costs(
        SweptKernel(k.name, k.extents, tensors, dims, dims), hardware, _estimated(k, hardware, size)
    )
    labels = {n: _labels(free[u.tensor]) for n, u in zip(costs.variables, held, strict=True)}
    every = costs.all_seconds()
    best = np.unravel_index(int(every.argmin()), every.shape)
    knob = f"{k.name}.knob"
    knobs = tuple("/".join(pair) for pair in costs.knobs)
    open_ = [i for i, n in enumerate(costs.variables) if len(labels[n]) > 1]
    fixed = costs.fixed_s + sum(s[0] for i, s in enumerate(costs.seconds_of) if i not in open_)
    tables = [Table(k.name, (knob,), np.asarray(fixed), (), (), phase)]
    for i in open_:
        name = costs.variables[i]
        reads, writes = ((), (name,)) if held[i].written else ((name,), ())
        tables.append(Table(k.name, (name, knob), costs.seconds_of[i], reads, writes, phase))
    pruned, least = costs.pruned(hardware.dram_bytes_per_s)
    chosen = {"vectors/lanes": knobs[best[0]]} | {
        n: labels[n][b] for n, b in zip(costs.variables, best[1:], strict=True)
    }
    domains = {costs.variables[i]: labels[costs.variables[i]] for i in open_} | {knob: knobs}
    return SweptCosts(
        k.name, k.work.work.value, every.ravel(), chosen, pruned, least, tuple(tables),
        _equal(k, names, domains), _with_firsts(k, names, domains),
    )  # fmt: skip


def _use_names(k: KernelDims) -> list[str]:
    """A name per use: that of the tensor, or one of its own for a second use in the same kernel."""
    names: list[str] = []
    for u in k.uses:
        names.append(u.tensor if u.tensor not in names else f"{u.tensor} in {k.name} {len(names)}")
    return names


def _equal(k: KernelDims, names: Sequence[str], domains: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Second uses of a tensor have its order."""
    return tuple((u.tensor, n) for u, n in zip(k.uses, names, strict=True) if n != u.tensor and n in domains)


def _with_firsts(
    k: KernelDims, names: Sequence[str], domains: dict[str, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """The domains with those of tensors that only second uses name."""
    return domains | {u.tensor: domains[n] for u, n in zip(k.uses, names, strict=True) if n in domains}


def _estimated(k: KernelDims, hardware: GpuHardware, size: int) -> float:
    """Seconds of the kernel with compulsory traffic, by the estimator of its family."""
    read, written = k.work.words_in * size, k.work.words_out * size
    if k.reduced:
        length = prod(k.extents[d] for d in k.reduced)
        rows = max(1, prod(k.extents.values()) // length)
        return choose_row_reduce(
            RowReduceProblem(rows, length, read, written, k.work.flops), hardware
        ).estimate_s
    points = prod(k.extents.values())
    reads = max(1, sum(not u.written for u in k.uses))
    return choose_map(StreamProblem(read, written, points, k.work.flops, reads), hardware).estimate_s


def _contraction(
    k: KernelDims, free: Mapping[str, tuple[int, ...]], hardware: GpuHardware, dtype: str, phase: Any
) -> SweptCosts:
    """A kernel with one contraction: seconds by the orders of both factors and the result."""
    if k.contract is None or k.factors is None:
        raise InputError(
            f"expected one contraction along plain dimensions in kernel '{k.name}', got {k.contractions}, "
            "which may read windows"
        )
    names = _use_names(k)
    result = next(
        (i for i, u in enumerate(k.uses) if u.written and set(u.axes) - {""} == set(k.contract[2])), None
    )
    firsts = [f[0] for f in k.factors if f]
    if result is None or len(firsts) < 2:
        raise InputError(f"expected kernel '{k.name}' to multiply two tensors and to write the product")
    variables = (*firsts, result)
    places = []
    for u, names_of in zip((k.uses[i] for i in variables), k.contract, strict=True):
        orders = list(permutations(free[u.tensor]))
        outer = tuple(d for d in names_of if d not in {u.axes[a] for a in free[u.tensor]})
        places.append({outer + tuple(u.axes[a] for a in o): n for n, o in enumerate(orders)})
    seconds = np.full([len(p) for p in places], np.inf)
    batch = set(k.contract[0]) & set(k.contract[1]) & set(k.contract[2])
    inner = (set(k.contract[0]) & set(k.contract[1])) - batch
    m, n = (prod(k.extents[d] for d in set(c) - batch - inner) for c in k.contract[:2])
    for o in gemm_orders(*k.contract, k.extents):
        at = tuple(p.get(x) for p, x in zip(places, (o.a, o.b, o.c), strict=True))
        if None not in at:
            sizes = prod(k.extents[d] for d in batch), m, n, prod(k.extents[d] for d in inner)
            seconds[at] = _product_s(*sizes, o.row_major, dtype, hardware)
    if not np.isfinite(seconds).any():
        raise InputError(f"expected orders in which kernel '{k.name}' is one matrix product")
    used = tuple(names[i] for i in variables)
    labels = [_labels(free[k.uses[i].tensor]) for i in variables]
    best = np.unravel_index(int(seconds.argmin()), seconds.shape)
    finite = np.flatnonzero(np.isfinite(seconds))
    domains = dict(zip(used, labels, strict=True))
    reads = tuple(x for i, x in zip(variables, used, strict=True) if not k.uses[i].written)
    table = Table(k.name, used, seconds, reads, (used[2],), phase)
    alike = [(used[f], names[i]) for f, parts in enumerate(k.factors) for i in parts[1:]]
    domains |= {b: domains[a] for a, b in alike}
    return SweptCosts(
        k.name, k.work.work.value, seconds.ravel()[finite],
        {x: lab[b] for x, lab, b in zip(used, labels, best, strict=True)}, 0, float("inf"), (table,),
        (*alike, *_equal(k, names, domains)), _with_firsts(k, names, domains),
    )  # fmt: skip


@cache
def _product_s(
    batch: int, m: int, n: int, k: int, row_major: tuple[bool, bool, bool], dtype: str, hardware: GpuHardware
) -> float:
    """Seconds of a batched matrix product by the family that takes it, for operands that lie in this way."""
    kernel = _product(batch, m, n, k, row_major, dtype)
    for family in choices_in_order():
        if (chosen := family.choose(kernel, hardware)) is not None:
            return estimate_of(chosen)
    raise InputError(f"expected a family that takes a product of {m} x {n} x {k}")


def _product(batch: int, m: int, n: int, k: int, row_major: tuple[bool, bool, bool], dtype: str) -> Func:
    """A kernel of one contraction with float32 sums; row_major: of (m, k), (k, n) and (m, n)."""
    extents = {"z": batch, "m": m, "n": n, "k": k}

    def order(first: str, second: str, straight: bool) -> list[str]:
        return ["z"] * (batch > 1) + ([first, second] if straight else [second, first])

    a, b, c = (order(x[0], x[1], s) for x, s in zip(("mk", "kn", "mn"), row_major, strict=True))
    kinds = [
        TensorType(t, tuple(extents[d] for d in names)) for t, names in ((dtype, a), (dtype, b), ("f32", c))
    ]
    factors = [Value(kinds[0], "a"), Value(kinds[1], "b")]
    w = Builder()
    inside, (x, y, total) = scalar_body([dtype, dtype, "f32"])
    wide = [inside.value("scalar.cast", v, dtype="f32") for v in (x, y)]
    inside.do("scalar.yield", inside.value("scalar.fma", *wide, total))
    par = {d: extents[d] for d in c}
    (sums,) = structured(
        w, "tensor.contract", factors, par=par, red={"k": k}, types=[kinds[2]], init=(0.0,),
        reads=[[Sym(d) for d in names] for names in (a, b)], body=inside.block((x, y, total)),
    )  # fmt: skip
    narrow, (s,) = scalar_body(["f32"])
    narrow.do("scalar.yield", narrow.value("scalar.cast", s, dtype=dtype))
    out = TensorType(dtype, kinds[2].shape)
    (out_value,) = structured(
        w, "tensor.map", [sums], par=par, reads=[[Sym(d) for d in c]], types=[out], body=narrow.block((s,))
    )
    w.do("tensor.return", out_value)
    return Func(Level.TENSOR, "product", w.block(tuple(factors)), (out,))


def sweep_facts(swept: Sweep, hardware: GpuHardware, dtype: str) -> dict[str, Any]:
    """The sweep and the selection as plain data; seconds are the model's."""
    costs = swept.costs
    problem = selection_problem(costs)
    chosen, baseline = exact(problem), shortest_path(problem)
    return {
        "device": hardware.name,
        "dtype": dtype,
        "times": "modelled",
        "configurations": sum(c.configurations for c in costs),
        "kernels": [
            {
                "kernel": c.kernel,
                "work": c.work,
                "configurations": c.configurations,
                "best_s": c.best_s,
                "worst_s": float(c.seconds.max()),
                "quantiles_s": _quantiles(c.seconds),
                "best": dict(c.best),
                "pruned": c.pruned,
                "pruned_bound_s": c.pruned_bound_s if c.pruned else None,
            }
            for c in costs
        ],
        "refused": dict(swept.refused),
        "selection": {
            "method": chosen.method,
            "seconds": chosen.seconds,
            "bound_s": chosen.bound_s,
            "free_s": sum(c.best_s for c in costs),
            "shortest_path_s": baseline.seconds,
            "orders": {v: label for v, label in chosen.labels.items() if not v.endswith(".knob")},
            "note": chosen.note,
        },
    }


def _quantiles(seconds: FloatArray) -> list[float]:
    """The seconds below which the shares `QUANTILES` of the configurations lie, of those that there are."""
    places = [q * (seconds.size - 1) // 100 for q in QUANTILES]
    return [float(s) for s in np.partition(seconds, places)[places]]


def sweep_text(facts: Mapping[str, Any]) -> str:
    """The facts as a table of text."""
    rows = facts["kernels"]
    wide = max([len("kernel"), *(len(r["kernel"]) for r in rows)])
    lines = [
        f"times {facts['times']} for {facts['device']}, stored in {facts['dtype']}",
        f"{'kernel':{wide}} {'configurations':>14} {'best us':>9} {'median us':>10} {'worst us':>10} "
        f"{'pruned':>9}  least bound of those pruned",
    ]
    for r in rows:
        least = f"{1e6 * r['pruned_bound_s']:.1f} us" if r["pruned"] else ""
        lines.append(
            f"{r['kernel']:{wide}} {r['configurations']:14,} {1e6 * r['best_s']:9.1f} "
            f"{1e6 * r['quantiles_s'][len(QUANTILES) // 2]:10.1f} {1e6 * r['worst_s']:10.1f} {r['pruned']:9,}"
            f"  {least}"
        )
    lines += [f"not swept: {why}" for why in facts["refused"].values()]
    s = facts["selection"]
    over = 100 * (s["seconds"] / s["free_s"] - 1) if s["free_s"] else 0.0
    lines += [
        f"all {facts['configurations']:,} configurations are priced; pruned ones need no measurement: "
        "their bytes at the memory's peak take longer than the best one",
        f"one order per tensor ({s['method']}): {1e6 * s['seconds']:.1f} us, {over:.1f} % above the sum of "
        f"the best of every kernel ({1e6 * s['free_s']:.1f} us); shortest path "
        f"{1e6 * s['shortest_path_s']:.1f} us" + (f"; {s['note']}" if s["note"] else ""),
    ]
    return "\n".join(lines)
