"""Pass allow-tf32: contractions of float32 may round their factors to TF32."""

from __future__ import annotations

from tilewright.ir import Func, Level, Op
from tilewright.passes import PassContext, register_pass


@register_pass(Level.TENSOR)
def allow_tf32(func: Func, ctx: PassContext) -> Func:
    """Let contractions round their float32 factors to TF32.

    They are rounded to 10 bits of mantissa before they are multiplied; sums stay in float32.

    rewrite:  tensor.contract(%a, %b, ...)   -->   tensor.contract(%a, %b, ..., factors = "tf32")

    It is a permission, as in the libraries: kernels without tensor cores multiply in float32.
    """
    chosen = [op.name == "tensor.contract" and not op["factors"] and _float32(op) for op in func.body.ops]
    if not any(chosen):
        return func
    ops = [op.with_attrs(factors="tf32") if c else op for op, c in zip(func.body.ops, chosen, strict=True)]
    return func.with_body(func.body.with_ops(tuple(ops)))


def _float32(op: Op) -> bool:
    return all(v.tensor.dtype == "f32" for v in op.operands)
