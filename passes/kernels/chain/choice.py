"""Chooses the tile and the threads of a chain kernel by the cost model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from math import log, prod

from tilewright.costmodel import CpuHardware, GpuHardware, Hardware, load_hardware
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir import Func, Sizes, UnsupportedError
from tilewright.ir.tensor.ops import REDUCING, dims
from tilewright.passes.kernels.chain.parameters import MAX_LANES, ChainParameters
from tilewright.passes.kernels.chain.problem import chain_work, reduced_length
from tilewright.passes.kernels.chain.stages import Chain, chain_of, stages_of
from tilewright.passes.kernels.chain.work import ChainWork, bound_chain, estimate_chain, resident_chains
from tilewright.passes.kernels.decision import decided

#: tile sizes tried along each dimension, besides the whole of it
TILES = (1, 2, 4, 7, 8, 14, 16, 28, 32, 64, 128)
#: tiles whose number of blocks is nearest to one per multiprocessor, and those of them that the model
#: compares after counting what all blocks recompute
MAX_TILES = 24
COMPARED = 4
THREADS = (128, 256, 512)
#: bytes of one operand staged at once
STAGE_BYTES = (16384, 40960)
#: the device whose limits hold where the target is a CPU, on which no chain is ever faster
REFERENCE = "cuda:sm_90a"


def choose_chain(kernel: Func, hardware: Hardware) -> Func | None:
    """The kernel as a chain with the parameters of the smallest estimate; None where none is legal.

    A kernel is illegal as a chain where its stages do not fit shared memory or registers for any tile, where
    one of its ops has no stage, or where its blocks would not partition its results.
    """
    gpu = hardware if isinstance(hardware, GpuHardware) else _reference()
    lanes = MAX_LANES if gpu is hardware else 1
    try:
        stages = stages_of(kernel)
    except UnsupportedError:
        return None
    if sum(s.anchor.name in REDUCING for s in stages) < 2:
        return None
    found: list[tuple[float, ChainParameters, ChainWork]] = []
    for chain in _promising(kernel, dims(stages[-1].anchor, "par"), gpu):
        for threads in THREADS:
            for staged in STAGE_BYTES:
                plan = ChainParameters(Sizes(chain.tiles), threads, lanes, staged)
                work = chain_work(chain, plan, gpu)
                if resident_chains(work, gpu):
                    found.append((estimate_chain(work, gpu), plan, work))
                if all(s.chunks == 1 for s in work.stages):
                    break  # nothing is cut: more room changes nothing
    if not found:
        return None
    estimate, plan, work = min(found, key=lambda f: f[0])
    bound = bound_chain(work, gpu)
    return decided(kernel, "chain", ParameterChoice(plan, bound, estimate, len(found)))


def _promising(kernel: Func, extents: Mapping[str, int], gpu: GpuHardware) -> list[Chain]:
    """Legal chains with the least work per multiprocessor, recomputed halos included."""
    found: list[tuple[int, int, Chain]] = []
    for block in _tiles(extents, gpu):
        try:
            chain = chain_of(kernel, block)
        except UnsupportedError:
            continue
        waves = -(-prod(chain.blocks.values()) // gpu.sm_count)
        work = sum(prod(s.extent for s in st.domain) * (4 + reduced_length(st.anchor)) for st in chain.stages)
        found.append((waves * work, len(found), chain))
    found.sort(key=lambda f: f[:2])
    return [chain for _, _, chain in found[:COMPARED]]


def _reference() -> GpuHardware:
    found = load_hardware(REFERENCE)
    assert not isinstance(found, CpuHardware)
    return found


def _tiles(extents: Mapping[str, int], gpu: GpuHardware) -> Iterator[dict[str, int]]:
    """Tiles of the final result, those first whose blocks come nearest to one per multiprocessor."""
    options = [
        sorted({t for t in TILES if t < n and (n % t == 0 or t & (t - 1) == 0)} | {n})
        for n in extents.values()
    ]
    found = []
    for tile in product(*options):
        blocks = prod(-(-n // t) for n, t in zip(extents.values(), tile, strict=True))
        found.append((round(abs(log(blocks / gpu.sm_count)), 1), -tile[-1] if tile else 0, tile))
    found.sort()
    for _, _, tile in found[:MAX_TILES]:
        yield dict(zip(extents, tile, strict=True))
