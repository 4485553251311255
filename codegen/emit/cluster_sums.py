"""Emitters of blocks in a cluster: where they meet, sums over their shared memories, writes to others'."""

from __future__ import annotations

from math import prod

from tilewright.codegen.emit.channels import cuda_roles
from tilewright.codegen.emit.emission import Emission, emitter
from tilewright.codegen.emit.memory import guarded
from tilewright.ir.errors import UnsupportedError
from tilewright.ir.nodes import Op
from tilewright.ir.thread.channel_ops import REUSE
from tilewright.ir.thread.cluster_ops import GIVE, SHARE, SUM
from tilewright.ir.thread.role_ops import MEET
from tilewright.ir.thread.tensor_maps import cluster_of


@emitter(MEET)
def _meet(e: Emission, op: Op) -> None:
    cuda_roles(e, op)
    e.line(f"{e.need('cluster_barrier')}();")


@emitter(REUSE)
def _reuse(e: Emission, op: Op) -> None:
    """Declared with all buffers in shared memory."""
    cuda_roles(e, op)


@emitter(SUM, writes=(1,))
def _sum(e: Emission, op: Op) -> None:
    cuda_roles(e, op)
    tile, sums = (e.buffer(v) for v in op.operands)
    at, lanes = op.exprs("at"), sums.type.shape[0]
    if e.alignment(tile, at, lanes) < lanes:
        raise UnsupportedError(f"{op.name}: expected {lanes} aligned neighbours", where=op.loc)
    blocks = prod(cluster_of(e.func))
    e.line(f"{e.need(f'sum_of_cluster_{lanes}')}<{blocks}>({sums.name}, &{e.element(tile, at)});")


@emitter(GIVE, writes=(1,))
def _give(e: Emission, op: Op) -> None:
    value, target = op.operands
    place = f"&{e.element(e.buffer(target), op.exprs('at'))}"
    _call(e, op, "give_to_block", e.value(value).parts[0], place)


@emitter(SHARE, writes=(0,))
def _share(e: Emission, op: Op) -> None:
    buffer, at, lanes = e.buffer(op.operands[0]), op.exprs("at"), op.integer("lanes")
    if e.alignment(buffer, at, lanes) < lanes:
        raise UnsupportedError(f"{op.name}: expected {lanes} aligned neighbours", where=op.loc)
    _call(e, op, "share_with_block", f"&{e.element(buffer, at)}")


def _call(e: Emission, op: Op, function: str, *arguments: str) -> None:
    """Call a function for the block that the op names, where its mask holds."""
    cuda_roles(e, op)
    head = guarded(e, op)
    if head is None:
        return
    rank = e.index.render(op.expr("rank"), e.ranges)
    call = f"{e.need(function)}({', '.join((*arguments, rank))});"
    if head:
        with e.braces(head):
            e.line(call)
    else:
        e.line(call)
