"""The loop of training: steps, measures of held-out examples, checkpoints; what happened comes as records."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.ir import Module, WorkError, interpret
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.nodes import Block, Func, Level, Value
from tilewright.ir.types import TensorType, dtype_name
from tilewright.training import losses
from tilewright.training.data import Data, Source
from tilewright.training.losses import Target

#: losses are waited for after so many steps: the device works ahead in between
WAIT_EVERY = 16


class Steps(Protocol):
    """The part of a compiled training step that the loop needs."""

    @property
    def state(self) -> MutableMapping[str, Any] | Mapping[str, Any]: ...

    def step(self, *inputs: object) -> Any: ...

    def save_state(self, path: str | Path) -> None: ...

    def load_state(self, path: str | Path) -> None: ...


#: a compiled network over the same weights: its results for inputs
Network = Callable[..., Sequence[np.ndarray]]


@dataclass(frozen=True)
class Record:
    """The figures that stood when `step` steps were done.

    loss: the mean of the training losses since the record before. held_out: means over all held-out examples
    by name. seconds: since the loop began; those of steps alone in step_seconds.
    """

    step: int
    epoch: float
    loss: float
    held_out: Mapping[str, float]
    seconds: float
    step_seconds: float


@dataclass(frozen=True)
class Interface:
    """The inputs of a step: those of its network, and the targets that its loss compares predictions with."""

    inputs: Mapping[str, TensorType]
    targets: Mapping[str, Target]


def interface_of(step: Module) -> Interface:
    """The inputs and targets of a training step, with the ranges of integers that its loss knows."""
    state = set(step.state_names)
    types = {p.hint: p.tensor for p in step.main.params if p.hint not in state}
    network = step.inference().input_names
    rows: Any = step.get("ranges", ())
    ranges = {name: tuple(range_) for name, *range_ in rows}
    targets = {n: Target(t, *ranges.get(n, ())) for n, t in types.items() if n not in network}
    return Interface({n: types[n] for n in network}, targets)


class Measures:
    """Means over examples of losses and metrics, which are graph code, by reference semantics."""

    def __init__(self, functions: Mapping[str, Callable[..., Tensor]]) -> None:
        self._functions = dict(functions)
        self._modules: dict[tuple[TensorType, ...], Module] = {}

    def of(self, network: Network, source: Source, batch: int, inputs: int) -> dict[str, float]:
        """The means over all examples of `source`; the first `inputs` arrays of a batch are the network's."""
        sums = dict.fromkeys(self._functions, 0.0)
        total = 0
        for arrays, count in source.in_order(batch):
            results = network(*arrays[:inputs])
            values = self.values([a[:count] for a in (*results, *arrays[inputs:])])
            sums = {n: sums[n] + count * v for n, v in values.items()}
            total += count
        return {n: s / total for n, s in sums.items()}

    def values(self, arrays: Sequence[np.ndarray]) -> dict[str, float]:
        """The values for predictions and targets of one batch."""
        types = tuple(TensorType(dtype_name(a.dtype), a.shape) for a in arrays)
        if types not in self._modules:
            self._modules[types] = self._module(types)
        results = interpret(self._modules[types], *arrays)
        return {n: float(r) for n, r in zip(self._functions, results, strict=True)}

    def _module(self, types: Sequence[TensorType]) -> Module:
        params = tuple(Value(t, f"x{i}") for i, t in enumerate(types))
        w = GraphWriter()
        values = [f(*map(w.tensor, params)).value for f in self._functions.values()]
        w.builder.emit("graph.return", values, types=())
        func = Func(Level.GRAPH, "main", Block(params, w.ops), tuple(v.type for v in values))
        return Module("measures", (func,), (), w.constants)


