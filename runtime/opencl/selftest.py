"""Known answers of an OpenCL implementation: kernels of vector functions, run in a process of their own.

`python -m tilewright.runtime.opencl.selftest DEVICE BITS` writes a line when each case begins and another
when it ends, so that a process that the driver's compiler kills still says what it was compiling. Arguments:
the device's name as the driver reports it, and the widest vector to try in bits. Vectors are no wider than
the registers that the device's compiler compiles for, which the first line names.
"""

from __future__ import annotations

import json
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from tilewright.runtime.opencl.platforms import import_pyopencl, list_opencl_devices

#: work-items of a case's only work-group
ITEMS = 4
#: elements of each work-item; a multiple of every vector's lanes
ELEMENTS = 48
#: seconds of the processor that all cases may take; ten are usual
CPU_S = 120
#: relative to the largest answer, in units of the element's rounding
TOLERANCE = 16.0

_TARGET = """
kernel void target(global int* bits) {
#if defined(__AVX512F__)
    bits[0] = 512;
#elif defined(__AVX2__)
    bits[0] = 256;
#else
    bits[0] = 128;
#endif
}
"""
_LOOP = """
kernel void {name}(global const {t}* x, global {t}* y) {{
    const int at = get_local_id(0) * {elements};
    for (int i = 0; i < {elements}; i += {lanes}) {{
        {v} a = vload{lanes}(0, x + at + i);
        vstore{lanes}({text}, 0, y + at + i);
    }}
}}
"""
_TILE = """
kernel void {name}(global const {t}* x, global {t}* y) {{
    local {t} shared_x[{items} * {elements}];
    const int me = get_local_id(0), at = me * {elements};
    for (int i = 0; i < {elements}; ++i) shared_x[at + i] = x[at + i];
    barrier(CLK_LOCAL_MEM_FENCE);
    {v} sums[4];
    for (int p = 0; p < 4; ++p) sums[p] = ({v})(0);
    for (int r = 0; r < {items}; ++r)
        for (int p = 0; p < 4; ++p)
            sums[p] = fma(({v})(shared_x[r * {elements} + p]), vload{lanes}(0, shared_x + r * {elements}), sums[p]);
    for (int i = 0; i < {elements}; ++i) y[at + i] = shared_x[at + i];
    for (int p = 0; p < 2; ++p) vstore{lanes}(sums[p] + sums[p + 2], 0, y + at + p * {lanes});
}}
"""  # noqa: E501 - the widest line of a kernel


@dataclass(frozen=True)
class _Case:
    name: str
    dtype: type
    source: str
    answer: Callable[[Any], Any]


def _cases(bits: int) -> Iterator[_Case]:
    for c_type, signed, dtype in (("float", "int", np.float32), ("double", "long", np.float64)):
        lanes = bits // 8 // np.dtype(dtype).itemsize
        if lanes < 2:
            continue
        v, i = f"{c_type}{lanes}", f"{signed}{lanes}"
        half = f"convert_{v}(convert_{i}(a * ({v})(8)) * ({i})(3) - ({i})(1))"
        chosen = f"(a > ({v})(1) ? a : a * ({v})(2))"
        narrow = f"convert_{v}(as_uchar{lanes}(-convert_char{lanes}(a > ({v})(1))))"
        texts: dict[str, tuple[str, Callable[[Any], Any]]] = {
            **{
                name: (f"{name}(a)", answer)
                for name, answer in (
                    ("exp", np.exp),
                    ("log", np.log),
                    ("tanh", np.tanh),
                    ("sqrt", np.sqrt),
                    ("sin", np.sin),
                    ("cos", np.cos),
                    ("fabs", np.abs),
                    ("floor", np.floor),
                    ("ceil", np.ceil),
                    ("trunc", np.trunc),
                    ("rint", np.rint),
                    ("exp2", np.exp2),
                    ("log2", np.log2),
                    ("atan", np.arctan),
                )
            },
            "pow": (f"pow(a, ({v})(1.5))", lambda x: x**1.5),
            "divide": (f"({v})(1) / (a + ({v})(1))", lambda x: 1 / (x + 1)),
            "fma": (f"fma(a, a, ({v})(1))", lambda x: x * x + 1),
            "convert": (half, lambda x: np.trunc(x * 8) * 3 - 1),
            "select": (chosen, lambda x: np.where(x > 1, x, x * 2)),
            "compare": (narrow, lambda x: (x > 1) * 1.0),
        }
        for name, (text, answer) in texts.items():
            called = f"known_{name}_{v}"
            source = _LOOP.format(name=called, t=c_type, v=v, lanes=lanes, elements=ELEMENTS, text=text)
            yield _Case(called, dtype, source, answer)
        name = f"known_tile_{v}"
        tile = _TILE.format(name=name, t=c_type, v=v, lanes=lanes, elements=ELEMENTS, items=ITEMS)
        yield _Case(name, dtype, tile, partial(_tile, lanes))


def _tile(lanes: int, x: Any) -> Any:
    sums = [x[:, p] @ x[:, :lanes] for p in range(4)]
    y = x.copy()
    y[:, : 2 * lanes] = np.concatenate([sums[0] + sums[2], sums[1] + sums[3]])
    return y


def _run(cl: Any, context: Any, queue: Any, case: _Case) -> bool:
    """Return whether the device computes a case as NumPy does in float64."""
    x: Any = np.random.default_rng(7).uniform(0.1, 2.9, (ITEMS, ELEMENTS)).astype(case.dtype)
    y = np.full_like(x, np.nan)
    flags = cl.mem_flags
    buffers = [cl.Buffer(context, flags.READ_WRITE | flags.COPY_HOST_PTR, hostbuf=a) for a in (x, y)]
    kernel = cl.Kernel(cl.Program(context, case.source).build(["-cl-std=CL1.2", "-w"]), case.name)
    kernel.set_args(*buffers)
    cl.enqueue_nd_range_kernel(queue, kernel, (ITEMS,), (ITEMS,))
    cl.enqueue_copy(queue, y, buffers[1], is_blocking=True)
    expected = case.answer(x.astype(np.float64))
    error = np.abs(y.astype(np.float64) - expected).max() / np.abs(expected).max()
    return bool(error <= TOLERANCE * np.finfo(case.dtype).eps)


def _target_bits(cl: Any, context: Any, queue: Any) -> int:
    bits = np.zeros(1, np.int32)
    buffer = cl.Buffer(context, cl.mem_flags.READ_WRITE, bits.nbytes)
    kernel = cl.Kernel(cl.Program(context, _TARGET).build(["-cl-std=CL1.2", "-w"]), "target")
    kernel.set_args(buffer)
    cl.enqueue_nd_range_kernel(queue, kernel, (1,), (1,))
    cl.enqueue_copy(queue, bits, buffer, is_blocking=True)
    return int(bits[0])


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(arguments: list[str]) -> int:
    """Run the cases; see the module."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is a result here; its image is of no use
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S if most < 0 else min(CPU_S, most), most))
    warnings.simplefilter("ignore")
    name, bits = arguments[0], int(arguments[1])
    cl = import_pyopencl()
    device = next(d for d in list_opencl_devices() if d.name == name)
    context = cl.Context([device])
    queue = cl.CommandQueue(context)
    bits = min(bits, _target_bits(cl, context, queue))
    _say(bits=bits)
    for case in _cases(bits):
        _say(begins=case.name)
        _say(ends=case.name, right=_run(cl, context, queue, case))
    _say(finished=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
