"""A product by parts of its longest sum: what may be cut, ops that compute the parts and add them, estimates.

Estimates are of the tensor cores' model alone: a first look that runs no passes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd, inf

from tilewright.costmodel import Hardware, choose_map
from tilewright.ir import (
    Block,
    Builder,
    Expr,
    Func,
    Level,
    Op,
    Pairs,
    Sym,
    TensorType,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES
from tilewright.ir.nodes import Attr
from tilewright.ir.tensor.ops import dims, domain, reads
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.index_sets import sums_samples
from tilewright.passes.kernels.kernel_problem import stream_problem
from tilewright.passes.kernels.matrix.choice import NEARLY, choose_matrix, has_tensor_cores
from tilewright.passes.kernels.matrix.estimator import least_matrix_estimate_s
from tilewright.passes.kernels.matrix.problem import matrix_problem
from tilewright.passes.kernels.matrix.space import MatrixProblem
from tilewright.passes.kernels.matrix.view import NARROW, matrix_view, multiplies
from tilewright.passes.rewriting.names import unused

#: parts that one map adds; more of them are summed
MAX_READS = 8


def split(op: Op, b: Builder, parts: int) -> Value:
    """The same product by parts of its longest plain sum."""
    channel = channel_of(op)
    length = dims(op, "red")[channel] // parts
    part = unused("part", domain(op))
    whole = Sym(part) * length + Sym(channel)
    first, second = reads(op)[:2]
    at = second.index(Sym(channel))
    w = op.operands[1]
    names = [f"i{i}" for i in range(w.tensor.rank)]
    shape: dict[str, int] = {}
    for name, extent in zip(names, w.tensor.shape, strict=True):
        shape |= {part: parts, name: length} if name == names[at] else {name: extent}
    where: list[Expr] = [Sym(d) for d in names]
    where[at] = Sym(part) * length + Sym(names[at])
    view = copied(b, w, shape, where)
    par = {part: parts, **dims(op, "par")}
    attrs: dict[str, Attr] = {
        **dict(op.attrs),
        "par": Pairs.of(dict(par)),
        "red": Pairs.of({**dims(op, "red"), channel: length}),
        "reads": (
            tuple(substitute(e, {channel: whole}) for e in first),
            (*second[:at], Sym(part), *second[at:]),
        ),
    }
    t = op.result.tensor
    partial = TensorType(t.dtype, (parts, *t.shape))
    (sums,) = b.emit("tensor.contract", [op.operands[0], view], attrs, types=[partial], body=op.body)
    return added(b, sums, dims(op, "par"))


def split_along(op: Op, b: Builder, dim: str, parts: int, *, last: bool = False) -> Value:
    """The same product or sum by parts of its sum along one reduced dimension.

    last: whether results of the parts of one sum lie side by side, and not those of one part.
    """
    length = dims(op, "red")[dim] // parts
    part = unused("part", domain(op))
    whole = Sym(part) * length + Sym(dim)
    par = dims(op, "par")
    attrs: dict[str, Attr] = {
        **dict(op.attrs),
        "par": Pairs.of({**par, part: parts} if last else {part: parts, **par}),
        "red": Pairs.of({**dims(op, "red"), dim: length}),
        "reads": tuple(tuple(substitute(e, {dim: whole}) for e in at) for at in reads(op)),
    }
    t = op.result.tensor
    partial = TensorType(t.dtype, (*t.shape, parts) if last else (parts, *t.shape))
    (sums,) = b.emit(op.name, op.operands, attrs, types=[partial], body=op.body)
    return added(b, sums, par, last=last)


def added(b: Builder, sums: Value, par: Mapping[str, int], *, last: bool = False) -> Value:
    """Append the sum of a tensor over its first dimension, or its last one, for each point of `par`."""
    shape = sums.tensor.shape
    t = TensorType(sums.tensor.dtype, shape[:-1] if last else shape[1:])
    parts = shape[-1 if last else 0]
    rest = tuple(map(Sym, par))

    def at(part: Expr) -> tuple[Expr, ...]:
        return (*rest, part) if last else (part, *rest)

    if parts > MAX_READS:
        part = unused("part", par)
        inner, (v, acc) = scalar_body([t.dtype] * 2)
        inner.do("scalar.yield", inner.value("scalar.add", v, acc))
        (out,) = structured(
            b, "tensor.reduce", [sums], par=par, red={part: parts}, reads=[at(Sym(part))],
            init=(0.0,), body=inner.block((v, acc)), types=[t],
        )  # fmt: skip
        return out
    body, values = scalar_body([t.dtype] * parts)
    total = values[0]
    for v in values[1:]:
        total = body.value("scalar.add", total, v)
    body.do("scalar.yield", total)
    (out,) = structured(
        b, "tensor.map", [sums] * parts, par=par, reads=[at(i) for i in range(parts)],
        body=body.block(values), types=[t],
    )  # fmt: skip
    return out


def channel_of(op: Op) -> str:
    """The longest reduced dimension that both operands read by itself; '' where there is none."""
    found = ""
    red = dims(op, "red")
    for d in red:
        plain = all(
            at.count(Sym(d)) == 1 and all(d not in symbols(e) or e == Sym(d) for e in at) for at in reads(op)
        )
        if plain and red[d] > red.get(found, 0):
            found = d
    return found


def sums_products(op: Op) -> bool:
    """Return whether the body adds the product of both factors, widened if of 16 bits, to a sum from 0."""
    assert op.body is not None
    if op["init"] != (0.0,):  # every part would start from it
        return False
    dtypes = {v.tensor.dtype for v in op.operands}
    if dtypes == {op.result.tensor.dtype}:
        return [o.name for o in op.body.ops] == ["scalar.fma", "scalar.yield"]
    return len(dtypes) == 1 and dtypes <= set(NARROW) and multiplies(op)


def innermost_channels(op: Op) -> Op:
    """A product that tensor cores may compute with channels innermost, any other as it is.

    Layouts are chosen later, and tensor cores then get images with channels innermost: in any other order
    their copies are no asynchronous ones, and a product seems slower and worth splitting.
    """
    x, y = op.operands[0].tensor, op.result.tensor
    if x.dtype not in NARROW and not op["factors"]:
        return op
    if sums_samples(op):
        return _innermost_rows(op)
    first, second = reads(op)[:2]
    channel = Sym(channel_of(op))
    axes = sorted(range(x.rank), key=lambda axis: first[axis] == channel)
    if axes == sorted(axes):
        return op
    par, columns = tuple(dims(op, "par").items()), {d for e in second for d in symbols(e)}
    order = sorted(range(len(par)), key=lambda axis: par[axis][0] in columns)
    turned = op.with_attrs(
        par=Pairs(tuple(par[axis] for axis in order)),
        reads=(tuple(first[axis] for axis in axes), second),
    )
    image = Value(replace(x, shape=tuple(x.shape[axis] for axis in axes)), "x")
    result = Value(replace(y, shape=tuple(y.shape[axis] for axis in order)))
    return replace(turned, operands=(image, *op.operands[1:]), results=(result,))


def _innermost_rows(op: Op) -> Op:
    """A gradient by weights whose factors have the channels innermost that are its rows and its columns."""
    par = dims(op, "par")
    operands, places = [], []
    for v, at in zip(op.operands, reads(op), strict=True):
        axes = sorted(
            range(v.tensor.rank), key=lambda axis: isinstance(at[axis], Sym) and str(at[axis]) in par
        )
        operands.append(Value(replace(v.tensor, shape=tuple(v.tensor.shape[axis] for axis in axes)), "x"))
        places.append(tuple(at[axis] for axis in axes))
    return replace(op.with_attrs(reads=tuple(places)), operands=tuple(operands))


def matrix_estimates(
    op: Op, options: Sequence[int], hardware: Hardware, *, share: float = inf
) -> dict[int, float]:
    """Seconds of a product in so many parts, and of adding them, if tensor cores compute it; {} if not.

    share: parts that cannot take less than so much of the whole product's seconds are left out: they are
    not estimated where arithmetic or traffic alone takes as long.
    """
    kernel = _kernel(list(op.operands), [op], op.result)
    view = matrix_view(kernel, op)
    if view is None or view.channel != channel_of(op):
        return {}
    problem = matrix_problem(kernel, view)
    if not has_tensor_cores(hardware, problem):
        return {}
    found = {}
    most = inf if share == inf else share * choose_matrix(_part(problem, 1), hardware).estimate_s
    for parts in options:
        part = _part(problem, parts)
        adding_s = _adding_s(op, parts, hardware) if parts > 1 else 0.0
        if parts > 1 and NEARLY * (least_matrix_estimate_s(part, hardware) + adding_s) >= most:
            continue
        found[parts] = choose_matrix(part, hardware).estimate_s + adding_s
    return found


def shares_sums(op: Op, hardware: Hardware) -> bool:
    """Return whether the blocks of a product share sums, as tensor cores would compute it by the model."""
    kernel = _kernel(list(op.operands), [op], op.result)
    view = matrix_view(kernel, op)
    if view is None:
        return False
    problem = matrix_problem(kernel, view)
    return has_tensor_cores(hardware, problem) and choose_matrix(problem, hardware).parameters.parts > 1


def _part(problem: MatrixProblem, parts: int) -> MatrixProblem:
    """The product whose batch is the parts of another one's sum."""
    length = problem.channel // parts
    copies = []
    for copy in (problem.first_copy, problem.second_copy):
        shorter = gcd(copy, length)
        copies.append(shorter if shorter * problem.element_bytes in ASYNC_COPY_BYTES else 0)
    return replace(
        problem,
        batch=problem.batch * parts,
        channel=length,
        result_bytes=problem.result_bytes * parts,
        first_copy=copies[0],
        second_copy=copies[1],
    )


def _adding_s(op: Op, parts: int, hardware: Hardware) -> float:
    t = op.result.tensor
    sums = Value(TensorType(t.dtype, (parts, *t.shape)), "sums")
    b = Builder()
    total = added(b, sums, dims(op, "par"))
    return choose_map(stream_problem(_kernel([sums], b.ops, total)), hardware).estimate_s


def _kernel(params: Sequence[Value], ops: Sequence[Op], result: Value) -> Func:
    b = Builder()
    b.do("tensor.return", result)
    return Func(Level.TENSOR, "part", Block(tuple(params), (*ops, *b.ops)), (result.type,))
