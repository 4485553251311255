"""The encoder layer of BERT, forward and backward, as the 46 operators of "Data Movement Is All You Need".

Each operator of the paper's Table III (Ivanov et al., MLSys 2021) is one location of the module, so that
flop and words of every operator follow from the ops that it is lowered to. Results are the layer's output,
the gradient of its input, and those of its parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

EPSILON = 1e-5
#: values of 16 random bits
_BITS = 1 << 16
#: orders of arrays whose features lie side by side, by the paper's
_TOKENS_FIRST = {
    "ibj": "bji", "ubj": "bju", "cphbj": "cbjhp", "phbj": "bjhp", "phbk": "bkhp", "hbjk": "bhjk",
    "cphi": "chpi", "cph": "chp", "phi": "hpi",
}  # fmt: skip


def encoder_dataflow(
    seed: int = 0,
    *,
    batch: int = 8,
    sequence: int = 512,
    heads: int = 16,
    size: int = 64,
    hidden: int = 4096,
    dropout: float = 0.1,
    storage: str = "f32",
    tokens: str = "last",
    name: str = "encoder_dataflow",
) -> Module:
    """The layer's operators; `x` and the `cotangent` of its output are [heads * size, batch, sequence].

    tokens: `last` as in the paper, or `first` for arrays of [batch, sequence, heads * size] with the heads of
    a token side by side, as frameworks hold them; weights then have h before p.
    storage: the type of inputs, results and all arrays between operators, `f32`, `f16` or `bf16`; in the
    latter two operators compute in float32, and statistics of norms stay so.

    Dimensions are as in the paper: b samples, j and k tokens, h heads of p elements, i = h p, u hidden.
    Inputs beside are the parameters: `wqkv` [3, p, h, i], `bqkv` [3, p, h], `wo` [p, h, i], `w1` [u, i],
    `w2` [i, u], biases and norms by their names, and `seed` and `step` of dropout (rate `dropout`, a mask of
    0 or 1/keep). The part of queries in `wqkv` and `bqkv` holds the factor 1/sqrt(p) of attention.
    Results: y, then gradients of x and of the parameters in the order of inputs.
    """
    check_sizes(name, batch=batch, sequence=sequence, heads=heads, size=size, hidden=hidden)
    if isinstance(dropout, bool) or not isinstance(dropout, int | float) or not 0 <= dropout < 1:
        raise InputError(f"{name}: expected a rate of dropout from 0 to less than 1, got {dropout!r}")
    if storage not in ("f32", "f16", "bf16"):
        raise InputError(f"{name}: expected storage f32, f16 or bf16, got {storage!r}")
    if tokens not in ("last", "first"):
        raise InputError(f"{name}: expected tokens last or first, got {tokens!r}")
    net = _Dataflow(seed, float(dropout), storage, tokens)
    width = heads * size
    extents = {"c": 3, "p": size, "h": heads, "i": width, "u": hidden, "b": batch, "j": sequence}
    dims = {
        "x": "ibj", "cotangent": "ibj", "wqkv": "cphi", "bqkv": "cph", "wo": "phi", "bo": "i", "scale1": "i",
        "shift1": "i", "w1": "ui", "bias1": "u", "w2": "iu", "bias2": "i", "scale2": "i", "shift2": "i",
    }  # fmt: skip
    given = {n: net.input(n, storage, *(extents[d] for d in net.order(at))) for n, at in dims.items()}
    x, dy = given.pop("x"), given.pop("cotangent")
    net.random()
    first, attended = _attention(net, x, given)
    y, fed = _network(net, first, given)
    dfirst, gradients = _network_gradients(net, dy, y, first, given, fed)
    dx, more = _attention_gradients(net, dfirst, x, first, given, attended)
    gradients |= more
    module = net.module(name, [y, dx, *(gradients[n] for n in given)])
    main = module.main.with_attrs(
        loss=0, recomputed=0
    )  # what y needs comes first; the rest shares no op of it
    return module.with_funcs((main,))


#: tensors by the names that the functions below share
_Tensors = dict[str, Tensor]


def _attention(net: _Dataflow, x: Tensor, given: _Tensors) -> tuple[Tensor, _Tensors]:
    """Attention with its residual and norm; what the backward pass reads of it."""
    with net.operator("QKV"):
        qkv = net.product("cphi,ibj->cphbj", given["wqkv"], x)
    with net.operator("input bias"):
        qkv = net.biased(qkv, given["bqkv"])
    with net.operator("QKT"):
        scores = net.product("phbk,phbj->hbjk", net.part(qkv, 1), net.part(qkv, 0))
    with net.operator("softmax"):
        scores = net.wide(scores)
        powers = (scores - scores.max(-1, keepdims=True)).exp()
        shares = powers / powers.sum(-1, keepdims=True)
        weights, kept = net.stored(shares), net.stored(net.mask(shares))
        dropped = net.kept(shares, kept)
    with net.operator("gamma"):
        mixed = net.product("phbk,hbjk->phbj", net.part(qkv, 2), dropped)
    with net.operator("out"):
        attention = net.product("phi,phbj->ibj", given["wo"], mixed)
    with net.operator("output bias"):
        attention = net.biased(attention, given["bo"])
    attention, kept1 = net.dropout("dropout 1", attention)
    with net.operator("residual 1"):
        added = net.stored(net.wide(attention) + net.wide(x))
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
        raised = net.biased(raised, given["bias1"])
    with net.operator("ReLU"):
        bent = (raised > 0.0).where(raised, 0.0)
    bent, kept2 = net.dropout("dropout 2", bent)
    with net.operator("linear 2"):
        lowered = net.product("iu,ubj->ibj", given["w2"], bent)
    with net.operator("linear 2 bias"):
        lowered = net.biased(lowered, given["bias2"])
    lowered, kept3 = net.dropout("dropout 3", lowered)
    with net.operator("residual 2"):
        added = net.stored(net.wide(lowered) + net.wide(first))
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
        dlowered = net.kept(dsum, saved["kept3"])
    with net.operator("linear 2 dX"):
        dbent = net.product("iu,ibj->ubj", given["w2"], dlowered)
    with net.operator("linear 2 dW"):
        out["w2"] = net.product("ibj,ubj->iu", dlowered, saved["bent"])
    with net.operator("linear 2 bias dW"):
        out["bias2"] = net.summed(dlowered)
    with net.operator("dropout 2 dX"):
        dbent = net.kept(dbent, saved["kept2"])
    with net.operator("ReLU dX"):
        draised = (saved["raised"] > 0.0).where(dbent, 0.0)
    with net.operator("linear 1 bias dW"):
        out["bias1"] = net.summed(draised)
    with net.operator("linear 1 dX"):
        dfirst = net.product("ui,ubj->ibj", given["w1"], draised)
    with net.operator("linear 1 dW"):
        out["w1"] = net.product("ubj,ibj->ui", draised, first)
    with net.operator("residual 2 dX"):
        dfirst = net.stored(net.wide(dfirst) + net.wide(dsum))
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
        dattention = net.kept(dsum, saved["kept1"])
    with net.operator("output bias dW"):
        out["bo"] = net.summed(dattention)
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
        dweights, weights = net.wide(ddropped) * net.wide(saved["kept"]), net.wide(weights)
        dscores = net.stored(weights * (dweights - (dweights * weights).sum(-1, keepdims=True)))
    with net.operator("QKT dX1"):
        dk = net.product("phbj,hbjk->phbk", net.part(qkv, 0), dscores)
    with net.operator("QKT dX2"):
        dq = net.product("phbk,hbjk->phbj", net.part(qkv, 1), dscores)
    with net.operator("QKV dX"):
        dx = net.product("cphi,cphbj->ibj", given["wqkv"], net.stacked(dq, dk, dv))
    with net.operator("QKV dW"):
        out["wqkv"] = net.product("cphbj,ibj->cphi", net.stacked(dq, dk, dv), x)
    with net.operator("input bias dW"):
        out["bqkv"] = net.summed(net.stacked(dq, dk, dv))
    with net.operator("residual 1 dX"):
        dx = net.stored(net.wide(dx) + net.wide(dsum))
    return dx, out


class _Dataflow(NetworkWriter):
    def __init__(self, seed: int, rate: float, storage: str, tokens: str) -> None:
        super().__init__(seed)
        self._storage, self._first = storage, tokens == "first"
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

    def stored(self, x: Tensor) -> Tensor:
        """Numbers as arrays between operators hold them."""
        return x if x.type.dtype == self._storage else self.w.op("cast", x, dtype=self._storage)

    def wide(self, x: Tensor) -> Tensor:
        """Numbers of an array as operators compute with them."""
        return x if x.type.dtype == "f32" else self.w.op("cast", x, dtype="f32")

    def biased(self, x: Tensor, bias: Tensor) -> Tensor:
        """The sum with a bias per feature."""
        return self.stored(self.wide(x) + self.along(self.wide(bias), x.rank))

    def kept(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return what a mask leaves."""
        return self.stored(self.wide(x) * self.wide(mask))

    def summed(self, x: Tensor) -> Tensor:
        """Sums over all tokens."""
        return self.stored(self.wide(x).sum(self.over_tokens(x.rank)))

    def order(self, dims: str) -> str:
        """The order in which arrays of dimensions that are given in the paper's order lie."""
        return _TOKENS_FIRST.get(dims, dims) if self._first else dims

    def product(self, subscripts: str, *factors: Tensor) -> Tensor:
        """A contraction by einsum, of arrays in the paper's orders."""
        here = re.sub("[a-z]+", lambda found: self.order(found[0]), subscripts)
        return self.w.op("einsum", *factors, equation=here)

    def along(self, x: Tensor, rank: int = 3) -> Tensor:
        """Numbers per feature, to be read beside arrays of this rank: of tokens, and of what is stacked."""
        features = x.shape[1:] if rank > 3 else x.shape
        ones = (1, 1)
        stack = x.shape[:1] if rank > 3 else ()
        return x.reshape(*stack, *(ones + features if self._first else features + ones))

    def over_tokens(self, rank: int) -> tuple[int, int]:
        """The axes of samples and tokens in arrays of this rank."""
        begin = rank - 2 if not self._first else int(rank > 3)
        return begin, begin + 1

    def features(self) -> int:
        """The axis that norms reduce."""
        return 2 if self._first else 0

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
            kept = self.stored(self.mask(self.wide(x)))
            return self.kept(x, kept), kept

    def norm(self, name: str, x: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Normalisation along the features; the means, and one over the standard deviations."""
        with self.operator(name):
            x, scale, shift = map(self.wide, (x, scale, shift))
            mean = x.mean(self.features(), keepdims=True)
            centred = x - mean
            deviation = ((centred * centred).mean(self.features(), keepdims=True) + EPSILON).rsqrt()
            y = self.stored(centred * deviation * self.along(scale) + self.along(shift))
            return y, mean, deviation

    def norm_parameters(
        self, name: str, dy: Tensor, y: Tensor, scale: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Gradients of scale and shift; normalised elements are (y - shift) / scale, divided behind sums."""
        with self.operator(name):
            dy, y, scale, shift = map(self.wide, (dy, y, scale, shift))
            over = self.over_tokens(3)
            dscale = (dy * (y - self.along(shift))).sum(over) / scale
            return self.stored(dscale), self.stored(dy.sum(over))

    def norm_input(
        self, name: str, dy: Tensor, x: Tensor, scale: Tensor, mean: Tensor, deviation: Tensor
    ) -> Tensor:
        """The gradient of a norm's input: r dx - r mean(dx) - (x - m) r^3 mean(dx (x - m)), dx = dy scale."""
        with self.operator(name):
            centred, g = self.wide(x) - mean, self.wide(dy) * self.along(self.wide(scale))
            across = (g * centred).mean(self.features(), keepdims=True)
            across = across * (deviation * deviation * deviation)
            mean = g.mean(self.features(), keepdims=True)
            return self.stored(g * deviation - mean * deviation - centred * across)
