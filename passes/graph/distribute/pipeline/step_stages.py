"""One stage of a training step that several ranks run as a pipeline, several runs of the step in one module.

Every rank holds the layers between two cuts of the forward pass: their state, their backward pass and their
updates (`step_places`). A task is what one run of the step does at one place. All ranks go through the tasks
in orders of their own, and through the messages between them in one order, that of the tasks which make what
is sent; so they never wait for each other in a circle, even where a send waits for its receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tilewright.costmodel.op_work import Rates
from tilewright.ir.builder import Builder
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.modules.constant_pool import ConstantPool
from tilewright.ir.modules.divisions import Division, divisions_of, with_divisions
from tilewright.ir.nodes import Block, Func, Module, Op, Value
from tilewright.ir.types import FLOATS, TensorType
from tilewright.passes.analysis.backward_pass import LOSS, RECOMPUTED
from tilewright.passes.graph.distribute.pipeline.cuts import StageLimits, best_cuts, checked_cuts
from tilewright.passes.graph.distribute.pipeline.micro_batches import MicroBatch, row_of
from tilewright.passes.graph.distribute.pipeline.step_places import (
    StepFlow,
    StepPlaces,
    layers_of_cuts,
    place_step,
)
from tilewright.passes.graph.distribute.sharding.options import number_list
from tilewright.passes.graph.distribute.sharding.program import with_main
from tilewright.passes.rewriting.decided import decided
from tilewright.passes.rewriting.run_conditions import decided_conditions

Order = Literal["1f1b", "gpipe"]


@dataclass(frozen=True)
class Key:
    """A value of run number `run`; of state that no run has changed yet, run is -1."""

    run: int
    value: Value


@dataclass(frozen=True)
class Task:
    """What one run does at one place."""

    place: int
    run: int


class StepRuns:
    """The runs of a step as one program whose values are keys, with a stage for each task."""

    def __init__(self, module: Module, runs: int, starts: Sequence[int]) -> None:
        self.module, self.count, self.stages = module, runs, len(starts) + 1
        host = _host_names(module.main)
        whole = StepFlow(module.main, host)
        layer_of = layers_of_cuts(whole, starts)
        owners = whole.owners(layer_of)
        by_result = {op.results[0]: layer for op, layer in layer_of.items()}
        self.flows: list[StepFlow] = []
        self.places: list[StepPlaces] = []
        for run in range(runs):
            main = decided(module.main, decided_conditions(module, runs, run))
            flow = StepFlow(main, host)
            layers = {op: by_result[op.results[0]] for op in flow.forward}
            self.flows.append(flow)
            self.places.append(place_step(flow, layers, owners))
        updated = [module.main.params[i] for i, _ in module.main.updates]
        self.states = tuple(updated)
        self._given = set(self.states)
        self.inputs = tuple(p for p in module.main.params if p not in self._given)
        held = divisions_of(module)
        self.host = frozenset(p for p in updated if p.hint in host and p.hint not in held)
        self._new = [_new_values(flow.main) for flow in self.flows]
        self._made = [{r: op for op in flow.main.body.ops for r in op.results} for flow in self.flows]

    @cached_property
    def local(self) -> list[dict[Value, bool]]:
        """Per run: whether a result is computed wherever it is needed (of constants, state, counters)."""
        out = []
        for flow in self.flows:
            moving = set(self.inputs)
            for op in flow.main.body.ops[:-1]:
                if op.results and op.results[0] not in flow.fixed and any(v in moving for v in op.operands):
                    moving.update(op.results)
            out.append({r: r not in moving for op in flow.main.body.ops[:-1] for r in op.results})
        return out

    def key(self, run: int, value: Value) -> Key:
        """The key of what `run` reads as `value`: state is what the run before it left."""
        if value in self._given and run >= 0:
            return self.left(run - 1, value)
        return Key(run, value)

    def left(self, run: int, state: Value) -> Key:
        """What state is when `run` has ended."""
        if run < 0:
            return Key(-1, state)
        new = self._new[run][state]
        return self.left(run - 1, state) if new is state else self.key(run, new)

    def is_state(self, key: Key) -> bool:
        """Whether a key is state as the whole step begins with it."""
        return key.run < 0

    def op_of(self, key: Key) -> Op | None:
        """The op that makes a value; None for state and inputs."""
        return None if key.run < 0 else self._made[key.run].get(key.value)

    def is_local(self, key: Key) -> bool:
        """Whether every stage computes the value for itself."""
        return key.run >= 0 and self.local[key.run].get(key.value, False)

    def task(self, key: Key) -> Task | None:
        """The task that makes a value; None where no task does."""
        op = self.op_of(key)
        if op is None or self.is_local(key):
            return None
        return Task(self.places[key.run].of[op], key.run)

    def stage(self, task: Task) -> int:
        """The rank that does a task."""
        return self.places[task.run].layer(task.place)

    @cached_property
    def owner(self) -> dict[Value, int]:
        """The rank that keeps state, for state that not all keep: where it changes, or is first read."""
        out: dict[Value, int] = {}
        last, held = self.flows[-1], divisions_of(self.module)
        for s in self.states:
            if s.hint in held:
                out[s] = held[s.hint].owner
                continue
            if s in self.host:
                continue
            places = self.places[-1]
            if s in places.written:
                out[s] = places.layer(places.written[s])
                continue
            reading = [places.of[op] for op in last.ops if s in last.states_of(op.operands)]
            out[s] = places.layer(min(reading)) if reading else 0
        return out

    def home(self, key: Key) -> int | None:
        """The rank where a value is; None where every rank has, or makes, it."""
        if self.is_state(key):
            return self.owner.get(key.value)
        task = self.task(key)
        return None if task is None else self.stage(task)

    def roots(self, key: Key) -> Iterator[Key]:
        """The values of single ranks that a value is, or is made of on the spot."""
        if self.home(key) is not None:
            yield key
        elif self.is_local(key):
            op = self.op_of(key)
            assert op is not None
            for v in op.operands:
                yield from self.roots(self.key(key.run, v))

    def ops(self, task: Task) -> list[Op]:
        """The ops of a task, in program order."""
        return self._ops[task]

    @cached_property
    def _ops(self) -> dict[Task, list[Op]]:
        found: dict[Task, list[Op]] = {}
        for run, flow in enumerate(self.flows):
            for op in flow.ops:
                if not (op.results and self.local[run].get(op.results[0], False)):
                    found.setdefault(Task(self.places[run].of[op], run), []).append(op)
        return found

    @property
    def tasks(self) -> list[Task]:
        """All tasks that have ops."""
        return list(self._ops)

    @cached_property
    def needs(self) -> dict[Task, list[Key]]:
        """The values of single ranks that each task reads, but for those that it makes."""
        out: dict[Task, dict[Key, None]] = {task: {} for task in self.tasks}
        for task, found in out.items():
            for op in self.ops(task):
                for v in op.operands:
                    found |= dict.fromkeys(self.roots(self.key(task.run, v)))
        return {task: [k for k in found if self.task(k) != task] for task, found in out.items()}


def task_order(runs: StepRuns, order: Order) -> list[Task]:
    """All tasks in one order that each rank's own order is a part of: by the time at which they can run.

    gpipe: all forward passes of a rank, then all backward passes. 1f1b: as few forward passes ahead as keep
    the stages behind busy, then backward and forward passes in turn (Narayanan et al. 2019).
    """
    stages = runs.stages
    queues: list[list[Task]] = []
    for rank in range(stages):
        own = [t for t in runs.tasks if runs.stage(t) == rank]
        forward = sorted((t for t in own if t.place < stages), key=lambda t: (t.run, t.place))
        backward = sorted(
            (t for t in own if stages <= t.place <= 2 * stages - 2), key=lambda t: (t.run, t.place)
        )
        behind = sorted((t for t in own if t.place > 2 * stages - 2), key=lambda t: (t.run, t.place))
        if order == "1f1b":
            ahead = min(stages - 1 - rank, len(forward))
            queue, rest = forward[:ahead], forward[ahead:]
            for task in backward:
                queue += [*rest[:1], task]
                rest = rest[1:]
            queues.append([*queue, *rest, *behind])
        else:
            queues.append([*forward, *backward, *behind])
    done: set[Task] = set()
    out: list[Task] = []
    while any(queues):
        ready = [
            (rank, queue[0])
            for rank, queue in enumerate(queues)
            if queue and all((made := runs.task(key)) is None or made in done for key in runs.needs[queue[0]])
        ]
        if not ready:
            raise UnsupportedError(
                f"expected stages that can work in the order {order}, each waits for another",
                where=runs.module.name,
            )
        for rank, task in ready:
            queues[rank].pop(0)
            out.append(task)
        done.update(task for _, task in ready)
    return out


class StageModule:
    """Builds @main of one rank; see the module."""

    def __init__(self, runs: StepRuns, order: Order, rank: int) -> None:
        self.runs, self.rank = runs, rank
        self.order = task_order(runs, order)
        self.b = Builder("")
        self.here: dict[Key, Value] = {}
        self.tags: dict[tuple[int, int], int] = {}
        count = runs.count
        self.inputs = {p: Value(_wide(p.tensor, count), p.hint) for p in runs.inputs}
        self.kept = [s for s in runs.states if runs.owner.get(s, rank) == rank]
        self.params = {s: Value(s.type, s.hint) for s in self.kept}
        self.here.update((Key(-1, s), v) for s, v in self.params.items())

    def build(self) -> Func:
        """The function: inputs for all runs, the state of this rank; all results, and the new state."""
        runs, rank = self.runs, self.rank
        receivers = self.receivers()
        for key in [k for k in receivers if runs.is_state(k)]:
            self.hand_over(key, receivers[key])
        for task in self.order:
            if runs.stage(task) == rank:
                for op in runs.ops(task):
                    self.copy(op, task.run)
            for op in runs.ops(task):
                for r in op.results:
                    if (key := Key(task.run, r)) in receivers:
                        self.hand_over(key, receivers[key])
        results = [self.result(k) for k in range(len(runs.flows[0].returned))]
        new = [self.value(runs.left(runs.count - 1, s)) for s in self.kept]
        main = runs.module.main
        self.b.emit("graph.return", (*results, *new), types=())
        params = (*self.inputs.values(), *self.params.values())
        first = len(self.inputs)
        pairs = tuple((first + i, len(results) + i) for i in range(len(new)))
        attrs = tuple((k, a) for k, a in main.attrs if k not in ("updates", LOSS, RECOMPUTED))
        types = tuple(v.type for v in (*results, *new))
        return Func(main.level, "main", Block(params, tuple(self.b.ops)), types, attrs).with_attrs(
            updates=pairs
        )

    def receivers(self) -> dict[Key, list[int]]:
        """The ranks that need each value of another rank."""
        runs = self.runs
        found: dict[Key, set[int]] = {}

        def need(key: Key, rank: int) -> None:
            for root in runs.roots(key):
                if runs.home(root) != rank:
                    found.setdefault(root, set()).add(rank)

        for task in runs.tasks:
            for key in runs.needs[task]:
                need(key, runs.stage(task))
        for s in runs.states:
            for rank in [runs.owner[s]] if s in runs.owner else range(runs.stages):
                need(runs.left(runs.count - 1, s), rank)
        for k in range(len(runs.flows[0].returned)):
            for run, flow in enumerate(runs.flows):
                for rank in range(runs.stages):
                    need(runs.key(run, flow.returned[k]), rank)
        return {key: sorted(ranks) for key, ranks in found.items()}

    def hand_over(self, key: Key, ranks: Sequence[int]) -> None:
        """Send a value of one rank to the others that need it, where this rank is one of them."""
        source = self.runs.home(key)
        assert source is not None
        for to in ranks:
            tag = self.tags.get((source, to), 0)
            self.tags[source, to] = tag + 1
            if source == self.rank:
                self.b.do("graph.send", self.value(key), to=to, tag=tag)
            elif to == self.rank:
                t = key.value.tensor
                self.here[key] = self.b.value(
                    "graph.recv", source=source, tag=tag, dtype=t.dtype, shape=t.shape, hint=key.value.hint
                )

    def value(self, key: Key) -> Value:
        """A value on this rank, computed here where every rank does that for itself."""
        if key not in self.here:
            if key.value in self.inputs:
                self.here[key] = self.piece(key)
            else:
                op = self.runs.op_of(key)
                assert op is not None
                assert self.runs.is_local(key), "values of other ranks have come"
                self.copy(op, key.run)
        return self.here[key]

    def piece(self, key: Key) -> Value:
        """The part of an input that belongs to a run."""
        whole, t = self.inputs[key.value], key.value.tensor
        if whole.type == key.value.type:
            return whole
        begin = (key.run * t.shape[0], *(0,) * (t.rank - 1))
        return self.b.value("graph.strided_slice", whole, begin=begin, size=t.shape, strides=(1,) * t.rank)

    def copy(self, op: Op, run: int) -> None:
        operands = tuple(self.value(self.runs.key(run, v)) for v in op.operands)
        results = tuple(Value(r.type, r.hint) for r in op.results)
        self.b.append(replace(op, operands=operands, results=results))
        self.here.update((Key(run, r), v) for r, v in zip(op.results, results, strict=True))

    def result(self, k: int) -> Value:
        """Result k of all runs: the mean of numbers, other results one after the other."""
        pieces = [
            self.value(self.runs.key(run, flow.returned[k])) for run, flow in enumerate(self.runs.flows)
        ]
        if len(pieces) == 1:
            return pieces[0]
        t = pieces[0].tensor
        if t.shape:
            return self.b.value("graph.concatenate", *pieces, axis=0)
        rows = [self.b.value("graph.reshape", v, newshape=(1,)) for v in pieces]
        joined = self.b.value("graph.concatenate", *rows, axis=0)
        if t.dtype not in FLOATS:
            return joined
        return self.b.value("graph.mean", joined, axis=(0,), keepdims=False)


def divisions_of_stages(runs: StepRuns) -> list[Division]:
    """What each rank holds of the state: all of it on the rank that owns it."""
    return [
        Division(
            s.hint,
            "owner",
            tuple(s.tensor.shape),
            0,
            1,
            tuple((0, 1) if rank == owner else (0, 0) for rank in range(runs.stages)),
        )
        for s, owner in runs.owner.items()
    ]


def _starts_of_owners(flow: StepFlow, held: Mapping[str, Division], stages: int) -> list[int]:
    """Where the stages begin whose ranks have the state that their ops read."""
    reached, starts = 0, [len(flow.forward)] * (stages - 1)
    for i, op in enumerate(flow.forward):
        owners = [held[s.hint].owner for s in flow.states_of(op.operands) if s.hint in held]
        for stage in range(reached, min([*owners, stages - 1]) if owners else reached):
            starts[stage] = i
        reached = max(reached, min(owners, default=reached))
    return starts


def _apart(starts: Sequence[int], count: int) -> list[int]:
    """Starts of stages of which none is empty, as near to `starts` as one after the other can be."""
    out: list[int] = []
    for i, start in enumerate(starts):
        least = out[-1] + 1 if out else 1
        out.append(min(max(start, least), count - (len(starts) - i)))
    return out


def _wide(t: TensorType, count: int) -> TensorType:
    return t if count == 1 or not t.shape else TensorType(t.dtype, (count * t.shape[0], *t.shape[1:]))


def _new_values(main: Func) -> dict[Value, Value]:
    """What every state becomes in a run."""
    results = main.body.ops[-1].operands
    return {main.params[i]: results[j] for i, j in main.updates}


def _host_names(main: Func) -> frozenset[str]:
    """Small state whose new values are made of such state and constants alone: every rank computes it."""
    new = _new_values(main)
    host = {s for s in new if s.tensor.nbytes <= HOST_BYTES}
    while True:
        known: set[Value] = set(host)
        for op in main.body.ops[:-1]:
            if all(v in known for v in op.operands):
                known.update(op.results)
        kept = {s for s in host if new[s] in known}
        if kept == host:
            return frozenset(s.hint for s in host)
        host = kept


#: bytes of state that every rank may keep
HOST_BYTES = 64


def split_step(
    module: Module,
    devices: int,
    rank: int,
    runs: int,
    cuts: str,
    costs: str,
    order: Order,
    rates: Rates,
    limits: StageLimits,
) -> Module:
    """The module of one rank of a training step; see the pass split-pipeline."""
    flow = StepFlow(module.main, _host_names(module.main))
    if len(flow.forward) < devices:
        raise InputError(
            f"expected a step of {devices} ops or more before its loss, got {len(flow.forward)}",
            where=f"@{module.name}",
        )
    row = row_of(MicroBatch(flow.forward, (), ()), module.main, costs, rates)
    held = divisions_of(module)
    starts: Sequence[int]
    if held:  # the network of a step that is divided: its weights stay where they are
        starts = _apart(_starts_of_owners(flow, held, devices), len(row.costs))
    elif cuts.strip():
        starts = checked_cuts(number_list(cuts, "cuts"), devices, len(row.costs))
    else:
        starts = _apart(best_cuts(row, limits), len(row.costs))
    pool = ConstantPool(module.constants)
    program = StepRuns(module, runs, starts)
    main = StageModule(program, order, rank).build()
    kept = {p.hint for p in main.params}
    out = with_main(module, main, pool)
    first = {n: module.constants[n] for n in module.state_names if n in kept}
    out = out.with_constants(out.constants.updated(first))
    return with_divisions(out, divisions_of_stages(program))
