"""Pass promote-parameters: constants that training changes become state of @main."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from tilewright.ir.errors import InputError
from tilewright.ir.nodes import Attr, Block, Func, Level, Module, Op, Value
from tilewright.ir.types import FLOATS
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.rewriting.names import did_you_mean
from tilewright.passes.rewriting.values import replace_values


@register_pass(Level.GRAPH)
def promote_parameters(module: Module, ctx: PassContext, *, names: str = "") -> Module:
    """Make constants state: each becomes a parameter of its name, which is updated by itself.

    names: of constants, or patterns (`fc.*`), with commas between; by default those that the module's
    attribute `parameters` names. Parameters and results come behind those of @main; the data stay with the
    module.

    rewrite: main(%x) { %w = graph.constant(name = "w"); %y = graph.dense(%x, %w); return(%y) }
        -->  main(%x, %w, updates = [[1, 1]]) { %y = graph.dense(%x, %w); return(%y, %w) }
    """
    patterns = [n.strip() for n in names.split(",") if n.strip()]
    return promoted(module, matching_constants(module, patterns) if patterns else None)


def promoted(module: Module, names: Sequence[str] | None = None) -> Module:
    """The module with the constants of these names as state; see the pass. The same module where it has none.

    names: by default those of its parameters.
    Raises InputError for constants that hold no floats, and for a name that an input has already.
    """
    main = module.main
    constants: dict[str, list[Op]] = {}
    for op in main.body.ops:
        if op.name == "graph.constant":
            constants.setdefault(str(op["name"]), []).append(op)
    named = set(module.parameters if names is None else names)
    names = [n for n in constants if n in named]
    taken = set(module.input_names)
    new: dict[Value, Value] = {}
    params: list[Value] = []
    for name in names:
        first, *others = constants[name]
        if first.result.tensor.dtype not in FLOATS:
            raise InputError(
                f"expected parameters of floats, '{name}' is {first.result.type}", where=f"@{module.name}"
            )
        if name in taken:
            raise InputError(
                f"expected an input and a parameter to have different names, both are '{name}'",
                where=f"@{module.name}",
            )
        params.append(Value(first.result.type, name))
        new.update({op.result: params[-1] for op in (first, *others)})
    return with_state(module, params, new) if params else module


def with_state(module: Module, params: Sequence[Value], new: dict[Value, Value]) -> Module:
    """The module with further parameters in the place of constants, each of them updated by itself."""
    main = module.main
    ops = [op for op in main.body.ops if not any(r in new for r in op.results)]
    block = replace_values(Block((*main.params, *params), tuple(ops)), new)
    last = block.ops[-1]
    results = (*last.operands, *params)
    pairs: tuple[Attr, ...] = tuple(
        (len(main.params) + i, len(last.operands) + i) for i in range(len(params))
    )
    func: Func = replace(
        main,
        body=replace(block, ops=(*block.ops[:-1], replace(last, operands=results))),
        result_types=tuple(v.type for v in results),
    ).with_attrs(updates=(*main.updates, *pairs))
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs))


def matching_constants(module: Module, patterns: Sequence[str]) -> list[str]:
    """The constants of @main that one of the names or patterns of names matches, in their order.

    Raises InputError for a pattern that matches none.
    """
    ops = module.main.body.ops
    constants = list(dict.fromkeys(str(op["name"]) for op in ops if op.name == "graph.constant"))
    for pattern in patterns:
        if not any(n == pattern or fnmatchcase(n, pattern) for n in constants):
            raise InputError(
                f"expected names of constants to train, got '{pattern}'{did_you_mean(pattern, constants)}",
                where=f"@{module.name}",
            )
    return [n for n in constants if any(n == p or fnmatchcase(n, p) for p in patterns)]