def measures_of(loss: str, data: Data) -> Measures:
    """What is measured of held-out examples: the loss of this name, and the share of right labels."""
    functions: dict[str, Callable[..., Tensor]] = {"loss": losses.NAMED[loss]()}
    if loss == "cross_entropy":
        functions["accuracy"] = losses.accuracy()
        if data.symbols:
            cross_entropy = losses.cross_entropy()
            functions["bits_per_character"] = lambda *tensors: cross_entropy(*tensors) * (1 / math.log(2))
    return Measures(functions)


@dataclass
class Loop:
    """Training of one compiled step. Every step's batch follows from `seed` and the number of the step.

    runs: how often a call of the compiled step runs the step, for one update: a batch is as many times the
    step's own, and `step` of the state counts so many runs.
    """

    steps: Steps
    network: Network
    data: Data
    interface: Interface
    measures: Measures
    seed: int = 0
    losses: list[float] = field(default_factory=list)
    runs: int = 1

    @property
    def batch(self) -> int:
        """Examples of a step."""
        return self.runs * next(iter(self.interface.inputs.values())).shape[0]

    @property
    def done(self) -> int:
        """Steps so far, those before a resumption included."""
        return int(self.steps.state["step"]) // self.runs

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch."""
        return self.data.training.count // self.batch

    def run(
        self,
        steps: int,
        *,
        eval_every: int = 0,
        checkpoint: str | Path | None = None,
        stop: Callable[[], bool] = lambda: False,
        progress: Callable[[int, float], None] = lambda step, loss: None,
    ) -> Iterator[Record]:
        """Train until `steps` steps are done in all; a record after each `eval_every`, and at the end.

        checkpoint: a file that the state is written to with each record, replaced at once. stop: asked after
        every step; where it says so, the loop ends as if all steps were done. progress: is told now and then
        of the steps done and of the last loss. Raises WorkError where the loss is no longer finite; the
        checkpoint then stays as it was.
        """
        begin = time.perf_counter()
        stepping, pending, recent = 0.0, list[Any](), list[float]()
        done = self.done
        while done < steps:
            start = time.perf_counter()
            results = self.steps.step(*self.data.training.batch(done, self.batch, self.seed))
            pending.append(results[0] if isinstance(results, tuple) else results)
            done += 1
            ends = done == steps or stop()
            due = ends or (eval_every > 0 and done % eval_every == 0)
            if due or len(pending) >= WAIT_EVERY:
                recent += [float(x) for x in pending]
                pending.clear()
                self._check(recent, done)
                progress(done, recent[-1])
            stepping += time.perf_counter() - start
            if due:
                held_out = self.measures.of(
                    self.network, self.data.held_out, self.batch, len(self.interface.inputs)
                )
                if checkpoint is not None:
                    self.steps.save_state(checkpoint)
                self.losses += recent
                mean, seconds = float(np.mean(recent)), time.perf_counter() - begin
                yield Record(done, done / self.epoch_steps, mean, held_out, seconds, stepping)
                recent = []
            if ends:
                return

    def _check(self, recent: Sequence[float], done: int) -> None:
        bad = [i for i, loss in enumerate(recent) if not math.isfinite(loss)]
        if bad:
            step = done - len(recent) + bad[0] + 1
            raise WorkError(
                f"the loss is {recent[bad[0]]} in step {step}; a smaller rate (--lr) or a bound on gradients "
                "(--clip-norm) may help"
            )

    def resume(self, checkpoint: str | Path) -> int:
        """Take the state from a checkpoint, and give the steps done so far.

        Raises InputError, and leaves the state as it is, where the file is damaged, belongs to another
        network or optimizer, or was made with another seed.
        """
        name = "random.seed"
        before = {n: np.asarray(a).copy() for n, a in self.steps.state.items()}
        self.steps.load_state(checkpoint)
        state: Any = self.steps.state
        if name in before and not np.array_equal(state[name], before[name]):
            for n, a in before.items():
                state[n] = a
            raise InputError("expected the seed that the checkpoint was made with", where=str(checkpoint))
        return self.done
