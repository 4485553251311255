"""Thread-level ops of blocks in a cluster: they meet, share sums, and write to each other's shared memory.

Each block of the cluster lays its part of the sums down in shared memory; all meet; then each adds the parts
of some results, those of the first block first, so that the sum is the same in every run. They meet again
before a block may write over what others read, or end.

Blocks that work on one state write what each has of it to the shared memory of all, meet, and read the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from tilewright.ir.errors import InputError
from tilewright.ir.hardware_facts import VECTOR_BYTES
from tilewright.ir.nodes import Func, Op, walk
from tilewright.ir.opdef import AttrDef, Attrs, define, no_results
from tilewright.ir.thread.channel_ops import REUSE
from tilewright.ir.thread.ops import MASK, buffer, element
from tilewright.ir.thread.role_ops import MEET, ROLE, roles_of
from tilewright.ir.thread.tensor_maps import cluster_of
from tilewright.ir.types import ScalarType, TensorType, Type, itemsize

SUM = "thread.sum_of_cluster"
GIVE = "thread.give_to_block"
SHARE = "thread.share_with_block"
#: neighbours along the last dimension that one op adds
SUM_LANES = (1, 2, 4)
#: dtypes of sums
_SUMS = ("f32", "i32")
#: dtypes of what a block gives others
_GIVEN = ("f32",)

define(
    MEET,
    (),
    "All threads of all blocks of the cluster arrive before any goes on, and then see what the others have "
    "written to shared memory. At the top of a kernel, or of every one of its roles.",
    results=0,
    infer=no_results,
    effects=frozenset({"channel"}),
)


def _infer_sum(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    tile, sums = element(types[0], attrs["at"], "shared"), buffer(types[1], "reg")
    if tile.dtype not in _SUMS or sums.dtype != tile.dtype:
        raise InputError(f"expected sums and parts of one dtype of {', '.join(_SUMS)}, got {tile} and {sums}")
    if sums.rank != 1 or sums.shape[0] not in SUM_LANES:
        raise InputError(f"expected {', '.join(map(str, SUM_LANES))} sums in reg, got {sums}")
    return []


define(
    SUM,
    ("tile", "sums"),
    "Add up the element of a tile in shared memory, and its neighbours along the last dimension as far as "
    "there are sums, over all blocks of the cluster in the order of their ranks.",
    attrs={"at": AttrDef("exprs", doc="index of the first element, the same in all blocks")},
    results=0,
    infer=_infer_sum,
    effects=frozenset({"read", "write"}),
)


def _infer_give(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    tile = element(types[1], attrs["at"], "shared")
    if tile.dtype not in _GIVEN or types[0] != ScalarType(tile.dtype):
        raise InputError(f"expected one {' or '.join(_GIVEN)} for a buffer of it, got {types[0]} and {tile}")
    return []


define(
    GIVE,
    ("value", "buffer"),
    "Write a value to the same element of a buffer in the shared memory of a block of the cluster. It may be "
    "read there when the blocks have met.",
    attrs={
        "at": AttrDef("exprs", doc="index of the element, the same in all blocks"),
        "rank": AttrDef("expr", doc="the block's number in the cluster"),
        "mask": MASK,
    },
    results=0,
    infer=_infer_give,
    effects=frozenset({"write"}),
)


def _infer_share(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    tile, lanes = element(types[0], attrs["at"], "shared"), attrs["lanes"]
    if lanes * itemsize(tile.dtype) != VECTOR_BYTES:
        raise InputError(f"expected {VECTOR_BYTES} bytes of {tile}, got {lanes} elements")
    return []


define(
    SHARE,
    ("buffer",),
    "Write `lanes` neighbours of a buffer in shared memory (16 bytes), as this block has them, to the same "
    "place in the shared memory of a block of the cluster. They may be read there when the blocks have met.",
    attrs={
        "at": AttrDef("exprs", doc="index of the first element, the same in all blocks"),
        "lanes": AttrDef("int"),
        "rank": AttrDef("expr", doc="the block's number in the cluster"),
        "mask": MASK,
    },
    results=0,
    infer=_infer_share,
    effects=frozenset({"read", "write"}),
)


def _verify_reuse(op: Op) -> Sequence[str]:
    t = op.result.type
    if not isinstance(t, TensorType) or t.space != "shared":
        return [f"expected a buffer in shared, got {t}"]
    return []


define(
    REUSE,
    ("channel",),
    "A buffer that may lie where those of a channel lie: used after a barrier of the role that has received "
    "and released all items.",
    attrs={
        "align": AttrDef("int", 16, "bytes"),
        "swizzled": AttrDef("bool", False, "as of thread.alloc"),
    },
    verify=_verify_reuse,
    effects=frozenset({"alloc"}),
)


def cluster_faults(func: Func) -> Iterator[tuple[int, str]]:
    """Faults in where blocks of a cluster meet, as (index of the op in the kernel's body, clause)."""
    used = {op.name for op in walk(func.body)} & {MEET, SUM, GIVE, SHARE}
    if not used:
        return
    first = next(i for i, op in enumerate(func.body.ops) if {o.name for o in _with_inner(op)} & used)
    if prod(cluster_of(func)) == 1:
        yield first, f"{min(used)}: expected a kernel with clusters"
        return
    roles = roles_of(func)
    for i, op in enumerate(func.body.ops):
        tops = op.body.ops if op.name == ROLE and op.body is not None else (op,)
        if any(o.name == MEET for top in tops if top.body is not None for o in walk(top.body)):
            yield i, f"expected {MEET} at the top of a kernel or of a role, outside of loops and conditions"
        if roles and op.name == MEET:
            yield i, f"expected {MEET} in the roles of a kernel that has some"
    counts = {str(r["name"]): sum(o.name == MEET for o in walk(r.body)) for r in roles if r.body is not None}
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} {count}" for name, count in counts.items())
        yield first, f"expected all roles to meet other blocks equally often, got {text}"


def _with_inner(op: Op) -> tuple[Op, ...]:
    return (op, *walk(op.body)) if op.body is not None else (op,)
