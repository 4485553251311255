"""The places of the shared buffers of a kernel: those that a barrier separates in time share bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.ir.errors import UnsupportedError
from tilewright.ir.expr import Expr
from tilewright.ir.nodes import Func, Op, Value, walk
from tilewright.ir.thread.channel_ops import CHANNEL, REUSE, channels_of
from tilewright.ir.thread.cluster_ops import GIVE, SUM
from tilewright.ir.thread.role_ops import MEET
from tilewright.ir.types import TensorType, itemsize

SHARED_ALIGNMENT = 16
SWIZZLED_ALIGNMENT = 128
#: bytes that stay together in swizzled rows, and bytes of all banks
_PIECE_BYTES, _BANKS_BYTES = 16, 128


@dataclass(frozen=True)
class SharedLayout:
    """Byte offset of every shared buffer, what its address is a multiple of, and how many bytes there are."""

    offsets: dict[Value, int]
    nbytes: int
    alignments: dict[Value, int]
    swizzled: frozenset[Value] = frozenset()

    @property
    def overlaps(self) -> bool:
        """True where some bytes belong to two buffers."""
        return sum(map(_padded, self.offsets)) > self.nbytes


def shared_layout(func: Func) -> SharedLayout:
    """Buffers in the order of their allocation, each at the lowest offset that those alive with it leave.

    A buffer lives from the first to the last op at the top of the kernel that names it; another one may
    follow it on the same bytes where a barrier at the top stands between the two. What other blocks read
    lives until they meet again; what they write to lives as long as the kernel.
    A buffer that reuses a channel's bytes may lie on those of its buffers.
    """
    reused = _reused(func)
    lives = _lives(func)
    barriers = [i for i, op in enumerate(func.body.ops) if op.name == "thread.barrier"]
    alignments = {op.result: _alignment(op) for op in walk(func.body) if _allocates(op)}
    offsets: dict[Value, int] = {}
    for v, life in lives.items():
        taken = sorted(
            (offsets[u], offsets[u] + _padded(u))
            for u in offsets
            if u not in reused.get(v, ()) and not _apart(lives[u], life, barriers)
        )
        at = 0
        for start, end in taken:
            if start - at >= _padded(v):
                break
            at = max(at, -(-end // alignments[v]) * alignments[v])
        offsets[v] = at
    swizzled = frozenset(op.result for op in walk(func.body) if _allocates(op) and op.get("swizzled"))
    nbytes = max((at + _padded(v) for v, at in offsets.items()), default=0)
    return SharedLayout(offsets, nbytes, alignments, swizzled)


def swizzled_column(t: TensorType, row: Expr, column: Expr) -> Expr:
    """Return the column where an element of a swizzled row lies.

    Of eight rows one after the other, the pieces of one column meet all banks, which is what ldmatrix reads
    at once; the two pieces of a 32-byte sector stay in one sector, so that a sector arrives by one write. It
    is the order of warpgroups' tiles, the number of a piece xor bits of the row's: each bit of it is a sum
    modulo 2. Raises UnsupportedError for rows of a length that has no such order.
    """
    piece = _PIECE_BYTES // itemsize(t.dtype)
    pieces = t.shape[-1] // piece
    if t.shape[-1] % piece or (pieces not in (2, 4) and pieces % 8):
        raise UnsupportedError(f"expected swizzled rows of 32, 64 or a multiple of 128 bytes, got {t}")
    around = min(pieces, 8)
    turn = row // (_BANKS_BYTES // _PIECE_BYTES // around) % around
    number, inside = column // piece, column % piece
    place = number // around * around
    bit = 1
    while bit < around:
        both = number // bit + turn // bit
        place += both % 2 * bit
        bit *= 2
    return place * piece + inside


def _padded(v: Value) -> int:
    return -(-max(1, v.tensor.nbytes) // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def _reused(func: Func) -> dict[Value, tuple[Value, ...]]:
    """Per buffer that reuses the bytes of a channel, the channel's buffers."""
    held = {c.value: c.buffers for c in channels_of(func)}
    return {op.result: held[op.operands[0]] for op in walk(func.body) if op.name == REUSE}


def _lives(func: Func) -> dict[Value, tuple[int, int]]:
    """First and last op at the top that names each shared buffer, allocations aside."""
    buffers = [o.result for o in walk(func.body) if _allocates(o)]
    lives: dict[Value, tuple[int, int]] = {}
    read_by_others: set[Value] = set()
    for i, op in enumerate(func.body.ops):
        inside = [op, *walk(op.body)] if op.body is not None else [op]
        if op.name == MEET:
            lives.update({v: (lives[v][0], i) for v in read_by_others})
            read_by_others.clear()
        read_by_others |= {o.operands[0] for o in inside if o.name == SUM}
        for v in (v for o in inside for v in o.operands):
            lives[v] = (lives.get(v, (i, i))[0], i)
    whole = (0, len(func.body.ops))
    lives.update({o.operands[1]: whole for o in walk(func.body) if o.name == GIVE})
    return {v: lives.get(v, whole) for v in buffers}


def _alignment(op: Op) -> int:
    if op.name == CHANNEL:
        return SHARED_ALIGNMENT
    least = SWIZZLED_ALIGNMENT if op["swizzled"] else SHARED_ALIGNMENT
    return max(least, op.integer("align"))


def _allocates(op: Op) -> bool:
    return op.name in ("thread.alloc", REUSE, CHANNEL) and op.result.tensor.space == "shared"


def _apart(a: tuple[int, int], b: tuple[int, int], barriers: Sequence[int]) -> bool:
    first, second = sorted((a, b))
    return any(first[1] < at < second[0] for at in barriers)
