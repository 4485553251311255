"""The encoder layer of BERT, forward and backward, as the 46 operators of "Data Movement Is All You Need".

Each operator of the paper's Table III (Ivanov et al., MLSys 2021) is one location of the module, so that
flop and words of every operator follow from the ops that it is lowered to. Results are the layer's output,
the gradient of its input, and those of its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

EPSILON = 1e-5
#: values of 16 random bits
_BITS = 1 << 16


def encoder_dataflow(
    seed: int = 0,
    *,
    batch: int = 8,
    sequence: int = 512,
    heads: int = 16,
    size: int = 64,
    hidden: int = 4096,
    dropout: float = 0.1,
    name: str = "encoder_dataflow",
) -> Module:
    """The layer's operators; `x` and the `cotangent` of its output are f32 [heads * size, batch, sequence].

    Dimensions are as in the paper: b samples, j and k tokens, h heads of p elements, i = h p, u hidden.
    Inputs beside are the parameters: `wqkv` [3, p, h, i], `bqkv` [3, p, h], `wo` [p, h, i], `w1` [u, i],
    `w2` [i, u], biases and norms by their names, and `seed` and `step` of dropout (rate `dropout`, a mask of
    0 or 1/keep). The part of queries in `wqkv` and `bqkv` holds the factor 1/sqrt(p) of attention.
    Results: y, then gradients of x and of the parameters in the order of inputs.
    """
    check_sizes(name, batch=batch, sequence=sequence, heads=heads, size=size, hidden=hidden)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise InputError(f"{name}: expected a rate of dropout from 0 to less than 1, got {dropout!r}")
    net = _Dataflow(seed, float(dropout))
    width = heads * size
    x, dy = (net.input(n, "f32", width, batch, sequence) for n in ("x", "cotangent"))
    shapes = {
        "wqkv": (3, size, heads, width), "bqkv": (3, size, heads), "wo": (size, heads, width), "bo": (width,),
        "scale1": (width,), "shift1": (width,), "w1": (hidden, width), "bias1": (hidden,),
        "w2": (width, hidden), "bias2": (width,), "scale2": (width,), "shift2": (width,),
    }  # fmt: skip
    given = {name: net.input(name, "f32", *shape) for name, shape in shapes.items()}
    net.random()
    first, attended = _attention(net, x, given)
    y, fed = _network(net, first, given)
    dfirst, gradients = _network_gradients(net, dy, y, first, given, fed)
    dx, more = _attention_gradients(net, dfirst, x, first, given, attended)
    gradients |= more
    return net.module(name, [y, dx, *(gradients[n] for n in shapes)])


#: tensors by the names that the functions below share
_Tensors = dict[str, Tensor]


def _attention(net: _Dataflow, x: Tensor, given: _Tensors) -> tuple[Tensor, _Tensors]:
    """Attention with its residual and norm; what the backward pass reads of it."""
    with net.operator("QKV"):
        qkv = net.product("cphi,ibj->cphbj", given["wqkv"], x)
    with net.operator("input bias"):
        qkv = qkv + given["bqkv"].reshape(*given["bqkv"].shape, 1, 1)
    with net.operator("QKT"):
        scores = net.product("phbk,phbj->hbjk", net.part(qkv, 1), net.part(qkv, 0))
    with net.operator("softmax"):
        powers = (scores - scores.max(-1, keepdims=True)).exp()
        weights = powers / powers.sum(-1, keepdims=True)
        kept = net.mask(weights)
        dropped = weights * kept
    with net.operator("gamma"):
        mixed = net.product("phbk,hbjk->phbj", net.part(qkv, 2), dropped)
    with net.operator("out"):
        attention = net.product("phi,phbj->ibj", given["wo"], mixed)
    with net.operator("output bias"):
        attention = attention + given["bo"].along(0, 3)
    attention, kept1 = net.dropout("dropout 1", attention)
    with net.operator("residual 1"):
        added = attention + x
    first, mean, deviation = net.norm("layer norm 1", added, given["scale1"], given["shift1"])
    return first, {
        "qkv": qkv, "weights": weights, "kept": kept, "dropped": dropped, "mixed": mixed, "kept1": kept1,
        "added": added, "mean": mean, "deviation": deviation,
    }  # fmt: skip


def _network(net: _Dataflow, first: Tensor, given: _Tensors) -> tuple[Tensor, _Tensors]:
    """The hidden layer with its residual and norm; what the backward pass reads of it."""
    with net.operator("linear 1"):
        raised = net.product("ui,ibj->ubj", given["w1"], first)
    with net.operator("linear 1 bias"):
        raised = raised + given["bias1"].along(0, 3)
    with net.operator("ReLU"):
        bent = (raised > 0.0).where(raised, 0.0)
    bent, kept2 = net.dropout("dropout 2", bent)
    with net.operator("linear 2"):
        lowered = net.product("iu,ubj->ibj", given["w2"], bent)
    with net.operator("linear 2 bias"):
        lowered = lowered + given["bias2"].along(0, 3)
    lowered, kept3 = net.dropout("dropout 3", lowered)
    with net.operator("residual 2"):
        added = lowered + first
    y, mean, deviation = net.norm("layer norm 2", added, given["scale2"], given["shift2"])
    return y, {
        "raised": raised, "bent": bent, "kept2": kept2, "kept3": kept3, "added": added, "mean": mean,
        "deviation": deviation,
    }  # fmt: skip


def _network_gradients(
    net: _Dataflow, dy: Tensor, y: Tensor, first: Tensor, given: _Tensors, saved: _Tensors
) -> tuple[Tensor, _Tensors]:
    """The gradient of the hidden layer's input, its residual included, and those of its parameters."""
    scale, shift = given["scale2"], given["shift2"]
    parameters = net.norm_parameters("layer norm 2 dW", dy, y, scale, shift)
    out = dict(zip(("scale2", "shift2"), parameters, strict=True))
    dsum = net.norm_input("layer norm 2 dX", dy, saved["added"], scale, saved["mean"], saved["deviation"])
    with net.operator("dropout 3 dX"):
        dlowered = dsum * saved["kept3"]
    with net.operator("linear 2 dX"):
        dbent = net.product("iu,ibj->ubj", given["w2"], dlowered)
    with net.operator("linear 2 dW"):
        out["w2"] = net.product("ibj,ubj->iu", dlowered, saved["bent"])
    with net.operator("linear 2 bias dW"):
        out["bias2"] = dlowered.sum((1, 2))
    with net.operator("dropout 2 dX"):
        dbent = dbent * saved["kept2"]
    with net.operator("ReLU dX"):
        draised = (saved["raised"] > 0.0).where(dbent, 0.0)
    with net.operator("linear 1 bias dW"):
        out["bias1"] = draised.sum((1, 2))
    with net.operator("linear 1 dX"):
        dfirst = net.product("ui,ubj->ibj", given["w1"], draised)
    with net.operator("linear 1 dW"):
        out["w1"] = net.product("ubj,ibj->ui", draised, first)
    with net.operator("residual 2 dX"):
        dfirst = dfirst + dsum
    return dfirst, out


