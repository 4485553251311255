"""Emitters of the copy engine's ops: tiles, windows and runs into slots of channels, tiles to parameters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from tilewright.codegen.emit.channels import cuda_roles, filled, full_barrier
from tilewright.codegen.emit.emission import Emission, emitter
from tilewright.codegen.prelude.tensor_maps import CACHE_HINTS, copy_name
from tilewright.ir.errors import InputError
from tilewright.ir.expr import Expr
from tilewright.ir.hardware_facts import WARP
from tilewright.ir.nodes import Op, Value
from tilewright.ir.simplify import interval, multiple_of, simplify
from tilewright.ir.thread.role_ops import issued_by_one
from tilewright.ir.thread.tensor_maps import MAP, UNIT_BYTES, map_of
from tilewright.ir.thread.transport_ops import (
    BULK_COMMIT,
    BULK_WAIT,
    COPY_RUN,
    COPY_TILE,
    COPY_WINDOW,
    STORE_TILE,
    SWIZZLE_ROWS,
)
from tilewright.ir.types import itemsize


def _issue(e: Emission, op: Op, statement: str) -> None:
    """The statement, by one thread of those that run the op."""
    cuda_roles(e, op)
    alone = e.role is not None and issued_by_one(e.role)
    first = f"{e.symbol('tid')} % {WARP} == 0" if op.get("by_warp") else f"{e.symbol('tid')} == 0"
    e.line(statement if alone else f"if ({first}) {statement}")


def _texts(e: Emission, exprs: Sequence[Expr]) -> list[str]:
    """Coordinates as the engine takes them, innermost first."""
    return [e.index.render(x, e.ranges) for x in reversed(exprs)]


def _coordinates(e: Emission, op: Op) -> list[str]:
    """The texts of a box's coordinates, the last of which is known to be whole pieces of 16 bytes.

    The engine of sm_90 stops the kernel as at an illegal instruction where it is not; those before it may be
    any, also outside of the parameter.
    """
    at, size = op.exprs("at"), map_of(e.func, op).recipe.itemsize
    if multiple_of(at[-1], e.ranges) * size % UNIT_BYTES:
        last = e.index.render(at[-1], e.ranges)
        raise InputError(
            f"{op.name}: expected a last coordinate at a multiple of {UNIT_BYTES} bytes, "
            f"got {last} of elements of {size}",
            where=op.loc,
        )
    return _texts(e, at)


def _tile(e: Emission, op: Op, memory: Value, at: Sequence[Expr], swizzle: int) -> str:
    """Address of a tile in shared memory, known to begin where a swizzle does and to end within its slot."""
    b = replace(e.buffer(memory), swizzled=False)  # begins with a row that is not permuted
    t, size = b.type, itemsize(b.type.dtype)
    offset = e.offset(b, at)
    unit = SWIZZLE_ROWS * t.shape[-1] if swizzle else max(1, 128 // size)
    if at[-1] != 0 or multiple_of(offset, e.ranges) % unit:
        raise InputError(
            f"{op.name}: expected a tile that begins with a row, at a multiple of {unit * size} bytes",
            where=op.loc,
        )
    slot = t.size // t.shape[0] if t.rank > 1 else t.size
    inside = simplify(offset - at[0] * slot, e.ranges) if t.rank > 1 else offset
    last = interval(inside, e.ranges)[1] + prod(op.integers("tile"))
    if last > slot:
        raise InputError(
            f"{op.name}: expected a tile within a slot of {slot} elements, it ends at {last}", where=op.loc
        )
    return f"&{e.element(b, at)}"


def _fill(e: Emission, op: Op, kind: str, arguments: Sequence[str], swizzle: int) -> None:
    """A copy that counts its bytes on the item being filled."""
    target = op.operands[1]
    barrier = full_barrier(e, *filled(e, target))
    ranks, hint = op.integers("to"), str(op["hint"])
    place = _tile(e, op, target, op.exprs("dst"), swizzle)
    more = [str(sum(1 << r for r in ranks))] if ranks else []
    more += [f"{CACHE_HINTS[hint]:#x}ull"] if hint else []
    if op.name == COPY_RUN:
        function = e.need(f"copy_run{'_to' if ranks else ''}{'_hint' if hint else ''}")
    else:
        rank = len(op.exprs("at"))
        function = e.need(copy_name(kind, rank, multicast=bool(ranks), hint=bool(hint)))
    first, *rest = arguments
    _issue(e, op, f"{function}({', '.join([place, first, barrier, *rest, *more])});")


@emitter(COPY_TILE, writes=(1,))
def _copy_tile(e: Emission, op: Op) -> None:
    swizzle = map_of(e.func, op).recipe.swizzle
    _fill(e, op, "copy_tile", [e.maps[op.integer(MAP)], *_coordinates(e, op)], swizzle)


@emitter(COPY_WINDOW, writes=(1,))
def _copy_window(e: Emission, op: Op) -> None:
    swizzle = map_of(e.func, op).recipe.swizzle
    places = [*_coordinates(e, op), *_texts(e, op.exprs("offsets"))]
    _fill(e, op, "copy_window", [e.maps[op.integer(MAP)], *places], swizzle)


@emitter(COPY_RUN, writes=(1,))
def _copy_run(e: Emission, op: Op) -> None:
    source = e.buffer(op.operands[0])
    size = itemsize(source.type.dtype)
    piece = max(1, 16 // size)
    if e.alignment(source, op.exprs("src"), piece) < piece:
        raise InputError(f"{op.name}: expected a source at a multiple of 16 bytes", where=op.loc)
    nbytes = prod(op.integers("tile")) * size
    _fill(e, op, "copy_run", [f"&{e.element(source, op.exprs('src'))}", str(nbytes)], 0)


@emitter(STORE_TILE, writes=(1,))
def _store_tile(e: Emission, op: Op) -> None:
    place = _tile(e, op, op.operands[0], op.exprs("src"), map_of(e.func, op).recipe.swizzle)
    at = _coordinates(e, op)
    function = e.need(f"{'add' if op['add'] else 'store'}_tile_{len(at)}d")
    _issue(e, op, f"{function}({', '.join([e.maps[op.integer(MAP)], place, *at])});")


@emitter(BULK_COMMIT)
def _bulk_commit(e: Emission, op: Op) -> None:
    _issue(e, op, f"{e.need('bulk_commit')}();")


@emitter(BULK_WAIT)
def _bulk_wait(e: Emission, op: Op) -> None:
    function = e.need("bulk_wait_reads" if op["reads"] else "bulk_wait")
    _issue(e, op, f"{function}<{op.integer('pending')}>();")
