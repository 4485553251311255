"""A profile as Chrome's trace events: the host's copies, the device's streams and multiprocessors, waits.

The format is described in "Trace Event Format" (Google, 2016); Perfetto and chrome://tracing read it. Times
are microseconds since the first copy.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tilewright.profiling.replay_record import CopySpan, LaunchSpan, ReplayRecord
from tilewright.profiling.timeline import Interval, lanes
from tilewright.runtime.atomic_file import write_atomically

HOST, STREAMS, PROCESSORS = 1, 2, 3
MICROSECOND = 1e-6
TICK_S = 1e-9  # the resolution of the trace

Event = dict[str, Any]


def trace_of(profile: ReplayRecord) -> dict[str, Any]:
    """The whole trace: metadata first, then events by time; the numbers of the profile as `otherData`."""
    tracks = Tracks(profile)
    before_s = sum(c.seconds for c in profile.copies if c.direction == "in")
    events = [
        *_copy_events(profile, before_s),
        *(_launch_event(profile, x, tracks, before_s) for x in profile.launches),
        *_wait_events(profile, tracks, before_s),
        *_processor_events(profile, tracks, before_s),
    ]
    events.sort(key=lambda e: (e["ts"], e["pid"], e["tid"]))
    return {
        "traceEvents": [*_names(profile, tracks), *events],
        "displayTimeUnit": "ns",
        "otherData": profile.summary(),
    }


class Tracks:
    """The thread of every launch on its stream and multiprocessors.

    Events of one thread must not overlap. Where kernels of one stream or multiprocessor do, it has several.
    """

    def __init__(self, profile: ReplayRecord) -> None:
        launches = {(x.stream, x.index): (x.start_s, x.end_s) for x in profile.launches}
        blocks = {
            (p.processor, x.index): (p.start_s, p.end_s) for x in profile.launches for p in x.processors
        }
        self.streams, self.stream_names = _threads(launches, "stream")
        self.processors, self.processor_names = _threads(blocks, "SM")


def _threads(
    spans: dict[tuple[int, int], Interval], noun: str
) -> tuple[dict[tuple[int, int], int], list[str]]:
    """Thread numbers by (owner, launch), and the names of the threads; owners in ascending order."""
    numbers: dict[tuple[int, int], int] = {}
    names: list[str] = []
    owned: dict[int, list[tuple[int, int]]] = {}
    for key in spans:
        owned.setdefault(key[0], []).append(key)
    for owner in sorted(owned):
        lane_of = lanes([spans[key] for key in owned[owner]])
        numbers |= {key: len(names) + lane for key, lane in zip(owned[owner], lane_of, strict=True)}
        count = max(lane_of) + 1
        names += [
            f"{noun} {owner}" + (f", {lane + 1} of {count}" if count > 1 else "") for lane in range(count)
        ]
    return numbers, names


def trace_text(profile: ReplayRecord) -> str:
    """The trace as JSON."""
    return json.dumps(trace_of(profile), allow_nan=False)


def write_trace(profile: ReplayRecord, path: str | Path) -> None:
    """Write the trace, replacing the file at once; raises InputError where it cannot be written."""
    write_atomically(path, trace_text(profile), "the trace")


def _names(profile: ReplayRecord, tracks: Tracks) -> Iterator[Event]:
    groups = (
        (HOST, "host", ["copies"] if profile.copies else []),
        (STREAMS, profile.device, tracks.stream_names),
        (PROCESSORS, f"{profile.device}: multiprocessors", tracks.processor_names),
    )
    for pid, name, threads in groups:
        if not threads:
            continue
        yield _metadata("process_name", pid, 0, name=name)
        yield _metadata("process_sort_index", pid, 0, sort_index=pid)
        for tid, thread in enumerate(threads):
            yield _metadata("thread_name", pid, tid, name=thread)
            yield _metadata("thread_sort_index", pid, tid, sort_index=tid)


def _metadata(kind: str, pid: int, tid: int, **args: object) -> Event:
    return {"name": kind, "ph": "M", "pid": pid, "tid": tid, "args": args}


def _complete(name: str, kind: str, at: tuple[int, int], start_s: float, end_s: float, args: Event) -> Event:
    return {
        "name": name, "cat": kind, "ph": "X", "pid": at[0], "tid": at[1],
        "ts": _us(start_s), "dur": round(_us(end_s) - _us(start_s), 3), "args": args,
    }  # fmt: skip


def _us(seconds: float) -> float:
    """Microseconds, to the nanosecond."""
    return round(seconds / MICROSECOND, 3)


def _copy_events(profile: ReplayRecord, before_s: float) -> Iterator[Event]:
    after_s = before_s + max((x.end_s for x in profile.launches), default=0.0)
    for copy in profile.copies:
        start = before_s - copy.seconds if copy.direction == "in" else after_s
        yield _complete(_copy_name(copy), "copy", (HOST, 0), start, start + copy.seconds, {
            "bytes": copy.nbytes, "buffers": list(copy.buffers),
            "bytes_per_s": copy.nbytes / copy.seconds if copy.seconds else None,
        })  # fmt: skip


def _copy_name(copy: CopySpan) -> str:
    return "inputs to the device" if copy.direction == "in" else "outputs to the host"


def _launch_event(profile: ReplayRecord, x: LaunchSpan, tracks: Tracks, before_s: float) -> Event:
    args: Event = {
        "launch": x.index, "origin": list(x.origin), "grid": list(x.grid), "block": x.block,
        "waits_for": list(x.deps), "on_critical_path": x.index in profile.critical_path,
    }  # fmt: skip
    if x.processors:
        args |= {"multiprocessors": len(x.processors), "waited_us": _us(x.start_s - x.arrived_s)}
    if x.bounded:
        args["bounded_by_neighbours"] = True
    at = (STREAMS, tracks.streams[x.stream, x.index])
    return _complete(x.kernel, "kernel", at, before_s + x.start_s, before_s + x.end_s, args)


def _wait_events(profile: ReplayRecord, tracks: Tracks, before_s: float) -> Iterator[Event]:
    """An arrow from the end of a launch to the start of each launch of another stream that waits for it."""
    number = 0
    for x in profile.launches:
        for source in (profile.launches[dep] for dep in x.deps):
            if source.stream == x.stream:
                continue
            number += 1
            common = {"name": "wait", "cat": "wait", "id": number, "pid": STREAMS}
            # An arrow begins inside of an event, and does not point back in time where the clock is coarse.
            leaves = max(source.start_s, min(source.end_s - TICK_S, x.start_s))
            yield {
                **common, "ph": "s", "tid": tracks.streams[source.stream, source.index],
                "ts": _us(before_s + min(leaves, x.start_s)),
            }  # fmt: skip
            yield {
                **common, "ph": "f", "bp": "e", "tid": tracks.streams[x.stream, x.index],
                "ts": _us(before_s + x.start_s),
            }  # fmt: skip


def _processor_events(profile: ReplayRecord, tracks: Tracks, before_s: float) -> Iterator[Event]:
    for x in profile.launches:
        for p in x.processors:
            args = {"launch": x.index, "blocks": p.blocks, "busy_us": _us(p.busy_s), "stream": x.stream}
            at = (PROCESSORS, tracks.processors[p.processor, x.index])
            yield _complete(x.kernel, "blocks", at, before_s + p.start_s, before_s + p.end_s, args)
