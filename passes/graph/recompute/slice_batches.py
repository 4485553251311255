"""Pass slice-batches: the first ops of a network run on a part of the batch after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tilewright.costmodel import CpuHardware, load_hardware
from tilewright.costmodel.hardware.description import GpuHardware
from tilewright.ir import Builder, Func, InputError, Level, Module, Op, UnsupportedError, Value
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.opdef import op_def
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.memory_headroom import bytes_of
from tilewright.passes.graph.distribute.pipeline.micro_batches import MicroBatch, micro_batches_of
from tilewright.passes.graph.distribute.sharding.program import batch_of, with_main
from tilewright.passes.graph.products.parallel_products import PRODUCTS
from tilewright.passes.graph.recompute.kernel_view import KernelView, fixed_bytes, kernel_view
from tilewright.passes.rewriting.dead_ops import live_ops

#: numbers of slices to compare
SLICES = (2, 4)
#: places compared at which slices are joined
MOST_CUTS = 6


@register_pass(Level.GRAPH, requires={"shapes-known"})
def slice_batches(
    module: Module,
    ctx: PassContext,
    *,
    share: float = 0.95,
    worth: float = 6.0,
    slower: float = 0.015,
    above: int = 64 << 20,
    factors: Literal["", "tf32", "split"] = "",
) -> Module:
    """Compute the first ops of a network on parts of the batch in turn, for a lower peak of memory.

    rewrite:  %0 = graph.conv2d(%x, %w); %1 = graph.max_pool2d(%0)
        -->   %a = graph.conv2d(graph.strided_slice(%x), %w); %b = graph.max_pool2d(%a);
              %c = graph.conv2d(graph.strided_slice(%x), %w); %d = graph.max_pool2d(%c);
              %1 = graph.concatenate(%b, %d)

    What a slice makes on the way is dead when the next one begins, and results are joined where they are
    small; slices of inputs are read, and joined arrays written, where they lie. The batch is dimension 0 of
    the inputs. Two and four slices are compared, joined where the values in between have fewest bytes. Taken
    is what saves most memory, where a per cent of time counts as `worth` per cent of it: at most the share
    `slower` of the time by the model, for a peak of at most `share` of that without slices. Nothing is
    compared where at most `above` bytes are alive at once. Training steps, and networks for CPUs, keep their
    batch whole. factors: what float32 factors will be allowed.
    """
    main = module.main
    hardware = ctx.hardware or load_hardware(ctx.target)
    if isinstance(hardware, CpuHardware) or not _may_slice(module):
        return module
    judge = _Judge(hardware, ctx, factors)
    peak, whole_s = judge.peak_bytes(main), judge.products_s(main)
    if peak <= above or not whole_s:  # nothing says what networks without products lose
        return module
    best, most = None, 0.0
    for cut in _cuts(module):
        slower_at = []
        for slices in SLICES:
            sliced = sliced_to(module, cut, slices)
            if sliced is None:
                break
            more = max(0.0, judge.products_s(sliced.main) / whole_s - 1)
            slower_at.append(more)
            if more > slower:
                break
            more += judge.gaps_s(main, sliced.main) / whole_s
            saved = 1 - judge.peak_bytes(sliced.main) / peak
            if more <= slower and saved >= 1 - share and saved - worth * more > most:
                best, most = sliced, saved - worth * more
        if not slower_at or slower_at[0] > slower:
            break  # more ops in slices take more time
    return module if best is None else best


@dataclass
class _Judge:
    """The judge of slices: it says by the model what they cost and save on a device.

    Products of fewer samples have fewer blocks, and take the time of the parameters that they would have.
    Other kernels move memory: in parts they take as long as whole, and there are more gaps between them.
    """

    hardware: GpuHardware
    ctx: PassContext
    factors: str
    _views: dict[Func, KernelView] = field(default_factory=dict)

    def products_s(self, func: Func) -> float:
        """Seconds of all products."""
        return sum(self._product_s(op) for op in func.body.ops if op.name in PRODUCTS)

    def gaps_s(self, whole: Func, sliced: Func) -> float:
        """Seconds between the kernels that slices add; estimates of products have them in part at most."""
        added = self._view(sliced).kernels - self._view(whole).kernels
        return self.hardware.stream.boundary_s * max(0, added)

    def peak_bytes(self, func: Func) -> int:
        """The most bytes alive at once, inputs and weights apart."""
        return self._view(func).peak_bytes - fixed_bytes(func)

    def _view(self, func: Func) -> KernelView:
        if func not in self._views:
            self._views[func] = kernel_view(func, self.hardware, self.ctx, factors=self.factors)
        return self._views[func]

    def _product_s(self, op: Op) -> float:
        estimator, algorithm = self.ctx.estimator, str(op.get("algorithm", "direct"))
        if algorithm == "direct":
            return estimator.product_s(op, self.hardware, factors=self.factors)
        return estimator.algorithm_cost(
            op, algorithm, self.hardware, constant_weight=True, factors=self.factors
        ).seconds


def _may_slice(module: Module) -> bool:
    """Return whether a module is an inference network of one device whose batch has several samples."""
    main = module.main
    if module.state_names or len(module.funcs) > 1:
        return False
    if any("communicate" in op_def(op.name).effects or op.body is not None for op in main.body.ops):
        return False
    try:
        return batch_of(main, 0) >= min(SLICES)
    except InputError:
        return False


def sliced_to(module: Module, cut: int, slices: int) -> Module | None:
    """The module with its first `cut` ops done in equal slices of the batch; None where that cannot be.

    It cannot where an op needs all samples, or the batch does not divide.
    """
    main = module.main
    if batch_of(main, 0) % slices:
        return None
    joined = _boundary(main, cut)
    first = [*main.body.ops[:cut], Op("graph.return", tuple(joined))]
    block = main.body.with_ops(tuple(first))
    pool = ConstantPool(module.constants)
    head = Func(
        Level.GRAPH, main.name, block.with_ops(live_ops(block)), tuple(v.type for v in joined), main.attrs
    )
    try:
        parts = micro_batches_of(module.with_funcs((head,)), slices, 0, pool)
    except UnsupportedError:
        return None
    b, env = Builder(), dict[Value, Value]()
    there: set[Op] = set()
    for op in _in_turn(parts):
        if op not in there:  # what holds no samples is one op for all slices
            b.append(op)
            there.add(op)
    for i, v in enumerate(joined):
        pieces = [part.outputs[i] for part in parts]
        shards = {shard for _, shard in pieces}
        shard = shards.pop()
        if shard is None or shards or shard.outer != 1:
            return None
        env[v] = b.value("graph.concatenate", *(piece for piece, _ in pieces), axis=shard.axis)
    b.ops.extend(op for op in main.body.ops[:cut] if not op.operands and op not in there)
    for op in main.body.ops[cut:]:
        b.append(op.with_operands(tuple(env.get(v, v) for v in op.operands)))
    body = main.body.with_ops(tuple(b.ops))
    return with_main(module, main.with_body(body.with_ops(live_ops(body))), pool)


def _in_turn(parts: list[MicroBatch]) -> Iterator[Op]:
    """The ops of all slices: one slice after the other."""
    for part in parts:
        yield from part.free
        yield from part.work


def _boundary(main: Func, cut: int) -> list[Value]:
    """Return the values that the first ops make of their operands and later ones read."""
    made = [r for op in main.body.ops[:cut] if op.operands for r in op.results]
    read = {v for op in main.body.ops[cut:] for v in op.operands}
    return [v for v in made if v in read]


def _cuts(module: Module) -> list[int]:
    """Numbers of first ops at which slices may be joined: where few bytes are read on, and behind all ops.

    From the most that is read on, each place behind which less is read than at any before.
    """
    ops = module.main.body.ops
    last = {v: i for i, op in enumerate(ops) for v in op.operands}
    alive: set[Value] = set()
    read_on: list[int] = []
    for i, op in enumerate(ops[:-1]):
        if op.operands:
            alive |= {r for r in op.results if r in last}
            alive = {v for v in alive if last[v] > i}
        read_on.append(bytes_of(alive))
    most = max(range(len(read_on)), key=read_on.__getitem__, default=0)
    least, drops = read_on[most] if read_on else 0, list[tuple[float, int]]()
    for i in range(most + 1, len(read_on)):
        if 0 < read_on[i] < least:
            drops.append((read_on[i] / least, i + 1))
            least = read_on[i]
    largest = sorted(i for _, i in sorted(drops)[: MOST_CUTS - 1])
    return [*(i for i in largest if i != len(read_on)), len(read_on)]
