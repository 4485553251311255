"""Losses as graph code (`tw.losses`): what predictions and targets give, one number in float32.

An own loss is a function `loss(*predictions, *targets)` of tensors that returns a tensor without dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.types import FLOATS, TensorType

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class Target:
    """An input that a loss compares predictions with.

    low, high: for integers, the range of the numbers that the loss understands, `high` not among them.
    ignored: a number outside the range that is allowed too.
    """

    type: TensorType
    low: int | None = None
    high: int | None = None
    ignored: int | None = None


#: the targets of a loss by name, from the types of the predictions
Targets = Callable[[Sequence[TensorType]], Mapping[str, Target]]


@dataclass(frozen=True)
class Loss:
    """A loss with a name, and the targets that it asks for: names and types from those of the predictions."""

    name: str
    value: Callable[..., Tensor]
    targets: Targets

    def __call__(self, *tensors: Tensor) -> Tensor:
        """Write the ops of the loss of predictions and targets."""
        return self.value(*tensors)


def wide(x: Tensor) -> Tensor:
    """`x` as float32 in every precision: mixed precision keeps what an explicit cast says."""
    return x.writer.op("cast", x, dtype="f32")


def cross_entropy(
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    weights: Sequence[float] | np.ndarray | None = None,
    axis: int = -1,
    reduction: Reduction = "mean",
) -> Loss:
    """Minus the logarithm of the softmax of logits at integer labels.

    The target `labels` holds int32 and has the shape of the logits without `axis`, that of the classes.

    label_smoothing: share of each label that all classes get in equal parts (Szegedy et al. 2016, section 7).
    ignore_index: the label of rows that count nothing. weights: a factor per class.
    reduction: `mean` divides by the weights of all labels that count, as PyTorch does; `sum`.

    Labels are compared with the numbers of the classes, so that one kernel reads each row of logits once.
    A label out of range makes the loss nan and adds nothing to gradients; `exe.step` refuses it beforehand
    where labels lie on the host.
    """
    if not 0 <= label_smoothing < 1:
        raise InputError(f"expected label_smoothing from 0 to less than 1, got {label_smoothing!r}")
    _check_reduction(reduction)
    factors = None if weights is None else np.asarray(weights, np.float32)
    if factors is not None and factors.ndim != 1:
        raise InputError(f"expected class weights as a vector, got {factors.ndim} dimensions")

    def targets(predictions: Sequence[TensorType]) -> Mapping[str, Target]:
        t = _one_of_floats("cross_entropy", predictions)
        if not -t.rank <= axis < t.rank:
            raise InputError(f"expected logits with a dimension {axis}, got {t}")
        classes, at = t.shape[axis], axis % t.rank
        if factors is not None and factors.size != classes:
            raise InputError(f"expected {classes} class weights, one per class, got {factors.size}")
        shape = (*t.shape[:at], *t.shape[at + 1 :])
        return {"labels": Target(TensorType("i32", shape), 0, classes, ignore_index)}

    def value(logits: Tensor, labels: Tensor) -> Tensor:
        w, at = logits.writer, axis % logits.rank
        labels = labels if labels.dtype == "i64" else labels.cast("i32")
        classes = logits.shape[at]
        along = tuple(classes if d == at else 1 for d in range(logits.rank))
        column = labels.reshape(*(1 if d == at else n for d, n in enumerate(logits.shape)))
        hit = w.op("arange", stop=classes, dtype=labels.dtype).reshape(*along).equal(column)
        x = wide(logits)
        # The largest logit cancels out, so that nothing needs to be sent back to it.
        shifted = x - x.max(at, keepdims=True).stop_gradient()
        logarithm = shifted.exp().sum(at).log()
        weight = None
        if factors is not None:
            weight = w.constant(factors, "class_weights").reshape(*along)
        share = None if weight is None else hit.where(weight, 0).sum(at)
        shares = _shares(hit, weight, 1 - label_smoothing, label_smoothing / classes)
        rows = logarithm - hit.where(shifted, 0).sum(at)
        if shares is not None:
            rows = logarithm * shares.sum(at) - (shares * shifted).sum(at)
        return _over_rows(rows, labels, classes, share, ignore_index, reduction)

    return Loss("cross_entropy", value, targets)


def _shares(hit: Tensor, weight: Tensor | None, own: float, everyone: float) -> Tensor | None:
    """The share of every class in the label, times its weight; none where the label has all of it."""
    if weight is None and everyone == 0:
        return None
    shares = hit.where(hit.writer.number(own + everyone, "f32"), everyone)
    return shares if weight is None else shares * weight


def _over_rows(
    rows: Tensor,
    labels: Tensor,
    classes: int,
    share: Tensor | None,
    ignored: int | None,
    reduction: Reduction,
) -> Tensor:
    """The sum or the mean of what every row gives; rows that are ignored give 0, impossible labels nan."""
    possible = (labels >= 0) & (labels < classes)
    rows = possible.where(rows, float("nan"))
    if ignored is not None:
        counts = ~labels.equal(ignored)
        rows = counts.where(rows, 0)
        share = counts.where(rows.writer.number(1, "f32") if share is None else share, 0)
    if reduction == "sum":
        return rows.sum()
    return rows.mean() if share is None else rows.sum() / share.sum()


def mse(*, reduction: Reduction = "mean") -> Loss:
    """(prediction - target)**2 (`targets`: of the type of the predictions), its mean or sum."""
    _check_reduction(reduction)

    def value(prediction: Tensor, target: Tensor) -> Tensor:
        apart = wide(prediction) - wide(target)
        return _reduced(apart * apart, reduction)

    return Loss("mse", value, _like_predictions("mse"))


def l1(*, reduction: Reduction = "mean") -> Loss:
    """|prediction - target| (`targets`: of the type of the predictions), its mean or sum."""
    _check_reduction(reduction)

    def value(prediction: Tensor, target: Tensor) -> Tensor:
        return _reduced((wide(prediction) - wide(target)).abs(), reduction)

    return Loss("l1", value, _like_predictions("l1"))


def huber(*, delta: float = 1.0, reduction: Reduction = "mean") -> Loss:
    """d**2 / 2 of d = |prediction - target| up to `delta`, and delta (d - delta / 2) beyond (Huber 1964)."""
    _check_reduction(reduction)
    if not delta > 0:
        raise InputError(f"expected a positive delta, got {delta!r}")

    def value(prediction: Tensor, target: Tensor) -> Tensor:
        apart = (wide(prediction) - wide(target)).abs()
        near = apart * apart * 0.5
        return _reduced((apart <= delta).where(near, (apart - delta / 2) * delta), reduction)

    return Loss("huber", value, _like_predictions("huber"))


def bce(*, pos_weight: float = 1.0, reduction: Reduction = "mean") -> Loss:
    """Binary cross entropy of logits x and targets t from 0 to 1: log(1 + exp(x)) - x t, its mean or sum.

    It is stable for all logits, and its gradient is sigmoid(x) - t. pos_weight: a factor of the part of t.
    """
    _check_reduction(reduction)
    if not pos_weight > 0:
        raise InputError(f"expected a positive pos_weight, got {pos_weight!r}")

    def value(prediction: Tensor, target: Tensor) -> Tensor:
        x, t = wide(prediction), wide(target)
        if pos_weight == 1:
            return _reduced(x.writer.op("softplus", x) - x * t, reduction)
        factor = t * (pos_weight - 1) + 1
        return _reduced((1 - t) * x + factor * x.writer.op("softplus", -x), reduction)

    return Loss("bce", value, _like_predictions("bce"))


def accuracy(*, axis: int = -1) -> Callable[..., Tensor]:
    """A metric: the share of labels whose logit is the largest of its row (the first one of equal ones)."""

    def value(logits: Tensor, labels: Tensor) -> Tensor:
        best = logits.writer.op("argmax", logits, axis=(axis % logits.rank,), keepdims=False)
        return wide(best.cast(labels.dtype).equal(labels)).mean()

    return value


#: losses by the name that stands for them with their default options
NAMED: Mapping[str, Callable[[], Loss]] = {
    "cross_entropy": cross_entropy,
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "bce": bce,
}


def _reduced(x: Tensor, reduction: Reduction) -> Tensor:
    return x.mean() if reduction == "mean" else x.sum()


def _check_reduction(reduction: str) -> None:
    if reduction not in ("mean", "sum"):
        raise InputError(f"expected the reduction mean or sum, got {reduction!r}")


def _one_of_floats(loss: str, predictions: Sequence[TensorType]) -> TensorType:
    if len(predictions) != 1 or predictions[0].dtype not in FLOATS:
        listed = ", ".join(map(str, predictions))
        raise InputError(f"expected one prediction of floats for the loss {loss}, got {listed or 'none'}")
    return predictions[0]


def _like_predictions(loss: str) -> Targets:
    def targets(predictions: Sequence[TensorType]) -> Mapping[str, Target]:
        t = _one_of_floats(loss, predictions)
        return {"targets": Target(TensorType("f32", t.shape))}

    return targets