def _attention_gradients(
    net: _Dataflow, dfirst: Tensor, x: Tensor, first: Tensor, given: _Tensors, saved: _Tensors
) -> tuple[Tensor, _Tensors]:
    """The gradient of the layer's input, and those of attention's parameters."""
    scale, shift = given["scale1"], given["shift1"]
    parameters = net.norm_parameters("layer norm 1 dW", dfirst, first, scale, shift)
    out = dict(zip(("scale1", "shift1"), parameters, strict=True))
    dsum = net.norm_input("layer norm 1 dX", dfirst, saved["added"], scale, saved["mean"], saved["deviation"])
    with net.operator("dropout 1 dX"):
        dattention = dsum * saved["kept1"]
    with net.operator("output bias dW"):
        out["bo"] = dattention.sum((1, 2))
    with net.operator("out dX"):
        dmixed = net.product("phi,ibj->phbj", given["wo"], dattention)
    with net.operator("out dW"):
        out["wo"] = net.product("phbj,ibj->phi", saved["mixed"], dattention)
    qkv, weights = saved["qkv"], saved["weights"]
    with net.operator("gamma dX1"):
        ddropped = net.product("phbk,phbj->hbjk", net.part(qkv, 2), dmixed)
    with net.operator("gamma dX2"):
        dv = net.product("phbj,hbjk->phbk", dmixed, saved["dropped"])
    with net.operator("softmax dX"):
        dweights = ddropped * saved["kept"]
        dscores = weights * (dweights - (dweights * weights).sum(-1, keepdims=True))
    with net.operator("QKT dX1"):
        dk = net.product("phbj,hbjk->phbk", net.part(qkv, 0), dscores)
    with net.operator("QKT dX2"):
        dq = net.product("phbk,hbjk->phbj", net.part(qkv, 1), dscores)
    with net.operator("QKV dX"):
        dx = net.product("cphi,cphbj->ibj", given["wqkv"], net.stacked(dq, dk, dv))
    with net.operator("QKV dW"):
        out["wqkv"] = net.product("cphbj,ibj->cphi", net.stacked(dq, dk, dv), x)
    with net.operator("input bias dW"):
        out["bqkv"] = net.stacked(dq, dk, dv).sum((3, 4))
    with net.operator("residual 1 dX"):
        dx = dx + dsum
    return dx, out


