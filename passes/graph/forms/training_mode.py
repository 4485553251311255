"""Pass training-mode: dropout drops, and batch norms use and track the statistics of their batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value
from tilewright.ir.types import TensorType
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.values import replace_in_op

#: names of the state that random numbers depend on: a seed u32[2], and the number of the step u32[]
SEED, STEP = "random.seed", "step"
#: the module attribute that names the constants which training changes
_PARAMETERS = "parameters"
#: bits with which rates are followed that so many bits cannot tell from 0 or 1
_WIDEST = 32


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def training_mode(
    module: Module,
    ctx: PassContext,
    *,
    seed: int = 0,
    bits: int = 16,
    momentum: float = 0.1,
    statistics: str = "batch",
    groups: int = 1,
) -> Module:
    """Give @main the meaning it has in training, with what runs change as state (`updates`).

    rewrite: %y = graph.dropout(%x, rate = 0.5)
        -->  %bits = graph.random_bits(%seed, %step, stream = 0)
             %y = graph.where(graph.less(%bits, 32768), graph.multiply(%x, 2.0), 0.0)
    rewrite: %y = graph.dropout(graph.softmax(%s), rate = 0.5)
        -->  %kept = graph.random_mask(%seed, %step, kept = 32768, stream = 0)
             %y = graph.where(%kept, graph.multiply(graph.softmax(%s), 2.0), 0.0)
    rewrite: %y = graph.batch_norm(%x, gamma, beta, mean, var)
        -->  %y, %m, %v = graph.batch_norm_training(%x, gamma, beta)
             return ..., mean * 0.9 + %m * 0.1, var * 0.9 + %v * 0.1 * n / (n - 1)

    Dropout keeps an element where `bits` random bits (8, 16 or 32) are below the share that is kept, rounded
    to them, and multiplies it by one over the rounded share; a rate so near 0 or 1 that they cannot tell is
    followed with 32 bits. Each dropout is a stream of its own. The state is `random.seed` (u32[2], the 64
    bits of `seed`, low word first), which stays, and `step` (u32[]), which counts runs from 0.

    Batch norms standardise by mean and biased variance of the batch, and move their running statistics by
    `momentum` towards its mean and unbiased variance, as PyTorch does. The constants of statistics become
    state and are no `parameters`. statistics: `running` leaves batch norms as they are at inference. groups:
    so many equal parts of the batch are standardised each by moments of its own, of which the running
    statistics follow the mean: as so many replicas do that compute a part each (E. Hoffer, I. Hubara,
    D. Soudry, "Train longer, generalize better", 2017, call it ghost batch norm).
    """
    if bits not in (8, 16, 32):
        raise InputError(f"expected 8, 16 or 32 bits for dropout, got {bits}")
    if not 0.0 <= momentum <= 1.0:
        raise InputError(f"expected a momentum from 0 to 1, got {momentum}")
    if statistics not in ("batch", "running"):
        raise InputError(f"expected statistics 'batch' or 'running', got '{statistics}'")
    if groups < 1:
        raise InputError(f"expected 1 or more groups of samples for batch norms, got {groups}")
    kinds = {"graph.dropout"} | ({"graph.batch_norm"} if statistics == "batch" else set())
    if not any(op.name in kinds for op in module.main.body.ops):
        return module
    return _Training(module, seed, bits, momentum, kinds, groups).run()


def state_names(module: Module) -> tuple[str, ...]:
    """Names of the parameters of @main that are state, in their order."""
    positions = {p for p, _ in module.main.updates}
    return tuple(n for i, n in enumerate(module.input_names) if i in positions)


class _Training:
    """One walk over the ops of @main that writes its training form."""

    def __init__(
        self, module: Module, seed: int, bits: int, momentum: float, kinds: Iterable[str], groups: int
    ) -> None:
        self.groups = groups
        self.module, self.main = module, module.main
        self.seed, self.bits, self.momentum, self.kinds = seed, bits, momentum, frozenset(kinds)
        self.w = GraphWriter(module.constants)
        self.new: dict[Value, Value] = {}
        self.producers = {r: op for op in self.main.body.ops for r in op.results}
        self.state: dict[str, Value] = {}  # new parameters by name
        self.initial: dict[str, np.ndarray] = {}
        self.moved: dict[str, Tensor] = {}  # what they become
        drawn = [op for op in self.main.body.ops if op.get("stream") is not None]
        streams = [op.integer("stream") for op in drawn]
        self.stream = max(streams, default=-1) + 1

    def run(self) -> Module:
        statistics = self.statistics()
        for op in self.main.body.ops[:-1]:
            with self.w.at(op.loc):
                if op in statistics:
                    self.new[op.result] = self.added(str(op["name"]), op.result.tensor, None)
                elif op.name in self.kinds:
                    self.new[op.result] = self.rewritten(replace_in_op(op, self.new)).value
                else:
                    self.w.builder.append(replace_in_op(op, self.new))
        return self.module_of(replace_in_op(self.main.body.ops[-1], self.new).operands)

    def rewritten(self, op: Op) -> Tensor:
        return self.dropout(op) if op.name == "graph.dropout" else self.batch_norm(op)

    # -- state -----------------------------------------------------------------------------------------------
    def added(self, name: str, t: TensorType, initial: np.ndarray | None) -> Value:
        """The state of this name; a new parameter where there is none yet, with `initial` as its constant."""
        if name not in self.state:
            if name in self.module.input_names:
                position = self.module.input_names.index(name)
                if position in {p for p, _ in self.main.updates}:
                    return self.main.params[position]
                raise InputError(
                    f"expected no input called '{name}', which is the name of state of the training form",
                    where=f"@{self.module.name}",
                )
            self.state[name] = Value(t, name)
            if initial is not None:
                self.initial[name] = initial
        return self.state[name]

    def statistics(self) -> set[Op]:
        """The constants that running statistics are."""
        out = set()
        for op in self.main.body.ops:
            if op.name == "graph.batch_norm" and op.name in self.kinds:
                for v in op.operands[3:]:
                    source = self.producers.get(v)
                    if source is None or source.name != "graph.constant":
                        got = "an input" if source is None else f"the result of {source.name}"
                        raise InputError(
                            "expected running statistics of graph.batch_norm that are constants, which "
                            f"become state, got {got}",
                            where=op.loc or f"@{self.module.name}",
                        )
                    out.add(source)
        names = {str(op["name"]) for op in out}
        constants = (op for op in self.main.body.ops if op.name == "graph.constant")
        return {op for op in constants if str(op["name"]) in names}

    def module_of(self, results: Sequence[Value]) -> Module:
        """The module with the state behind its inputs, and what it becomes behind its results."""
        main, names = self.main, list(self.state)
        moved = [self.moved[n].value if n in self.moved else self.state[n] for n in names]
        if STEP in names:
            moved[names.index(STEP)] = (self.w.tensor(self.state[STEP]) + 1).value
        self.w.builder.emit("graph.return", [*results, *moved], types=())
        pairs = [(len(main.params) + k, len(results) + k) for k in range(len(names))]
        block = Block((*main.params, *self.state.values()), self.w.ops)
        types = tuple(v.type for v in (*results, *moved))
        func = Func(main.level, main.name, block, types, main.attrs)
        if pairs:
            func = func.with_attrs(updates=(*main.updates, *pairs))
        module = self.module.with_funcs(tuple(func if f is main else f for f in self.module.funcs))
        module = module.with_constants(self.w.constants.updated(self.initial))
        parameters = module.get(_PARAMETERS)
        if isinstance(parameters, tuple) and any(n in self.state for n in parameters):
            module = module.with_attrs(parameters=tuple(n for n in parameters if n not in self.state))
        return module

    # -- ops -------------------------------------------------------------------------------------------------
    def dropout(self, op: Op) -> Tensor:
        x, rate = self.w.tensor(op.operands[0]), float(op.number("rate"))
        if not 0.0 <= rate <= 1.0:
            raise InputError(f"expected a rate of dropout from 0 to 1, got {rate}", where=op.loc)
        if rate == 0.0:
            return x
        if rate == 1.0:
            return self.w.number(False, "bool").where(x, 0)  # of which zeros are the gradient
        bits, kept = kept_share(rate, self.bits)
        seed = [self.seed & 0xFFFFFFFF, self.seed >> 32 & 0xFFFFFFFF]
        state = [
            self.added(SEED, TensorType("u32", (2,)), np.array(seed, np.uint32)),
            self.added(STEP, TensorType("u32", ()), np.zeros((), np.uint32)),
        ]
        source = map(self.w.tensor, state)
        # Kernels of attention keep masks of its weights in words, which are drawn as words; behind a product
        # a thread has fewer neighbours than those of a word.
        if self.is_softmax(op.operands[0]):
            mask = self.w.op("random_mask", *source, shape=x.shape, kept=kept, bits=bits, stream=self.stream)
        else:
            mask = self.w.op("random_bits", *source, shape=x.shape, bits=bits, stream=self.stream) < kept
        self.stream += 1
        scale = self.w.number(1, x.dtype) / (kept / (1 << bits))
        return mask.where(x * scale, 0)

    def is_softmax(self, v: Value) -> bool:
        """Return whether a value is a softmax, in another type or order of dimensions or not."""
        op = self.producers.get(v)
        while op is not None and op.name in ("graph.cast", "graph.transpose"):
            op = self.producers.get(op.operands[0])
        return op is not None and op.name == "graph.softmax"

    def batch_norm(self, op: Op) -> Tensor:
        x, gamma, beta, *running = map(self.w.tensor, op.operands)
        y, *moments = self.standardised(op, x, gamma, beta)
        count = prod(x.shape) // max(1, moments[0].size * self.groups)
        if count < 2:
            raise InputError(
                f"expected more than one value per channel for the statistics of a batch, got {x.type}",
                where=op.loc,
            )
        mean, variance = moments
        unbiased = variance * (self.w.number(count, variance.dtype) / (count - 1))
        for name, moment in zip(self.names_of(running), (mean, unbiased), strict=True):
            old = self.moved.get(name, self.w.tensor(self.state[name]))
            momentum = self.w.number(self.momentum, moment.dtype)
            self.moved[name] = (old.cast(moment.dtype) * (1 - momentum) + moment * momentum).cast(old.dtype)
        return y

    def standardised(self, op: Op, x: Tensor, gamma: Tensor, beta: Tensor) -> list[Tensor]:
        """The standardised batch, mean and variance; of groups of samples, as channels of their own."""
        attrs, groups = op.attributes, self.groups
        if groups == 1:
            return list(self.w.ops_of("batch_norm_training", (x, gamma, beta), **attrs))
        axis = op.integer("axis") % x.rank
        samples, channels = x.shape[0], x.shape[axis]
        if axis == 0 or samples % groups:
            raise InputError(
                f"expected a batch of {groups} equal groups for batch norms, got {x.type}", where=op.loc
            )
        apart = x.reshape(groups, samples // groups, *x.shape[1:])
        # [groups, samples, before, channels, behind] as [samples, before, groups, channels, behind]
        order = (*range(1, axis + 1), 0, *range(axis + 1, x.rank + 1))
        beside = apart.transpose(*order)
        shape = (samples // groups, *x.shape[1:axis], groups * channels, *x.shape[axis + 1 :])
        scales = [
            v.reshape(1, channels).broadcast_to(groups, channels).reshape(groups * channels)
            for v in (gamma, beta)
        ]
        y, *moments = self.w.ops_of("batch_norm_training", (beside.reshape(*shape), *scales), **attrs)
        back = y.reshape(*beside.shape).transpose(*(order.index(d) for d in range(x.rank + 1)))
        return [back.reshape(*x.shape), *(m.reshape(groups, channels).mean(0) for m in moments)]

    def names_of(self, running: Sequence[Tensor]) -> list[str]:
        names = {v: n for n, v in self.state.items()}
        return [names[t.value] for t in running]


def kept_share(rate: float, bits: int) -> tuple[int, int]:
    """(bits, kept): an element is kept where so many random bits are below `kept`.

    The share is that of `rate` rounded to `bits`, or to 32 where those would keep all or none.
    """
    for width in (bits, _WIDEST):
        kept = round((1.0 - rate) * (1 << width))
        if 0 < kept < 1 << width:
            return width, kept
    return _WIDEST, min(max(round((1.0 - rate) * 2.0**_WIDEST), 1), (1 << _WIDEST) - 1)
