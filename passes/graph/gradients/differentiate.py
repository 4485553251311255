"""Pass differentiate: the gradient of a result of @main by inputs or parameters, as graph ops behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ir.errors import InputError, UnsupportedError, expect
from tilewright.ir.facts import Gradient
from tilewright.ir.graph_code import GraphWriter, Tensor
from tilewright.ir.nodes import Block, Func, Level, Module, Op, Value
from tilewright.ir.opdef import facts_of
from tilewright.ir.types import FLOATS, TensorType
from tilewright.passes.analysis.backward_pass import LOSS, RECOMPUTED
from tilewright.passes.framework.context import PassContext
from tilewright.passes.framework.definition import register_pass
from tilewright.passes.graph.gradients import rules  # noqa: F401  (registers the rules)
from tilewright.passes.graph.gradients.registry import GRADIENTS, Backward, derived
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.names import did_you_mean

#: the module attribute that names the constants that are parameters: what training changes
PARAMETERS = "parameters"


@register_pass(Level.GRAPH, requires={"shapes-known"}, establishes={"shapes-known"})
def differentiate(
    module: Module, ctx: PassContext, *, wrt: str = "", of: int = 0, value: bool = True
) -> Module:
    """Return gradients of the scalar result `of` by `wrt`: names of inputs or parameters with commas between.

    rewrite: %y = graph.sum(graph.multiply(%x, %x)); return %y
        -->  ...; %dx = graph.add(graph.multiply(%g, %x), graph.multiply(%g, %x)); return %y, %dx

    value: whether the result itself is returned before its gradients. See `grad`.
    """
    names = [n.strip() for n in wrt.split(",") if n.strip()]
    return grad(module, names or None, of, value)


def grad(module: Module, wrt: Sequence[str] | str | None = None, of: int = 0, value: bool = True) -> Module:
    """A module with the inputs of `module` that gives gradients of its scalar result number `of`.

    wrt: names of inputs and of parameters (constants), one gradient each, of its shape and dtype; by default
        all parameters that the module names (attribute `parameters`), or all inputs of floats where it names
        none. value: whether the scalar comes first. The result can be differentiated again.

    Ops of the backward pass carry the location of the op they come from with a prime behind it.
    Raises InputError for a result that is no scalar of floats, for unknown names, and where the result does
    not depend on one of them; UnsupportedError for an op on the way that has no derivative.
    """
    main = expect(module, Module, "a Module").main
    if main.level is not Level.GRAPH:
        raise InputError(
            f"expected a graph-level module to differentiate, got one of level {main.level.value}",
            where=f"@{module.name}",
        )
    target = _scalar_result(module, of)
    variables = _variables(module, [wrt] if isinstance(wrt, str) else wrt)
    w = GraphWriter(module.constants)
    for op in main.body.ops[:-1]:
        w.builder.append(op)
    gradients = backward(w, w.ops, {target: w.number(1, target.tensor.dtype)}, tuple(variables.values()))
    lost = [name for (name, v) in variables.items() if v not in gradients]
    if lost:
        raise InputError(
            f"expected result {of} to depend on all that it is differentiated by, it does not on "
            f"{', '.join(lost)}",
            where=f"@{module.name}",
        )
    results = [target] * value + [gradients[v].value for v in variables.values()]
    return with_results(module, w, results, loss=0 if value else None)


def with_results(
    module: Module, w: GraphWriter, results: Sequence[Value], *, loss: int | None = None
) -> Module:
    """The module with the ops that were written, as far as `results`, which it returns, need them.

    loss: the position of the result that was differentiated, where it is one of them.
    """
    builder = w.builder
    builder.emit("graph.return", results, types=())
    main = module.main
    block = Block(main.params, tuple(builder.ops))
    attrs = tuple((k, a) for k, a in main.attrs if k not in ("updates", LOSS, RECOMPUTED))
    if loss is not None:
        attrs = (*attrs, (LOSS, loss))
    types = tuple(v.type for v in results)
    func = Func(Level.GRAPH, main.name, block.with_ops(live_ops(block)), types, attrs)
    funcs = tuple(func if f is main else f for f in module.funcs)
    return module.with_funcs(funcs).with_constants(w.constants)


def backward(
    w: GraphWriter, ops: Sequence[Op], cotangents: Mapping[Value, Tensor], wrt: Sequence[Value]
) -> dict[Value, Tensor]:
    """Write the backward pass of `ops` behind them; the gradients of values `wrt`, none where nothing came.

    cotangents: what comes back to some results of `ops`, of their types. Contributions to one value are added
    in the reverse order of the program, always the same.
    """
    active = _reached_from(ops, wrt)
    back: dict[Value, Tensor] = dict(cotangents)
    for op in reversed(ops):
        leaves = not op.results and facts_of(op.name).gradient is Gradient.REFUSED
        if not (leaves or any(r in active and r in back for r in op.results)) or not any(
            v in active for v in op.operands
        ):
            continue
        with w.at(f"{op.loc}'" if op.loc else ""):
            for v, g in _contributions(w, op, back, active):
                if g.type != v.type:
                    raise AssertionError(f"the gradient rule of {op.name} gave {g.type} for {v.type}")
                back[v] = back[v] + g if v in back else g
    return {v: back[v] for v in wrt if v in back}


def _contributions(
    w: GraphWriter, op: Op, back: Mapping[Value, Tensor], active: set[Value]
) -> list[tuple[Value, Tensor]]:
    """What an op sends back to each of its operands on the way."""
    kind = facts_of(op.name).gradient
    if kind is Gradient.NONE:
        return []
    if kind is Gradient.REFUSED:
        raise UnsupportedError(f"{op.name} is not differentiable", where=op.loc)
    b = Backward(
        w,
        op,
        tuple(map(w.tensor, op.operands)),
        tuple(map(w.tensor, op.results)),
        tuple(back.get(r) for r in op.results),
        tuple(v in active for v in op.operands),
    )
    rule = GRADIENTS[op.name] if kind is Gradient.RULE else derived
    found = zip(op.operands, rule(b), b.needed, strict=True)
    return [(v, g) for v, g, needed in found if needed and g is not None]


def _reached_from(ops: Sequence[Op], wrt: Sequence[Value]) -> set[Value]:
    """Values of floats that depend on one of `wrt`."""
    active = set(wrt)
    for op in ops:
        if any(v in active for v in op.operands) and facts_of(op.name).gradient is not Gradient.NONE:
            active.update(r for r in op.results if r.tensor.dtype in FLOATS)
    return active


def _scalar_result(module: Module, of: int) -> Value:
    returned = module.main.body.ops[-1].operands
    if type(of) is not int or not 0 <= of < len(returned):
        raise InputError(
            f"expected a result from 0 to {len(returned) - 1}, got {of!r}", where=f"@{module.name}"
        )
    t = returned[of].tensor
    if t.shape or t.dtype not in FLOATS:
        raise InputError(
            f"expected a scalar of floats to differentiate, result {of} is {t}; reduce it first (a loss is "
            "one number)",
            where=f"@{module.name}",
        )
    return returned[of]


def _variables(module: Module, wrt: Sequence[str] | None) -> dict[str, Value]:
    """The values to differentiate by, by name."""
    inputs = dict(zip(module.input_names, module.main.params, strict=True))
    constants = {str(op["name"]): op.result for op in module.main.body.ops if op.name == "graph.constant"}
    known = {**constants, **inputs}
    if wrt is None:
        named = module.get(PARAMETERS, ())
        assert isinstance(named, tuple)
        floats = [n for n, v in inputs.items() if v.tensor.dtype in FLOATS]
        wrt = [str(n) for n in named] or floats
    out = {}
    for name in wrt:
        if name not in known:
            raise InputError(
                f"expected names of inputs or parameters, got '{name}'{did_you_mean(name, list(known))}",
                where=f"@{module.name}",
            )
        t = known[name].type
        if not isinstance(t, TensorType) or t.dtype not in FLOATS:
            raise InputError(f"expected floats to differentiate by, '{name}' is {t}", where=f"@{module.name}")
        out[name] = known[name]
    if not out:
        raise InputError("expected something to differentiate by, got no names", where=f"@{module.name}")
    return out
