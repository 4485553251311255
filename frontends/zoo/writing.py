"""Networks written with tensors and operators: scopes name weights and places, weights are seeded by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.frontends.importing.parameters import with_parameters
from tilewright.frontends.weights.random_weights import SeededConstants
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.nodes import Block, Func, Level, Module, Value
from tilewright.ir.types import TensorType


def check_sizes(name: str, **sizes: int) -> None:
    """Raise InputError for the first size of network `name` that is no positive integer."""
    for what, value in sizes.items():
        if type(value) is not int or value < 1:
            raise InputError(f"{name}: expected {what} of 1 or more, got {value!r}")


class NetworkWriter:
    """Writes one network; `scope` names the weights and the places of what is written inside."""

    def __init__(self, seed: int) -> None:
        self.w = GraphWriter()
        self._seed = seed
        self._scopes: list[str] = []
        self._inputs: list[Value] = []
        self._weights: dict[str, Tensor] = {}

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Everything written inside belongs to part `name`."""
        self._scopes.append(name)
        try:
            with self.w.at(f"zoo:{'.'.join(self._scopes)}"):
                yield
        finally:
            self._scopes.pop()

    @contextmanager
    def operator(self, name: str) -> Iterator[None]:
        """Everything written inside is operator `name` of the scope, which names of weights do not have."""
        with self.w.at(f"zoo:{'.'.join((*self._scopes, name))}"):
            yield

    def input(self, name: str, dtype: str, *shape: int) -> Tensor:
        """A further input of the network."""
        self._inputs.append(Value(TensorType(dtype, shape), hint=name))
        return self.w.tensor(self._inputs[-1])

    def weight(self, name: str, *shape: int) -> Tensor:
        """A float32 parameter of the scope; a second call with its name gives the same one."""
        full = ".".join((*self._scopes, name))
        if full not in self._weights:
            kind = (TensorType("f32", shape),)
            (value,) = self.w.builder.emit("graph.constant", (), {"name": full}, types=kind, hint=full)
            self._weights[full] = self.w.tensor(value)
        return self._weights[full]

    def linear(self, x: Tensor, units: int, name: str) -> Tensor:
        """x * weight^T + bias along the last dimension."""
        product = self.w.op("dense", x, self.weight(f"{name}.kernel", units, x.shape[-1]))
        return self.w.op("bias_add", product, self.weight(f"{name}.bias", units), axis=-1)

    def layer_norm(self, x: Tensor, name: str, epsilon: float) -> Tensor:
        """Normalisation along the last dimension with a factor and a shift for each of its elements."""
        gamma, beta = (self.weight(f"{name}.{part}", x.shape[-1]) for part in ("gamma", "beta"))
        return self.w.op("layer_norm", x, gamma, beta, axis=-1, epsilon=epsilon)

    def batch_norm(self, x: Tensor, name: str, epsilon: float) -> Tensor:
        """Normalisation of each channel (dimension 1) by running statistics, which are no parameters."""
        parts = ("gamma", "beta", "moving_mean", "moving_var")
        vectors = (self.weight(f"{name}.{part}", x.shape[1]) for part in parts)
        return self.w.op("batch_norm", x, *vectors, axis=1, epsilon=epsilon)

    def module(self, name: str, results: Sequence[Tensor]) -> Module:
        """The finished network; its parameters are all the weights but running statistics."""
        values = [t.value for t in results]
        self.w.builder.emit("graph.return", values, types=())
        block = Block(tuple(self._inputs), self.w.ops)
        func = Func(Level.GRAPH, "main", block, tuple(v.type for v in values))
        shapes = {n: t.shape for n, t in self._weights.items()}
        constants = SeededConstants(shapes, self._seed, dict(self.w.constants))
        return with_parameters(Module(name, (func,), (), constants), self._weights)
