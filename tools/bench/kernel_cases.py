"""Kernels that are timed alone: square products beside cuBLAS, memory-bound ones beside a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tilewright as tw
from tilewright.ir import Module

#: what each precision stores; TF32 is a permission to round factors of float32
DTYPES = {"fp32": "f32", "tf32": "f32", "fp16": "f16", "bf16": "bf16"}
_TEXTS = {
    "gemm": """%x: T[{n}, {n}], %w: T[{n}, {n}]) -> T[{n}, {n}] {{
        %r = graph.dense(%x, %w) : T[{n}, {n}]""",
    "pointwise": """%x: T[{n}, 256, 56, 56], %y: T[{n}, 256, 56, 56]) -> T[{n}, 256, 56, 56] {{
        %s = graph.add(%x, %y) : T[{n}, 256, 56, 56] %r = graph.relu(%s) : T[{n}, 256, 56, 56]""",
    "norm": """%x: T[{n}, 1024], %g: T[1024], %b: T[1024]) -> T[{n}, 1024] {{
        %r = graph.layer_norm(%x, %g, %b) : T[{n}, 1024]""",
    "softmax": """%x: T[{n}, 1024]) -> T[{n}, 1024] {{
        %r = graph.softmax(%x) : T[{n}, 1024]""",
    "pool": """%x: T[{n}, 64, 112, 112]) -> T[{n}, 64, 56, 56] {{
        %r = graph.max_pool2d(%x, pool_size = [3, 3], strides = [2, 2],
          padding = [1, 1, 1, 1]) : T[{n}, 64, 56, 56]""",
    "depthwise": """%x: T[{n}, 128, 56, 56], %w: T[128, 1, 3, 3]) -> T[{n}, 128, 56, 56] {{
        %r = graph.conv2d(%x, %w, padding = [1, 1, 1, 1], groups = 128) : T[{n}, 128, 56, 56]""",
}
#: rows (of a batch, or of a matrix) that make the tensors large
_ROWS = {"pointwise": 64, "norm": 65536, "softmax": 65536, "pool": 64, "depthwise": 128}
#: inputs whose first dimension is that of the result
_BATCHED = {"pointwise": ("x", "y")}
_CALLS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    "gemm": lambda f, x: f.linear(x[0], x[1]),
    "pointwise": lambda f, x: f.relu(x[0] + x[1]),
    "norm": lambda f, x: f.layer_norm(x[0], (1024,), x[1], x[2], 1e-5),
    "softmax": lambda f, x: f.softmax(x[0], -1),
    "pool": lambda f, x: f.max_pool2d(x[0], 3, 2, 1),
    "depthwise": lambda f, x: f.conv2d(x[0], x[1], None, 1, 1, 1, 128),
}


@dataclass(frozen=True)
class KernelCase:
    """One kernel: `rows` of its first dimension, in one precision."""

    kernel: str
    rows: int
    precision: str

    @property
    def name(self) -> str:
        """`gemm 4096`, `softmax`."""
        return f"gemm {self.rows}" if self.kernel == "gemm" else self.kernel

    def module(self, rows: int | None = None) -> Module:
        """The graph of one kernel; `rows` (of all batched inputs) for a smaller one than the case's."""
        text = _TEXTS[self.kernel].format(n=self.rows).replace("T[", f"{DTYPES[self.precision]}[")
        module = tw.parse(f"module @{self.kernel} {{ graph.func @main({text} graph.return(%r) }} }}")
        if rows is None:
            return module
        types = dict(zip(module.input_names, module.input_types, strict=True))
        return tw.with_input_shapes(module, {n: (rows, *types[n].shape[1:]) for n in self.batched})

    @property
    def batched(self) -> tuple[str, ...]:
        """Names of the inputs that have the rows."""
        return _BATCHED.get(self.kernel, ("x",))

    @property
    def moved_bytes(self) -> int:
        """Bytes of all inputs and of the result, each moved once."""
        main = self.module().main
        tensors = [v.tensor for v in (*main.params, *main.body.ops[-1].operands)]
        return sum(t.nbytes for t in tensors)

    @property
    def flops(self) -> int:
        """Multiplications and additions of a product; 0 for the others, which bytes bound."""
        return 2 * self.rows**3 if self.kernel == "gemm" else 0

    def torch_call(self, torch: Any, inputs: Sequence[Any]) -> Any:
        """The same by PyTorch."""
        return [_CALLS[self.kernel](torch.nn.functional, inputs)]


def kernel_cases(kernels: Sequence[str], sizes: Sequence[int], precisions: Sequence[str]) -> list[KernelCase]:
    """All cases; TF32 only where there are products."""
    cases = []
    for kernel in kernels:
        for precision in precisions:
            if kernel == "gemm":
                cases += [KernelCase(kernel, n, precision) for n in sizes]
            elif precision != "tf32":
                cases.append(KernelCase(kernel, _ROWS[kernel], precision))
    return cases
