"""Lowers a chain on tensor cores: stages that move are computed step by step, the last sums added up.

A block copies the rows of the first product once. In each step it computes a part of the channels between
stages from there to the last product, which adds the part to sums in registers: what lies between stages is
never in shared memory as a whole. Weights of a product are on their way for the next step as soon as all
warps are done with those of this one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import Expr, Func
from tilewright.passes.kernels.chain_tiles.block import TilesBlock
from tilewright.passes.kernels.chain_tiles.lanes import StageWindow
from tilewright.passes.kernels.chain_tiles.parameters import chain_tiles_parameters
from tilewright.passes.kernels.chain_tiles.product import StageProduct
from tilewright.passes.kernels.chain_tiles.view import TilesChain


def lower_chain_tiles(kernel: Func) -> Func:
    """The thread-level function of a chain whose products run on tensor cores.

    rewrite:  contract -> window -> contract
        -->   rows to shared memory; per part of the channels: fragments, mma, maps to shared memory; windows
              from there to shared memory; fragments, mma; at the end maps of the sums, results
    """
    tiles, plan = chain_tiles_parameters(kernel)
    lowered = _Lowering(tiles, TilesBlock(tiles, plan)).lowered()
    return lowered if plan.resident == 1 else lowered.with_attrs(resident=plan.resident)


class _Lowering:
    def __init__(self, tiles: TilesChain, block: TilesBlock) -> None:
        self.tiles, self.block, self.w = tiles, block, block.w
        self.products = {i: StageProduct(block, p) for i, p in tiles.products.items()}
        self.order = CopyOrder.of(tiles)

    def lowered(self) -> Func:
        """The whole kernel."""
        w, tiles, order = self.w, self.tiles, self.order
        moves = [i for i in range(len(tiles.chain.stages)) if tiles.walks(i)]
        last = len(tiles.chain.stages) - 1
        for product in self.products.values():
            if product.given:
                product.copy_rows()
        for i in order.first:
            self.products[i].copy_weights(self._origins(0))
            w.b.do("thread.async_commit")
        for i in range(last):
            if i not in moves:
                self._stage(i, order.waits_before[i])
        if last in self.products:
            self.products[last].clear()
            (walked,) = tiles.chain.walked or ("",)
            with w.loop("step", tiles.steps) as step:
                if walked:
                    self.block.origins.update(self._origins(step))
                for i in (*moves, last):
                    self._stage(i, order.waits[i], order.refills.get(i, ()), step, whole=i != last)
                self.block.origins.pop(walked, None)
            self.products[last].finish()
        else:
            self._stage(last, 0)
        return w.finish()

    def _origins(self, step: Expr) -> dict[str, Expr]:
        """The first index of each walked dimension in a step."""
        return {d: self.w.simple(step * part) for d, part in self.tiles.chain.walked.items()}

    def _stage(
        self,
        i: int,
        pending: int,
        refills: Sequence[tuple[int, int]] = (),
        step: Expr = 0,
        *,
        whole: bool = True,
    ) -> None:
        """Wait for what a stage reads, start copies to what is free now, compute it.

        pending: groups of copies that may still be on their way; refills: products whose weights are free,
        and for how many steps ahead they are renewed; whole: the sums of the stage are complete.
        """
        w, stage = self.w, self.tiles.chain.stages[i]
        with w.b.at(stage.anchor.loc):
            if i in self.products:
                w.b.do("thread.async_wait", pending=pending)
            w.b.do("thread.barrier")
            for j, ahead in refills:
                later = w.simple(step + ahead)
                with w.when(w.below(later, self.tiles.steps)):
                    self.products[j].copy_weights(self._origins(later))
                w.b.do("thread.async_commit")
            if i not in self.products:
                StageWindow(self.block, stage).lower()
                return
        product = self.products[i]
        if whole:
            product.clear()
        product.multiply()
        if whole:
            product.finish()


@dataclass(frozen=True)
class CopyOrder:
    """When weights are copied, and how many groups of copies a product leaves on their way.

    first: products whose weights are asked for at the start, in this order; refills: per stage of a step, the
    products whose weights are renewed behind its barrier, and for how many steps ahead; waits: groups under
    way that a product of a step need not wait for; waits_before: the same of stages ahead of all steps.
    """

    first: tuple[int, ...]
    refills: Mapping[int, tuple[tuple[int, int], ...]]
    waits: Mapping[int, int]
    waits_before: Mapping[int, int]

    @classmethod
    def of(cls, tiles: TilesChain) -> CopyOrder:
        """The order for a chain: weights are renewed behind the first barrier after their last use."""
        last = len(tiles.chain.stages) - 1
        before = [i for i in range(last) if not tiles.walks(i)]
        inside = [i for i in range(last) if tiles.walks(i)] + ([last] if last in tiles.products else [])
        refills: dict[int, list[tuple[int, int]]] = {}
        first = [i for i in before if i in tiles.products]
        for n, i in enumerate(inside):
            if i not in tiles.products:
                continue
            wraps = n + 1 == len(inside)
            if tiles.steps == 1 or not wraps:
                first.append(i)
            if tiles.steps > 1:
                refills.setdefault(inside[(n + 1) % len(inside)], []).append((i, 0 if wraps else 1))
        issued: list[tuple[int, int]] = [(i, 0) for i in first]
        waits_before = {i: _behind(issued, (i, 0)) for i in before}
        waits: dict[int, int] = {}
        for step in range(min(tiles.steps, 3)):
            for i in inside:
                if i in tiles.products:
                    behind = _behind(issued, (i, step))
                    waits[i] = min(behind, waits.get(i, behind))
                issued += [(j, step + ahead) for j, ahead in refills.get(i, ())]
        for i in inside:
            waits.setdefault(i, 0)
        return cls(
            tuple(first),
            {i: tuple(r) for i, r in refills.items()},
            waits,
            {i: waits_before[i] for i in before},
        )


def _behind(issued: Sequence[tuple[int, int]], group: tuple[int, int]) -> int:
    """Groups that were asked for after this one; 0 for a stage without a group."""
    return len(issued) - 1 - list(issued).index(group) if group in issued else 0
