"""The twelve fused kernels of "Data Movement Is All You Need" as groups of operators of its encoder.

Source: the kernels of https://github.com/spcl/substation; two of them run twice, so there are 14 groups.
"""

from __future__ import annotations

#: per launch of a fused kernel, the operators of `zoo:encoder_dataflow` that it computes
KERNELS: dict[str, tuple[str, ...]] = {
    "aib": ("input bias",),
    "sm": ("softmax",),
    "bdrln 1": ("output bias", "dropout 1", "residual 1", "layer norm 1"),
    "brd": ("linear 1 bias", "ReLU", "dropout 2"),
    "bdrln 2": ("linear 2 bias", "dropout 3", "residual 2", "layer norm 2"),
    "bsb": ("layer norm 2 dW",),
    "blnrd 1": ("layer norm 2 dX", "dropout 3 dX"),
    "bdrb": ("dropout 2 dX", "ReLU dX", "linear 1 bias dW"),
    "ebsb": ("linear 2 bias dW", "residual 2 dX", "layer norm 1 dW"),
    "blnrd 2": ("layer norm 1 dX", "dropout 1 dX"),
    "baob": ("output bias dW",),
    "bs": ("softmax dX",),
    "baib": ("input bias dW",),
    "bei": ("residual 1 dX",),
}
