"""How the kernels of tensor cores read constant weights: runs of the channel, rounded to TF32."""

from __future__ import annotations

from tilewright.ir import Func, Op, Sym
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.kernels.decision import parameters_of
from tilewright.passes.kernels.kernel_problem import contract_roles
from tilewright.passes.kernels.matrix.parameters import MatrixParameters
from tilewright.passes.kernels.weight_order import WeightOrder


def channel_last(kernel: Func, op: Op) -> WeightOrder:
    """All else, the columns in the order of the results, the channel; `op` is the kernel's contraction.

    float32 weights are rounded to TF32, unless `rounded` in the parameters says that they are already.
    """
    p = parameters_of(kernel, MatrixParameters)
    at, columns = reads(op)[1], contract_roles(op).columns
    inner = [*(Sym(d) for d in dims(op, "par") if d in columns), Sym(p.channel)]
    last = [i for e in inner for i, x in enumerate(at) if x == e]
    axes = (*(i for i in range(len(at)) if i not in last), *last)
    float32 = op.operands[1].tensor.dtype == "f32"
    return WeightOrder(axes, rounds=float32 and not p.rounded)
