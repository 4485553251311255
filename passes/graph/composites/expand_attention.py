"""Pass expand-attention: attention as products and a softmax where the device has no kernel for the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tilewright.costmodel import GpuHardware, Hardware, load_hardware
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.graph_ops.attention import BIAS, KEPT, LSE_COTANGENT, SEEN
from tilewright.ir.graph_ops.operands import accumulator_dtype
from tilewright.ir.nodes import Level, Module, Op, Value
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.gradients.registry import summed_to
from tilewright.passes.rewriting.values import replace_in_op

_OPS = frozenset({"graph.attention", "graph.attention_backward"})


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def expand_attention(
    module: Module,
    ctx: PassContext,
    *,
    factors: Literal["", "tf32", "split"] = "",
    always: bool = False,
) -> Module:
    """Write attention, and what comes back through it, as products of matrices and a softmax.

    rewrite:  %o, %lse = graph.attention(%q, %k, %v, scale = 0.125)
        -->   %w = graph.softmax(graph.multiply(graph.matmul(%q, %k, transpose_b = true), 0.125), axis = -1)
              %o = graph.matmul(%w, %v)

    The gradient then reads the weights of the forward pass. Ops stay whose factors tensor cores of the device
    take as they are or rounded: their kernels hold no matrix of weights. factors: what float32 factors will
    be allowed (passes `allow-tf32` and `allow-split`). always: expand all, whatever the device has.
    """
    ops = module.main.body.ops
    if not any(op.name in _OPS for op in ops):
        return module
    hardware = ctx.hardware or load_hardware(ctx.target)
    found = {op: op.operands[0].tensor.dtype for op in ops if op.name in _OPS}
    expanded = {op for op, dtype in found.items() if always or not _taken(dtype, hardware, factors)}
    return _Expansion(module, expanded).run() if expanded else module


def _taken(dtype: str, hardware: Hardware, factors: str) -> bool:
    """Return whether tensor cores of the device multiply factors of this type."""
    if not isinstance(hardware, GpuHardware):
        return False
    if dtype == "f32":
        return factors == "tf32" and hardware.tensor_fma_tf32_per_sm_per_clk > 0
    return dtype in ("f16", "bf16") and hardware.tensor_fma_16bit_per_sm_per_clk > 0


class _Expansion:
    """One walk over @main."""

    def __init__(self, module: Module, expanded: set[Op]) -> None:
        self.module, self.expanded = module, expanded
        self.w = GraphWriter(module.constants)
        self.new: dict[Value, Value] = {}
        #: weights before dropout, in the dtype of sums, of the forward op with these logarithms of sums
        self.weights: dict[Value, Tensor] = {}

    def run(self) -> Module:
        main = self.module.main
        read = {
            v
            for op in main.body.ops
            for i, v in enumerate(op.operands)
            if op not in self.expanded or op.name == "graph.attention" or i != 4
        }
        for op in main.body.ops:
            if op not in self.expanded:
                self.w.builder.append(replace_in_op(op, self.new))
                continue
            with self.w.at(op.loc):
                back = op.name == "graph.attention_backward"
                results = self.backward(op) if back else self.forward(op, read)
            self.new.update((old, t.value) for old, t in zip(op.results, results, strict=False))
        func = main.with_body(main.body.with_ops(self.w.ops))
        funcs = tuple(func if f is main else f for f in self.module.funcs)
        return self.module.with_funcs(funcs).with_constants(self.w.constants)

    def operands(self, op: Op, count: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """The first operands, and the further ones by name."""
        x = [self.w.tensor(self.new.get(v, v)) for v in op.operands]
        names = op["others"]
        assert isinstance(names, tuple)
        return x[:count], dict(zip(map(str, names), x[count:], strict=True))

    def scores(self, op: Op, q: Tensor, k: Tensor, others: dict[str, Tensor]) -> Tensor:
        """Return the scores, of which softmax is taken, in the dtype of sums."""
        acc = accumulator_dtype(q.dtype)
        out = self.product(q, k, transpose_b=True, wide=True)
        if op["scale"] != 1.0:
            out = out * op.number("scale")
        if BIAS in others:
            out = out + others[BIAS].cast(acc)
        if SEEN in others:
            out = others[SEEN].where(out, op.number("hidden"))
        return out

    def product(
        self,
        a: Tensor,
        b: Tensor,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        wide: bool = False,
    ) -> Tensor:
        """The products of matrices, `wide` in the dtype of sums."""
        acc = accumulator_dtype(a.dtype)
        out_dtype = acc if wide and a.dtype != acc else None
        return self.w.op(
            "matmul", a, b, transpose_a=transpose_a, transpose_b=transpose_b, out_dtype=out_dtype
        )

    def forward(self, op: Op, read: set[Value]) -> Sequence[Tensor]:
        (q, k, v), others = self.operands(op, 3)
        scores = self.scores(op, q, k, others)
        weights = self.w.op("softmax", scores, axis=-1)
        self.weights[op.results[1]] = weights
        mixed = self.product(self.kept(op, weights, others).cast(v.dtype), v)
        if op.results[1] not in read:
            return [mixed]
        largest = scores.max(-1, keepdims=True)
        total = (scores - largest).exp().sum(-1)
        return [mixed, largest.reshape(*total.shape) + total.log()]

    def kept(self, op: Op, weights: Tensor, others: dict[str, Tensor]) -> Tensor:
        if KEPT not in others:
            return weights
        scaled = weights * op.number("kept_scale") if op["kept_scale"] != 1.0 else weights
        return others[KEPT].where(scaled, 0)

    def backward(self, op: Op) -> Sequence[Tensor]:
        (q, k, v, result, lse, g), others = self.operands(op, 6)
        weights = self.weights.get(op.operands[4])
        if weights is None:
            weights = (self.scores(op, q, k, others) - lse.reshape(*lse.shape, 1)).exp()
        acc = weights.dtype
        back = (result.cast(acc) * g.cast(acc)).sum(-1, keepdims=True)
        if LSE_COTANGENT in others:
            back = back - others[LSE_COTANGENT].reshape(*lse.shape, 1)
        given = self.product(g, v, transpose_b=True, wide=True)
        slopes = weights * (self.kept(op, given, others) - back)
        if SEEN in others:
            slopes = others[SEEN].where(slopes, 0)
        if op["scale"] != 1.0:
            slopes = slopes * op.number("scale")
        slopes = slopes.cast(q.dtype)
        dropped = self.kept(op, weights, others).cast(v.dtype)
        return [
            summed_to(self.product(slopes, k), q.shape),
            summed_to(self.product(slopes, q, transpose_a=True), k.shape),
            summed_to(self.product(dropped, g, transpose_a=True), v.shape),
        ]
