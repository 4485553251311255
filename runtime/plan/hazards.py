"""An independent check of a plan's memory: races, early reuse of arena bytes, reads before writes."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import islice, pairwise
from operator import and_, or_

from tilewright.runtime.dag import members
from tilewright.runtime.errors import InputError
from tilewright.runtime.plan.boxes import Box, box_of, common, volume
from tilewright.runtime.plan.execution_plan import Buffer, ExecutionPlan, PlanFault


@dataclass(frozen=True)
class BufferAccess:
    """One argument of one launch: the bytes it may touch inside the buffer that owns them.

    box: the elements it may touch of these, where it is a box of that buffer (or all of it).
    """

    launch: int
    owner: str
    name: str
    start: int
    end: int
    writes: bool
    box: Box | None = None

    def apart(self, other: BufferAccess) -> bool:
        """Return whether the two touch no common byte."""
        if self.box is not None and other.box is not None:
            return volume(common(self.box, other.box)) == 0
        return self.end <= other.start or other.end <= self.start


#: pairs of uses without an order between them that are compared; a plan with more of them is refused
MAX_PAIRS = 2_000_000


def check_hazards(plan: ExecutionPlan) -> None:
    """Raise `InputError` with the first hazards of `plan` (see `find_hazards`)."""
    hazards = [str(hazard) for hazard in islice(located_hazards(plan), 20)]
    if hazards:
        raise InputError(f"the plan's memory is unsafe: {'; '.join(hazards)}")


def find_hazards(plan: ExecutionPlan) -> list[str]:
    """Every way in which some order allowed by the plan's `deps` gives wrong data, as short clauses.

    Of buffers that share arena bytes those are named that follow one another there. Raises
    `InputError` where more than `MAX_PAIRS` uses would have to be compared.
    """
    return [str(hazard) for hazard in located_hazards(plan)]


def located_hazards(plan: ExecutionPlan) -> Iterator[PlanFault]:
    """Yield the hazards of `find_hazards` with the launch or the buffer that has each."""
    before = plan.dag.ancestors
    by_owner: dict[str, list[BufferAccess]] = defaultdict(list)
    for access in _accesses(plan):
        by_owner[access.owner].append(access)
    pairs = _Pairs()
    for accesses in by_owner.values():
        written = any(access.writes for access in accesses)
        kind = plan.buffer_by_name[accesses[0].owner].kind
        fixed = kind in ("input", "constant", "state")
        if written:
            yield from _races(accesses, before, pairs)
        if kind == "state":
            yield from _state_disorder(plan, accesses, before)
        if not fixed:
            yield from _unwritten_reads(accesses, before, pairs)
    yield from _early_reuse(plan, by_owner, before)
    yield from _unwritten_outputs(plan, by_owner)


class _Pairs:
    """Counts the pairs of uses that were compared, so that no plan takes for ever."""

    def __init__(self) -> None:
        self.count = 0

    def compared(self) -> None:
        self.count += 1
        if self.count > MAX_PAIRS:
            raise InputError(
                f"the plan leaves too much without an order: more than {MAX_PAIRS} pairs of uses to compare"
            )


def _accesses(plan: ExecutionPlan) -> Iterator[BufferAccess]:
    for index, launch in enumerate(plan.launches):
        written = set(launch.writes)
        for position, name in enumerate(launch.args):
            owner, start = plan.locate(name)
            buffer = plan.buffer_by_name[name]
            end = start + buffer.nbytes
            yield BufferAccess(
                index, owner.name, name, start, end, position in written, box_of(owner, buffer)
            )


def _ordered(first: int, second: int, before: Sequence[int]) -> bool:
    return bool(before[second] >> first & 1)


def _races(accesses: list[BufferAccess], before: Sequence[int], pairs: _Pairs) -> Iterator[PlanFault]:
    """Pairs of uses, one of them a write, that nothing orders; `accesses` come by launch."""
    of_launch: dict[int, list[BufferAccess]] = defaultdict(list)
    used = written = 0  # the launches so far that touch these bytes, and that write them
    for access in accesses:
        here = 1 << access.launch
        loose = (used if access.writes else written) & ~before[access.launch] & ~here
        for launch in members(loose):
            for other in of_launch[launch]:
                pairs.compared()
                if (access.writes or other.writes) and not access.apart(other):
                    writer, second = (other, access) if other.writes else (access, other)
                    verb = "writes" if second.writes else "reads"
                    yield PlanFault(
                        f"launch {writer.launch} writes {writer.name!r} while launch {second.launch} {verb} "
                        f"{second.name!r}: no dependency orders them",
                        "launches",
                        access.launch,
                    )
        of_launch[access.launch].append(access)
        used |= here
        written |= here if access.writes else 0


def _state_disorder(
    plan: ExecutionPlan, accesses: list[BufferAccess], before: Sequence[int]
) -> Iterator[PlanFault]:
    """Reads of the old value of state after its new one is written, and of the new one before that.

    What nothing orders at all is a race, which is found elsewhere.
    """
    writes = [access for access in accesses if access.writes]
    state = accesses[0].owner
    for first, second in pairwise(writes):
        yield PlanFault(
            f"launches {first.launch} and {second.launch} both write the state {state!r}",
            "launches",
            second.launch,
        )
    for write in writes[:1]:
        launch = plan.launches[write.launch]
        for access in accesses:
            if access.writes:
                continue
            text = f"launch {access.launch} reads {access.name!r}"
            if access.launch == write.launch:
                pairs = [(launch.args[i], launch.args[j]) for i, j in launch.in_place]
                alone = launch.args.count(access.name) == 1
                if (access.name, write.name) not in pairs or not alone:
                    text += f" and writes {write.name!r}, but not in place"
                    yield PlanFault(text, "launches", access.launch)
            elif access.name == state and _ordered(write.launch, access.launch, before):
                text += f", the old value of the state, after launch {write.launch} has written the new one"
                yield PlanFault(text, "launches", access.launch)
            elif access.name != state and _ordered(access.launch, write.launch, before):
                text += f", the new value of the state, before launch {write.launch} writes it"
                yield PlanFault(text, "launches", access.launch)
    if not writes:
        for access in accesses:
            if access.name != state:
                text = f"launch {access.launch} reads {access.name!r}, which no launch writes"
                yield PlanFault(text, "launches", access.launch)


def _unwritten_reads(
    accesses: list[BufferAccess], before: Sequence[int], pairs: _Pairs
) -> Iterator[PlanFault]:
    written: dict[int, list[BufferAccess]] = defaultdict(list)
    for access in accesses:
        if access.writes:
            written[access.launch].append(access)
    writing = sum(1 << launch for launch in written)
    for read in accesses:
        if read.writes or read.start == read.end:
            continue
        writers = []
        for launch in members(writing & before[read.launch]):
            for access in written[launch]:
                pairs.compared()
                if not access.apart(read):
                    writers.append(access)
        if not writers:
            text = f"launch {read.launch} reads {read.name!r}, which no launch before it writes"
            yield PlanFault(text, "launches", read.launch)
        elif _elements_of(writers, read) < 1:
            text = f"launch {read.launch} reads {read.name!r}, which launches before it write in part only"
            yield PlanFault(text, "launches", read.launch)


def _elements_of(writers: list[BufferAccess], read: BufferAccess) -> float:
    """At most the share of what is read that the writers write; 1 where a writer is no box."""
    if read.box is None or any(w.box is None for w in writers) or not volume(read.box):
        return 1.0
    boxes = {w.box for w in writers if w.box is not None}
    return sum(volume(common(box, read.box)) for box in boxes) / volume(read.box)


def _overwritten(plan: ExecutionPlan) -> set[tuple[int, str, str]]:
    """(launch, buffer read, buffer written) where the launch may put its result in place of the operand."""
    return {
        (index, launch.args[read], launch.args[written])
        for index, launch in enumerate(plan.launches)
        for read, written in launch.in_place
        if launch.args.count(launch.args[read]) == launch.args.count(launch.args[written]) == 1
    }


@dataclass(frozen=True)
class _Tenant:
    """A buffer of the arena, the launches that use it, and those that end before each of its uses."""

    buffer: Buffer
    uses: int
    before: int
    kept: bool

    @property
    def end(self) -> int:
        return self.buffer.offset + self.buffer.nbytes

    @property
    def time(self) -> tuple[int, int]:
        """First and last launch that uses it: launches are listed in an order that keeps dependencies."""
        return (self.uses & -self.uses).bit_length(), self.uses.bit_length()


def _early_reuse(
    plan: ExecutionPlan, by_owner: dict[str, list[BufferAccess]], before: Sequence[int]
) -> Iterator[PlanFault]:
    """Buffers that share bytes although a use of the later one may come before one of the earlier one.

    Where buffers hold the same byte in turn, each must be over before the next begins; that the first is
    over before the third then follows. So neighbours in time are compared as the bytes are walked through.
    """
    overwritten = _overwritten(plan)

    def follows(first: _Tenant, then: _Tenant) -> bool:
        """Return whether all uses of `first` end before any of `then`, but for one doing both in place."""
        if first.kept:
            return False
        both = first.uses & then.uses
        if not both:
            return not first.uses & ~then.before
        launch, a, b = both.bit_length() - 1, first.buffer, then.buffer
        in_place = (a.offset, a.nbytes) == (b.offset, b.nbytes) and (launch, a.name, b.name) in overwritten
        rest = _before_all(then.uses & ~both, before)
        return in_place and not first.uses & ~rest and not first.uses & ~both & ~before[launch]

    tenants = sorted(_tenants(plan, by_owner, before), key=lambda t: t.buffer.offset)
    events = sorted([(t.end, 0, i) for i, t in enumerate(tenants)] + [
        (t.buffer.offset, 1, i) for i, t in enumerate(tenants)
    ])  # fmt: skip
    active: list[tuple[tuple[int, int], int]] = []  # time and number of those that hold the current byte
    reported: set[str] = set()
    for _, begins, number in events:
        entry = (tenants[number].time, number)
        at = bisect_left(active, entry)
        if begins:
            active.insert(at, entry)
            neighbours = [(at - 1, at), (at, at + 1)]
        else:
            del active[at]
            neighbours = [(at - 1, at)]
        for i, j in neighbours:
            if i < 0 or j >= len(active):
                continue
            one, other = tenants[active[i][1]], tenants[active[j][1]]
            if not (follows(one, other) or follows(other, one)):
                first, second = sorted((one.buffer, other.buffer), key=lambda b: b.offset)
                names = f"{first.name!r} and {second.name!r}"
                if names not in reported:
                    reported.add(names)
                    text = f"{names} share arena bytes, but their uses may interleave"
                    yield PlanFault(text, "buffers", plan.buffers.index(second))


def _tenants(
    plan: ExecutionPlan, by_owner: dict[str, list[BufferAccess]], before: Sequence[int]
) -> Iterator[_Tenant]:
    """The buffers of the arena that some launch uses."""
    returned = {plan.locate(name)[0].name for name in plan.outputs}
    for buffer in plan.buffers:
        launches = {access.launch for access in by_owner.get(buffer.name, ())}
        if buffer.kind == "arena" and buffer.nbytes and launches:
            uses = reduce(or_, (1 << launch for launch in launches))
            yield _Tenant(buffer, uses, _before_all(uses, before), buffer.name in returned)


def _before_all(launches: int, before: Sequence[int]) -> int:
    """The launches that end before each of these starts; all where there are none."""
    return reduce(and_, (before[launch] for launch in members(launches)), -1)


def _unwritten_outputs(plan: ExecutionPlan, by_owner: dict[str, list[BufferAccess]]) -> Iterator[PlanFault]:
    for name in plan.outputs:
        owner = plan.locate(name)[0]
        new = owner.kind == "state" and name != owner.name
        device_owned = (owner.kind in ("output", "arena") or new) and owner.nbytes > 0
        if device_owned and not any(access.writes for access in by_owner.get(owner.name, ())):
            text = f"output {name!r} is written by no launch"
            yield PlanFault(text, "buffers", plan.buffers.index(owner))
