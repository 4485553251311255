"""Optimizers as graph code (`tw.optim`): formulas of PyTorch, in float32, from parameter, gradient and slots.

An own optimizer is an `Optimizer` with an update rule written in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.passes.rewriting.names import did_you_mean
from tilewright.training.schedules import Schedule

#: a number that is known when the step is built, or a tensor without dimensions in it
Quantity = float | Tensor
#: what an option of an optimizer may be
Option = float | bool | Schedule
#: (parameter, gradient, slots by name, options by name) -> new parameter, new slots. Beside the options,
#: `step` counts updates, this one included, and `lr` is always a tensor.
Update = Callable[
    [Tensor, Tensor, Mapping[str, Tensor], Mapping[str, Any]], tuple[Tensor, Mapping[str, Tensor]]
]
#: (shape of a parameter, options) -> first values of its slots, which are state beside it
Slots = Callable[[tuple[int, ...], Mapping[str, Any]], Mapping[str, np.ndarray]]
#: (name, shape) of a parameter -> whether it belongs to a group
Filter = Callable[[str, tuple[int, ...]], bool]


@dataclass(frozen=True)
class Group:
    """Parameters with options of their own.

    of: names or patterns of names (`*.bias`), or a function of name and shape, such as `vectors`.
    options: replace those of the optimizer. A number as `lr` scales with that of the optimizer.
    """

    of: str | Sequence[str] | Filter
    options: Mapping[str, Option]

    def holds(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether a parameter belongs to the group."""
        if callable(self.of):
            return bool(self.of(name, shape))
        patterns = [self.of] if isinstance(self.of, str) else self.of
        return any(fnmatchcase(name, pattern) for pattern in patterns)


def group(of: str | Sequence[str] | Filter, /, **options: Option) -> Group:
    """Parameters with options of their own: `group(tw.optim.vectors, weight_decay=0.0)`."""
    return Group(of, options)


def vectors(name: str, shape: tuple[int, ...]) -> bool:
    """A filter: parameters of at most one dimension, which are biases and factors of norms."""
    return len(shape) <= 1


