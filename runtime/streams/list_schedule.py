"""List scheduling on a fixed number of streams, for graphs that are wider than that."""

from __future__ import annotations

from tilewright.runtime.dag import Dag
from tilewright.runtime.streams.event_loop import simulate
from tilewright.runtime.streams.work import Work


def listed_streams(dag: Dag, limit: int, work: Work) -> list[list[int]]:
    """At most `limit` streams: the ready node with the longest way to go starts as soon as one is idle."""
    left = work.remaining(dag)
    room = StreamRoom(dag, limit)
    simulate(dag, work.costs, room, lambda v: (-left[v], v))
    return room.streams


class StreamRoom:
    """Streams that run one node at a time; a node prefers a stream that ends in a node it depends on."""

    def __init__(self, dag: Dag, limit: int) -> None:
        self.before = dag.reduced_predecessors
        self.streams: list[list[int]] = []
        self.limit = limit
        self.stream_of: dict[int, int] = {}
        self.idle: set[int] = set()

    @property
    def full(self) -> bool:
        return not self.idle and len(self.streams) == self.limit

    def take(self, node: int) -> bool:
        if self.full:
            return False
        stream = self._choose(node)
        self.idle.discard(stream)
        self.streams[stream].append(node)
        self.stream_of[node] = stream
        return True

    def give_back(self, node: int) -> None:
        self.idle.add(self.stream_of[node])

    def _choose(self, node: int) -> int:
        for u in self.before[node]:
            stream = self.stream_of[u]
            if stream in self.idle and self.streams[stream][-1] == u:
                return stream
        if len(self.streams) < self.limit:
            self.streams.append([])
            return len(self.streams) - 1
        return min(self.idle)
