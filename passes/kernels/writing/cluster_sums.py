"""Sums that the blocks of a cluster share: each multiplies a part of the chunks, and finishes some results.

The parts are laid down as tiles in shared memory. When all blocks have met, each takes a run of vectors of
the tile, adds what the blocks have there in the order of their ranks, and writes the results. No memory
beside the blocks' own is needed, no second kernel, and a sum is the same in every run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.ir import Expr, Sym, Value
from tilewright.ir.thread.cluster_ops import SUM
from tilewright.ir.thread.role_ops import MEET
from tilewright.passes.kernels.writing.writer import Mask, Writer

#: words added to the rows of a tile of sums, by whether fragments are stored transposed: no bank conflicts
SUM_PADS = {False: 8, True: 4}
#: vectors of a thread whose parts are on their way together
UNROLL = 2


def meet(w: Writer) -> None:
    """Let the blocks of the cluster meet."""
    w.b.do(MEET)


def own_part(parts: int) -> Expr:
    """The number of a block's part, its rank in the cluster."""
    return Sym("bid.x") % parts if parts > 1 else 0


@contextmanager
def own_vectors(w: Writer, parts: int, vectors: int, threads: int) -> Iterator[tuple[Expr, Mask]]:
    """For each vector of the tile that this thread finishes: its number, and when it is one."""
    each = -(-vectors // parts)
    steps = -(-each // threads)
    unroll = 1 if steps <= UNROLL else UNROLL if steps % UNROLL == 0 else 0
    with w.loop("e", steps, unroll=unroll) as step:
        own = w.simple(step * threads + Sym("tid"))
        number = w.simple(own_part(parts) * each + own)
        yield number, (*w.below(own, each), *w.below(number, vectors))


def summed(w: Writer, tile: Value, at: Sequence[Expr], lanes: int) -> Value:
    """Registers with `lanes` sums over the cluster, of the element of the tile at `at` and its neighbours."""
    sums = w.alloc((lanes,), tile.tensor.dtype, "reg", "shared_sums")
    w.b.do(SUM, tile, sums, at=tuple(map(w.simple, at)))
    return sums
