"""IOS: nodes in stages that follow each other, groups side by side in each, by dynamic programming.

Ding et al., "IOS: Inter-Operator Scheduler for CNN Acceleration", MLSys 2021: a state is a set of nodes still
to run, its last stage is an ending, and endings are pruned by the size and the number of their groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tilewright.runtime.dag import Dag, Edge, members

Group = tuple[int, ...]
Stage = tuple[Group, ...]
StageTime = Callable[[Sequence[Group]], float]


@dataclass(frozen=True)
class Pruning:
    """Bounds of the search: the paper's two, and two for graphs that are larger than its blocks.

    At most `group_nodes` nodes per group (the paper's r) and `groups` groups per stage (its s). Blocks longer
    than `block_nodes` are cut before the search; `endings`, spread over the graph by size of block, is how
    many endings may be tried before a block is cut in halves.
    """

    group_nodes: int = 3
    groups: int = 8
    block_nodes: int = 64
    endings: int = 200_000


class TooManyEndingsError(Exception):
    """The search of one block went over its bound."""


def find_stages(dag: Dag, stage_time: StageTime, pruning: Pruning | None = None) -> list[Stage]:
    """Stages in running order with the least sum of `stage_time`, within the pruning and block by block.

    A node that is ordered with all others begins a block of its own. Of equal sums fewer stages win.
    """
    bounds = pruning or Pruning()
    stages: list[Stage] = []
    work = [list(block) for block in reversed(list(_blocks(dag, bounds.block_nodes)))]
    while work:
        block = work.pop()
        try:
            stages += _Search(dag, block, stage_time, bounds).stages()
        except TooManyEndingsError:
            half = len(block) // 2
            work += [block[half:], block[:half]]
    return stages


def streams_of(stages: Sequence[Stage]) -> list[list[int]]:
    """The i-th groups of all stages make up stream i."""
    count = max(map(len, stages), default=0)
    return [[v for stage in stages if i < len(stage) for v in stage[i]] for i in range(count)]


def barriers_of(stages: Sequence[Stage]) -> Iterator[Edge]:
    """Yield edges between stages: the last node of each group before the first of each following group."""
    for stage, following in pairwise(stages):
        yield from ((group[-1], after[0]) for group in stage for after in following)


def _blocks(dag: Dag, block_nodes: int) -> Iterator[list[int]]:
    """Runs of the topological order between nodes that are ordered with all others, cut to size."""
    before = [reached.bit_count() for reached in dag.reversed().descendants]
    block: list[int] = []
    alone = False
    for v in dag.order:
        is_cut = before[v] + dag.descendants[v].bit_count() == dag.n - 1
        if block and (is_cut or alone or len(block) == block_nodes):
            yield block
            block = []
        block.append(v)
        alone = is_cut
    if block:
        yield block


class _Search:
    """Dynamic programming over the endings of one block; bit i stands for the block's i-th node."""

    def __init__(self, dag: Dag, block: list[int], stage_time: StageTime, pruning: Pruning) -> None:
        self.block, self.stage_time, self.pruning = block, stage_time, pruning
        self.tries_left = max(1, pruning.endings * len(block) // dag.n)
        index = {v: i for i, v in enumerate(block)}
        self.below = [
            sum(1 << index[w] for w in block[i + 1 :] if dag.ordered(v, w)) for i, v in enumerate(block)
        ]
        self.best: dict[int, tuple[float, int, tuple[int, ...]]] = {0: (0.0, 0, ())}
        self.times: dict[tuple[int, ...], float] = {}

    def stages(self) -> list[Stage]:
        state = (1 << len(self.block)) - 1
        self.solve(state)
        stages = []
        while state:
            ending = self.best[state][2]
            stages.append(self.named(ending))
            state &= ~sum(ending)
        return stages[::-1]

    def solve(self, state: int) -> tuple[float, int, tuple[int, ...]]:
        """Least time of the nodes in `state`, the number of stages, and the groups of the last stage.

        An ending is a set of disjoint groups that nothing else in `state` depends on; no edge can join
        disjoint ones. There are very many, so each is tried where it is found, and all in one loop.
        """
        solved, times = self.best, self.times
        if state in solved:
            return solved[state]
        groups, most, tries = self.groups(state), self.pruning.groups, self.tries_left
        bounded = len(self.block) > 1
        best: tuple[float, int, tuple[int, ...]] | None = None
        #: endings to be made larger, each with the nodes that are left and the first group to add
        larger: list[tuple[tuple[int, ...], int, int]] = [((), state, 0)]
        while larger:
            chosen, left, start = larger.pop()
            grows = len(chosen) + 1 < most
            for i in range(start, len(groups)):
                group = groups[i]
                if group & ~left:
                    continue
                tries -= 1
                if tries < 0 and bounded:
                    raise TooManyEndingsError
                ending, rest = (*chosen, group), left ^ group
                if grows:
                    larger.append((ending, rest, i + 1))
                known = solved.get(rest)
                if known is None:
                    self.tries_left = tries
                    known = self.solve(rest)
                    tries = self.tries_left
                own = times.get(ending)
                if own is None:
                    own = times[ending] = self.stage_time(self.named(ending))
                total = known[0] + own
                if best is None or total <= best[0]:
                    option = (total, known[1] + 1, ending)
                    if best is None or option < best:
                        best = option
        assert best is not None
        self.tries_left = tries
        solved[state] = best
        return best

    def groups(self, state: int) -> list[int]:
        """All connected sets of at most `group_nodes` nodes that hold whatever in `state` depends on them."""
        limit = self.pruning.group_nodes
        tails = [1 << i | self.below[i] & state for i in members(state)]
        tails = [tail for tail in tails if tail.bit_count() <= limit]
        groups = dict.fromkeys(tails)
        fresh = tails
        while fresh:
            joined = [a | b for a in fresh for b in tails if a & b and (a | b).bit_count() <= limit]
            fresh = [group for group in dict.fromkeys(joined) if group not in groups]
            groups.update(dict.fromkeys(fresh))
        return sorted(groups)

    def named(self, ending: tuple[int, ...]) -> Stage:
        return tuple(tuple(self.block[i] for i in members(group)) for group in ending)
