"""The points a search may measure of one outlined kernel, each with a bound, an estimate and a variant."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.costmodel.kernels.windows import FloatArray, IntArray
from tilewright.ir import Func, InputError, Op
from tilewright.measuring.repeated_plan import streamed_bytes
from tilewright.passes.kernels.decision import (
    bound_of,
    chosen_for,
    decision_of,
    estimate_of,
    has_parameters,
    text_of,
    with_parameters,
)
from tilewright.passes.kernels.engine_points import SearchedEngine, merged_order
from tilewright.passes.kernels.registry import least_s, template_of, templates

#: steps from the model's choice along one parameter
_REACH = 1
_DATA_DEPENDENT = frozenset({"tensor.gather", "tensor.scatter", "tensor.scan"})
#: parameters of a point by name, as records keep them
Named = Mapping[str, object]


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """Points 0 to `len`: point 0 is the kernel as the model left it, the others come in the order to measure.

    least_s: no kernel of a point can be faster when timed in a loop (seconds). variant: the kernel of a
    point. named: what names a point in a record. point_named: the point of such a name, None for others.
    described: parameters and problem of a point in words.
    """

    kernel: Func
    least_s: FloatArray
    estimates_s: FloatArray
    variant: Callable[[int], Func]
    named: Callable[[int], Named]
    point_named: Callable[[Named], int | None]
    described: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.least_s)


def search_space(kernel: Func, hardware: Hardware, cold: Collection[int] = ()) -> SearchSpace | None:
    """The space of a kernel with chosen parameters; None where nothing but the model's choice is known.

    cold: positions of parameters that are weights which the timing loop brings from DRAM in every run.

    Contractions have one, of all engines that can compute them; other templates name neighbours of the
    model's choice on GPUs, or variants, that are worth a measurement.
    """
    if around := _neighbours(kernel, hardware):
        return _listed(around, [least_s(kernel, hardware)] * len(around)) if len(around) > 1 else None
    template = template_of(kernel)
    if template is None:
        return None
    if template.variants is not None and (variants := template.variants(kernel, hardware)):
        return _listed(variants, [bound_of(f) for f in variants]) if len(variants) > 1 else None
    if template.contraction is None or not has_parameters(kernel):
        return None
    op = next(o for o in kernel.body.ops if o.name == "tensor.contract")
    engines = _engines(kernel, op, hardware, _streamed(kernel, op, hardware, cold))
    if not engines:
        return None
    order = merged_order([points for points, _ in engines])
    start = _start(kernel, engines)
    offsets = np.cumsum([0, *(len(points) for points, _ in engines)])
    at_once = offsets[order[:, 0]] + order[:, 1]
    least = np.concatenate([points.least_s for points, _ in engines])[at_once]
    estimates = np.concatenate([points.estimates_s for points, _ in engines])[at_once]
    if start is None:  # somebody gave the parameters
        order = np.concatenate([np.array([[-1, -1]], dtype=np.int64), order])
        least = np.append(hardware.launch_floor_s, least)
        estimates = np.append(estimate_of(kernel), estimates)
    else:
        at = int(np.flatnonzero((order == start).all(axis=1))[0])
        first = np.concatenate([[at], np.delete(np.arange(len(order)), at)])
        order, least, estimates = order[first], least[first], estimates[first]
    return _space(kernel, engines, order, least, estimates)


def _listed(variants: Sequence[Func], least: Sequence[float]) -> SearchSpace:
    """A few variants with their bounds and estimates."""
    kernel = variants[0]
    names: list[Named] = [{"params": text_of(f)} for f in variants]
    return SearchSpace(
        kernel,
        np.array(least),
        np.array([estimate_of(f) for f in variants]),
        variants.__getitem__,
        names.__getitem__,
        lambda name: names.index(name) if name in names else None,
        lambda i: f"{names[i]['params']} of @{kernel.name}",
    )


def _space(
    kernel: Func, engines: list[SearchedEngine], order: IntArray, least: FloatArray, estimates: FloatArray
) -> SearchSpace:
    def variant(i: int) -> Func:
        engine, point = order[i]
        if engine < 0:
            return kernel
        points, make = engines[engine]
        return make(points.choice(int(point)))

    def named(i: int) -> Named:
        engine, point = order[i]
        return {} if engine < 0 else engines[engine][0].named(int(point))

    def point_named(name: Named) -> int | None:
        if not name:
            return 0 if order[0][0] < 0 else None
        for e, (points, _) in enumerate(engines):
            point = points.find(name)
            if point is not None:
                return int(np.flatnonzero((order == (e, point)).all(axis=1))[0])
        return None

    def described(i: int) -> str:
        engine, point = order[i]
        if engine < 0:
            return text_of(kernel)
        points = engines[engine][0]
        return f"{points.parameters(int(point))} on {points.problem}"

    return SearchSpace(kernel, least, estimates, variant, named, point_named, described)


def _engines(kernel: Func, op: Op, hardware: Hardware, streamed: float) -> list[SearchedEngine]:
    """The engines that can compute a contraction, each with what makes a kernel of its points."""
    try:
        found = [t.contraction for t in templates() if t.contraction is not None]
        engines = [engine.points(kernel, op, hardware, streamed) for engine in found]
    except InputError:  # of parameters that somebody gave: the device fits no others
        return []
    return [engine for engine in engines if engine is not None and len(engine[0])]


def _streamed(kernel: Func, op: Op, hardware: Hardware, cold: Collection[int]) -> float:
    """Bytes of the weights that come from DRAM in every run."""
    weights = op.operands[1]
    types = [kernel.params[i].tensor for i in cold]
    total = sum(t.nbytes for t in types if t.dtype in ("f16", "bf16", "f32", "f64"))
    if weights not in {kernel.params[i] for i in cold}:
        return 0.0
    return streamed_bytes(weights.tensor.nbytes, total, hardware)


def _start(kernel: Func, engines: list[SearchedEngine]) -> tuple[int, int] | None:
    """Engine and point of the kernel's parameters, where they are the model's choice of one."""
    for e, (points, make) in enumerate(engines):
        if chosen_for(make(points.choice(points.likeliest))).parameters == chosen_for(kernel).parameters:
            return e, points.likeliest
    return None


def _neighbours(kernel: Func, hardware: Hardware) -> Sequence[Func]:
    """The kernel and the variants whose parameters are at most one step away each; empty for other kernels.

    Kernels that read indices have none: random ones would not be what a network gives them.
    """
    decision, template = decision_of(kernel), template_of(kernel)
    if template is None or not template.neighbours or decision is None or decision.parameters is None:
        return ()
    if not isinstance(hardware, GpuHardware):
        return ()
    floats = all(p.tensor.dtype in ("f16", "bf16", "f32", "f64") for p in kernel.params)
    dense = not any(v.tensor.steps for v in (*kernel.params, *kernel.body.ops[-1].operands))
    if not floats or not dense or any(op.name in _DATA_DEPENDENT for op in kernel.body.ops):
        return ()
    known = template.neighbours
    chosen = {n: getattr(decision.parameters, n) for n in known}
    names = [n for n in known if chosen[n] in known[n]]
    options = [_near(known[n], chosen[n]) for n in names]
    variants = [kernel]
    for values in product(*options):
        if values != tuple(chosen[n] for n in names):
            variants.append(with_parameters(kernel, **dict(zip(names, values, strict=True))))
    return variants


def _near(values: tuple[int, ...], chosen: object) -> tuple[int, ...]:
    at = next(i for i, v in enumerate(values) if v == chosen)
    return values[max(0, at - _REACH) : at + _REACH + 1]
