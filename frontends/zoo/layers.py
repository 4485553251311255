"""Layers of image networks at the graph level (NCHW, float32), with seeded weights named by place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.frontends.importing.emitter import Emitter
from tilewright.frontends.importing.parameters import with_parameters
from tilewright.frontends.weights.deferred import made
from tilewright.frontends.weights.random_weights import random_weight
from tilewright.ir.constants import Constants
from tilewright.ir.nodes import Func, Level, Module, Value
from tilewright.ir.types import TensorType

#: Most networks of TensorFlow normalise with this epsilon.
EPSILON = 1e-3


class Layers:
    """Builds one network layer by layer; `scope` names the weights and places of what is built inside."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._emit = Emitter(taken=())
        self._scopes: list[str] = []

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Everything built inside belongs to part `name`."""
        self._scopes.append(name)
        try:
            with self._emit.builder.at(f"zoo:{'.'.join(self._scopes)}"):
                yield
        finally:
            self._scopes.pop()

    def weight(self, name: str, *shape: int) -> Value:
        """A float32 constant: kernels of variance 1 / fan-in, `gamma` and `var` around 1, others around 0."""
        full = ".".join((*self._scopes, name))
        return self._emit.weight(random_weight(full, shape, "float32", self._seed), full)

    def relu(self, x: Value) -> Value:
        """max(x, 0)."""
        return self._emit.value("relu", x)

    def add(self, a: Value, b: Value) -> Value:
        """a + b."""
        return self._emit.value("add", a, b)

    def join(self, parts: Sequence[Value]) -> Value:
        """The parts' channels one after the other; a single part as it is."""
        (value,) = parts if len(parts) == 1 else self._emit.values("concatenate", parts, axis=1)
        return value

    def conv(
        self, x: Value, filters: int, kernel: int, stride: int = 1, *, pad: bool = True, name: str
    ) -> Value:
        """A square convolution without bias; `pad` keeps ceil(extent / stride) points."""
        weight = self.weight(name, filters, x.tensor.shape[1], kernel, kernel)
        around = (kernel // 2 if pad else 0,) * 4
        return self._emit.value("conv2d", x, weight, strides=(stride, stride), padding=around)

    def depthwise(self, x: Value, kernel: int, stride: int, *, name: str) -> Value:
        """One square kernel per channel, padded to ceil(extent / stride) points."""
        channels = x.tensor.shape[1]
        weight = self.weight(name, channels, 1, kernel, kernel)
        return self._emit.value(
            "conv2d", x, weight, strides=(stride, stride), padding=(kernel // 2,) * 4, groups=channels
        )

    def norm(self, x: Value, name: str = "bn") -> Value:
        """Batch normalisation with random gamma, beta, mean and (positive) variance."""
        vectors = (
            self.weight(f"{name}.{part}", x.tensor.shape[1]) for part in ("gamma", "beta", "mean", "var")
        )
        return self._emit.value("batch_norm", x, *vectors, epsilon=EPSILON)

    def pool(self, x: Value, kind: str, stride: int = 1) -> Value:
        """3 x 3 `max` or `avg` pooling, padded to ceil(extent / stride) points; padding never counts."""
        size = {"pool_size": (3, 3), "strides": (stride, stride), "padding": (1, 1, 1, 1)}
        return self._emit.value(f"{kind}_pool2d", x, **size)

    def every_other(self, x: Value, first: int) -> Value:
        """Rows and columns first, first + 2, ...: ceil(extent / 2) of each, zero beyond the edge."""
        n, c, *image = x.tensor.shape
        half = [(extent + 1) // 2 for extent in image]
        beyond = [max(0, first + 2 * (count - 1) + 1 - e) for count, e in zip(half, image, strict=True)]
        if any(beyond):
            x = self._emit.value("pad", x, pad_before=(0, 0, 0, 0), pad_after=(0, 0, *beyond))
        return self._emit.value(
            "strided_slice", x, begin=(0, 0, first, first), size=(n, c, *half), strides=(1, 1, 2, 2)
        )

    def classify(self, x: Value, classes: int) -> Value:
        """Mean over the image, a dense layer with bias, softmax."""
        n, c, h, w = x.tensor.shape
        mean = self._emit.value("avg_pool2d", x, pool_size=(h, w))
        flat = self._emit.value("reshape", mean, newshape=(n, c))
        logits = self._emit.value("dense", flat, self.weight("dense.kernel", classes, c))
        biased = self._emit.value("bias_add", logits, self.weight("dense.bias", classes))
        return self._emit.value("softmax", biased, axis=-1)

    def module(self, name: str, inputs: Sequence[Value], result: Value) -> Module:
        """The finished network as a module whose @main maps the inputs to `result`."""
        builder = self._emit.builder
        builder.do("graph.return", result)
        func = Func(Level.GRAPH, "main", builder.block(inputs), (result.type,))
        constants = Constants({n: made(a) for n, a in self._emit.constants.items()})
        return with_parameters(Module(name, (func,), (), constants), self._emit.weights)


def image(batch: int, channels: int, size: int) -> Value:
    """The input `data`: [batch, channels, size, size] in float32."""
    return Value(TensorType("f32", (batch, channels, size, size)), hint="data")
