"""Window reductions that single threads do on their own as a kernel template."""

from __future__ import annotations

from dataclasses import replace

from tilewright.costmodel import CpuHardware, Hardware, WindowParameters, choose_window
from tilewright.costmodel.kernels.bound import global_bound
from tilewright.costmodel.kernels.bound_terms import MEASURED_LOOP
from tilewright.costmodel.kernels.choose import ParameterChoice
from tilewright.ir import Func, Op, Sizes
from tilewright.ir.tensor.ops import dims
from tilewright.passes.kernels.decision import decided
from tilewright.passes.kernels.kernel_problem import ops_named, window_problem, windows_of
from tilewright.passes.kernels.registry import register_choices, register_template
from tilewright.passes.kernels.template import Choices, KernelTemplate
from tilewright.passes.kernels.window.lowering import lower_window
from tilewright.passes.kernels.window.space import choose_tiles


def choose_window_kernel(kernel: Func, op: Op, hardware: Hardware) -> ParameterChoice[WindowParameters]:
    """The parameters of a window kernel, and what the cost model says of them."""
    par = dims(op, "par")
    if isinstance(hardware, CpuHardware) or not par:
        return choose_window(window_problem(kernel, op), hardware)
    inner = list(par)[-1]
    slid = [d for d, _ in windows_of(op)]
    vertical, horizontal = ("", "", *(d for d in slid if d != inner))[-2:]
    if inner in slid:
        vertical, horizontal = horizontal, inner
    problem = window_problem(kernel, op, (vertical, horizontal))
    if inner in slid:
        best = choose_tiles(problem, hardware, 0, runs=op.operands[0] in kernel.params)
    else:
        best = choose_tiles(problem, hardware, par[inner])
    box = best.parameters.outputs
    assert isinstance(box, Sizes)
    outputs = dict.fromkeys(par, 1) | {vertical: box["rows"], horizontal: box["columns"]}
    outputs[inner] = box["inner"]
    outputs.pop("", None)
    return replace(best, parameters=WindowParameters(best.parameters.threads, Sizes(outputs)))


def choose_windows(kernel: Func, hardware: Hardware) -> Func | None:
    """A kernel around a window reduction with its parameters; None for other kernels."""
    windows = ops_named(kernel, "tensor.window")
    if not windows:
        return None
    return decided(kernel, "window", choose_window_kernel(kernel, windows[0], hardware))


def least_windows_s(kernel: Func, hardware: Hardware) -> float | None:
    """Seconds a kernel around a window reduction takes at least; None for other kernels."""
    windows = ops_named(kernel, "tensor.window")
    if not windows:
        return None
    return global_bound(window_problem(kernel, windows[-1]), hardware, MEASURED_LOOP).seconds


register_template(
    KernelTemplate(
        name="window",
        parameters=WindowParameters,
        lower=lower_window,
        contraction=None,
        rounds_to=None,
        joined=None,
        neighbours={"threads": (64, 128, 256, 512)},
        variants=None,
    )
)

register_choices(Choices("window", precedence=40, choose=choose_windows, least_s=least_windows_s))
