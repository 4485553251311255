"""Small classifiers for images of handwritten digits, to be trained in seconds on a CPU."""

from __future__ import annotations

from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

EPSILON = 1e-5


def digits(
    seed: int = 0,
    *,
    batch: int = 64,
    size: int = 8,
    width: int = 16,
    classes: int = 10,
    dropout: bool = True,
    name: str = "digits",
) -> Module:
    """Map `data` float32 [batch, 1, size, size] to logits [batch, classes].

    Three 3 x 3 convolutions (width, width and 2 * width channels), each with batch normalisation and ReLU;
    2 x 2 max pooling before the last; dropout of 1/4 there and of 1/2 before the dense layer at the end.
    size: rows and columns, an even number. Raises InputError for impossible sizes.
    """
    check_sizes(name, batch=batch, size=size, width=width, classes=classes)
    if size % 2:
        raise InputError(f"{name}: expected an even size, got {size}")
    net = NetworkWriter(seed)
    x = net.input("data", "f32", batch, 1, size, size)
    x = _layer(net, x, width, "conv1")
    x = _layer(net, x, width, "conv2")
    x = net.w.op("max_pool2d", x, pool_size=(2, 2), strides=(2, 2))
    x = _layer(net, _dropped(net, x, 0.25 * dropout), 2 * width, "conv3")
    flat = x.reshape(batch, x.size // batch)
    with net.scope("head"):
        return net.module(name, [net.linear(_dropped(net, flat, 0.5 * dropout), classes, "logits")])


def linear_classifier(
    seed: int = 0, *, batch: int = 64, features: int = 64, classes: int = 10, name: str = "linear_classifier"
) -> Module:
    """Map `data` float32 [batch, features] to logits [batch, classes] by one dense layer.

    Trained with cross entropy it is softmax regression. Raises InputError for impossible sizes.
    """
    check_sizes(name, batch=batch, features=features, classes=classes)
    net = NetworkWriter(seed)
    return net.module(name, [net.linear(net.input("data", "f32", batch, features), classes, "logits")])


def _layer(net: NetworkWriter, x: Tensor, channels: int, name: str) -> Tensor:
    """A convolution without bias that keeps the image's size, batch normalisation, ReLU."""
    with net.scope(name):
        kernel = net.weight("kernel", channels, x.shape[1], 3, 3)
        x = net.w.op("conv2d", x, kernel, padding=(1, 1, 1, 1))
        return net.w.op("relu", net.batch_norm(x, "norm", EPSILON))


def _dropped(net: NetworkWriter, x: Tensor, rate: float) -> Tensor:
    return net.w.op("dropout", x, rate=rate) if rate else x
