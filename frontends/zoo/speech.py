"""A recogniser of speech after Deep Speech 2 (Amodei et al. 2016, "Deep Speech 2: End-to-End Speech ...")."""

from __future__ import annotations

from tilewright.frontends.zoo.gated import both_ways
from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.errors import InputError
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module

EPSILON = 1e-5
#: the paper's two convolutions: kernels and strides along frequencies and frames
CONVOLUTIONS = (((41, 11), (2, 2)), ((21, 11), (2, 1)))


def deep_speech(
    seed: int = 0,
    *,
    layers: int = 3,
    width: int = 512,
    channels: int = 32,
    frequencies: int = 161,
    frames: int = 128,
    characters: int = 29,
    batch: int = 1,
    name: str = "deep_speech",
) -> Module:
    """Map `spectrogram` float32 [batch, 1, frequencies, frames] to logits of characters.

    Two convolutions with batch norm and ReLU clipped at 20 halve the frames; layers of gated recurrent units
    read them in both directions, which are summed, with a batch norm over steps and batch before every layer
    but the first. The logits are [frames / 2 * batch, characters], one frame after another: train it with
    `cross_entropy` of a label per frame, where the paper aligns a text with them (CTC). The paper's largest
    network has seven layers of 2,560 units. Raises InputError for impossible sizes.
    """
    check_sizes(name, layers=layers, width=width, channels=channels, characters=characters, batch=batch)
    check_sizes(name, frequencies=frequencies, frames=frames)
    if frames % 2:
        raise InputError(f"{name}: expected an even number of frames, got {frames}")
    net = NetworkWriter(seed)
    x = net.input("spectrogram", "f32", batch, 1, frequencies, frames)
    for number, (kernel, strides) in enumerate(CONVOLUTIONS):
        with net.scope(f"conv{number}"):
            x = _convolution(net, x, channels, kernel, strides)
    _, _, bands, steps = x.shape
    x = x.transpose(3, 0, 1, 2).reshape(steps, batch, channels * bands)
    for layer in range(layers):
        with net.scope(f"l{layer}"):
            if layer:
                flat = net.batch_norm(x.reshape(steps * batch, width), "norm", EPSILON)
                x = flat.reshape(steps, batch, width)
            forward, backward = both_ways(net, x, width)
            x = net.w.op("stack", *forward, axis=0) + net.w.op("stack", *backward, axis=0)
    with net.scope("head"):
        flat = net.batch_norm(x.reshape(steps * batch, width), "norm", EPSILON)
        return net.module(name, [net.linear(flat, characters, "logits")])


def _convolution(
    net: NetworkWriter, x: Tensor, channels: int, kernel: tuple[int, int], strides: tuple[int, int]
) -> Tensor:
    """A convolution that keeps ceil(extent / stride) points, batch norm, and ReLU clipped at 20."""
    weight = net.weight("kernel", channels, x.shape[1], *kernel)
    (high, wide) = (extent // 2 for extent in kernel)
    x = net.w.op("conv2d", x, weight, strides=strides, padding=(high, wide, high, wide))
    return net.w.op("clip", net.batch_norm(x, "norm", EPSILON), a_min=0.0, a_max=20.0)
