"""`train_step`: a network, a loss and an optimizer as one module with state, which a run of it moves on."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, Literal

import numpy as np

from tilewright.ir import Level, Module
from tilewright.ir.errors import InputError, expect
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.nodes import INFERENCE, Attr, Block, Func, Op, Value
from tilewright.ir.types import FLOATS, ArrayType, TensorType, array_type, dtype_name
from tilewright.passes import PassContext, run_pipeline
from tilewright.passes.analysis.backward_pass import LOSS, OPTIMIZER
from tilewright.passes.analysis.memory_headroom import MEMORY_BUDGET
from tilewright.passes.framework.pipeline import Pipeline
from tilewright.passes.graph.forms.promote_parameters import matching_constants, promoted
from tilewright.passes.graph.gradients.differentiate import backward
from tilewright.passes.graph.precision.fix_loss_scale import AUTO, GOOD, SCALE
from tilewright.passes.graph.recompute.choose_saved import CHECKPOINT
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import did_you_mean
from tilewright.running.step_rules import ON_NAN, RANGES, RATE, REFUSED
from tilewright.streaming.memory_size import memory_bytes
from tilewright.training import losses, optim
from tilewright.training.losses import Loss, Target, wide
from tilewright.training.sparse_rows import RowGradient, reads_of_rows, row_gradient

LossFunction = Callable[..., Tensor]
#: the gradient by a parameter: of its type, or of the rows of a sparse one
Gradient = Tensor | RowGradient
#: the dynamic loss scale of PyTorch: first value, growth after so many good updates, and both factors
FIRST_SCALE, GROWTH_INTERVAL, GROWTH, BACKOFF = 65536.0, 2000, 2.0, 0.5
#: names of scalars among the state
STEP, UPDATES = "step", "updates"
#: names of the state that random numbers depend on come behind the weights
_SCALARS = ("random.seed", STEP)
#: what is added to a norm before the bound is divided by it, as PyTorch has it
_NORM_EPSILON = 1e-6


@dataclass(frozen=True)
class StepOptions:
    """The options of `train_step` beside network, loss and optimizer; see there."""

    trainable: Sequence[str] | None = None
    targets: Mapping[str, Any] | None = None
    metrics: Sequence[LossFunction] = ()
    clip_norm: float | None = None
    loss_scale: Literal["auto", "dynamic"] | float | None = "auto"
    accumulate: int = 1
    on_nan: Literal["ignore", "skip", "raise"] = "ignore"
    unused: Literal["error", "keep"] = "error"
    checkpoint: str = "auto"
    memory_budget: int | str | None = None
    seed: int = 0
    sparse: Sequence[str] = ()
    batch_norm_groups: int = 1

    def check(self) -> None:
        """Raise InputError for values that make no sense."""
        if self.clip_norm is not None and not (_is_number(self.clip_norm) and self.clip_norm > 0):
            raise InputError(f"expected a positive clip_norm, got {self.clip_norm!r}")
        scale = self.loss_scale
        if scale not in ("auto", "dynamic", None) and not (_is_number(scale) and float(scale) > 0):
            raise InputError(f"expected loss_scale auto, dynamic, None or a positive number, got {scale!r}")
        if type(self.accumulate) is not int or self.accumulate < 1:
            raise InputError(f"expected to accumulate 1 or more batches, got {self.accumulate!r}")
        if self.on_nan not in ("ignore", "skip", "raise"):
            raise InputError(f"expected on_nan ignore, skip or raise, got {self.on_nan!r}")
        if self.checkpoint not in ("auto", "none", "blocks"):
            raise InputError(f"expected checkpoint auto, none or blocks, got {self.checkpoint!r}")
        if self.memory_budget is not None:
            memory_bytes(self.memory_budget, where=MEMORY_BUDGET)
        if self.unused not in ("error", "keep"):
            raise InputError(f"expected unused error or keep, got {self.unused!r}")
        if type(self.batch_norm_groups) is not int or self.batch_norm_groups < 1:
            raise InputError(f"expected 1 or more batch_norm_groups, got {self.batch_norm_groups!r}")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 64:
            raise InputError(f"expected a seed of 0 to 2**64 - 1, got {self.seed!r}")

    def saving(self) -> dict[str, Attr]:
        """The attributes of the step that the pass choose-saved reads."""
        attrs: dict[str, Attr] = {LOSS: 0}
        if self.checkpoint != "auto":
            attrs[CHECKPOINT] = self.checkpoint
        if self.memory_budget is not None:
            attrs[MEMORY_BUDGET] = memory_bytes(self.memory_budget, where=MEMORY_BUDGET)
        return attrs


def train_step(
    module: Module,
    loss: str | Loss | LossFunction | None = "cross_entropy",
    optimizer: str | optim.Optimizer = "adamw",
    *,
    trainable: Sequence[str] | str | None = None,
    targets: Mapping[str, Any] | None = None,
    metrics: Sequence[LossFunction] = (),
    clip_norm: float | None = None,
    loss_scale: Literal["auto", "dynamic"] | float | None = "auto",
    accumulate: int = 1,
    on_nan: Literal["ignore", "skip", "raise"] = "ignore",
    unused: Literal["error", "keep"] = "error",
    checkpoint: Literal["auto", "none", "blocks"] = "auto",
    memory_budget: int | str | None = None,
    seed: int = 0,
    sparse: Sequence[str] | str = (),
    batch_norm_groups: int = 1,
) -> Module:
    """A module that trains a network: forward, loss, backward and optimizer, with what they change as state.

    Its inputs are those of `module`, then the targets of the loss; its results the loss (float32) and the
    metrics; then follows the state (`updates` of @main): parameters, running statistics, slots of the
    optimizer as `NAME.SLOT`, and scalars. `step` (u32[]) counts runs. First values are constants of the
    module under these names. `Module.inference` gives the network back.

    loss: the name of one (cross_entropy, mse, l1, huber, bce), one of `tw.losses`, a function of predictions
        and targets, or None where the only result of the module is the loss.
    optimizer: one of `tw.optim`, or its name for its default options. A number as its `lr` is state, `lr`.
    trainable: names of the constants that are trained, or patterns of names (`fc.*`); by default what the
        module names as `parameters`, as importers do.
    targets: types of the targets by name (`{"labels": "i32[64]"}`) where they differ from those the loss asks
        for; a function without `Loss` gets one like the first prediction.
    metrics: functions as losses are, computed of the same tensors, without gradients.
    clip_norm: gradients are scaled down where the norm of all of them together is larger.
    loss_scale: `dynamic` multiplies the loss by state that doubles after 2000 good updates and halves where a
        gradient is not finite, which skips the update (state `loss_scale`, `good_updates`); `auto` does so
        where the step is compiled with precision fp16; a number is a fixed scale; None is none.
    accumulate: every so many runs, the mean of their gradients updates the parameters.
    on_nan: what a run does whose loss or gradients are not finite: `ignore` (it updates), `skip` (it does
        not), or `raise`: no state changes, and `exe.step` raises InputError.
    unused: `keep` trains without parameters that the loss does not depend on, which are an error by default.
    checkpoint: what the backward pass reads stored of the forward pass: `auto` what is faster so by the cost
        model than computed again, `none` everything (nothing is computed again), `blocks` inputs of blocks.
    memory_budget: bytes on the device, or a text such as `8GiB`, that state, inputs and everything else of a
        run keep to; what does not fit is computed again where that costs the least time.
    seed: of random numbers.
    sparse: parameters, by name or pattern, of which runs read rows, as embeddings are: only rows that a run
        reads, and their slots, change. For sgd, adam and adagrad without momentum and weight decay.
    batch_norm_groups: so many equal parts of the batch are standardised by batch norms each by itself, as
        replicas of PyTorch's DistributedDataParallel do; running statistics follow the mean of theirs.

    Raises InputError or UnsupportedError naming the parameter, op or option.
    """
    names = [trainable] if isinstance(trainable, str) else trainable
    options = StepOptions(
        names,
        targets,
        tuple(metrics),
        clip_norm,
        loss_scale,
        accumulate,
        on_nan,
        unused,
        checkpoint,
        memory_budget,
        seed,
        (sparse,) if isinstance(sparse, str) else tuple(sparse),
        batch_norm_groups,
    )
    options.check()
    expect(module, Module, "a Module")
    if module.main.level is not Level.GRAPH:
        raise InputError(
            f"expected a graph-level module to train, got one of level {module.main.level.value}",
            where=f"@{module.name}",
        )
    if module.main.updates:
        raise InputError("expected a network, got a step that has state already", where=f"@{module.name}")
    return _Step(module, _loss(loss), _optimizer(optimizer), options).module()


def _loss(loss: Any) -> Loss | LossFunction | None:
    if isinstance(loss, str):
        if loss not in losses.NAMED:
            raise InputError(
                f"expected a loss among {', '.join(losses.NAMED)}, got '{loss}'"
                f"{did_you_mean(loss, losses.NAMED)}"
            )
        return losses.NAMED[loss]()
    if loss is not None and not callable(loss):
        raise InputError(f"expected a loss or its name, got {type(loss).__name__}")
    return loss


def _optimizer(optimizer: Any) -> optim.Optimizer:
    if isinstance(optimizer, str):
        if optimizer not in optim.NAMED:
            raise InputError(
                f"expected an optimizer among {', '.join(optim.NAMED)}, got '{optimizer}'"
                f"{did_you_mean(optimizer, optim.NAMED)}"
            )
        if optimizer == "sgd":
            raise InputError("expected sgd with a learning rate: tw.optim.sgd(lr=...)")
        return optim.NAMED[optimizer]()
    return expect(optimizer, optim.Optimizer, "an optimizer of tw.optim or its name")


def _is_number(x: Any) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


class _Step:
    """Writes the step of one network: state by name, and what becomes of it."""

    def __init__(
        self,
        network: Module,
        loss: Loss | LossFunction | None,
        optimizer: optim.Optimizer,
        options: StepOptions,
    ) -> None:
        self.network, self.loss, self.optimizer, self.options = network, loss, optimizer, options
        self.where = f"@{network.name}"
        self.state: dict[str, Value] = {}
        self.initial: dict[str, np.ndarray] = {}
        self.new: dict[str, Tensor] = {}  # what becomes of state that is not updated by itself

    # -- the parts -------------------------------------------------------------------------------------------
    def module(self) -> Module:
        """The finished step."""
        trained = self.training_form()
        main = trained.main
        self.w = w = GraphWriter(trained.constants)
        positions = dict(main.updates)
        self.inputs = [p for i, p in enumerate(main.params) if i not in positions]
        returned = main.body.ops[-1].operands
        own = set(positions.values())
        self.predictions = [w.tensor(v) for j, v in enumerate(returned) if j not in own]
        for i, j in positions.items():
            self.state[main.params[i].hint] = main.params[i]
            if returned[j] is not main.params[i]:
                self.new[main.params[i].hint] = w.tensor(returned[j])
        for op in main.body.ops[:-1]:
            w.builder.append(op)
        ranges = self.targets()
        with w.at("loss"):
            value = self.value()
            metrics = [self.metric(m) for m in self.options.metrics]
        gradients = self.gradients(value)
        with w.at(OPTIMIZER):
            self.apply(value, gradients)
        return self.finished(trained, [value, *metrics], ranges)

    def training_form(self) -> Module:
        """The network as it trains: dropout drops, and parameters and running statistics are state."""
        if self.options.trainable is None and not self.network.parameters:
            raise InputError(
                "expected a network that names its parameters; name the constants to train: "
                'trainable=["fc.*"]',
                where=self.where,
            )
        names = self.network.parameters
        if self.options.trainable is not None:
            names = tuple(matching_constants(self.network, self.options.trainable))
        groups = self.options.batch_norm_groups
        mode = f"training-mode{{seed={self.options.seed}, groups={groups}}}"
        pipeline = f"infer-shapes, decompose-octave, {mode}, form-group-norm, form-attention"
        network = self.network.with_attrs(parameters=names)
        module = run_pipeline(network, Pipeline.parse(pipeline), PassContext())
        count = len(module.main.params)
        module = promoted(module)
        self.trained = [p.hint for p in module.main.params[count:]]
        if not self.trained:
            raise InputError("expected parameters to train, the network uses none", where=self.where)
        for p in module.main.params[-len(self.trained) :]:
            if p.tensor.dtype != "f32":
                raise InputError(f"expected parameters of f32, '{p.hint}' is {p.type}", where=self.where)
        return module

    def targets(self) -> tuple[Attr, ...]:
        """Add the targets to the inputs; the ranges of integers among them, for checks on the host."""
        types = [p.type for p in self.predictions]
        asked: Mapping[str, Target] = {}
        if isinstance(self.loss, Loss):
            asked = self.loss.targets(types)
        elif self.loss is not None and self.options.targets is None and types:
            asked = {"targets": Target(types[0])}
        given = {n: _type(n, t) for n, t in (self.options.targets or {}).items()}
        if isinstance(self.loss, Loss) and given:
            if len(given) != len(asked):
                raise InputError(
                    f"expected {len(asked)} targets ({', '.join(asked)}) for the loss {self.loss.name}, got "
                    f"{', '.join(given)}"
                )
            asked = dict(zip(given, asked.values(), strict=True))
        for name, target in asked.items():
            own = given.get(name, target.type)
            if own.shape != target.type.shape or (own.dtype in FLOATS) != (target.type.dtype in FLOATS):
                raise InputError(f"expected '{name}' to be like {target.type}, got {own}")
        merged = {n: replace(t, type=given.get(n, t.type)) for n, t in asked.items()}
        merged.update({n: Target(t) for n, t in given.items() if n not in merged})
        self.compared = [self.input(n, t.type) for n, t in merged.items()]
        rows = [(n, t.low, t.high, t.ignored) for n, t in merged.items() if t.low is not None]
        return tuple(rows)

    def input(self, name: str, t: TensorType) -> Tensor:
        """A further input of the step."""
        taken = {v.hint for v in (*self.inputs, *self.state.values())}
        if name in taken:
            raise InputError(f"expected targets with names of their own, '{name}' is taken", where=self.where)
        self.inputs.append(Value(t, name))
        return self.w.tensor(self.inputs[-1])

    def value(self) -> Tensor:
        """The loss, a float32 without dimensions."""
        if self.loss is None:
            if len(self.predictions) != 1:
                raise InputError(
                    f"expected one result, the loss, without loss=, got {len(self.predictions)}",
                    where=self.where,
                )
            out = self.predictions[0]
        else:
            out = self.called("the loss", self.loss)
        if out.shape or out.dtype not in FLOATS:
            raise InputError(f"expected a loss that is one number, a scalar of floats, got {out.type}")
        return out.cast("f32")

    def metric(self, function: LossFunction) -> Tensor:
        return self.called("a metric", function)

    def called(self, what: str, function: LossFunction) -> Tensor:
        """The tensor that a function of predictions and targets gives."""
        tensors = (*self.predictions, *self.compared)
        name = getattr(function, "name", getattr(function, "__name__", "function"))
        signature = inspect.signature(function.value if isinstance(function, Loss) else function)
        try:
            signature.bind(*tensors)
        except TypeError as e:
            listed = ", ".join(str(t.type) for t in tensors)
            raise InputError(
                f"expected {what} '{name}' to take {len(tensors)} tensors, predictions and targets "
                f"({listed}): {e}"
            ) from None
        try:
            out = function(*tensors)
        except InputError as e:
            raise InputError(f"{what} '{name}': {e}") from e
        return expect(out, Tensor, f"a tensor from {what} '{name}'")

    def gradients(self, loss: Tensor) -> dict[str, Gradient]:
        """The gradients of the parameters, in float32, scaled as the loss is."""
        start = self.scale if self.scale is not None else self.w.number(1, "f32")
        tables = self.tables()
        #: what is differentiated by: parameters, and of tables the rows that are read
        variables = {
            n: [op.result for op in tables[n]] if n in tables else [self.state[n]] for n in self.trained
        }
        by_value = backward(
            self.w, self.w.ops, {loss.value: start}, [v for vs in variables.values() for v in vs]
        )
        lost = [n for n, vs in variables.items() if not all(v in by_value for v in vs)]
        if lost and (self.options.unused == "error" or len(lost) == len(variables)):
            raise InputError(
                f"expected a loss that depends on all parameters, it does not on {', '.join(lost[:5])}"
                f"{' and others' * (len(lost) > 5)}; leave them out of trainable, or pass unused='keep'",
                where=self.where,
            )
        out: dict[str, Gradient] = {}
        with self.w.at(OPTIMIZER):
            for name, values in variables.items():
                parts = [wide(by_value[v]) for v in values if v in by_value]
                if name in tables and parts and name not in lost:
                    table = self.w.tensor(self.state[name])
                    out[name] = row_gradient(self.w, table, tables[name], parts)
                elif parts:
                    out[name] = parts[0]
        return out

    def tables(self) -> dict[str, list[Op]]:
        """The sparse parameters, with the ops that read their rows."""
        patterns, out = self.options.sparse, {}
        if not patterns:
            return {}
        unmatched = [p for p in patterns if not any(n == p or fnmatchcase(n, p) for n in self.trained)]
        if unmatched:
            raise InputError(
                f"expected names of trained parameters to be sparse, got '{unmatched[0]}'"
                f"{did_you_mean(unmatched[0], self.trained)}",
                where=self.where,
            )
        for name in self.trained:
            if any(name == p or fnmatchcase(name, p) for p in patterns):
                out[name] = reads_of_rows(self.w.ops, self.state[name], name)
                self.check_sparse(name)
        return out

    def check_sparse(self, name: str) -> None:
        """Raise InputError where the optimizer would have to touch rows that a run does not read."""
        optimizer = self.optimizer
        needless = optimizer.sparse_without
        o = optimizer.options_of(name, self.state[name].tensor.shape)
        wrong = next((k for k in needless or () if callable(o[k]) or o[k] != 0), "")
        if needless is None or wrong:
            raise InputError(
                f"expected an optimizer that can leave rows of '{name}' alone (sgd, adam or adagrad without "
                f"momentum and weight_decay), got {optimizer.name}{f' with {wrong}' if wrong else ''}"
            )

    # -- scalars of the state --------------------------------------------------------------------------------
    def scalar(self, name: str, dtype: str, initial: float) -> Tensor:
        """A scalar among the state, which is added where there is none of the name."""
        if name not in self.state:
            t = TensorType(dtype, ())
            self.add(name, t, np.asarray(initial, array_type(t).dtype))
        return self.w.tensor(self.state[name])

    def add(self, name: str, t: TensorType, initial: np.ndarray) -> Tensor:
        """New state with its first value."""
        if name in self.state or name in self.network.constants or name in {p.hint for p in self.inputs}:
            raise InputError(
                f"expected no input or constant called '{name}', which is state of the step", where=self.where
            )
        self.state[name] = Value(t, name)
        self.initial[name] = initial
        return self.w.tensor(self.state[name])

    @cached_property
    def scale(self) -> Tensor | None:
        """The factor of the loss."""
        option = self.options.loss_scale
        if option is None:
            return None
        if option in ("auto", "dynamic"):
            return self.scalar(SCALE, "f32", FIRST_SCALE)
        return self.w.number(float(option), "f32")

    @property
    def dynamic(self) -> bool:
        """Return whether the scale of the loss is state."""
        return self.options.loss_scale in ("auto", "dynamic")

    # -- the update ------------------------------------------------------------------------------------------
    def apply(self, loss: Tensor, gradients: dict[str, Gradient]) -> None:
        """Write what becomes of all state after a run with this loss."""
        w, options = self.w, self.options
        step = self.scalar(STEP, "u32", 0)
        self.new.setdefault(STEP, step + 1)
        statistics = [n for n in self.new if n != STEP]
        if self.scale is not None:
            inverse = 1 / self.scale
            gradients = {n: g * inverse for n, g in gradients.items()}
        due = None
        if options.accumulate > 1:
            due = w.op("mod", step + 1, w.number(options.accumulate, "u32")).equal(0)
            gradients = self.accumulated(gradients, due)
        sound = finite = None
        norm = self.square_sum(gradients) if self.guarded or options.clip_norm is not None else None
        if self.guarded and norm is not None:
            sound = w.op("isfinite", loss)
            finite = sound & w.op("isfinite", norm)
        if norm is not None and options.clip_norm is not None:
            factor = (options.clip_norm / (norm.sqrt() + _NORM_EPSILON)).minimum(1)
            gradients = {n: g * factor for n, g in gradients.items()}
        applied = _both(due, finite)
        self.optimize(gradients, step, applied)
        if finite is None or sound is None:
            return
        if self.dynamic:
            self.rescale(finite, due)
        if options.on_nan != "raise":
            self.keep_unless(sound, statistics)
            return
        allowed = finite if due is None else finite | ~due
        if self.scale is not None and self.dynamic:  # what a smaller scale may still make finite
            allowed = allowed | (self.scale > 1)
        good = sound & allowed
        self.keep_unless(good, [n for n in self.new if n not in self.updated])
        refused = self.scalar(REFUSED, "u32", 0)
        self.new[REFUSED] = good.where(refused, refused + 1)

    @property
    def guarded(self) -> bool:
        """Whether what is not finite changes no parameter."""
        return self.dynamic or self.options.on_nan != "ignore"

    def keep_unless(self, condition: Tensor, names: Sequence[str]) -> None:
        """Leave state as it is where the condition is false."""
        for name in names:
            self.new[name] = condition.where(self.new[name], self.w.tensor(self.state[name]))

    def accumulated(self, gradients: dict[str, Gradient], due: Tensor) -> dict[str, Gradient]:
        """The sums of shares of gradients since the last update, which are state."""
        out: dict[str, Gradient] = {}
        for name, g in gradients.items():
            if isinstance(g, RowGradient):
                raise InputError(
                    f"expected no sparse parameters with accumulate, '{name}' is sparse: its rows differ "
                    "from run to run"
                )
            slot = f"{name}.gradient"
            before = self.add(slot, g.type, np.zeros(g.shape, np.float32))
            out[name] = total = before + g * (1 / self.options.accumulate)
            self.new[slot] = due.where(0, total)
        return out

    def square_sum(self, gradients: dict[str, Gradient]) -> Tensor:
        """The sum of the squares of all gradients: one number for the bound and for what is not finite."""
        first, *others = [
            g.square_sum() if isinstance(g, RowGradient) else (g * g).sum() for g in gradients.values()
        ]
        for other in others:
            first = first + other
        return first

    def optimize(self, gradients: dict[str, Gradient], step: Tensor, applied: Tensor | None) -> None:
        """Write the update rule of every parameter; it counts where `applied` is true."""
        before = step
        if applied is not None:
            before = self.scalar(UPDATES, "u32", 0)
            self.new[UPDATES] = applied.where(before + 1, before)
        self.count = before.cast("f32")
        self.updated: set[str] = set(self.new) & {UPDATES}
        self.scheduled: dict[Any, Tensor] = {}
        for name, g in gradients.items():
            p = self.w.tensor(self.state[name])
            o = self.options_of(name, p.shape)
            slots = {
                n: self.add(f"{name}.{n}", TensorType(dtype_name(a.dtype), a.shape), a)
                for n, a in self.optimizer.slots(p.shape, o).items()
            }
            whole = {name: p, **{f"{name}.{n}": t for n, t in slots.items()}}
            if isinstance(g, RowGradient):
                p, slots = g.rows(p), {n: g.rows(t) for n, t in slots.items()}
            q, changed = self.optimizer.update(p, g.totals if isinstance(g, RowGradient) else g, slots, o)
            if q.type != p.type or set(changed) != set(slots):
                raise InputError(
                    f"expected the update of {self.optimizer.name} to give {p.type} and the slots "
                    f"{sorted(slots)}, got {q.type} and {sorted(changed)}"
                )
            pairs = [(p, q), *((slots[n], changed[n]) for n in slots)]
            for (key, table), (old, new) in zip(whole.items(), pairs, strict=True):
                kept = new if applied is None else applied.where(new, old)
                self.new[key] = g.updated(table, kept) if isinstance(g, RowGradient) else kept
                self.updated.add(key)

    def options_of(self, name: str, shape: tuple[int, ...]) -> dict[str, Any]:
        """The options for a parameter: schedules and the rate as tensors, others as they are."""
        own, common = self.optimizer.options_of(name, shape), self.optimizer.options["lr"]
        out: dict[str, Any] = {k: self.quantity(k, v) for k, v in own.items() if k != "lr"}
        rate = own["lr"]
        if callable(rate):
            out["lr"] = self.quantity("lr", rate)
        elif callable(common) or (common == 0 and rate != 0):
            out["lr"] = self.w.number(_rate(rate), "f32")
        else:
            base = self.scalar(RATE, "f32", _rate(common))
            out["lr"] = base if rate == common else base * (_rate(rate) / common)
        out["step"] = self.count + 1
        return out

    def quantity(self, name: str, value: optim.Option) -> Any:
        if not callable(value):
            if not isinstance(value, bool) and not _is_number(value):
                raise InputError(
                    f"expected option {name} of {self.optimizer.name} to be a number, got {value!r}"
                )
            return value
        if value not in self.scheduled:
            out = expect(value(self.count), Tensor, f"a tensor from the schedule of {name}")
            if out.shape or out.dtype != "f32":
                raise InputError(f"expected the schedule of {name} to give f32[], got {out.type}")
            self.scheduled[value] = out
        return self.scheduled[value]

    def rescale(self, finite: Tensor, due: Tensor | None) -> None:
        """Grow or shrink the scale of the loss after an update."""
        scale = self.w.tensor(self.state[SCALE])
        good = self.scalar(GOOD, "u32", 0)
        grown = (good + 1).equal(GROWTH_INTERVAL)
        larger = grown.where(scale * GROWTH, scale)
        larger = self.w.op("isfinite", larger).where(larger, scale)
        new_scale = finite.where(larger, scale * BACKOFF)
        new_good = finite.where(grown.where(0, good + 1), 0)
        self.new[SCALE] = new_scale if due is None else due.where(new_scale, scale)
        self.new[GOOD] = new_good if due is None else due.where(new_good, good)

    def finished(self, trained: Module, results: Sequence[Tensor], ranges: tuple[Attr, ...]) -> Module:
        """The module: inputs and state as parameters, results and new state as results."""
        scalars = (*_SCALARS, UPDATES, RATE, SCALE, GOOD, REFUSED)
        names = [*self.trained, *(n for n in self.state if n not in self.trained and n not in scalars)]
        names += [n for n in scalars if n in self.state]
        params = (*self.inputs, *(self.state[n] for n in names))
        values = [t.value for t in results]
        values += [self.new[n].value if n in self.new else self.state[n] for n in names]
        self.w.builder.emit("graph.return", values, types=())
        block = Block(params, self.w.ops)
        pairs = tuple((len(self.inputs) + i, len(results) + i) for i in range(len(names)))
        main = Func(
            Level.GRAPH,
            "main",
            block.with_ops(live_ops(block)),
            tuple(v.type for v in values),
            tuple((k, a) for k, a in trained.main.attrs if k != "updates"),
        ).with_attrs(updates=pairs, **self.options.saving())
        network = self.network
        attrs: dict[str, Attr] = {"parameters": tuple(self.trained)}
        if ranges:
            attrs[RANGES] = ranges
        if self.options.loss_scale == "auto":
            attrs.update([AUTO])
        if self.options.on_nan != "ignore":
            attrs[ON_NAN] = self.options.on_nan
        step = Module(
            f"{network.name}_step",
            (main, replace(network.main, name=INFERENCE)),
            network.attrs,
            self.w.constants.updated(self.initial),
        )
        return run_pipeline(step.with_attrs(**attrs), Pipeline.parse("cse"), PassContext())


def _both(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a & b


def _rate(value: Any) -> float:
    if not _is_number(value) or value < 0:
        raise InputError(f"expected a learning rate of 0 or more, or a schedule, got {value!r}")
    return float(value)


def _type(name: str, t: Any) -> TensorType:
    """The type of a target: of the IR, or as text (`i32[64]`)."""
    if isinstance(t, TensorType):
        return t
    if isinstance(t, ArrayType):
        return TensorType(dtype_name(np.dtype(t.dtype)), tuple(t.shape))
    match = re.fullmatch(r"(\w+)\[([0-9, ]*)\]", t) if isinstance(t, str) else None
    if match is None:
        raise InputError(f"expected the type of target '{name}' as text such as i32[64], got {t!r}")
    return TensorType(match[1], tuple(int(n) for n in match[2].split(",") if n.strip()))
