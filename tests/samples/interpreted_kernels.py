"""Values for the parameters of one kernel, and what the reference interpreter computes of them."""

from __future__ import annotations

import numpy as np
from codegen_samples import run

from tilewright.ir import Block, Func, Level, Module, Op, Ref, interpret
from tilewright.ir.types import numpy_dtype


def values_of(kernel: Func, scale: float = 0.3) -> list[np.ndarray]:
    """Normally distributed numbers for each parameter; scale: their standard deviation."""
    rng = np.random.default_rng(7)
    return [
        (scale * rng.standard_normal(p.tensor.shape)).astype(numpy_dtype(p.tensor.dtype))
        for p in kernel.params
    ]


def interpreted(kernel: Func, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return the results of a program that only calls the kernel."""
    results = tuple(kernel.body.ops[-1].operands)
    call = Op("tensor.call", kernel.params, (("callee", Ref(kernel.name)),), results)
    body = Block(kernel.params, (call, Op("tensor.return", results)))
    main = Func(Level.TENSOR, "main", body, tuple(v.type for v in results))
    return interpret(Module("m", (kernel, main)), *inputs)


def assert_emulated(kernel: Func, thread: Func, rtol: float, atol: float) -> None:
    """A thread-level kernel gives on the emulator what the interpreter does, the same bits in any order."""
    inputs = values_of(kernel)
    want = interpreted(kernel, inputs)
    first, again = (list(run(thread, "emulator", inputs, seed=s).values()) for s in (1, 5))
    assert len(first) == len(want)
    for got, other, expected in zip(first, again, want, strict=True):
        np.testing.assert_allclose(got.astype(np.float32), expected.astype(np.float32), rtol=rtol, atol=atol)
        np.testing.assert_array_equal(got, other)
