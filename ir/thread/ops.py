"""The thread level: what one thread does. Program order is the order of effects; barriers are ops.

Buffers are values of tensor type in a memory space: `global` parameters; `shared`, `reg`, `frag` allocations.
Symbols: `tid` (thread within the block), `bid.x`, `bid.y`, `bid.z`, and the variables of enclosing loops.
A mask is a list of `[expr, low, high]`: the access happens where low <= expr < high holds for all of them.
A `frag` buffer is a matrix tile held by the 32 threads of a warp together.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError
from tilewright.ir.hardware_facts import WARP
from tilewright.ir.nodes import Op
from tilewright.ir.opdef import AttrDef, Attrs, Transport, define, no_results
from tilewright.ir.types import ScalarType, TensorType, Type

READ, WRITE = frozenset({"read"}), frozenset({"write"})


MASK = AttrDef("mask", (), "conjunction of [expr, low, high]")


def buffer(t: Type, *spaces: str) -> TensorType:
    """The type, known to be of a buffer in one of the memory spaces."""
    if not isinstance(t, TensorType) or t.space not in spaces:
        raise InputError(f"expected a buffer in {' or '.join(spaces)}, got {t}")
    return t


def element(t: Type, at: Sequence[object], *spaces: str) -> TensorType:
    """The type, known to be of a buffer in one of the memory spaces in which `at` names an element."""
    memory = buffer(t, *spaces)
    if len(at) != memory.rank:
        raise InputError(f"expected {memory.rank} index expressions, got {len(at)}")
    return memory


def _infer_load(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    return [ScalarType(element(types[0], a["at"], "global", "shared", "reg").dtype, a["lanes"])]


def _infer_store(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    t = element(types[1], a["at"], "global", "shared", "reg")
    if not isinstance(types[0], ScalarType) or types[0].dtype != t.dtype:
        raise InputError(f"expected a {t.dtype} value, got {types[0]}")
    return []


def _verify_alloc(op: Op) -> list[str]:
    t = op.result.type
    if isinstance(t, TensorType) and t.space in ("shared", "reg", "frag"):
        return []
    return [f"expected a buffer in shared, reg or frag, got {t}: global memory comes as parameters"]


define(
    "thread.alloc",
    (),
    "A buffer in shared memory (one per block), registers (one per thread) or fragments (one per warp).",
    attrs={
        "align": AttrDef("int", 16, "bytes"),
        "swizzled": AttrDef(
            "bool", False, "the 16-byte pieces of each row are permuted: columns of pieces meet all banks"
        ),
    },
    verify=_verify_alloc,
    effects=frozenset({"alloc"}),
)
define(
    "thread.load",
    ("buffer",),
    "One element, or `lanes` consecutive ones of the last dimension; `other` where the mask is false.",
    attrs={
        "at": AttrDef("exprs"),
        "lanes": AttrDef("int", 1),
        "mask": MASK,
        "other": AttrDef("number", 0.0),
    },
    infer=_infer_load,
    effects=READ,
)
define(
    "thread.store",
    ("value", "buffer"),
    "Write one element, or the lanes of a short vector along the last dimension, where the mask is true.",
    attrs={"at": AttrDef("exprs"), "mask": MASK},
    results=0,
    infer=_infer_store,
    effects=WRITE,
    transport=Transport(1, "stores"),
)
define(
    "thread.atomic_add",
    ("value", "buffer"),
    "Add to one element of global or shared memory, atomically.",
    attrs={"at": AttrDef("exprs"), "mask": MASK},
    results=0,
    infer=_infer_store,
    effects=READ | WRITE,
)


def _infer_copy(types: Sequence[Type], a: Attrs) -> Sequence[Type]:
    src, dst = element(types[0], a["src"], "global"), element(types[1], a["dst"], "shared")
    if src.dtype != dst.dtype:
        raise InputError(f"expected one dtype, got {src} and {dst}")
    return []


define(
    "thread.copy_async",
    ("source", "destination"),
    "Start copying `lanes` elements (4, 8 or 16 bytes) from global to shared memory; zeros where the "
    "mask is false.",
    attrs={"src": AttrDef("exprs"), "dst": AttrDef("exprs"), "lanes": AttrDef("int", 1), "mask": MASK},
    results=0,
    infer=_infer_copy,
    effects=READ | WRITE | {"async"},
    transport=Transport(1, "copies"),
)
define(
    "thread.async_commit",
    (),
    "Close the group of asynchronous copies started since the last one.",
    results=0,
    infer=no_results,
    effects=frozenset({"async"}),
)
define(
    "thread.async_wait",
    (),
    "Wait until at most `pending` groups of this thread's asynchronous copies are unfinished.",
    attrs={"pending": AttrDef("int", 0)},
    results=0,
    infer=no_results,
    effects=frozenset({"async"}),
)
define(
    "thread.barrier",
    (),
    "All threads of the block arrive before any goes on; shared-memory writes before are visible after.",
    results=0,
    infer=no_results,
    effects=frozenset({"barrier"}),
)


define(
    "thread.warp_barrier",
    (),
    "All threads of the warp arrive before any goes on; their writes to shared memory before are visible "
    "to one another after.",
    results=0,
    infer=no_results,
    effects=frozenset({"warp"}),
)


def _infer_if(types: Sequence[Type], attrs: Attrs) -> Sequence[Type]:
    if types and types[0] != ScalarType("bool"):
        raise InputError(f"expected a bool as condition, got {types[0]}")
    return []


def _verify_loop(op: Op) -> Sequence[str]:
    if op.body is None:
        return ["expected a body"]
    want = [v.type for v in op.operands]
    faults = []
    if [p.type for p in op.body.params] != want or [r.type for r in op.results] != want:
        faults.append("expected loop-carried operands, body parameters and results of the same types")
    last = op.body.ops[-1] if op.body.ops else None
    yielded = [v.type for v in last.operands] if last is not None and last.name == "thread.yield" else []
    if yielded != want:
        faults.append("expected the body to yield the loop-carried values")
    return faults


define(
    "thread.loop",
    ("carried*",),
    "Run the body for var = 0 .. extent-1. `unroll`: 0 never, 1 fully, n > 1 by n. Carried values pass "
    "through the body's parameters and its thread.yield.",
    attrs={"var": AttrDef("sym"), "extent": AttrDef("int"), "unroll": AttrDef("int", 0)},
    results=None,
    verify=_verify_loop,
    body=True,
    effects=frozenset({"control"}),
)
define(
    "thread.if",
    ("condition?",),
    "Run the body where the mask (and the condition, a bool value) holds.",
    attrs={"mask": AttrDef("mask")},
    results=0,
    infer=_infer_if,
    body=True,
    effects=frozenset({"control"}),
)
for _name in ("yield", "return"):
    define(
        f"thread.{_name}",
        ("values*",),
        "Values carried to the next iteration." if _name == "yield" else "End of the kernel.",
        results=0,
        infer=no_results,
        effects=frozenset({"terminator"}),
    )
define(
    "thread.shuffle",
    ("value",),
    "The value of another lane of the warp: lane+offset (down), lane-offset (up), lane^offset (xor) or "
    "offset (index). A lane outside the group of `width` lanes keeps its own value.",
    attrs={"kind": AttrDef("str", "down"), "offset": AttrDef("expr"), "width": AttrDef("int", WARP)},
    infer=lambda t, a: [t[0]],
    effects=frozenset({"warp"}),
)
