"""Groups the flat tensor program into kernels and outlines each as a function that @main calls."""

from __future__ import annotations

import re
from dataclasses import replace

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Ref, Sym, Value
from tilewright.ir.expr import substitute
from tilewright.ir.tensor_ops import dims, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.tensor.kernel_groups import Group, Partition, partition, readers, used_outside


@register_pass(Level.TENSOR, establishes={"kernels-outlined"})
def fuse_kernels(module: Module, ctx: PassContext, *, fuse: bool = True) -> Module:
    """Outline kernels: one function per group of ops that runs as one kernel.

    rewrite:  %0 = tensor.contract(%x, %w); %1 = tensor.map(%0, %b)
              -->   %1 = tensor.call(%x, %w, %b, callee = @conv2d_add_0)

    Which ops share a kernel is decided from index sets (see kernel_groups). With `fuse = false` every op
    gets a kernel of its own.
    """
    main = module.main
    if any(op.name == "tensor.call" for op in main.body.ops):
        return module
    part = partition(main, fuse=fuse)
    read_by = readers(part, main)
    taken = {f.name for f in module.funcs}
    kernels: list[Func] = []
    b = Builder()
    env: dict[Value, Value] = {}
    for op in main.body.ops:
        if op.name == "tensor.constant":
            b.append(op)
    for g in part.groups:
        outputs = used_outside(g, read_by)
        kernel, arguments = _outline(part, g, outputs, _name(g, taken))
        kernels.append(kernel)
        operands = [env.get(v, v) for v in arguments]
        loc = g.anchor.loc
        results = b.emit(
            "tensor.call", operands, {"callee": Ref(kernel.name)}, types=[v.type for v in outputs], loc=loc
        )
        env.update(zip(outputs, results, strict=True))
    last = main.body.ops[-1]
    b.append(last.with_operands(tuple(env.get(v, v) for v in last.operands)))
    return module.with_funcs(
        (*kernels, *(replace(f, body=b.block(main.params)) if f is main else f for f in module.funcs))
    )


def _outline(part: Partition, g: Group, outputs: list[Value], name: str) -> tuple[Func, list[Value]]:
    """The kernel function of a group, with its `outputs`, and the values of @main it is called with."""
    params: dict[Value, Value] = {}  # value as read (possibly a view) -> parameter
    inside: dict[Value, Value] = {r: r for op in g.ops for r in op.results}
    ops: list[Op] = []
    for op in g.ops:
        operands = []
        for v in op.operands:
            if v in inside:
                operands.append(v)
                continue
            if v not in params:
                params[v] = Value(v.type, v.hint or part.resolve(v).hint)
            operands.append(params[v])
        ops.append(op.with_operands(tuple(operands)))
    if not g.rows:
        ops = _common_dims(ops, g.anchor)
    ops.append(Op("tensor.return", tuple(outputs)))
    body = Block(tuple(params.values()), tuple(ops))
    types = tuple(v.type for v in outputs)
    return Func(Level.TENSOR, name, body, types), [part.resolve(v) for v in params]


def _common_dims(ops: list[Op], anchor: Op) -> list[Op]:
    """Name the parallel dimensions of every epilogue map like the anchor's, so that one tile serves all."""
    names = list(dims(anchor, "par"))
    shape = tuple(dims(anchor, "par").values())
    out = []
    for op in ops:
        par = dims(op, "par")
        if op.name == "tensor.map" and op.operands and tuple(par.values()) == shape and list(par) != names:
            op = rename_dims(op, dict(zip(par, names, strict=True)))
        out.append(op)
    return out


def rename_dims(op: Op, names: dict[str, str]) -> Op:
    """A structured op with its dimensions renamed in domain, reads and body; results stay the same."""
    env = {k: Sym(v) for k, v in names.items()}
    attrs: dict[str, object] = {
        "reads": tuple(tuple(substitute(e, env) for e in at) for at in reads(op)),
        "par": Pairs(tuple((names.get(k, k), n) for k, n in dims(op, "par").items())),
    }
    if "red" in dict(op.attrs):
        attrs["red"] = Pairs(tuple((names.get(k, k), n) for k, n in dims(op, "red").items()))
    assert op.body is not None
    body = op.body.with_ops(
        tuple(
            o.with_attrs(at=substitute(o["at"], env)) if o.name == "scalar.index" else o  # type: ignore[arg-type]
            for o in op.body.ops
        )
    )
    return replace(op.with_attrs(**attrs), body=body)  # type: ignore[arg-type]


def _name(g: Group, taken: set[str]) -> str:
    """A readable, unused name from the origins of the group's ops."""
    words: list[str] = []
    for op in g.ops:
        origin = op.loc.partition("#")[0].split(":")[-1].split(".")[-1] or op.name.partition(".")[2]
        word = re.sub(r"[^A-Za-z0-9_]", "_", origin)
        if not words or words[-1] != word:
            words.append(word)
    stem = "_".join(dict.fromkeys(words))[:48].strip("_") or "kernel"
    if not stem[0].isalpha():
        stem = "k_" + stem
    number = 0
    while f"{stem}_{number}" in taken:
        number += 1
    taken.add(f"{stem}_{number}")
    return f"{stem}_{number}"


def kernel_outputs(kernel: Func) -> tuple[Value, ...]:
    """The values a kernel function returns."""
    return kernel.body.ops[-1].operands
