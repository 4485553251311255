"""An independent check of a plan's memory: races, early reuse of arena bytes, reads before writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.runtime.boxes import Box, box_of, common, volume
from tilewright.runtime.errors import RuntimeInputError
from tilewright.runtime.plan import Buffer, ExecutionPlan


@dataclass(frozen=True)
class Access:
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

    def apart(self, other: Access) -> bool:
        """Whether the two touch no common byte."""
        if self.box is not None and other.box is not None:
            return volume(common(self.box, other.box)) == 0
        return self.end <= other.start or other.end <= self.start


def check_arena(plan: ExecutionPlan) -> None:
    """Raise `RuntimeInputError` with every hazard of `plan` (see `find_hazards`)."""
    hazards = find_hazards(plan)
    if hazards:
        raise RuntimeInputError(f"the plan's memory is unsafe: {'; '.join(hazards[:20])}")


def find_hazards(plan: ExecutionPlan) -> list[str]:
    """Every way in which some order allowed by the plan's `deps` gives wrong data, as short clauses."""
    before = _launches_before(plan)
    by_owner: dict[str, list[Access]] = defaultdict(list)
    for access in _accesses(plan):
        by_owner[access.owner].append(access)
    hazards: list[str] = []
    for accesses in by_owner.values():
        hazards += _races(accesses, before)
        hazards += _unwritten_reads(plan, accesses, before)
    hazards += _early_reuse(plan, by_owner, before)
    hazards += _unwritten_outputs(plan, by_owner)
    return hazards


def _launches_before(plan: ExecutionPlan) -> list[int]:
    """Per launch the bit set of the launches that finish before it starts."""
    before: list[int] = []
    for launch in plan.launches:
        bits = 0
        for dep in launch.deps:
            bits |= before[dep] | 1 << dep
        before.append(bits)
    return before


def _accesses(plan: ExecutionPlan) -> Iterator[Access]:
    for index, launch in enumerate(plan.launches):
        written = set(launch.writes)
        for position, name in enumerate(launch.args):
            owner, start = plan.locate(name)
            buffer = plan.buffer_by_name[name]
            end = start + buffer.nbytes
            yield Access(index, owner.name, name, start, end, position in written, box_of(owner, buffer))


def _ordered(first: int, second: int, before: list[int]) -> bool:
    return bool(before[second] >> first & 1)


def _races(accesses: list[Access], before: list[int]) -> Iterator[str]:
    writers = [access for access in accesses if access.writes]
    for writer in writers:
        for other in accesses:
            if other.launch == writer.launch or (other.writes and other.launch < writer.launch):
                continue
            low, high = sorted((writer.launch, other.launch))
            if not writer.apart(other) and not _ordered(low, high, before):
                verb = "writes" if other.writes else "reads"
                yield (
                    f"launch {writer.launch} writes {writer.name!r} while launch {other.launch} {verb} "
                    f"{other.name!r}: no dependency orders them"
                )


def _unwritten_reads(plan: ExecutionPlan, accesses: list[Access], before: list[int]) -> Iterator[str]:
    if plan.buffer_by_name[accesses[0].owner].kind in ("input", "constant"):
        return
    for read in accesses:
        if read.writes or read.start == read.end:
            continue
        writers = [
            access
            for access in accesses
            if access.writes and _ordered(access.launch, read.launch, before) and not access.apart(read)
        ]
        if not writers:
            yield f"launch {read.launch} reads {read.name!r}, which no launch before it writes"
        elif _elements_of(writers, read) < 1:
            yield f"launch {read.launch} reads {read.name!r}, which launches before it write in part only"


def _elements_of(writers: list[Access], read: Access) -> float:
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


def _early_reuse(plan: ExecutionPlan, by_owner: dict[str, list[Access]], before: list[int]) -> Iterator[str]:
    overwritten = _overwritten(plan)

    def follows(first: Buffer, then: Buffer, firsts: set[int], thens: set[int]) -> bool:
        same_bytes = (first.offset, first.nbytes) == (then.offset, then.nbytes)
        return first.name not in kept and all(
            _ordered(a, b, before) or (a == b and same_bytes and (a, first.name, then.name) in overwritten)
            for a in firsts
            for b in thens
        )

    kept = {plan.locate(name)[0].name for name in plan.outputs}
    arena = sorted((b for b in plan.buffers if b.kind == "arena" and b.nbytes), key=lambda b: b.offset)
    active: list[int] = []
    for index, buffer in enumerate(arena):
        active = [i for i in active if arena[i].offset + arena[i].nbytes > buffer.offset]
        for other in (arena[i] for i in active):
            ours = {access.launch for access in by_owner.get(buffer.name, ())}
            theirs = {access.launch for access in by_owner.get(other.name, ())}
            if not ours or not theirs:
                continue
            if not (follows(other, buffer, theirs, ours) or follows(buffer, other, ours, theirs)):
                yield f"{other.name!r} and {buffer.name!r} share arena bytes, but their uses may interleave"
        active.append(index)


def _unwritten_outputs(plan: ExecutionPlan, by_owner: dict[str, list[Access]]) -> Iterator[str]:
    for name in plan.outputs:
        owner = plan.locate(name)[0]
        device_owned = owner.kind in ("output", "arena") and owner.nbytes > 0
        if device_owned and not any(access.writes for access in by_owner.get(owner.name, ())):
            yield f"output {name!r} is written by no launch"
