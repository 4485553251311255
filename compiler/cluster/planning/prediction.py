"""Predicts a division by going through all ranks' modules: ops one after another, messages beside them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tilewright.cluster.planning.op_seconds import OpSeconds
from tilewright.cluster.planning.parallel_plan import ParallelPlan
from tilewright.costmodel.links import Link
from tilewright.ir import Func, Op, Value, WorkError
from tilewright.passes.analysis.backward_pass import OPTIMIZER

#: what a rank's time consists of; `optimizer` are the kernels that only update parameters and `compute` all
#: others, `wait` is for other ranks (a pipeline's bubble, uneven parts), `overhead` what is between kernels
#: and no communication
COMPONENTS = ("compute", "optimizer", "wp", "dp", "pp", "wait", "overhead")
#: times that differ by less are equal
_EQUAL = 1e-9


@dataclass
class RankTimes:
    """Seconds of one rank by component, without what runs beside its kernels; they add up to total_s."""

    components_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(COMPONENTS, 0.0))

    @property
    def total_s(self) -> float:
        """From the first thing that the rank does to its last."""
        return sum(self.components_s.values())


@dataclass(frozen=True, order=True)
class _Arrival:
    """The way of a value from other ranks: when it left and came, and its component."""

    left_s: float
    at_s: float
    component: str


@dataclass
class _Rank:
    """The state of one rank: its next op, and when its kernels and its link are free."""

    number: int
    ops: Sequence[Op]
    at: int = 0
    free_s: float = 0.0
    link_s: float = 0.0
    made: dict[Value, float] = field(default_factory=dict)
    arrivals: list[_Arrival] = field(default_factory=list)
    times: RankTimes = field(default_factory=RankTimes)

    def ready_s(self, values: Sequence[Value]) -> float:
        """Return the time at which all these values are there."""
        return max((self.made.get(v, 0.0) for v in values), default=0.0)

    def wait_for(self, values: Sequence[Value]) -> None:
        """Let kernels stand still until the values are there, and note why.

        While something comes here it is moving, also where it came after other values on the same link.
        """
        ready_s, at_s = self.ready_s(values), self.free_s
        if ready_s <= at_s:
            return
        seconds = self.times.components_s
        for way in sorted(self.arrivals):
            begin_s, end_s = max(way.left_s, at_s), min(way.at_s, ready_s)
            if end_s <= begin_s:
                continue
            if begin_s - at_s > _EQUAL * ready_s:
                seconds["wait"] += begin_s - at_s
            seconds[way.component] += end_s - begin_s
            at_s = end_s
        if ready_s - at_s > _EQUAL * ready_s:
            seconds["wait"] += ready_s - at_s
        self.arrivals = [way for way in self.arrivals if way.at_s > ready_s]
        self.free_s = ready_s

    def receive(self, value: Value, arrival: _Arrival) -> None:
        """A value comes from other ranks."""
        self.made[value] = arrival.at_s
        self.arrivals.append(arrival)


def component_of(others: Iterable[int], plan: ParallelPlan, rank: int) -> str:
    """Return the component of a communication: pp between stages, dp between replicas, else wp."""
    own, places = plan.coordinates(rank), [plan.coordinates(r) for r in others]
    if any(p.stage != own.stage for p in places):
        return "pp"
    return "dp" if any(p.replica != own.replica for p in places) else "wp"


def predict(parts: Sequence[Func], plan: ParallelPlan, seconds: OpSeconds, link: Link) -> list[RankTimes]:
    """Seconds of every rank for one run of its function in `parts`.

    Kernels of a rank follow one another. A message leaves when its value is made and the rank's earlier ones
    are out, and takes call + latency + bytes / bandwidth; a collective begins when its last member is there
    and takes what a ring does. Nothing but a value that is not there yet stops kernels.
    Raises WorkError where ranks would wait for one another.
    """
    return _Simulation(parts, plan, seconds, link).run()


class _Simulation:
    def __init__(self, parts: Sequence[Func], plan: ParallelPlan, seconds: OpSeconds, link: Link) -> None:
        self.plan, self.seconds, self.link = plan, seconds, link
        self.ranks = [_Rank(r, part.body.ops) for r, part in enumerate(parts)]
        self.messages: dict[tuple[int, int, int], deque[tuple[float, float]]] = defaultdict(deque)

    def run(self) -> list[RankTimes]:
        while any(rank.at < len(rank.ops) for rank in self.ranks):
            if not sum(map(self.advance, self.ranks)):
                raise WorkError(f"the ranks of a division ({self.plan.text}) would wait for one another")
        return [rank.times for rank in self.ranks]

    def advance(self, rank: _Rank) -> int:
        """Do ops as far as they go; how many."""
        begin = rank.at
        while rank.at < len(rank.ops) and self.do(rank, rank.ops[rank.at]):
            rank.at += 1
        # A collective may have moved this rank, and others, on by itself.
        return rank.at - begin

    def do(self, rank: _Rank, op: Op) -> bool:
        """Do one op; False where it cannot be done yet."""
        if op.name == "graph.send":
            self.send(rank, op)
        elif op.name == "graph.recv":
            sent = self.messages[op.integer("source"), rank.number, op.integer("tag")]
            if not sent:
                return False
            left_s, at_s = sent.popleft()
            rank.receive(op.result, _Arrival(left_s, at_s, "pp"))
        elif (members := op.get("ranks")) is not None:
            return self.collective(rank, op, tuple(members))  # type: ignore[arg-type]  # global ranks
        else:
            rank.wait_for(op.operands)
            own = self.seconds.of(op)
            overhead = own * self.seconds.overhead_share
            component = "optimizer" if op.loc == OPTIMIZER else "compute"
            rank.times.components_s[component] += own - overhead
            rank.times.components_s["overhead"] += overhead
            rank.free_s += own
            rank.made.update(dict.fromkeys(op.results, rank.free_s))
        return True

    def send(self, rank: _Rank, op: Op) -> None:
        (value,) = op.operands
        begin = max(rank.ready_s([value]), rank.link_s)
        rank.link_s = begin + value.tensor.nbytes / self.link.bytes_per_s
        moving = rank.link_s - begin + self.link.call_s + self.link.latency_s
        self.messages[rank.number, op.integer("to"), op.integer("tag")].append((begin, begin + moving))

    def collective(self, rank: _Rank, op: Op, members: tuple[int, ...]) -> bool:
        """Done by the last member that comes to it, for all of them."""
        group = [self.ranks[m] for m in members]
        heads = [r.ops[r.at] if r.at < len(r.ops) else None for r in group]
        if any(h is None or h.name != op.name or h.get("ranks") != op.get("ranks") for h in heads):
            return False
        pairs = [(r, h) for r, h in zip(group, heads, strict=True) if h is not None]
        begin = max(max(r.ready_s(h.operands), r.link_s) for r, h in pairs)
        moving = collective_s(op, len(members), self.link)
        for r, h in pairs:
            r.link_s = begin + moving
            component = component_of(members, self.plan, r.number)
            r.receive(h.result, _Arrival(begin, begin + moving, component))
            if r is not rank:
                r.at += 1
        return True


def collective_s(op: Op, members: int, link: Link) -> float:
    """Seconds of a graph-level collective."""
    nbytes = max(v.tensor.nbytes for v in (*op.operands, *op.results))
    return link.ring_s(op.name.removeprefix("graph."), members, nbytes)
