"""The plan level: which kernels run on which bytes in which order. One op is one line and one decision.

A value is a buffer in device memory, and its name is the buffer's name in the plan. Kernels and launches are
named by text, because a plan may call them as no value can be called. What the ops mean stands with
`tilewright.runtime.plan.ExecutionPlan`, and `tilewright.plan_text` changes one into the other. The text of
kernels and their binaries are kept apart, as the arrays of constants are; digests say which they are.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.nodes import Op
from tilewright.ir.opdef import ORIGINS, AttrDef, define, no_results
from tilewright.ir.types import TensorType

INPUT, CONSTANT, OUTPUT, ARENA, VIEW = "plan.input", "plan.constant", "plan.output", "plan.arena", "plan.view"
STATE = "plan.state"
KERNEL, LIBRARY, COMMUNICATION = "plan.kernel", "plan.library", "plan.communication"
LAUNCH, CALL, COMMUNICATE = "plan.launch", "plan.call", "plan.communicate"
RETURN = "plan.return"


def _verify_buffer(op: Op) -> list[str]:
    t = op.result.type
    if not isinstance(t, TensorType) or t.space != "global":
        return [f"expected a buffer in global memory, got {t}"]
    if not t.dense and op.name != VIEW:
        return [f"expected a dense buffer, got {t}: only {VIEW} is a box of another buffer"]
    return []


_BYTES = AttrDef("int", doc="size of the memory, at least that of the elements")
_LABEL = AttrDef("str", "", "what the network calls it, where a plan cannot hold that name")
_IN_PLACE_OF = AttrDef(
    "str", "", "the buffer whose bytes a launch overwrites with this one while it reads them"
)
_BUFFERS: Mapping[str, tuple[str, Mapping[str, AttrDef]]] = {
    INPUT: (
        "An input of the network, in memory of its own.",
        {"position": AttrDef("int", doc="place among the inputs of a call"), "bytes": _BYTES},
    ),
    CONSTANT: ("A weight, or another constant, in memory of its own.", {"bytes": _BYTES}),
    STATE: (
        "What a run finds in memory that keeps its content between runs; a view of it is what the run leaves "
        "there, written by one launch once everything has read what it found.",
        {"bytes": _BYTES},
    ),
    OUTPUT: ("A result of the network, in memory of its own.", {"bytes": _BYTES}),
    ARENA: (
        "A buffer in the arena, the memory that values share in turn.",
        {
            "offset": AttrDef("int", doc="bytes from the begin of the arena"),
            "bytes": _BYTES,
            "live": AttrDef("strs", (), "the first and the last launch that use it"),
            "in_place_of": _IN_PLACE_OF,
        },
    ),
    VIEW: (
        "Bytes of another buffer under a name and a type of their own; with steps, a box of that buffer.",
        {
            "of": AttrDef("str", doc="the buffer"),
            "offset": AttrDef("int", doc="bytes from its begin"),
            "bytes": _BYTES,
            "in_place_of": _IN_PLACE_OF,
        },
    ),
}
for _name, (_doc, _attrs) in _BUFFERS.items():
    define(
        _name,
        (),
        _doc,
        attrs={**_attrs, "label": _LABEL},
        verify=_verify_buffer,
        effects=frozenset({"alloc"}),
    )

#: facts that a plan may know of every kernel, whoever wrote it
_BUILT: Mapping[str, AttrDef] = {
    "entry": AttrDef("str?", None, "name of the function in its text; none: that of the kernel"),
    "arch": AttrDef("str", "", "architecture of the binary"),
    "resources": AttrDef(
        "pairs?", None, "registers and spill_bytes per thread, static shared_bytes per block"
    ),
    "contract": AttrDef(
        "pairs?",
        None,
        "the launch that the text was made for: grid, block, shared_bytes, writes, and as spans the bytes of "
        "each argument that it may touch",
    ),
}
_KERNELS: Mapping[str, tuple[str, Mapping[str, AttrDef]]] = {
    KERNEL: (
        "A generated kernel.",
        {
            "language": AttrDef("str", doc="cuda or opencl"),
            "source": AttrDef("str", doc="digest of its text"),
            "binary": AttrDef("str?", None, "digest of its binary, where there is one"),
            "overlaps": AttrDef(
                "bool", False, "it waits itself for the launches before it, so it may start before they end"
            ),
            "releases": AttrDef("bool", False, "it lets launches that wait themselves start before it ends"),
        },
    ),
    LIBRARY: (
        "An operation of a library, and the algorithm chosen for it.",
        {
            "provider": AttrDef("str", doc="cublaslt or cudnn"),
            "operation": AttrDef("str", doc="matmul, convolution, attention or norm"),
            "problem": AttrDef("pairs", doc="extents, element types and strides, by the operation"),
            "algorithm": AttrDef("str"),
            "version": AttrDef("str", doc="of the library, to which alone the algorithm means something"),
            "workspace_bytes": AttrDef("int"),
        },
    ),
    COMMUNICATION: (
        "A communication with other ranks.",
        {
            "kind": AttrDef("str", doc="exchange, all_gather, all_reduce or reduce_scatter"),
            "dtype": AttrDef("str"),
            "operands": AttrDef("ints", doc="elements of each operand"),
            "results": AttrDef("ints", doc="elements of each result"),
            "sends": AttrDef("list", (), "messages: peer, tag, buffer"),
            "receives": AttrDef("list", (), "messages: peer, tag, buffer"),
            "members": AttrDef("ints", (), "the ranks of a collective"),
            "position": AttrDef("int", 0, "place of this rank among the members"),
            "counts": AttrDef("ints", (), "elements per member"),
            "reduction": AttrDef("str", "sum"),
        },
    ),
}  # fmt: skip
for _name, (_doc, _attrs) in _KERNELS.items():
    define(
        _name,
        (),
        f"{_doc} Launches name it.",
        attrs={"name": AttrDef("str"), **_attrs, **_BUILT},
        results=0,
        infer=no_results,
        effects=frozenset({"control"}),
    )


def _verify_launch(op: Op) -> list[str]:
    pairs = op["in_place"]
    assert isinstance(pairs, tuple)
    wrong = [
        p for p in pairs if not (isinstance(p, tuple) and len(p) == 2 and all(type(n) is int for n in p))
    ]
    return [f"expected in_place to hold pairs of positions, got {wrong[0]!r:.100}"] if wrong else []


_NO_GRID: Mapping[str, AttrDef] = {"grid": AttrDef("ints", (1, 1, 1)), "block": AttrDef("int", 1)}
_GRID: Mapping[str, AttrDef] = {
    "grid": AttrDef("ints", doc="blocks along x, y and z"),
    "block": AttrDef("int", doc="threads of a block"),
}
_LAUNCHES: Mapping[str, tuple[str, Mapping[str, AttrDef]]] = {
    LAUNCH: ("Run a generated kernel on these buffers.", _GRID),
    CALL: ("Run an operation of a library on these buffers; the last one is its workspace.", _NO_GRID),
    COMMUNICATE: ("Meet other ranks; the operands come first, then the results.", _NO_GRID),
}
for _name, (_doc, _grid) in _LAUNCHES.items():
    define(
        _name,
        ("buffers*",),
        _doc,
        attrs={
            "kernel": AttrDef("str"),
            "name": AttrDef("str", "", "what other lines call this launch: as its kernel where not given"),
            "stream": AttrDef("int", doc="where it is queued when launches are queued one by one"),
            "after": AttrDef("strs", (), "the launches that it waits for"),
            "programmatic": AttrDef(
                "strs", (), "those of them that still run when it starts: it waits for their end itself"
            ),
            **_grid,
            "shared_bytes": AttrDef("int", 0, "dynamic shared memory of a block"),
            "writes": AttrDef("ints", (), "positions of the buffers that it writes"),
            "in_place": AttrDef(
                "list", (), "positions [read, written] of buffers that may share their bytes"
            ),
            "origin": AttrDef(ORIGINS, (), "the network's ops that it computes"),
            "maps": AttrDef("list", (), "tensor maps: argument, offset in bytes, recipe"),
            "cluster": AttrDef("ints", (1, 1, 1), "blocks along x, y and z that run together"),
        },
        results=0,
        infer=no_results,
        verify=_verify_launch,
        effects=frozenset({"read", "write"}),
    )
define(
    RETURN,
    ("outputs*",),
    "The results of the network.",
    results=0,
    infer=no_results,
    effects=frozenset({"terminator"}),
)
