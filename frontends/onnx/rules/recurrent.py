"""ONNX recurrent layers (RNN, GRU, LSTM), unrolled over time: ops in number linear in its length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tilewright.frontends.importing.emitter import Result
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rule, Rules
from tilewright.frontends.onnx.rules.quantised import dynamic_product
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

Activation = Callable[[Value], Value]
_DEFAULTS = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, 0.0),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, 0.0),
    "Relu": (0.0, 0.0),
    "ScaledTanh": (1.0, 1.0),
    "Sigmoid": (0.0, 0.0),
    "Softplus": (0.0, 0.0),
    "Softsign": (0.0, 0.0),
    "Tanh": (0.0, 0.0),
    "ThresholdedRelu": (1.0, 0.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class _Cell:
    """One direction: weights [hidden, gates * hidden] of the state, peepholes, activations, options.

    scale, zero: those of weights that are integers.
    """

    emit: FoldingEmitter
    hidden: int
    weight: Value
    bias: Value | None
    peepholes: Value | None
    activations: tuple[Activation, ...]
    clip: float
    flag: bool
    scale: Value | None = None
    zero: Value | None = None

    def clipped(self, x: Value) -> Value:
        """`x` within the clip bound, where there is one."""
        return self.emit.value("clip", x, a_min=-self.clip, a_max=self.clip) if self.clip > 0 else x

    def gate(self, x: Value, index: int) -> Value:
        """Columns of gate `index`."""
        return self.emit.cut(x, x.tensor.rank - 1, index * self.hidden, self.hidden)

    def add(self, a: Value, b: Value) -> Value:
        return self.emit.value("add", a, b)

    def multiply(self, a: Value, b: Value) -> Value:
        return self.emit.value("multiply", a, b)

    def product(self, state: Value, weight: Value) -> Value:
        """State times weights."""
        if self.scale is not None:
            return dynamic_product(self.emit, state, weight, self.scale, self.zero)
        return self.emit.value("matmul", state, weight)


#: one step: gates of the input [batch, gates * hidden] and states -> new states, of which the first is output
Step = Callable[[_Cell, Value, tuple[Value, ...]], tuple[Value, ...]]


def _rnn_step(cell: _Cell, x: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
    total = cell.add(x, cell.product(states[0], cell.weight))
    if cell.bias is not None:
        total = cell.add(total, cell.bias)
    return (cell.activations[0](cell.clipped(total)),)


def _gru_step(cell: _Cell, x: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
    """Gates in the order update, reset, hidden; `flag` is linear_before_reset."""
    (h,) = states
    sigma, tau = cell.activations
    n = cell.hidden
    emit = cell.emit
    # With the flag all gates are columns of one product.
    width = 3 * n if cell.flag else 2 * n
    summed = cell.product(h, emit.cut(cell.weight, 1, 0, width))
    if cell.bias is not None:
        summed = cell.add(summed, emit.cut(cell.bias, 0, 0, width))
    update, reset = (sigma(cell.clipped(cell.add(cell.gate(x, k), cell.gate(summed, k)))) for k in (0, 1))
    if cell.flag:
        inner = cell.multiply(reset, cell.gate(summed, 2))
    else:
        inner = cell.product(cell.multiply(reset, h), cell.gate(cell.weight, 2))
        if cell.bias is not None:
            inner = cell.add(inner, cell.gate(cell.bias, 2))
    new = tau(cell.clipped(cell.add(cell.gate(x, 2), inner)))
    one = emit.full(1, h.tensor.dtype)
    renewed = cell.multiply(emit.value("subtract", one, update), new)
    return (cell.add(renewed, cell.multiply(update, h)),)


def _lstm_step(cell: _Cell, x: Value, states: tuple[Value, ...]) -> tuple[Value, ...]:
    """Gates in the order input, output, forget, cell; `flag` is input_forget."""
    h, c = states
    sigma, tau, eta = cell.activations
    gates = cell.add(x, cell.product(h, cell.weight))
    if cell.bias is not None:
        gates = cell.add(gates, cell.bias)
    i, o, f, new = (cell.gate(gates, k) for k in range(4))
    if cell.peepholes is not None:
        i = cell.add(i, cell.multiply(cell.gate(cell.peepholes, 0), c))
        f = cell.add(f, cell.multiply(cell.gate(cell.peepholes, 2), c))
    entering = sigma(cell.clipped(i))
    one = cell.emit.full(1, h.tensor.dtype)
    forget = cell.emit.value("subtract", one, entering) if cell.flag else sigma(cell.clipped(f))
    after = cell.add(cell.multiply(forget, c), cell.multiply(entering, tau(cell.clipped(new))))
    if cell.peepholes is not None:
        o = cell.add(o, cell.multiply(cell.gate(cell.peepholes, 1), after))
    return cell.multiply(sigma(cell.clipped(o)), eta(after)), after


def _activation(emit: FoldingEmitter, name: str, alpha: float, beta: float) -> Activation:
    """The function called `name`, whatever the case of its letters."""
    kind, op = name.lower(), emit.op

    def affine(x: Value) -> Value:
        return op("add", op("multiply", x, alpha), beta)

    def elu(x: Value) -> Value:
        below = op("subtract", emit.value("exp", x), 1)
        return emit.value("where", op("less", x, 0), op("multiply", below, alpha), x)

    composed: dict[str, Activation] = {
        "affine": affine,
        "elu": elu,
        "hardsigmoid": lambda x: emit.value("clip", affine(x), a_min=0.0, a_max=1.0),
        "leakyrelu": lambda x: emit.value("leaky_relu", x, alpha=float(alpha)),
        "scaledtanh": lambda x: op("multiply", emit.value("tanh", op("multiply", x, beta)), alpha),
        "softsign": lambda x: emit.value("divide", x, op("add", emit.value("abs", x), 1)),
        "thresholdedrelu": lambda x: emit.where(op("greater", x, alpha), x, 0),
        **{plain: partial(emit.value, plain) for plain in ("relu", "sigmoid", "softplus", "tanh")},
    }
    if kind not in composed:
        raise UnsupportedError(f"expected an activation among {', '.join(_DEFAULTS)}, got '{name}'")
    return composed[kind]


def _activations(
    emit: FoldingEmitter, node: Node, defaults: Sequence[str], directions: int
) -> list[Activation]:
    """Functions of all directions; parameters are listed for those that take any, in order."""
    names = node.texts("activations", tuple(defaults) * directions)
    if len(names) != len(defaults) * directions:
        raise InputError(f"expected {len(defaults) * directions} activations, got {', '.join(names)}")
    alphas = list(node.reals("activation_alpha", ()))
    betas = list(node.reals("activation_beta", ()))
    known = {name.lower(): values for name, values in _DEFAULTS.items()}
    takes_alpha = {"affine", "elu", "hardsigmoid", "leakyrelu", "scaledtanh", "thresholdedrelu"}
    functions = []
    for name in names:
        alpha, beta = known.get(name.lower(), (0.0, 0.0))
        if name.lower() in takes_alpha:
            alpha = alphas.pop(0) if alphas else alpha
        if name.lower() in ("affine", "hardsigmoid", "scaledtanh"):
            beta = betas.pop(0) if betas else beta
        functions.append(_activation(emit, name, alpha, beta))
    return functions


def _recurrent(
    gates: int, states: int, defaults: Sequence[str], step: Step, flag: str, *, integers: bool = False
) -> Rule:
    """The rule of a layer; that of one with weights of integers, which come transposed, if `integers`."""

    def rule(emit: FoldingEmitter, node: Node) -> Result:
        """All outputs [time, directions, batch, hidden], and the last states [directions, batch, hidden]."""
        x, weight, recurrence = (_cubic(node, i) for i in range(3))
        batch_first = node.flag("layout", False)
        x = emit.transpose(x, (1, 0, 2)) if batch_first else x
        direction = node.text("direction", "forward")
        kinds = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
        if direction not in kinds:
            raise InputError(f"expected direction {', '.join(kinds)}, got '{direction}'")
        backwards = kinds[direction]
        hidden = recurrence.tensor.shape[1 if integers else 2]
        if node.integer("hidden_size", hidden) != hidden:
            raise InputError(f"expected hidden_size {hidden} as the weights {recurrence.type} have it")
        functions = _activations(emit, node, defaults, len(backwards))
        clip, option = node.real("clip", 0.0), node.flag(flag, False) if flag else False
        node.drop("output_sequence")
        lens, count = node.optional(4), len(defaults)
        ends: list[tuple[Value, tuple[Value, ...]]] = []
        for d, back in enumerate(backwards):
            biases = _part(emit, node, 3, d)
            peepholes = _part(emit, node, 7, d) if gates == 4 else None
            inner, outer = (
                (None, None)
                if biases is None
                else (emit.cut(biases, 0, k * gates * hidden, gates * hidden) for k in (1, 0))
            )
            outside, turned = (emit.entry(v, 0, d) for v in (weight, recurrence))
            if not integers:
                turned = emit.transpose(turned, (1, 0))
            scales = [_part(emit, node, k, d) if integers else None for k in range(8, 12)]
            rows = _gated_input(emit, x, outside, outer, *scales[:2])
            cell = _Cell(
                emit,
                hidden,
                turned,
                inner,
                peepholes,
                tuple(functions[d * count : (d + 1) * count]),
                clip,
                option,
                *scales[2:],
            )
            start = tuple(_initial(emit, node, 5 + k, d, x, hidden, batch_first) for k in range(states))
            ends.append(_unrolled(emit, cell, step, rows, start, lens, back))
        return _outputs(emit, ends, batch_first)

    return rule


def _cubic(node: Node, index: int) -> Value:
    """An operand of rank 3."""
    value = node.tensor(index)
    if value.tensor.rank != 3:
        raise InputError(f"expected input {index} of rank 3, got {value.type}")
    return value


def _part(emit: FoldingEmitter, node: Node, index: int, direction: int) -> Value | None:
    value = node.optional(index)
    return None if value is None else emit.entry(value, 0, direction)


def _initial(
    emit: FoldingEmitter, node: Node, index: int, direction: int, x: Value, hidden: int, batch_first: bool
) -> Value:
    """The state before the first step: operand `index`, or zeros."""
    value = node.optional(index)
    if value is None:
        return emit.full(0, x.tensor.dtype, (x.tensor.shape[1], hidden))
    return emit.entry(value, 1 if batch_first else 0, direction)


def _gated_input(
    emit: FoldingEmitter,
    x: Value,
    weight: Value,
    bias: Value | None,
    scale: Value | None,
    zero: Value | None,
) -> Value:
    """The contribution of all inputs to the gates, in one product: [time, batch, gates * hidden].

    weight: [gates * hidden, width]; with a scale integers [width, gates * hidden].
    """
    time, batch, width = x.tensor.shape
    rows = emit.reshape(x, (time * batch, width))
    if scale is None:
        flat = emit.value("matmul", rows, weight, transpose_b=True)
    else:
        flat = dynamic_product(emit, rows, weight, scale, zero)
    flat = flat if bias is None else emit.value("add", flat, bias)
    return emit.reshape(flat, (time, batch, flat.tensor.shape[1]))


def _unrolled(
    emit: FoldingEmitter,
    cell: _Cell,
    step: Step,
    rows: Value,
    states: tuple[Value, ...],
    lens: Value | None,
    backwards: bool,
) -> tuple[Value, tuple[Value, ...]]:
    """Outputs of all steps [time, batch, hidden] in order of time, and the states in the end.

    Behind the end of a sequence the states stay and the outputs are zero.
    """
    time = rows.tensor.shape[0]
    outputs: list[Value] = []
    for t in reversed(range(time)) if backwards else range(time):
        after = step(cell, emit.entry(rows, 0, t), states)
        output = after[0]
        if lens is not None:
            now = emit.full(t, lens.tensor.dtype)
            live = emit.reshape(emit.value("less", now, lens), (lens.tensor.size, 1))
            after = tuple(emit.value("where", live, new, old) for new, old in zip(after, states, strict=True))
            output = emit.value("where", live, output, emit.full(0, output.tensor.dtype))
        states = after
        outputs.append(output)
    ordered = outputs[::-1] if backwards else outputs
    if not ordered:
        raise UnsupportedError("expected sequences of at least one step")
    return emit.value("stack", *ordered, axis=0), states


def _outputs(
    emit: FoldingEmitter, ends: Sequence[tuple[Value, tuple[Value, ...]]], batch_first: bool
) -> tuple[Value, ...]:
    every = emit.value("stack", *(outputs for outputs, _ in ends), axis=1)
    last = [
        emit.value("stack", *parts, axis=0) for parts in zip(*(states for _, states in ends), strict=True)
    ]
    if batch_first:
        every = emit.transpose(every, (2, 0, 1, 3))
        last = [emit.transpose(v, (1, 0, 2)) for v in last]
    return (every, *last)


RULES: Rules = {
    "com.microsoft.DynamicQuantizeLSTM": _recurrent(
        4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, "input_forget", integers=True
    ),
    "GRU": _recurrent(3, 1, ("Sigmoid", "Tanh"), _gru_step, "linear_before_reset"),
    "LSTM": _recurrent(4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, "input_forget"),
    "RNN": _recurrent(1, 1, ("Tanh",), _rnn_step, ""),
}
