"""One stage of a pipeline as a function: what it receives, computes and sends, one micro-batch after another.

All stages go through the messages in one order (micro-batch, then the op that makes the value, then the
receiver; outputs last), so that stages never wait for each other in a circle, even where a send waits for
its receiver.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tilewright.ir.builder import Builder
from tilewright.ir.nodes import Func, Op, Value
from tilewright.passes.graph.distribute.pipeline.micro_batches import MicroBatch
from tilewright.passes.graph.distribute.sharding.shards import Shard
from tilewright.passes.rewriting.values import replace_in_op


@dataclass(frozen=True, slots=True)
class _Message:
    value: Value
    source: int
    to: int
    tag: int


@dataclass
class _Post:
    """Numbers the messages between each two stages."""

    sent: Counter[tuple[int, int]] = field(default_factory=Counter)

    def message(self, value: Value, source: int, to: int) -> _Message:
        tag = self.sent[source, to]
        self.sent[source, to] += 1
        return _Message(value, source, to, tag)


class StageBuilder:
    """Builds @main of one stage. stage_of[p]: the stage that does work[p]; stages: how many there are."""

    def __init__(
        self, batches: Sequence[MicroBatch], stage_of: Sequence[int], stages: int, stage: int
    ) -> None:
        self.batches, self.stage_of, self.stages, self.stage = batches, stage_of, stages, stage
        self.b = Builder()
        self.post = _Post()
        self.mine: dict[Value, Value] = {}  # received values
        self.done: set[Op] = set()
        self.told: set[Value] = set()  # values whose messages are out
        self.free = {r: op for batch in batches for op in batch.free for r in op.results}
        self.makers = {
            r: stage_of[p] for batch in batches for p, op in enumerate(batch.work) for r in op.results
        }

    def build(self, main: Func) -> Func:
        """The function of this stage, with the signature of `main`; all stages return all outputs."""
        for batch in self.batches:
            self.run(batch)
        end = main.body.ops[-1]
        self.b.loc = end.loc
        outputs = tuple(self.output(k) for k in range(len(end.operands)))
        self.b.append(end.with_operands(outputs))
        return main.with_body(main.body.with_ops(tuple(self.b.ops)))

    def run(self, batch: MicroBatch) -> None:
        """Receive, compute and send one micro-batch."""
        messages = self.messages(batch)
        for m in messages:
            if m.to == self.stage:
                self.receive(m)
        outgoing: dict[Value, list[_Message]] = {}
        for m in messages:
            if m.source == self.stage:
                outgoing.setdefault(m.value, []).append(m)
        for p, op in enumerate(batch.work):
            if self.stage_of[p] == self.stage and op not in self.done:
                self.do(op)
                for r in op.results:
                    for m in outgoing.get(r, ()):
                        self.send(m, r)

    def messages(self, batch: MicroBatch) -> list[_Message]:
        """Messages between stages for a micro-batch, in order: each value once to every stage using it."""
        users: dict[Value, set[int]] = {}
        for p, op in enumerate(batch.work):
            for v in op.operands:
                users.setdefault(v, set()).add(self.stage_of[p])
        out = []
        for p, op in enumerate(batch.work):
            for r in op.results:
                if r not in self.told:
                    here = self.stage_of[p]
                    out += [self.post.message(r, here, to) for to in sorted(users.get(r, ())) if to != here]
                    self.told.add(r)
        return out

    def receive(self, m: _Message) -> None:
        t = m.value.tensor
        self.mine[m.value] = self.b.value(
            "graph.recv", source=m.source, tag=m.tag, dtype=t.dtype, shape=t.shape, hint=m.value.hint
        )

    def send(self, m: _Message, value: Value) -> None:
        self.b.do("graph.send", value, to=m.to, tag=m.tag)

    def do(self, op: Op) -> None:
        """Append an op, after what it needs of the ops every stage does for itself."""
        for v in op.operands:
            self.provide(v)
        self.done.add(op)
        self.b.loc = op.loc
        self.b.append(replace_in_op(op, self.mine))

    def provide(self, value: Value) -> None:
        op = self.free.get(value)
        if op is not None and op not in self.done:
            self.do(op)

    def output(self, k: int) -> Value:
        """Output k in full: joined where its micro-batches were made, sent from there to all other stages."""
        pieces = [batch.outputs[k] for batch in self.batches]
        value, shard = pieces[0]
        source = self.makers.get(value)
        if source is None or source == self.stage:
            for v, _ in pieces:
                self.provide(v)
            whole = value if shard is None else self.joined([v for v, _ in pieces], shard)
            if source is not None:
                for to in range(self.stages):
                    if to != source:
                        self.send(self.post.message(whole, source, to), whole)
            return whole
        shape = value.tensor.shape
        if shard is not None:
            shape = (*shape[: shard.axis], shard.outer * shard.block, *shape[shard.axis + 1 :])
        for to in range(self.stages):
            m = self.post.message(value, source, to) if to != source else None
            if m is not None and to == self.stage:
                got = self.b.value(
                    "graph.recv", source=source, tag=m.tag, dtype=value.tensor.dtype, shape=shape
                )
        return got

    def joined(self, pieces: Sequence[Value], shard: Shard) -> Value:
        """The whole value from all micro-batches' pieces of it."""
        shape, d = pieces[0].tensor.shape, shard.axis
        blocks = list(pieces)
        if shard.outer > 1:
            blocks = [
                self.b.value("graph.reshape", v, newshape=(*shape[:d], shard.outer, n, *shape[d + 1 :]))
                for v, n in zip(pieces, shard.extents, strict=True)
            ]
        whole = self.b.value("graph.concatenate", *blocks, axis=d + (shard.outer > 1))
        if shard.outer == 1:
            return whole
        newshape = (*shape[:d], shard.outer * shard.block, *shape[d + 1 :])
        return self.b.value("graph.reshape", whole, newshape=newshape)
