"""The order in which the parts of a training step meet the state on storage, for several micro-batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tilewright.ir import UnsupportedError, Value
from tilewright.runtime.storage.layout import PAGE_BYTES, TENSOR_ALIGNMENT, round_up
from tilewright.streaming.parts.schedule import Schedule
from tilewright.streaming.parts.step_modules import ValueWindow
from tilewright.streaming.parts.training_parts import FormParts, Part


@dataclass(frozen=True)
class Work:
    """One part for one micro-batch; part: its number in the form of the micro-batch."""

    batch: int
    form: int
    part: int


@dataclass(frozen=True)
class TrainingVisit:
    """One filling of a slot and what is done with it.

    arriving: state that is read from storage; cleared: state that begins as zeros; leaving: state that is
    written back. tensors: all state that the parts use. after: visits that write what this one reads.
    """

    work: tuple[Work, ...]
    tensors: tuple[str, ...]
    arriving: tuple[str, ...]
    cleared: tuple[str, ...]
    leaving: tuple[str, ...]
    after: tuple[int, ...]

    @cached_property
    def parts(self) -> tuple[tuple[int, int], ...]:
        """The forms and numbers of the parts, each once."""
        return tuple(dict.fromkeys((w.form, w.part) for w in self.work))


def training_visits(
    schedule: Schedule, forms: Sequence[FormParts], form_of: Sequence[int], order: Sequence[str]
) -> list[TrainingVisit]:
    """The visits of one group of micro-batches. form_of: per micro-batch; order: all names of state in the
    order of the store.

    parameter-resident: a place of the step is visited once, with all micro-batches; activation-resident: a
    micro-batch passes all places before the next one begins.
    Raises UnsupportedError where the schedule would let a run read state of another run than the one before.
    """
    work: list[tuple[Work, ...]] = []
    if schedule == "parameter-resident":
        by_place: dict[int, list[Work]] = {}
        for batch, form in enumerate(form_of):
            for number, part in enumerate(forms[form].parts):
                by_place.setdefault(part.place, []).append(Work(batch, form, number))
        work = [tuple(by_place[place]) for place in sorted(by_place)]
    else:
        for batch, form in enumerate(form_of):
            work += [(Work(batch, form, number),) for number in range(len(forms[form].parts))]
    _check_versions(schedule, work, forms)
    local = frozenset().union(*(f.local | frozenset(f.kept) for f in forms))
    rank = {name: i for i, name in enumerate(order)}
    later: set[str] = set()
    leaving: list[set[str]] = []
    for items in reversed(work):
        parts = [forms[w.form].parts[w.part] for w in items]
        written = frozenset[str]().union(*(p.writes for p in parts))
        leaving.append({n for n in written if n not in local or n in later})
        first_reads = _read_first(parts)
        later = (later - written) | first_reads
    leaving.reverse()
    visits: list[TrainingVisit] = []
    writer: dict[str, int] = {}
    for number, items in enumerate(work):
        parts = [forms[w.form].parts[w.part] for w in items]
        tensors = sorted({n for p in parts for n in p.states}, key=rank.__getitem__)
        wanted = _read_first(parts)
        cleared = {n for n in wanted if n in local and n not in writer}
        arriving = wanted - cleared
        visits.append(
            TrainingVisit(
                items,
                tuple(tensors),
                tuple(n for n in tensors if n in arriving),
                tuple(n for n in tensors if n in cleared),
                tuple(n for n in tensors if n in leaving[number]),
                tuple(sorted({writer[n] for n in arriving if n in writer})),
            )
        )
        writer.update(dict.fromkeys(leaving[number], number))
    return visits


def _read_first(parts: Sequence[Part]) -> set[str]:
    """State that parts, one after the other, read before one of them has written it."""
    wanted, written = set[str](), set[str]()
    for part in parts:
        wanted |= part.reads - written
        # What a part leaves as it is has to be there when the slot is written back as well.
        written |= part.writes
    return wanted


def _check_versions(schedule: Schedule, work: Sequence[Sequence[Work]], forms: Sequence[FormParts]) -> None:
    """Every read of state has to see what the run before it left."""
    writes: dict[str, list[int]] = {}  # the batches that write state, in the order in which they do
    items = [w for group in work for w in group]
    writing: dict[str, set[int]] = {}
    for w in items:
        for name in forms[w.form].parts[w.part].writes:
            writing.setdefault(name, set()).add(w.batch)
    for w in items:
        form = forms[w.form]
        part = form.parts[w.part]
        for name in part.reads:
            seen = writes.get(name, [])
            own = {w.batch} if name in form.kept else set[int]()
            due = [b for b in sorted(writing.get(name, ())) if b < w.batch or b in own]
            if seen != due:
                raise UnsupportedError(
                    f"the schedule {schedule} cannot keep the order of runs for the state '{name}': what "
                    "a micro-batch leaves of it is read at another place of the step; the schedule ar can"
                )
        for name in part.writes:
            writes.setdefault(name, []).append(w.batch)


@dataclass(frozen=True)
class SlotLayout:
    """Where a visit's state and constants begin in its slot, in bytes; all at whole pages.

    constants: by form and number of the part.
    """

    starts: Mapping[str, int]
    constants: Mapping[tuple[int, int], int]
    nbytes: int


def slot_layout(
    visit: TrainingVisit, nbytes_of: Mapping[str, int], constant_bytes: Mapping[tuple[int, int], int]
) -> SlotLayout:
    """State in the order of the store, so that what lies together there does so in the slot."""
    end, starts, constants = 0, dict[str, int](), dict[tuple[int, int], int]()
    for name in visit.tensors:
        starts[name] = end
        end += nbytes_of[name]
    for part in visit.parts:
        constants[part] = end
        end += round_up(constant_bytes[part], PAGE_BYTES)
    return SlotLayout(starts, constants, max(PAGE_BYTES, end))


def passing_window(parts: Sequence[Part]) -> ValueWindow:
    """Places for values that are brought to the device for one part at a time: only those of a part exclude
    each other."""
    together: dict[Value, set[Value]] = {}
    for part in parts:
        own = (*part.inputs, *part.outputs)
        for v in own:
            together.setdefault(v, set()).update(own)
    offsets: dict[Value, int] = {}
    numbers = {v: i for i, v in enumerate(together)}
    for v in sorted(together, key=lambda v: (-v.tensor.nbytes, numbers[v])):
        size = _size(v)
        taken = sorted((offsets[o], offsets[o] + _size(o)) for o in together[v] if o in offsets)
        at = 0
        for begin, end in taken:
            if at + size <= begin:
                break
            at = max(at, end)
        offsets[v] = at
    nbytes = max((offsets[v] + _size(v) for v in offsets), default=0)
    return ValueWindow(offsets, max(PAGE_BYTES, nbytes))


def _size(value: Value) -> int:
    return round_up(max(1, value.tensor.nbytes), TENSOR_ALIGNMENT)
