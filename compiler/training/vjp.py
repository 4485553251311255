"""`tw.vjp`: a network with its backward pass, without a loss or an optimizer, as one module."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.errors import InputError, expect
from tilewright.ir.graph_code import GraphWriter
from tilewright.ir.nodes import Block, Func, Level, Module, Value
from tilewright.ir.types import FLOATS
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.passes.analysis.backward_pass import LOSS
from tilewright.passes.graph.forms.promote_parameters import promoted
from tilewright.passes.graph.gradients.differentiate import backward

#: the name of what comes back to a single result; to several: `cotangent0`, `cotangent1`, ...
COTANGENT = "cotangent"


def vjp(
    module: Module,
    wrt: Sequence[str] | str | None = None,
    *,
    storage: str | None = None,
    attention: bool = True,
    seed: int = 0,
) -> Module:
    """A module that gives the results of a network in training and, from what comes back to them, gradients.

    Its inputs are those of `module`, then a `cotangent` for each result that is of floats, of its type. Its
    results are those of `module`, then a gradient for each name in `wrt`: inputs and parameters (constants
    that the network names as such); by default all inputs of floats, then all parameters. Parameters are
    state that runs leave as it is, so that `exe.step(x, cotangent)` copies none of them. Dropout drops (its
    bits follow from `seed` and the number of the run), and batch norms use and track their batch.

    storage: `f16` or `bf16` stores inputs, parameters, cotangents, results and gradients in that type, with
        float32 inside where the precision of that name has it; by default they keep their types.
    attention: whether products around a softmax become `graph.attention`, whose backward pass computes
        weights again, as in `tw.train_step`.

    Raises InputError for names that are not known or that no result depends on.
    """
    if expect(module, Module, "a Module").main.level is not Level.GRAPH:
        raise InputError(
            f"expected a graph-level module to differentiate, got one of level {module.main.level.value}",
            where=f"@{module.name}",
        )
    if storage not in (None, "f16", "bf16"):
        raise InputError(f"expected storage f16 or bf16, got {storage!r}")
    mode = f"infer-shapes, decompose-octave, training-mode{{seed={seed}}}, form-group-norm"
    passes = Pipeline.parse(mode + ", form-attention" * attention)
    trained = run_pipeline(module, passes, PassContext())
    known = [p.hint for p in trained.main.params if p.tensor.dtype in FLOATS and p.hint in module.input_names]
    trained = promoted(trained)
    if storage is not None:  # before it is differentiated: gradients have the types of what they belong to
        narrow = Pipeline.parse(f"infer-shapes, narrow-interface{{dtype={storage}}}")
        trained = run_pipeline(trained, narrow, PassContext())
    out = _joined(trained, [wrt] if isinstance(wrt, str) else wrt, known)
    return run_pipeline(out, Pipeline.parse("cse, dce"), PassContext())


def _joined(module: Module, wrt: Sequence[str] | None, inputs: Sequence[str]) -> Module:
    """The training form of a network with its backward pass behind it."""
    main, where = module.main, f"@{module.name}"
    positions = dict(main.updates)
    own = set(positions.values())
    by_name = {p.hint: p for p in main.params}
    named = set(module.parameters)
    names = list(wrt if wrt is not None else [*inputs, *(n for n in by_name if n in named)])
    unknown = next((n for n in names if n not in inputs and n not in named), None)
    if unknown is not None:
        raise InputError(f"expected names of inputs of floats or parameters, got '{unknown}'", where=where)
    returned = main.body.ops[-1].operands
    results = [v for j, v in enumerate(returned) if j not in own]
    floats = [j for j, v in enumerate(results) if v.tensor.dtype in FLOATS]
    hints = [COTANGENT] if len(floats) == 1 else [f"{COTANGENT}{k}" for k in range(len(floats))]
    taken = next((n for n in hints if n in by_name), None)
    if taken is not None or not floats:
        got = f"an input called '{taken}'" if floats else "no result of floats"
        raise InputError(
            f"expected results of floats and no input that is named like a cotangent, got {got}", where=where
        )
    cotangents = [Value(results[j].type, hint) for j, hint in zip(floats, hints, strict=True)]
    w = GraphWriter(module.constants)
    for op in main.body.ops[:-1]:
        w.builder.append(op)
    back: dict[Value, list[Value]] = {}
    for j, g in zip(floats, cotangents, strict=True):
        back.setdefault(results[j], []).append(g)
    starts = {v: sum(map(w.tensor, gs[1:]), start=w.tensor(gs[0])) for v, gs in back.items()}
    gradients = backward(w, w.ops, starts, [by_name[n] for n in names])
    lost = [n for n in names if by_name[n] not in gradients]
    if lost:
        raise InputError(
            f"expected results that depend on all of wrt, they do not on {', '.join(lost)}", where=where
        )
    plain = [p for i, p in enumerate(main.params) if i not in positions]
    state = [p for i, p in enumerate(main.params) if i in positions]
    new = [returned[positions[i]] for i in range(len(main.params)) if i in positions]
    values = [*results, *(gradients[by_name[n]].value for n in names)]
    w.builder.emit("graph.return", [*values, *new], types=())
    params = (*plain, *cotangents, *state)
    first, last = len(plain) + len(cotangents), len(values)
    types = tuple(v.type for v in (*values, *new))
    func = Func(Level.GRAPH, main.name, Block(params, w.ops), types, main.attrs)
    pairs = tuple((first + k, last + k) for k in range(len(state)))
    func = func.with_attrs(updates=pairs, **{LOSS: tuple(floats) if len(floats) > 1 else floats[0]})
    return Module(module.name, (func,), module.attrs).with_constants(w.constants)