def _no_slots(shape: tuple[int, ...], options: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    return {}


@dataclass(frozen=True)
class Optimizer:
    """An update rule with its options and the state that it keeps beside each parameter.

    options: by name, `lr` among them; numbers, or schedules. A number as `lr` becomes state
    (`exe.state["lr"]`), all others are part of the step. groups: the first one that holds a parameter
    replaces options for it. sparse_without: options that must be 0 where a rule that works element by
    element updates only the rows that a run reads; None: it never may.
    """

    name: str
    update: Update
    options: Mapping[str, Option]
    slots: Slots = _no_slots
    groups: Sequence[Group] = field(default=())
    sparse_without: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if "lr" not in self.options:
            raise InputError(f"expected the optimizer {self.name} to have an option lr, the learning rate")
        for g in self.groups:
            for name in g.options:
                if name not in self.options:
                    raise InputError(
                        f"expected options of {self.name} ({', '.join(self.options)}) in a group, "
                        f"got '{name}'{did_you_mean(name, self.options)}"
                    )

    def options_of(self, name: str, shape: tuple[int, ...]) -> Mapping[str, Option]:
        """The options for one parameter: those of the first group that holds it replace the common ones."""
        own = next((g.options for g in self.groups if g.holds(name, shape)), {})
        return {**self.options, **own}

    def with_groups(self, *groups: Group) -> Optimizer:
        """The optimizer with further groups behind those it has."""
        return replace(self, groups=(*self.groups, *groups))


def sgd(
    lr: float | Schedule,
    *,
    momentum: float = 0.0,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float | Schedule = 0.0,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Stochastic gradient descent; with momentum v = momentum v + (1 - dampening) g, and v = g at first."""
    if nesterov and (momentum == 0 or dampening != 0):
        raise InputError("expected a momentum and no dampening with nesterov")
    options = {
        "lr": lr,
        "momentum": _share("momentum", momentum),
        "dampening": dampening,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
    }
    return Optimizer("sgd", _sgd, options, _sgd_slots, groups, ("momentum", "weight_decay"))


def _sgd_slots(shape: tuple[int, ...], o: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    return {} if _is_zero(o["momentum"]) else zeros(shape, "momentum")


def _sgd(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    g = _decayed(g, p, o["weight_decay"])
    if _is_zero(o["momentum"]):
        return p - g * o["lr"], {}
    v = slots["momentum"] * o["momentum"]
    v = v + g * (1 - o["dampening"]) if o["dampening"] else v + g
    if o["dampening"]:
        v = o["step"].equal(1).where(g, v)
    direction = g + v * o["momentum"] if o["nesterov"] else v
    return p - direction * o["lr"], {"momentum": v}


def adam(
    lr: float | Schedule = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float | Schedule = 0.0,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Adam (Kingma, Ba 2015); weight decay is added to the gradient, eps to the root."""
    options = {"lr": lr, **_betas(betas), "eps": eps, "weight_decay": weight_decay}
    return Optimizer("adam", _adam, options, _two_moments, groups, ("weight_decay",))


def _adam(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    direction, new = _adam_direction(_decayed(g, p, o["weight_decay"]), slots, o)
    return p - direction * o["lr"], new


def adamw(
    lr: float | Schedule = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float | Schedule = 1e-2,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov, Hutter 2019): p shrinks by lr weight_decay p."""
    options = {"lr": lr, **_betas(betas), "eps": eps, "weight_decay": weight_decay}
    return Optimizer("adamw", _adamw, options, _two_moments, groups, ("weight_decay",))


def _adamw(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    direction, new = _adam_direction(g, slots, o)
    if not _is_zero(o["weight_decay"]):
        p = p * (1 - o["lr"] * o["weight_decay"])
    return p - direction * o["lr"], new


def _adam_direction(
    g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    """(m / c1) / (sqrt(v / c2) + eps) of the moments m and v, with bias corrections c1 and c2."""
    m, v = _moments(g, slots, o)
    root = v.sqrt() / bias_correction(o["beta2"], o["step"]).sqrt()
    return m / bias_correction(o["beta1"], o["step"]) / (root + o["eps"]), {"m": m, "v": v}


def _moments(g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    b1, b2 = o["beta1"], o["beta2"]
    return slots["m"] * b1 + g * (1 - b1), slots["v"] * b2 + g * g * (1 - b2)


def bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta**step: the share of a running mean that has seen gradients.

    It is 2 u / (1 + u) with u = tanh(-step log(beta) / 2), which loses no digits where beta is close to 1.
    """
    if beta == 0:
        return step * 0 + 1
    u = (step * (-math.log(beta) / 2)).tanh()
    return u * 2 / (u + 1)


def lamb(
    lr: float | Schedule = 1e-3,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float | Schedule = 1e-2,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """LAMB (You et al. 2020): a step of AdamW per tensor times |p| / |r|, or 1 where one is 0."""
    options = {"lr": lr, **_betas(betas), "eps": eps, "weight_decay": weight_decay}
    return Optimizer("lamb", _lamb, options, _two_moments, groups)


def _lamb(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    direction, new = _adam_direction(g, slots, o)
    r = _decayed(direction, p, o["weight_decay"])
    weights, length = (p * p).sum().sqrt(), (r * r).sum().sqrt()
    defined = (weights > 0) & (length > 0)
    trust = defined.where(weights / defined.where(length, 1), 1)
    return p - r * (trust * o["lr"]), new


def rmsprop(
    lr: float | Schedule = 1e-2,
    *,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float | Schedule = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """RMSprop (Hinton 2012): g / (sqrt(running mean of g**2) + eps); centered: by the variance instead."""
    options = {
        "lr": lr,
        "alpha": _share("alpha", alpha),
        "eps": eps,
        "weight_decay": weight_decay,
        "momentum": _share("momentum", momentum),
        "centered": centered,
    }
    return Optimizer("rmsprop", _rmsprop, options, _rmsprop_slots, groups)


def _rmsprop_slots(shape: tuple[int, ...], o: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    names = ["v", *["mean"] * bool(o["centered"]), *["momentum"] * (not _is_zero(o["momentum"]))]
    return zeros(shape, *names)


def _rmsprop(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    g = _decayed(g, p, o["weight_decay"])
    alpha = o["alpha"]
    new = {"v": slots["v"] * alpha + g * g * (1 - alpha)}
    square = new["v"]
    if o["centered"]:
        new["mean"] = slots["mean"] * alpha + g * (1 - alpha)
        square = square - new["mean"] * new["mean"]
    direction = g / (square.sqrt() + o["eps"])
    if not _is_zero(o["momentum"]):
        direction = new["momentum"] = slots["momentum"] * o["momentum"] + direction
    return p - direction * o["lr"], new


def adagrad(
    lr: float | Schedule = 1e-2,
    *,
    lr_decay: float = 0.0,
    weight_decay: float | Schedule = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Adagrad (Duchi et al. 2011): g / (sqrt(sum of g**2) + eps) times lr / (1 + (step - 1) lr_decay)."""
    options = {
        "lr": lr,
        "lr_decay": lr_decay,
        "weight_decay": weight_decay,
        "initial_accumulator_value": initial_accumulator_value,
        "eps": eps,
    }
    return Optimizer("adagrad", _adagrad, options, _adagrad_slots, groups, ("weight_decay",))


def _adagrad_slots(shape: tuple[int, ...], o: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    return {"sum": np.full(shape, o["initial_accumulator_value"], np.float32)}


def _adagrad(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    g = _decayed(g, p, o["weight_decay"])
    rate = o["lr"]
    if not _is_zero(o["lr_decay"]):
        rate = rate / ((o["step"] - 1) * o["lr_decay"] + 1)
    total = slots["sum"] + g * g
    return p - g / (total.sqrt() + o["eps"]) * rate, {"sum": total}


def lion(
    lr: float | Schedule = 1e-4,
    *,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float | Schedule = 0.0,
    groups: Sequence[Group] = (),
) -> Optimizer:
    """Lion (Chen et al. 2023): the sign of a mean of gradient and momentum, with decoupled weight decay."""
    options = {"lr": lr, **_betas(betas), "weight_decay": weight_decay}
    return Optimizer("lion", _lion, options, _one_momentum, groups)


def _lion(
    p: Tensor, g: Tensor, slots: Mapping[str, Tensor], o: Mapping[str, Any]
) -> tuple[Tensor, Mapping[str, Tensor]]:
    m, b1, b2 = slots["momentum"], o["beta1"], o["beta2"]
    direction = g.writer.op("sign", m * b1 + g * (1 - b1))
    if not _is_zero(o["weight_decay"]):
        p = p * (1 - o["lr"] * o["weight_decay"])
    return p - direction * o["lr"], {"momentum": m * b2 + g * (1 - b2)}


#: optimizers by the name that stands for them with their default options
NAMED: Mapping[str, Callable[..., Optimizer]] = {
    "sgd": sgd,
    "adam": adam,
    "adamw": adamw,
    "lamb": lamb,
    "rmsprop": rmsprop,
    "adagrad": adagrad,
    "lion": lion,
}


def zeros(shape: tuple[int, ...], *names: str) -> Mapping[str, np.ndarray]:
    """Slots of a shape that start at 0."""
    return {name: np.zeros(shape, np.float32) for name in names}


def _one_momentum(shape: tuple[int, ...], options: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    return zeros(shape, "momentum")


def _two_moments(shape: tuple[int, ...], options: Mapping[str, Any]) -> Mapping[str, np.ndarray]:
    return zeros(shape, "m", "v")


def _decayed(g: Tensor, p: Tensor, decay: Quantity) -> Tensor:
    return g if _is_zero(decay) else g + p * decay


def _is_zero(x: Quantity) -> bool:
    return not isinstance(x, Tensor) and x == 0


def _betas(betas: tuple[float, float]) -> dict[str, Option]:
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise InputError(f"expected two betas, got {betas!r}")
    return {"beta1": _share("betas", betas[0]), "beta2": _share("betas", betas[1])}


def _share(name: str, value: float) -> float:
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise InputError(f"expected {name} from 0 to less than 1, got {value!r}")
    return value
