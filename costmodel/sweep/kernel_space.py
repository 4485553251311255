"""Configurations of a kernel: an order of dimensions for every tensor, times what its threads run along.

The seconds of a configuration are those of the kernel with compulsory traffic alone, by the estimator, and
for every tensor what its order adds: sectors of which only a part is used, and loads of single elements
where a vector would do. They are sums over tensors for each knob, so that all configurations are priced
without being run through one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import permutations, product
from math import prod

import numpy as np
import numpy.typing as npt

from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir.hardware_facts import SECTOR_BYTES, VECTOR_BYTES, WARP

FloatArray = npt.NDArray[np.float64]
#: names of dimensions, outermost first
Order = tuple[str, ...]


@dataclass(frozen=True)
class SweptTensor:
    """A tensor of a kernel: its dimensions by the kernel's names in the network's order, bytes of an element.

    tie: tensors of one kernel with the same tie have the same order.
    """

    name: str
    dims: Order
    element_bytes: int = 2
    written: bool = False
    tie: str = ""

    @property
    def orders(self) -> tuple[Order, ...]:
        """All orders of the dimensions."""
        return tuple(permutations(self.dims))


@dataclass(frozen=True)
class SweptKernel:
    """A kernel that is no contraction: extents of its dimensions, its tensors, and its knobs.

    vectors: dimensions along which a thread takes a vector. lanes: dimensions along which the lanes of a
    warp lie; none where the kernel does not let one choose (`lanes` of the paper's row kernels is fixed).
    """

    name: str
    extents: Mapping[str, int]
    tensors: tuple[SweptTensor, ...]
    vectors: tuple[str, ...]
    lanes: tuple[str, ...] = ()

    @cached_property
    def variables(self) -> tuple[tuple[SweptTensor, ...], ...]:
        """Tensors by the orders that are chosen: those with one tie together."""
        groups: dict[str, list[SweptTensor]] = {}
        for t in self.tensors:
            groups.setdefault(t.tie or t.name, []).append(t)
        return tuple(map(tuple, groups.values()))

    @cached_property
    def knobs(self) -> tuple[tuple[str, ...], ...]:
        """(dimension of vectors, dimension of lanes), or the first alone."""
        return tuple(product(self.vectors, self.lanes)) if self.lanes else tuple((v,) for v in self.vectors)

    @property
    def configurations(self) -> int:
        """How many configurations there are."""
        return len(self.knobs) * prod(len(group[0].orders) for group in self.variables)

    def enumerate(self) -> Iterator[tuple[tuple[str, ...], tuple[Order, ...]]]:
        """All configurations one by one: a knob, and an order per variable."""
        return product(self.knobs, product(*(group[0].orders for group in self.variables)))


@dataclass(frozen=True, eq=False)
class LayoutCosts:
    """Seconds of a kernel by knob and by the order of each variable.

    variables: names, one per variable. orders: per variable what is compared. seconds_of: per variable
    [order, knob]. fixed_s: [knob]. bytes_of: as seconds_of, bytes moved.
    """

    kernel: str
    variables: tuple[str, ...]
    orders: tuple[tuple[Order, ...], ...]
    knobs: tuple[tuple[str, ...], ...]
    seconds_of: tuple[FloatArray, ...]
    fixed_s: FloatArray
    bytes_of: tuple[FloatArray, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]

    @property
    def configurations(self) -> int:
        """How many there are."""
        return len(self.knobs) * prod(map(len, self.orders))

    def all_seconds(self) -> FloatArray:
        """Seconds by knob and order of each variable, an axis each."""
        return _outer(self.fixed_s, self.seconds_of)

    def joint(self) -> FloatArray:
        """Seconds by order of each variable, with the best knob."""
        return np.asarray(self.all_seconds().min(axis=0))

    @property
    def best_s(self) -> float:
        """Seconds of the best configuration: the least over knobs of sums of the least of each variable."""
        return float((self.fixed_s + sum(s.min(axis=0) for s in self.seconds_of)).min())

    def pruned(self, bytes_per_s: float) -> tuple[int, float]:
        """Configurations that need not be measured, and the least bound among them (inf without any).

        A configuration cannot be faster than its bytes at the memory's peak `bytes_per_s`; where that is more
        than the estimate of the best one, it is left out.
        """
        bounds = _outer(np.zeros(len(self.knobs)), self.bytes_of) / bytes_per_s
        out = bounds > self.best_s
        return int(np.count_nonzero(out)), float(bounds[out].min(initial=np.inf))


def _outer(first: FloatArray, parts: Sequence[FloatArray]) -> FloatArray:
    """Sums over all choices: axis 0 is the knob, then one axis per part."""
    total = first.reshape(-1, *(1 for _ in parts))
    for i, part in enumerate(parts):
        shape = (part.shape[1], *(part.shape[0] if i == k else 1 for k in range(len(parts))))
        total = total + part.T.reshape(shape)
    return total


def layout_costs(kernel: SweptKernel, hardware: GpuHardware, fixed_s: float) -> LayoutCosts:
    """Return what every order of every tensor costs with every knob.

    fixed_s: seconds of the kernel where each tensor is read or written once, by the estimator.
    """
    seconds, nbytes = [], []
    for group in kernel.variables:
        orders = group[0].orders
        moved, more = (np.zeros((len(orders), len(kernel.knobs))) for _ in range(2))
        for tensor in group:
            for i, order in enumerate(orders):
                for j, knob in enumerate(kernel.knobs):
                    got, extra_s = _cost(kernel, tensor, order, knob, hardware)
                    moved[i, j] += got
                    more[i, j] += extra_s
        seconds.append(more)
        nbytes.append(moved)
    names = tuple(group[0].tie or group[0].name for group in kernel.variables)
    written = {group[0].tie or group[0].name for group in kernel.variables if group[0].written}
    return LayoutCosts(
        kernel.name,
        names,
        tuple(group[0].orders for group in kernel.variables),
        kernel.knobs,
        tuple(seconds),
        np.full(len(kernel.knobs), fixed_s),
        tuple(nbytes),
        tuple(n for n in names if n not in written),
        tuple(n for n in names if n in written),
    )


def _cost(
    kernel: SweptKernel, tensor: SweptTensor, order: Order, knob: tuple[str, ...], hardware: GpuHardware
) -> tuple[float, float]:
    """Bytes that a tensor moves, and seconds beyond those of its elements read once in whole vectors."""
    size = tensor.element_bytes
    elements = prod(kernel.extents[d] for d in order)
    width = VECTOR_BYTES // size
    vector, lanes = knob[0], knob[-1]
    if not order or (vector not in order and lanes not in order):
        return float(elements * size), 0.0  # all lanes read one element, which the cache keeps
    inner = order[-1]
    run = 1
    if inner == vector:
        run = min(kernel.extents[inner], width * (WARP if lanes == vector else 1))
    elif inner == lanes:
        run = min(kernel.extents[inner], WARP)
    sectors = -(-run * size // SECTOR_BYTES)
    moved = elements / run * sectors * SECTOR_BYTES
    moved = max(moved, float(elements * size))
    rate = hardware.dram_bytes_per_s * hardware.estimate_dram_efficiency
    seconds = (moved - elements * size) / rate
    if inner != vector and vector in order:  # single elements where a vector would do
        accesses = elements / WARP * (1.0 - 1.0 / width)
        slots = hardware.sm_count * hardware.schedulers_per_sm * hardware.estimate_issue_efficiency
        seconds += accesses / slots / hardware.clock_hz
    return moved, seconds
