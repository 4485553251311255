"""What kernels take that might become one, each on its own."""

from __future__ import annotations

from math import inf

from tilewright.costmodel import Hardware
from tilewright.ir import Func, UnsupportedError
from tilewright.passes import PassContext
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of


def alone_s(kernel: Func, ctx: PassContext, hardware: Hardware) -> float:
    """Estimated seconds of a kernel as it would run on its own; 0 where nothing estimates it."""

    def answer() -> float:
        try:
            seconds = estimate_of(ctx.estimator.kernel(kernel, ctx))
        except UnsupportedError:
            seconds = 0.0
        return seconds if seconds < inf else 0.0

    return ctx.estimator.remembered(("kernel", kernel_text(kernel), hardware, ctx.target), answer)