class _Dataflow(NetworkWriter):
    def __init__(self, seed: int, rate: float) -> None:
        super().__init__(seed)
        self._kept = round((1.0 - rate) * _BITS)
        self._stream = 0

    @contextmanager
    def operator(self, name: str) -> Iterator[None]:
        """All ops that are written inside this context belong to one operator."""
        with self.w.at(f"zoo:{name}"):
            yield

    def random(self) -> None:
        """The inputs that random bits depend on."""
        self._random = self.input("seed", "u32", 2), self.input("step", "u32")

    def product(self, subscripts: str, *factors: Tensor) -> Tensor:
        """A contraction by einsum."""
        return self.w.op("einsum", *factors, equation=subscripts)

    def part(self, stacked: Tensor, n: int) -> Tensor:
        """Queries (0), keys (1) or values (2)."""
        rest = stacked.shape[1:]
        steps, begin = (1,) * stacked.rank, (n, *(0 for _ in rest))
        cut = self.w.op("strided_slice", stacked, begin=begin, strides=steps, size=(1, *rest))
        return cut.reshape(*rest)

    def stacked(self, *parts: Tensor) -> Tensor:
        """Tensors of one shape one after another along a new first dimension."""
        return self.w.op("stack", *parts, axis=0)

    def mask(self, x: Tensor) -> Tensor:
        """0 for elements that are dropped, one over the share that is kept for others."""
        bits = self.w.op("random_bits", *self._random, shape=x.shape, stream=self._stream)
        self._stream += 1
        if self._kept == _BITS:
            return self.w.full(1.0, x.type)
        return (bits < self._kept).where(self.w.full(_BITS / self._kept, x.type), 0.0)

    def dropout(self, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """The elements that are kept, and the mask."""
        with self.operator(name):
            kept = self.mask(x)
            return x * kept, kept

    def norm(self, name: str, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalisation along the first dimension; the means, and one over the standard deviations."""
        with self.operator(name):
            mean = x.mean(0, keepdims=True)
            centred = x - mean
            deviation = ((centred * centred).mean(0, keepdims=True) + EPSILON).rsqrt()
            return centred * deviation * scale.along(0, 3) + shift.along(0, 3), mean, deviation

    def norm_parameters(
        self, name: str, dy: Tensor, y: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of scale and shift; normalised elements are (y - shift) / scale, divided behind sums."""
        with self.operator(name):
            return (dy * (y - shift.along(0, 3))).sum((1, 2)) / scale, dy.sum((1, 2))

    def norm_input(
        self, name: str, dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, deviation: Tensor
    ) -> Tensor:
        """The gradient of a norm's input: r dx - r mean(dx) - (x - m) r^3 mean(dx (x - m)), dx = dy scale."""
        with self.operator(name):
            centred, g = x - mean, dy * scale.along(0, 3)
            across = (g * centred).mean(0, keepdims=True) * (deviation * deviation * deviation)
            return g * deviation - g.mean(0, keepdims=True) * deviation - centred * across
