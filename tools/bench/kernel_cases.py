"""Kernels that are timed alone: products and attention by arithmetic, memory-bound ones beside a copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ir import Constants, Module
from tilewright.ir.types import storage_dtype

#: what each precision stores; TF32 is a permission to round factors of float32
DTYPES = {"fp32": "f32", "fp32-strict": "f32", "tf32": "f32", "fp16": "f16", "bf16": "bf16"}
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
    "attention": """%q: T[{n}, 128, 64], %k: T[{n}, 128, 64], %v: T[{n}, 128, 64]) -> T[{n}, 128, 64] {{
        %p = graph.batch_matmul(%q, %k, transpose_b = true) : T[{n}, 128, 128]
        %c = graph.constant(name = "scale") : T[]
        %t = graph.multiply(%p, %c) : T[{n}, 128, 128]
        %s = graph.softmax(%t) : T[{n}, 128, 128]
        %r = graph.batch_matmul(%s, %v) : T[{n}, 128, 64]""",
    "causal": """%q: T[{n}, 1024, 64], %k: T[{n}, 1024, 64], %v: T[{n}, 1024, 64]) -> T[{n}, 1024, 64] {{
        %p = graph.batch_matmul(%q, %k, transpose_b = true) : T[{n}, 1024, 1024]
        %c = graph.constant(name = "scale") : T[]
        %m = graph.constant(name = "mask") : T[1, 1024, 1024]
        %t = graph.multiply(%p, %c) : T[{n}, 1024, 1024]
        %u = graph.add(%t, %m) : T[{n}, 1024, 1024]
        %s = graph.softmax(%u) : T[{n}, 1024, 1024]
        %r = graph.batch_matmul(%s, %v) : T[{n}, 1024, 64]""",
}
#: rows (of a batch, or of a matrix) that make the tensors large; heads of attention in all samples, those of
#: BERT-base at batch 1 and 64, and of a longer sequence whose queries see no later key
_ROWS = {
    "pointwise": (64,),
    "norm": (65536,),
    "softmax": (65536,),
    "pool": (64,),
    "depthwise": (128,),
    "attention": (12, 768),
    "causal": (256,),
}
#: queries, and as many keys, of one head; each is a vector of `_HEAD` numbers
_TOKENS = {"attention": 128, "causal": 1024}
_HEAD = 64
#: what is added to scores of keys that a query does not see
_HIDDEN = -30000.0
#: inputs whose first dimension is that of the result
_BATCHED = {"pointwise": ("x", "y"), "attention": ("q", "k", "v"), "causal": ("q", "k", "v")}
#: kernels that compute on tensor cores where TF32 is allowed
_PRODUCTS = frozenset({"gemm", *_TOKENS})
_CALLS: dict[str, Callable[[Any, Sequence[Any]], Any]] = {
    "gemm": lambda f, x: f.linear(x[0], x[1]),
    "pointwise": lambda f, x: f.relu(x[0] + x[1]),
    "norm": lambda f, x: f.layer_norm(x[0], (1024,), x[1], x[2], 1e-5),
    "softmax": lambda f, x: f.softmax(x[0], -1),
    "pool": lambda f, x: f.max_pool2d(x[0], 3, 2, 1),
    "depthwise": lambda f, x: f.conv2d(x[0], x[1], None, 1, 1, 1, 128),
    "attention": lambda f, x: _attention(f, x, causal=False),
    "causal": lambda f, x: _attention(f, x, causal=True),
}


def _attention(f: Any, x: Sequence[Any], *, causal: bool) -> Any:
    """PyTorch's fused attention, which takes one more dimension in front: samples, then heads."""
    q, k, v = (t.unsqueeze(0) for t in x)
    return f.scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(0)


@dataclass(frozen=True)
class KernelCase:
    """One kernel: `rows` of its first dimension, in one precision."""

    kernel: str
    rows: int
    precision: str

    @property
    def name(self) -> str:
        """`gemm 4096`, `softmax`, `attention 12`."""
        return f"{self.kernel} {self.rows}" if self.kernel in _PRODUCTS else self.kernel

    def module(self, rows: int | None = None) -> Module:
        """The graph of one kernel; `rows` (of all batched inputs) for a smaller one than the case's."""
        text = _TEXTS[self.kernel].format(n=self.rows).replace("T[", f"{DTYPES[self.precision]}[")
        module = tw.parse(f"module @{self.kernel} {{ graph.func @main({text} graph.return(%r) }} }}")
        module = replace(module, constants=Constants(self._constants()))
        if rows is None:
            return module
        types = dict(zip(module.input_names, module.input_types, strict=True))
        return tw.with_input_shapes(module, {n: (rows, *types[n].shape[1:]) for n in self.batched})

    def _constants(self) -> dict[str, np.ndarray]:
        """The factor of the scores, and the mask of a kernel that has one."""
        if self.kernel not in _TOKENS:
            return {}
        tokens, dtype = _TOKENS[self.kernel], storage_dtype(DTYPES[self.precision])
        made = {"scale": np.asarray(_HEAD**-0.5, dtype)}
        if self.kernel == "causal":
            made["mask"] = np.triu(np.full((1, tokens, tokens), _HIDDEN, np.float32), 1).astype(dtype)
        return made

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
        """Multiplications and additions of products, without those that a mask hides; 0 where bytes bound."""
        if self.kernel == "gemm":
            return 2 * self.rows**3
        if self.kernel not in _TOKENS:
            return 0
        tokens = _TOKENS[self.kernel]
        seen = tokens * (tokens + 1) // 2 if self.kernel == "causal" else tokens**2
        return 4 * self.rows * seen * _HEAD

    def torch_call(self, torch: Any, inputs: Sequence[Any]) -> Any:
        """The same by PyTorch."""
        return [_CALLS[self.kernel](torch.nn.functional, inputs)]


def kernel_cases(kernels: Sequence[str], sizes: Sequence[int], precisions: Sequence[str]) -> list[KernelCase]:
    """All cases; TF32 only where there are products. `sizes` are those of square products."""
    cases = []
    for kernel in kernels:
        for precision in precisions:
            if kernel == "gemm":
                cases += [KernelCase(kernel, n, precision) for n in sizes]
            elif precision != "tf32" or kernel in _PRODUCTS:
                cases += [KernelCase(kernel, rows, precision) for rows in _ROWS[kernel]]
    return cases
