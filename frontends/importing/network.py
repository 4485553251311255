"""The finished module of an importer: its inputs, the ops that were emitted, and the constants they read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from tilewright.frontends.importing.emitter import Emitter
from tilewright.frontends.importing.parameters import with_parameters
from tilewright.frontends.weights.deferred import made
from tilewright.ir.constants import Constants
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value


def network(
    emitter: Emitter, file: str, inputs: Mapping[str, Value], results: Sequence[Value], *, prune: bool
) -> Module:
    """The module of what `emitter` holds, named after a file. Constants that nothing reads go.

    Those of its weights that training may change are its parameters (`with_parameters`).
    prune: drop all other ops that no result depends on as well.
    """
    emitter.builder.do("graph.return", *results)
    ops = ops_read(emitter.written(), prune=prune)
    func = Func(Level.GRAPH, "main", Block(tuple(inputs.values()), ops), tuple(v.type for v in results))
    names = {str(op["name"]) for op in ops if op.name == "graph.constant"}
    constants = Constants({name: made(a) for name, a in emitter.constants.items() if name in names})
    module = Module(_name(file), (func,), (), constants)
    return with_parameters(module, emitter.weights, emitter.numbers)


def ops_read(ops: Sequence[Op], *, prune: bool) -> tuple[Op, ...]:
    """The ops in order without those whose results nothing reads: constants, or all but the last."""
    read: set[Value] = set()
    needed = []
    for op in reversed(ops):
        optional = op.name == "graph.constant" or (prune and op.name != "graph.return")
        if not optional or any(r in read for r in op.results):
            read.update(op.operands)
            needed.append(op)
    return tuple(reversed(needed))


def _name(file: str) -> str:
    """A name of letters, digits and underscores after the stem of a file."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", PurePath(file).name.split(".")[0])
    return name if re.match(r"[A-Za-z_]", name) else f"net_{name}"
