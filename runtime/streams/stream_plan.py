"""A stream plan: which nodes run on which stream in which order, and which waits join the streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tilewright.runtime.dag import Dag, Edge


@dataclass(frozen=True)
class StreamPlan:
    """Nodes per stream in running order, synchronisations, and the order in which the host launches.

    A synchronisation (u, v) makes v wait for u, which runs on another stream. `order` holds every node once
    and goes along all streams and synchronisations.
    """

    streams: tuple[tuple[int, ...], ...]
    syncs: tuple[Edge, ...]
    order: tuple[int, ...]

    @cached_property
    def happens_before(self) -> Dag:
        """The order that the plan enforces, of neighbours and synchronisations; raises if it is cyclic."""
        return Dag.of(len(self.order), (*_neighbours_on(self.streams), *self.syncs))


def plan_from_streams(
    dag: Dag, streams: Iterable[Sequence[int]], barriers: Iterable[Edge] = ()
) -> StreamPlan:
    """The plan of these streams with the fewest synchronisations that order all edges of `dag`.

    They are the edges between streams of the transitive reduction of everything that must be ordered: the
    graph, the streams, and the further pairs `barriers`. Where the streams are chains of the graph and there
    are no barriers, these are the graph's reduced edges between streams. Streams are sorted by first node.
    Raises `InputError` where the streams contradict the graph.
    """
    ordered = tuple(sorted(tuple(s) for s in streams if s))
    stream_of = {node: index for index, nodes in enumerate(ordered) for node in nodes}
    joint = Dag.of(dag.n, (*dag.reduced, *_neighbours_on(ordered), *barriers))
    syncs = tuple((u, v) for u, v in joint.reduced if stream_of[u] != stream_of[v])
    return StreamPlan(ordered, syncs, joint.order)


def _neighbours_on(streams: Iterable[Sequence[int]]) -> list[Edge]:
    return [edge for nodes in streams for edge in pairwise(nodes)]
