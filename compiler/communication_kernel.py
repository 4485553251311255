"""What a plan stores of the communications of a module."""

from __future__ import annotations

from typing import Any

from tilewright.ir import Op
from tilewright.ir.types import array_type
from tilewright.runtime.plan.communication_kernel import CommunicationKernel, Message


def communication_kernel(op: Op) -> CommunicationKernel:
    """The kernel of a tensor.communicate."""
    attrs: dict[str, Any] = dict(op.attrs)
    return CommunicationKernel(
        kind=attrs["kind"],
        dtype=array_type((*op.operands, *op.results)[0].tensor).dtype,
        operands=tuple(v.tensor.size for v in op.operands),
        results=tuple(r.tensor.size for r in op.results),
        sends=tuple(Message(*m) for m in attrs["sends"]),
        receives=tuple(Message(*m) for m in attrs["receives"]),
        members=tuple(attrs["members"]),
        position=attrs["position"],
        counts=tuple(attrs["counts"]),
        reduction=attrs["reduction"],
    )
