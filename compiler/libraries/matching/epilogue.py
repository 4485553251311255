"""Maps behind a contraction that a library kernel computes as its epilogue, matched by their terms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir import Func, Op, Sym, Value
from tilewright.ir.tensor.ops import dims, ranges_of
from tilewright.libraries.matching.convolution import ConvolutionMatch
from tilewright.libraries.matching.gelu import gelu_behind
from tilewright.libraries.matching.matmul import BUFFER_DTYPE, ProductMatch
from tilewright.libraries.matching.strides import steps_of_element
from tilewright.passes.analysis.index_sets import identity_read
from tilewright.passes.analysis.terms import Apply, Read, Terms, both_orders, number, peeled
from tilewright.runtime.libraries.convolution import ConvolutionProblem
from tilewright.runtime.libraries.matmul import MatmulProblem


@dataclass(frozen=True)
class EpilogueMatch:
    """A product with what follows it in one kernel: its problem, the ops it computes, further operands.

    bias, residual: the values that are added, None where there is none. widened: whether the bias has fewer
    bits than the results, which the library takes in the results' type only.
    """

    problem: MatmulProblem | ConvolutionProblem
    ops: tuple[Op, ...]
    bias: Value | None = None
    residual: Value | None = None
    widened: bool = False

    @property
    def result(self) -> Value:
        """The value that the library kernel gives."""
        return self.ops[-1].result


def absorbed(kernel: Func, contract: Op, product: ProductMatch | ConvolutionMatch) -> Iterator[EpilogueMatch]:
    """The product alone, then with one more map each time, as long as the library can take it.

    A sum may take a vector with one element per row of D and one matrix, in any order; ReLU ends it, and so
    does the GELU with tanh, given by itself before what goes on without it. Where
    results are stored in 16 bits, the library rounds once where the maps round after every step, and not at
    all where they are float32 again behind a bias of 16 bits.
    """
    current = EpilogueMatch(product.problem, (contract,))
    yield current
    while True:
        if isinstance(current.problem, MatmulProblem):
            gelu = gelu_behind(kernel, current.result, current.problem)
            if gelu is not None:
                yield replace(current, problem=gelu[0], ops=(*current.ops, *gelu[1]))
        op = _only_reader(kernel, current.result)
        if op is None or (steps := _steps(kernel, op, current.result)) is None:
            return
        for step in steps:
            extended = _extended(current, product, op, step)
            if extended is None:
                return
            current = extended
        current = replace(current, ops=(*current.ops, op))
        if current.problem.result == BUFFER_DTYPE.get(op.result.tensor.dtype):
            yield current


def _only_reader(kernel: Func, value: Value) -> Op | None:
    """The map that reads a value element by element, where nothing else does."""
    readers = [op for op in kernel.body.ops if value in op.operands]
    if len(readers) != 1 or readers[0].name != "tensor.map" or len(readers[0].results) != 1:
        return None
    (op,) = readers
    once = op.operands.count(value) == 1
    return op if once and identity_read(op, op.operands.index(value)) else None


def _steps(kernel: Func, op: Op, value: Value) -> list[tuple[str, Read | None]] | None:
    """The steps that a map takes with a value, element by element: `cast`, `relu`, or `add` of an element."""
    ranges = {d: (0, n - 1) for d, n in dims(op, "par").items()}
    terms, at = Terms(kernel, ranges, op.operands), tuple(map(Sym, ranges))
    first, term = terms.element(value, at), terms.element(op.result, at)
    steps: list[tuple[str, Read | None]] = []
    while term != first:
        added = [(one, r) for one, o in both_orders(term, "add") if isinstance(r := peeled(o), Read)]
        added = [(one, read) for one, read in added if read != first]
        limited = [one for one, other in both_orders(term, "max") if number(other) == 0]
        if isinstance(term, Apply) and term.name == "scalar.cast":
            steps.append(("cast", None))
            term = term.args[0]
        elif limited:
            steps.append(("relu", None))
            term = limited[0]
        elif added:
            steps.append(("add", added[0][1]))
            term = added[0][0]
        else:
            return None
    return steps[::-1]


def _extended(
    current: EpilogueMatch, product: ProductMatch | ConvolutionMatch, op: Op, step: tuple[str, Read | None]
) -> EpilogueMatch | None:
    kind, read = step
    problem = current.problem
    result = BUFFER_DTYPE.get(op.result.tensor.dtype)
    if result is None or result not in ("float32", problem.dtype):
        return None
    if (problem.has_bias or problem.c is not None) and result != problem.result:
        if kind != "cast" or problem.c is not None or result != "float32":
            return None  # what was added already is of the results' type
        return replace(current, problem=replace(problem, result=result), widened=True)
    if kind == "cast":
        return replace(current, problem=replace(problem, result=result))
    if problem.epilogue.startswith("relu"):
        return None
    if kind == "relu":
        epilogue = "relu_bias" if problem.has_bias else "relu"
        return replace(current, problem=replace(problem, epilogue=epilogue, result=result))
    assert read is not None
    value = read.value
    if BUFFER_DTYPE.get(value.tensor.dtype) != result or any(value in o.results for o in current.ops):
        return None
    steps = steps_of_element(read, ranges_of(op))
    if steps is None:
        return None
    # The maps name dimensions as they like; what is element by element has them in the same order.
    renamed = dict(zip(dims(op, "par"), dims(current.ops[0], "par"), strict=True))
    steps = replace(steps, by_dim={renamed[d]: n for d, n in steps.by_dim.items()})
    now: ProductMatch | ConvolutionMatch = replace(product, problem=problem)  # type: ignore[arg-type]
    if (with_bias := now.bias(steps, result)) is not None:
        return replace(current, problem=with_bias, bias=value)
    if (with_matrix := now.residual(steps, result)) is not None:
        return replace(current, problem=with_matrix, residual=value)
    return None
