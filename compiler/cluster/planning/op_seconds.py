"""Seconds of graph ops, of whole networks and of their parts: measured by launch, or by a record's rates."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tilewright.costmodel.cluster.inputs.machine import Cluster
from tilewright.costmodel.cluster.inputs.network import NetworkModel, network_units, unit_ops
from tilewright.costmodel.op_work import Rates, op_flops
from tilewright.ir import Func, InputError, Module, Op
from tilewright.passes.graph.forms.set_input_shapes import with_input_shapes

#: of launches: locations of the ops they come from, and seconds
Launches = Sequence[tuple[tuple[str, ...], float]]

#: ops that no kernel is made of
_NO_WORK = frozenset({"graph.constant", "graph.return"})


def op_flops_of(func: Func) -> float:
    """FLOP of one run of a graph-level function."""
    return float(sum(op_flops(op) for op in func.body.ops))


def with_batch(module: Module, batch: int) -> Module:
    """The network for so many samples: the first dimension of its first input, and of inputs that share it.

    Raises InputError where there is none, and as `with_input_shapes` does.
    """
    shapes = dict(zip(module.input_names, (t.shape for t in module.input_types), strict=True))
    first = next(iter(shapes.values()), ())
    if not first:
        raise InputError(f"expected a network whose first input has a batch in front, got {module.name}")
    return with_input_shapes(
        module, {n: (batch, *s[1:]) for n, s in shapes.items() if s and s[0] == first[0]}
    )


@dataclass(frozen=True)
class OpSeconds:
    """Seconds of ops.

    rates: of the device; an op takes the larger of FLOP and bytes by them. factors: by location, what
    measured seconds are to those; empty where nothing was measured. overhead_share: of these seconds, what
    lies between kernels. by_location: the measured seconds.
    """

    rates: Rates
    factors: Mapping[str, float]
    overhead_share: float = 0.0
    by_location: Mapping[str, float] = field(default_factory=dict)

    def of(self, op: Op) -> float:
        """Seconds of an op, or of the part of one, on one device."""
        return _modelled(op, self.rates) * self.factors.get(op.loc, 1.0)


def _modelled(op: Op, rates: Rates) -> float:
    return 0.0 if op.name in _NO_WORK else rates.compute_s(op)


def seconds_by_location(func: Func, rates: Rates) -> dict[str, float]:
    """Seconds of the ops of a function by the device's rates, those of one location together."""
    out: dict[str, float] = defaultdict(float)
    for op in func.body.ops:
        out[op.loc] += _modelled(op, rates)
    return dict(out)


def op_seconds(
    func: Func, cluster: Cluster, precision: str, launches: Launches = (), overhead_share: float = 0.0
) -> OpSeconds:
    """Seconds of the ops of a network and, in proportion to their work, of parts of them.

    launches: measured ones of the whole network, with what is between them, `overhead_share` of it all. A
    launch names the op that made it, not all that were fused into it, so ops with one location share what
    its launches take, and ops without any take no time.
    """
    rate, memory = cluster.device.flops_per_s(precision), cluster.device.memory_bytes_per_s
    rates = Rates(rate, memory, cluster.intra.bytes_per_s, cluster.intra.latency_s)
    if not launches:
        return OpSeconds(rates, {})
    modelled = seconds_by_location(func, rates)
    measured: dict[str, float] = defaultdict(float)
    for origin, seconds in launches:
        locations = [loc for loc in origin if modelled.get(loc)] or [max(modelled, key=lambda k: modelled[k])]
        work = sum(modelled[loc] for loc in locations)
        for loc in locations:
            measured[loc] += seconds * modelled[loc] / work
    factors = {loc: measured[loc] / work for loc, work in modelled.items() if work}
    return OpSeconds(rates, factors, overhead_share, dict(measured))


def timed_model(func: Func, name: str, seconds: OpSeconds, cluster: Cluster, precision: str) -> NetworkModel:
    """The network for the cluster search: each unit's FLOP make it take its seconds at the record's rate."""
    units, ops = network_units(func), unit_ops(func)
    samples = func.params[0].tensor.shape[0]
    rate = cluster.device.flops_per_s(precision)
    timed = (
        replace(unit, flops=sum(map(seconds.of, own)) * rate / samples)
        for unit, own in zip(units, ops, strict=True)
    )
    return NetworkModel(name, tuple(timed))


def unit_starts(func: Func) -> tuple[int, ...]:
    """By unit of a network: the position of its first op in the body of the function."""
    position = {op: i for i, op in enumerate(func.body.ops)}
    return tuple(position[ops[0]] for ops in unit_ops(func))
