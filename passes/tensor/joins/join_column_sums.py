"""Pass join-column-sums: sums over rows join the kernels that walk along these rows: arrays are read once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.costmodel import CpuHardware, Hardware, load_hardware
from tilewright.ir import (
    Block,
    Expr,
    Func,
    InputError,
    Level,
    Module,
    Op,
    Pairs,
    Ref,
    Sym,
    TensorType,
    Value,
    backward_slice,
    scalar_body,
    structured,
)
from tilewright.ir.builder import Builder
from tilewright.ir.expr import substitute, symbols
from tilewright.ir.tensor.ops import callee_of, dims, domain, reads
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.kernels.row_columns.space import choose_row_columns
from tilewright.passes.rewriting.names import numbered, unused
from tilewright.passes.tensor.joins.call_order import CallOrder, in_order
from tilewright.passes.tensor.joins.estimates import alone_s
from tilewright.passes.tensor.joins.merge import is_plain, merged, reshapes_filled

#: kernels that one of the new ones is made of, at most
MAX_KERNELS = 8
#: bytes of the largest array from which one more reading of it counts
LEAST_BYTES = 1 << 20
#: numbers of parts that are tried, or the next ones that divide the rows
PARTS = (128, 256)
#: the new kernels are taken where their estimates are below this share of those of the old ones
CLEARLY = 0.9
WHEN = ("auto", "always", "never")


@register_pass(Level.TENSOR, requires={"kernels-outlined"})
def join_column_sums(module: Module, ctx: PassContext, *, when: str = "auto") -> Module:
    """Add up columns in the kernels that walk along the rows, part by part, and add up the parts behind.

    rewrite:  %dx = call(%x, %g, callee = @gradient_of_a_norm); %dgamma = call(%x, %g, callee = @sums);
              %db = call(%dx, callee = @sum)
        -->   %dx, %p, %q = call(%x, %g, callee = @gradient_of_a_norm_columns);
              %dgamma, %db = call(%p, %q, callee = @gradient_of_a_norm_parts)

    Sums over all rows and reductions of each row cross each other, so neither may hold the other. A sum over
    the rows of one part may: the block that walks along them adds them up, each thread its own columns. What
    belongs together follows from index sets: maps of rows and columns, reductions of rows, sums over rows.
    Kernels join one by one, as long as the estimates fall. when: `auto` where the estimates of the new
    kernels are below 0.9 of the old ones', `always` where legal, `never`.
    """
    if when not in WHEN:
        raise InputError(f"expected when among {', '.join(WHEN)}, got {when!r}")
    hardware = ctx.hardware or load_hardware(ctx.target)
    if when == "never" or isinstance(hardware, CpuHardware):
        return module
    search = _Search(module, ctx, hardware, always=when == "always")
    while (joined := search.next()) is not None:
        search.take(joined)
    return search.module()


@dataclass(frozen=True)
class _Joined:
    """Calls as two: a kernel of rows and columns, and one that adds up its parts."""

    calls: tuple[Op, ...]
    walk: Func
    walk_arguments: tuple[Value, ...]
    walk_results: tuple[Value, ...]
    end: Func
    end_arguments: tuple[Value, ...]
    end_results: tuple[Value, ...]
    seconds: float


class _Search:
    """The calls of a module, some of which are replaced by joined ones."""

    def __init__(self, module: Module, ctx: PassContext, hardware: Hardware, *, always: bool) -> None:
        self.before, self.ctx, self.hardware, self.always = module, ctx, hardware, always
        self.kernels = {f.name: f for f in module.funcs if f.name != "main"}
        self.free = {n for n, f in self.kernels.items() if not f.attrs and _walks(f)}
        self.least_bytes = 0 if always else LEAST_BYTES
        self.ops = list(module.main.body.ops)
        self.made: list[Func] = []
        self.names = {f.name for f in module.funcs}
        self.tried: set[int] = set()
        self.link()

    def link(self) -> None:
        """Note who makes and who reads each value."""
        self.order = CallOrder(self.ops)

    # -- candidates ------------------------------------------------------------------------------------------
    def next(self) -> _Joined | None:
        """The calls around the next sum over rows that are worth joining; None where there are no more."""
        for op in self.ops:
            if (
                id(op) in self.tried
                or not self._free(op)
                or not _sums_columns(self.kernels[callee_of(op)], self.least_bytes)
            ):
                continue
            self.tried.add(id(op))
            grown = self._grown(op)
            if grown is not None:
                return grown
        return None

    def _grown(self, seed: Op) -> _Joined | None:
        """The cheapest calls around a sum over rows that greedy growth finds; None where none gain enough."""
        inside: tuple[Op, ...] = (seed,)
        best: _Joined | None = None
        apart_s = least_s = self._alone(seed)
        while len(inside) < MAX_KERNELS:
            found = []
            for other in self._neighbours(inside):
                joined = self._join((*inside, other))
                if joined is not None:
                    found.append((joined.seconds - self._alone(other), other, joined))
            if not found:
                break
            more_s, other, joined = min(found, key=lambda f: f[0])
            if more_s >= least_s and not self.always:
                break
            inside, best, least_s = (*inside, other), joined, joined.seconds
            apart_s += self._alone(other)
        if best is None or not (self.always or least_s < CLEARLY * apart_s):
            return None
        return best

    def _free(self, op: Op) -> bool:
        return is_plain(op) and callee_of(op) in self.free

    def _alone(self, call: Op) -> float:
        return alone_s(self.kernels[callee_of(call)], self.ctx, self.hardware)

    def _neighbours(self, inside: Sequence[Op]) -> Iterator[Op]:
        """Calls that share a large array with these, or give or take one."""
        own = set(map(id, inside))
        seen: set[int] = set()
        for call in inside:
            for v in (*call.operands, *call.results):
                makers = [self.order.producer[v]] if v in self.order.producer else []
                for other in (*makers, *self.order.readers.get(v, ())):
                    shared = v.tensor.nbytes >= self.least_bytes or (
                        v in call.operands and v in other.results
                    )
                    shared = shared or (v in call.results and v in other.operands)
                    if id(other) not in own | seen and shared and self._free(other):
                        seen.add(id(other))
                        yield other

    def _join(self, calls: Sequence[Op]) -> _Joined | None:
        """The calls as a walk along rows and the sum of its parts; None where that is not legal."""
        ordered = self.order.sorted(calls)
        if not self.order.convex(ordered) or reshapes_filled(ordered, self.kernels):
            return None
        own = set(map(id, ordered))
        outputs = {
            r
            for c in ordered
            for r in c.results
            if any(id(x) not in own for x in self.order.readers.get(r, ()))
        }
        name = callee_of(ordered[0])
        kernel, arguments, returned = merged(ordered, self.kernels, outputs, name, once=True)
        found = self.ctx.estimator.remembered(
            ("column sums", kernel_text(kernel), self.hardware, self.ctx.target), lambda: self._best(kernel)
        )
        if found is None:
            return None
        canonical, pieces, seconds = found
        by_param = dict(zip(canonical.params, arguments, strict=True))
        by_output = dict(zip(canonical.body.ops[-1].operands, returned, strict=True))
        parts = {v: Value(t, "parts") for v, t in pieces.parts.items()}
        return _Joined(
            tuple(ordered),
            pieces.walk,
            tuple(by_param[p] for p in pieces.walk.params),
            tuple(parts[v] if v in parts else by_output[v] for v in pieces.walk_returns),
            pieces.end,
            tuple(parts[v] if v in parts else by_param[v] for v in pieces.end_reads),
            tuple(by_output[v] for v in pieces.end_returns),
            seconds,
        )

    def _best(self, kernel: Func) -> tuple[Func, _Pieces, float] | None:
        """The kernel with its dimensions merged, its pieces by the best parts, and their seconds."""
        canonical = self.ctx.estimator.canonical(kernel, self.ctx)
        best: tuple[Func, _Pieces, float] | None = None
        for length in _lengths(canonical):
            pieces = _pieces(canonical, length)
            chosen = None if pieces is None else choose_row_columns(pieces.walk, self.hardware)
            if pieces is None or chosen is None:
                continue
            seconds = estimate_of(chosen)
            if best is None or seconds < best[2]:
                seconds += alone_s(pieces.end, self.ctx, self.hardware)
                if best is None or seconds < best[2]:
                    best = canonical, replace(pieces, walk=chosen), seconds
        return best

    # -- rewriting -------------------------------------------------------------------------------------------
    def take(self, joined: _Joined) -> None:
        """Put the two new calls in the place of the old ones."""
        own = set(map(id, joined.calls))
        base = callee_of(joined.calls[0])
        names = []
        for kernel, suffix in ((joined.walk, "columns"), (joined.end, "parts")):
            names.append(numbered(f"{base}_{suffix}", self.names))
            self.names.add(names[-1])
            self.made.append(replace(kernel, name=names[-1]))
        loc = joined.calls[0].loc
        walk, end = (
            Op("tensor.call", arguments, (("callee", Ref(name)),), results, None, loc)
            for name, arguments, results in (
                (names[0], joined.walk_arguments, joined.walk_results),
                (names[1], joined.end_arguments, joined.end_results),
            )
        )
        at = max(self.order.position[o] for o in own)
        ops = []
        for i, op in enumerate(self.ops):
            if i == at:
                ops += [walk, end]
            elif id(op) not in own:
                ops.append(op)
        self.ops = in_order(ops)
        self.link()

    def module(self) -> Module:
        """The module with all that was taken."""
        if not self.made:
            return self.before
        main = self.before.main
        called = {callee_of(op) for op in self.ops if op.name == "tensor.call"}
        rest = [f for f in self.before.funcs if f is not main and f.name in called]
        body = Block(main.params, tuple(self.ops))
        return self.before.with_funcs((*self.made, *rest, main.with_body(body)))


# -- kernels -------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Pieces:
    """A kernel as a walk and the sum of its parts.

    parts: types of the sums over parts, by the whole sum. walk_returns: for each result of the walk the value
    it is of the whole kernel, or the sum. end_reads: for each parameter of the end the sum, or the parameter
    of the kernel. end_returns: what the end gives of the kernel's results.
    """

    walk: Func
    walk_returns: tuple[Value, ...]
    parts: Mapping[Value, TensorType]
    end: Func
    end_reads: tuple[Value, ...]
    end_returns: tuple[Value, ...]


def _walks(kernel: Func) -> bool:
    """Return whether a kernel maps and reduces, with one result per op."""
    ops = kernel.body.ops[:-1]
    return bool(ops) and all(
        op.name in ("tensor.map", "tensor.reduce") and len(op.results) == 1 for op in ops
    )


def _wide(extents: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(n for n in extents.values() if n > 1)


def _crosses(op: Op) -> bool:
    """Return whether a reduction may be one over rows: it adds what lies innermost to neighbours' sums."""
    if op.name != "tensor.reduce" or op.body is None or op["init"] != (0.0,):
        return False
    par, red = dims(op, "par"), dims(op, "red")
    if len(op.results) != 1 or not _wide(par) or not _wide(red) or op.body.ops[-2].name != "scalar.add":
        return False
    acc = op.body.params[-1]
    inner = op.body.ops[:-1]
    once = [o for o in inner for v in o.operands if v is acc]
    if once != [inner[-1]] or op.result.tensor.dtype != "f32":
        return False
    last = next(reversed([d for d, n in par.items() if n > 1]))
    largest = max(range(len(op.operands)), key=lambda i: op.operands[i].tensor.nbytes, default=None)
    if largest is None:
        return False
    at = [e for e, n in zip(reads(op)[largest], op.operands[largest].tensor.shape, strict=True) if n > 1]
    return bool(at) and last in _names(at[-1]) and not any(d in _names(at[-1]) for d in red)


