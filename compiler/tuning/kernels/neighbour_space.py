"""The points around the model's choice on GPUs, for kernel templates whose estimates say little."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from tilewright.costmodel import GpuHardware, Hardware
from tilewright.ir import Func, Pairs
from tilewright.passes.kernels.registry import template_of

#: steps from the model's choice along one parameter
_REACH = 1
_DATA_DEPENDENT = frozenset({"tensor.gather", "tensor.scatter", "tensor.scan"})


def neighbours(kernel: Func, hardware: Hardware) -> Sequence[Func]:
    """The kernel and the variants whose parameters are at most one step away each; empty for other kernels.

    Kernels that read indices have none: random ones would not be what a network gives them.
    """
    params, template = kernel.get("params"), template_of(kernel)
    if template is None or not template.neighbours or not isinstance(params, Pairs):
        return ()
    if not isinstance(hardware, GpuHardware):
        return ()
    floats = all(p.tensor.dtype in ("f16", "bf16", "f32", "f64") for p in kernel.params)
    dense = not any(v.tensor.steps for v in (*kernel.params, *kernel.body.ops[-1].operands))
    if not floats or not dense or any(op.name in _DATA_DEPENDENT for op in kernel.body.ops):
        return ()
    chosen, known = params.as_dict(), template.neighbours
    names = [n for n in known if n in chosen and chosen[n] in known[n]]
    options = [_near(known[n], chosen[n]) for n in names]
    found = [kernel]
    for values in product(*options):
        changed = Pairs.of({**chosen, **dict(zip(names, values, strict=True))})
        if changed != params:
            found.append(kernel.with_attrs(params=changed))
    return found


def _near(values: tuple[int, ...], chosen: object) -> tuple[int, ...]:
    at = next(i for i, v in enumerate(values) if v == chosen)
    return values[max(0, at - _REACH) : at + _REACH + 1]