def _names(e: Expr) -> set[str]:
    return set(symbols(e))


def _sums_columns(kernel: Func, least_bytes: int) -> bool:
    """Return whether a kernel adds up rows of something that large."""
    return any(
        _crosses(op) and max(v.tensor.nbytes for v in op.operands) >= least_bytes
        for op in kernel.body.ops[:-1]
    )


def _nest(kernel: Func) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Rows and columns of the kernel's sums over rows; None where they differ."""
    found = {(_wide(dims(op, "red")), _wide(dims(op, "par"))) for op in kernel.body.ops[:-1] if _crosses(op)}
    if len(found) != 1:
        return None
    ((rows, columns),) = found
    return rows, columns


def _lengths(kernel: Func) -> list[int]:
    """Rows of a part that are tried."""
    nest = _nest(kernel)
    if nest is None:
        return []
    rows = nest[0]
    whole, last = prod(rows), rows[-1]
    divisors = [n for n in range(2, last + 1) if last % n == 0]
    wanted = [min(divisors, key=lambda n: abs(whole // n - count), default=0) for count in PARTS]
    return [n for n in dict.fromkeys(wanted) if n]


def _pieces(kernel: Func, length: int) -> _Pieces | None:
    """The kernel with its sums over rows by parts of `length` rows; None where nothing else walks there."""
    nest = _nest(kernel)
    if nest is None:
        return None
    sums = [op for op in kernel.body.ops[:-1] if _crosses(op)]
    bound: set[Value] = {op.result for op in sums}
    behind: list[Op] = []
    front: list[Op] = []
    parts: dict[Value, Op] = {}
    for op in kernel.body.ops[:-1]:
        if op in sums:
            if any(v in bound for v in op.operands):
                return None
            parts[op.result] = part = _by_parts(op, length)
            front.append(part)
        elif any(v in bound for v in op.operands):
            bound.add(op.result)
            behind.append(op)
        else:
            front.append(op)
    produced = {r for op in front for r in op.results}
    returned = kernel.body.ops[-1].operands
    if any(v in produced for op in behind for v in op.operands):
        return None  # the end would read what the walk gives besides its sums
    walk_returns = tuple(v for v in returned if v not in bound)
    needed = [op.result for op in sums]
    results = (*walk_returns, *(parts[v].result for v in needed))
    if not any(op for op in front if op.name == "tensor.reduce" and op not in parts.values()) and not (
        walk_returns
    ):
        return None
    walk = _function(f"{kernel.name}_columns", kernel.params, front, results)
    b = Builder()
    env: dict[Value, Value] = {}
    part_params = {v: Value(parts[v].result.type, "parts") for v in needed}
    for v, op in zip(needed, sums, strict=True):
        with b.at(op.loc):
            env[v] = _added(b, part_params[v], op)
    for op in behind:
        b.append(op.with_operands(tuple(env.get(v, v) for v in op.operands)))
    end_returns = tuple(v for v in returned if v in bound)
    finished = tuple(env.get(v, v) for v in end_returns)
    outer = [p for p in kernel.params if any(p in op.operands for op in behind)]
    end_params = (*part_params.values(), *outer)
    end = _function(f"{kernel.name}_parts", end_params, b.ops, finished)
    by_param = {p: v for v, p in part_params.items()}
    return _Pieces(
        walk,
        (*walk_returns, *needed),
        {v: parts[v].result.tensor for v in needed},
        end,
        tuple(by_param.get(p, p) for p in end.params),
        end_returns,
    )


def _function(name: str, params: Sequence[Value], ops: Sequence[Op], results: Sequence[Value]) -> Func:
    """A kernel of the ops that its results need, with the parameters that these read."""
    kept = backward_slice(ops, results)
    read = {*results, *(v for op in kept for v in op.operands)}
    body = Block(tuple(p for p in params if p in read), (*kept, Op("tensor.return", tuple(results))))
    return Func(Level.TENSOR, name, body, tuple(v.type for v in results))


def _by_parts(op: Op, length: int) -> Op:
    """A sum over rows as one over the rows of each part: rows but the last, parts, columns."""
    par, red = dims(op, "par"), dims(op, "red")
    *outer, last = [d for d, n in red.items() if n > 1]
    q = unused("q", domain(op))
    env: dict[str, Expr] = {last: Sym(q) * length + Sym(last)}
    env |= {d: 0 for d, n in {**red, **par}.items() if n == 1}
    extents = {
        **{d: red[d] for d in outer},
        q: red[last] // length,
        **{d: n for d, n in par.items() if n > 1},
    }
    assert op.body is not None
    inner = tuple(
        replace(o, attrs=tuple((k, substitute(v, env) if k == "at" else v) for k, v in o.attrs))  # type: ignore[arg-type]
        if o.name == "scalar.index"
        else o
        for o in op.body.ops
    )
    attrs = {
        **dict(op.attrs),
        "par": Pairs.of(extents),
        "red": Pairs.of({last: length}),
        "reads": tuple(tuple(substitute(e, env) for e in at) for at in reads(op)),
    }
    t = TensorType(op.result.tensor.dtype, tuple(extents.values()))
    part = Value(t, "parts")
    return replace(op, attrs=tuple(attrs.items()), body=Block(op.body.params, inner), results=(part,))


def _added(b: Builder, parts: Value, op: Op) -> Value:
    """The sums of all parts, of the type of the whole sum."""
    par = dims(op, "par")
    count = parts.tensor.rank - len(_wide(par))
    names: list[str] = []
    for k in range(count):
        names.append(unused(f"p{k}", {*par, *names}))
    red = dict(zip(names, parts.tensor.shape[:count], strict=True))
    t = op.result.tensor
    inner, (v, acc) = scalar_body([t.dtype] * 2)
    inner.do("scalar.yield", inner.value("scalar.add", v, acc))
    columns = [Sym(d) for d, n in par.items() if n > 1]
    (out,) = structured(
        b, "tensor.reduce", [parts], par=par, red=red, reads=[(*map(Sym, names), *columns)],
        init=(0.0,), body=inner.block((v, acc)), types=[t],
    )  # fmt: skip
    return out
