"""Kernels that follow each other in @main and that a library may compute with one call.

These are attention that several kernels compute one after another, its gradients, and long sums that one
kernel computes in parts and another one adds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Ref, TensorType, Value
from tilewright.ir.tensor.ops import callee_of, dims, reads
from tilewright.libraries.matching.attention import attentions_in
from tilewright.libraries.matching.attention_backward import gradients_in
from tilewright.libraries.matching.constants import KernelConstants, facts_in
from tilewright.passes.analysis.kernel_text import kernel_text
from tilewright.passes.kernels.contract.template import CONTRACT
from tilewright.passes.kernels.decision import DECISION, KernelDecision, cost_of, estimate_of, text_of
from tilewright.passes.rewriting.values import replace_in_op, use_counts
from tilewright.passes.tensor.joins.merge import merged, reshapes_filled

#: kernels that attention is looked for in, at most
MAX_KERNELS = 4


@dataclass(frozen=True, eq=False)
class FusionGroup:
    """Calls of kernels whose results only later ones of them read, and the one kernel that computes the same.

    kernels: those called, in order; one whose result another reads has one result. fused: the one kernel;
    its parameters are what `wiring` says: per kernel and parameter the position in those of the fused one, or
    -1 - i for the result of kernel i. sites: the calls in @main; arguments: of the fused kernel at each site.
    returned: its results as kernel and result; those of the last kernel where none are named. place: the call
    of a site in whose place the fused one is called.
    """

    kernels: tuple[Func, ...]
    fused: Func
    wiring: tuple[tuple[int, ...], ...]
    sites: tuple[tuple[Op, ...], ...]
    arguments: tuple[tuple[Value, ...], ...]
    returned: tuple[tuple[int, int], ...] = ()
    place: int = -1

    def results(self, site: Sequence[Op]) -> tuple[Value, ...]:
        """The values of @main that the fused kernel gives in the place of these calls."""
        return tuple(site[i].results[r] for i, r in self.returned) if self.returned else site[-1].results

    @property
    def chosen(self) -> str:
        """The parameters of the kernels as text."""
        return f"[{', '.join(map(text_of, self.kernels))}]"

    def constants(self, known: Mapping[str, Collection[int]]) -> tuple[int, ...]:
        """Positions of the fused kernel's parameters that are constants at every site."""
        constant = {
            at: p in known[f.name]
            for f, places in zip(self.kernels, self.wiring, strict=True)
            for p, at in enumerate(places)
            if at >= 0
        }
        return tuple(
            sorted({at for at, is_constant in constant.items() if is_constant} | set(facts_in(self.fused)))
        )

    def program(self) -> Module:
        """A module whose @main calls the kernels."""
        params = tuple(Value(p.type, p.hint) for p in self.fused.params)
        b = Builder()
        results: list[Sequence[Value]] = []
        for f, places in zip(self.kernels, self.wiring, strict=True):
            operands = [params[at] if at >= 0 else results[-1 - at][0] for at in places]
            results.append(b.emit("tensor.call", operands, {"callee": Ref(f.name)}, types=f.result_types))
        given = [results[i][r] for i, r in self.returned] if self.returned else results[-1]
        b.emit("tensor.return", given)
        types = tuple(v.type for v in given)
        main = Func(Level.TENSOR, "main", Block(params, tuple(b.ops)), types)
        unique = {f.name: f for f in self.kernels}
        return Module(self.fused.name, (*unique.values(), main))


def fusion_groups_of(module: Module) -> Iterator[FusionGroup]:
    """Attention, its gradients, then sums in parts; those may share calls with each other."""
    yield from attention_groups(module)
    yield from gradient_groups(module)
    yield from split_sums(module)


def with_fused_kernels(module: Module, chosen: Collection[FusionGroup]) -> Module:
    """The module that calls the fused kernels at their sites; no two of them may share a call."""
    calls = {
        id(site[group.place]): replace(
            site[group.place].with_attrs(callee=Ref(group.fused.name)),
            operands=arguments,
            results=group.results(site),
        )
        for group in chosen
        for site, arguments in zip(group.sites, group.arguments, strict=True)
    }
    dropped = {id(op) for group in chosen for site in group.sites for op in site} - set(calls)
    ops = [calls.get(id(op), op) for op in module.main.body.ops if id(op) not in dropped]
    entry = module.main.with_body(module.main.body.with_ops(tuple(ops)))
    called = {op.get("callee") for op in ops}
    others = [f for f in module.funcs if f.name != "main" and Ref(f.name) in called]
    return module.with_funcs((*others, *(group.fused for group in chosen), entry))


def attention_groups(module: Module) -> list[FusionGroup]:
    """Attention in two to `MAX_KERNELS` kernels; calls that compute the same are sites of one group."""
    kernels = {f.name: f for f in module.funcs if f.name != "main"}
    constants, uses = KernelConstants(module), use_counts(module.main.body)
    returned = set(module.main.body.ops[-1].operands)
    producer = {
        op.result: op
        for op in module.main.body.ops
        if op.name == "tensor.call" and len(op.results) == 1 and uses[op.result] == 1
        and op.result not in returned
    }  # fmt: skip
    by_text: dict[str, FusionGroup] = {}
    names = set(kernels)
    for op in module.main.body.ops:
        ref = op.get("callee")
        if not isinstance(ref, Ref) or len(op.results) != 1 or not _contracts([kernels[ref.name]]):
            continue
        for calls in _ending_in((op,), producer):
            group = _attention_group(calls, kernels, constants)
            if group is None:
                continue
            _collect(group, by_text, names)
            break
    return list(by_text.values())


def _collect(group: FusionGroup, by_text: dict[str, FusionGroup], names: set[str]) -> None:
    """Add the sites of a group to those of an equal one, or the group under a name of its own."""
    key = f"{[f.name for f in group.kernels]} {group.returned} {kernel_text(group.fused)}"
    if key in by_text:
        first = by_text[key]
        by_text[key] = replace(
            first, sites=(*first.sites, *group.sites), arguments=(*first.arguments, *group.arguments)
        )
    else:
        by_text[key] = replace(group, fused=_named(group.fused, names))


def gradient_groups(module: Module) -> list[FusionGroup]:
    """The gradients of attention by queries, keys and values, each computed with its weights by itself.

    A call gives dq, another dk and dv, or each of them, and one the sums over rows that they read.
    """
    kernels = {f.name: f for f in module.funcs if f.name != "main"}
    constants, names = KernelConstants(module), set(kernels)
    ops = [op for op in module.main.body.ops if isinstance(op.get("callee"), Ref)]
    position = {id(op): i for i, op in enumerate(module.main.body.ops)}
    maker = {r: op for op in ops for r in op.results}
    readers: dict[Value, list[Op]] = {}
    for op in module.main.body.ops:
        for v in dict.fromkeys(op.operands):
            readers.setdefault(v, []).append(op)
    by_text: dict[str, FusionGroup] = {}
    for rows in ops:
        if len(rows.results) != 1 or not _sums_rows(kernels[callee_of(rows)]):
            continue
        ends = readers.get(rows.result, [])
        pairs = all(op in ops and _contracts([kernels[callee_of(op)]]) >= 2 for op in ends)
        if not pairs or not 2 <= len(ends) <= 3:
            continue
        calls = (rows, *ends)
        missing = 3 - sum(len(op.results) for op in ends)
        if missing == 1:  # dv reads no sums of rows: it is the call that shares most operands
            others = (op for op in ops if op not in calls and _contracts([kernels[callee_of(op)]]) == 2)
            shared = [op for op in others if len(set(op.operands) & set(ends[0].operands)) >= 4]
            calls = (*calls, *shared) if len(shared) == 1 else calls
        if sum(len(op.results) for op in calls) != 4:
            continue
        calls = tuple(sorted(calls, key=lambda op: position[id(op)]))
        group = _gradient_group(calls, kernels, constants)
        if group is not None and _placed(group, maker, position):
            _collect(group, by_text, names)
    return list(by_text.values())


def _sums_rows(kernel: Func) -> bool:
    """Return whether a kernel is a sum over rows of products of its parameters."""
    ops = kernel.body.ops[:-1]
    return len(ops) == 1 and ops[0].name == "tensor.reduce" and len(ops[0].operands) == 2


def _placed(group: FusionGroup, maker: Mapping[Value, Op], position: Mapping[int, int]) -> bool:
    """Return whether all arguments are there where the fused kernel is to be called."""
    (site,), (arguments,) = group.sites, group.arguments
    at = position[id(site[group.place])]
    return all(position[id(maker[v])] < at for v in arguments if v in maker)


def _gradient_group(
    calls: tuple[Op, ...], kernels: dict[str, Func], constants: KernelConstants
) -> FusionGroup | None:
    called = [kernels[callee_of(op)] for op in calls]
    inner = {v for op in calls for v in op.operands}
    outputs = {r for op in calls for r in op.results if r not in inner}
    fused, arguments, returned = merged(calls, kernels, outputs, f"{called[-1].name}_gradients", once=True)
    fused = constants.computed_in(fused, arguments)
    if not gradients_in(fused):
        return None
    made = {r: (i, j) for i, op in enumerate(calls) for j, r in enumerate(op.results)}
    place = {v: i for i, v in enumerate(arguments)}
    wiring = tuple(tuple(-1 - made[v][0] if v in made else place[v] for v in op.operands) for op in calls)
    cost = cost_of(called[-1])
    if cost is not None:
        cost = replace(cost, estimate_s=sum(map(estimate_of, called)))
    fused = fused.with_attrs(**{DECISION: KernelDecision(CONTRACT.name, None, cost)})
    first = next(i for i, op in enumerate(calls) if outputs & set(op.results))
    return FusionGroup(
        tuple(called), fused, wiring, (calls,), (tuple(arguments),), tuple(made[v] for v in returned), first
    )


def _ending_in(calls: tuple[Op, ...], producer: Mapping[Value, Op]) -> Iterator[tuple[Op, ...]]:
    """Chains of calls, each reading the one before, the shortest first."""
    chains = [calls]
    for _ in range(MAX_KERNELS - 1):
        chains = [
            (producer[v], *chain)
            for chain in chains
            for v in dict.fromkeys(chain[0].operands)
            if v in producer
        ]
        yield from chains


def _contracts(kernels: Sequence[Func]) -> int:
    return sum(op.name == "tensor.contract" for f in kernels for op in f.body.ops)


def _attention_group(
    calls: tuple[Op, ...], kernels: dict[str, Func], constants: KernelConstants
) -> FusionGroup | None:
    called = [kernels[callee_of(op)] for op in calls]
    if _contracts(called) < 2 or _exponentials(called) < 1 or reshapes_filled(calls, kernels):
        return None
    fused, arguments, _ = merged(calls, kernels, set(calls[-1].results), f"{called[-1].name}_attention")
    fused = constants.computed_in(fused, arguments)
    # Products around it are better off as kernels of their own.
    ways = attentions_in(fused)
    if not ways or _contracts(called) > sum(op.name == "tensor.contract" for op in ways[0].ops):
        return None
    made = {op.result: -1 - i for i, op in enumerate(calls)}
    place = {(v, p.type): i for i, (v, p) in enumerate(zip(arguments, fused.params, strict=True))}
    wiring = tuple(
        tuple(made[v] if v in made else place[v, p.type] for v, p in zip(op.operands, f.params, strict=True))
        for op, f in zip(calls, called, strict=True)
    )
    cost = cost_of(called[-1])
    if cost is not None:
        cost = replace(cost, estimate_s=sum(map(estimate_of, called)))
    fused = fused.with_attrs(**{DECISION: KernelDecision(CONTRACT.name, None, cost)})
    return FusionGroup(tuple(called), fused, wiring, (calls,), (tuple(arguments),))


def _exponentials(kernels: Sequence[Func]) -> int:
    bodies = (op.body for f in kernels for op in f.body.ops if op.body is not None)
    return sum(inner.name == "scalar.exp" for body in bodies for inner in body.ops)


def _named(fused: Func, names: set[str]) -> Func:
    name, number = fused.name, 0
    while name in names:
        number += 1
        name = f"{fused.name}_{number}"
    names.add(name)
    return replace(fused, name=name)


def split_sums(module: Module) -> list[FusionGroup]:
    """All pairs of kernels of which one computes a sum in parts and the other one adds them."""
    ops, uses = module.main.body.ops, use_counts(module.main.body)
    returned = set(ops[-1].operands)
    reader = {v: op for op in ops for v in op.operands}
    sites: dict[tuple[str, str, int], list[tuple[Op, Op]]] = {}
    for op in ops:
        ref = op.get("callee")
        if not isinstance(ref, Ref) or len(op.results) != 1 or uses[op.result] != 1 or op.result in returned:
            continue
        after = reader[op.result]
        callee = after.get("callee")
        if isinstance(callee, Ref):
            key = (ref.name, callee.name, after.operands.index(op.result))
            sites.setdefault(key, []).append((op, after))
    groups = []
    for (first, second, position), pairs in sites.items():
        fused = _joined_sum(module[first], module[second], position)
        if fused is None:
            continue
        result, types = fused.result_types, module[second].result_types
        fitting = tuple((a, b) for a, b in pairs if result == types or not returned & set(b.results))
        if fitting:
            groups.append(_split_sum(module[first], module[second], position, fused, fitting))
    return groups


def _split_sum(
    first: Func, second: Func, position: int, fused: Func, sites: tuple[tuple[Op, Op], ...]
) -> FusionGroup:
    """The group of a kernel that takes the parameters of the first, then the others of the second."""
    count = len(first.params)
    others = [i for i in range(len(second.params)) if i != position]
    of_second = tuple(-1 if i == position else count + others.index(i) for i in range(len(second.params)))
    arguments = tuple((*a.operands, *(b.operands[i] for i in others)) for a, b in sites)
    return FusionGroup((first, second), fused, (tuple(range(count)), of_second), sites, arguments)


def _joined_sum(first: Func, second: Func, position: int) -> Func | None:
    """The kernel that both compute, where the first ends in parts of sums that the second adds."""
    *before, contract = first.body.ops[:-1]
    added = _sum_of_parts(second, second.params[position])
    if contract.name != "tensor.contract" or added is None or first.body.ops[-1].operands != contract.results:
        return None
    par, red = dims(contract, "par"), dims(contract, "red")
    part = next(iter(par), "")
    if par.get(part) != len(added.operands):
        return None
    count = par.pop(part)
    t = contract.result.tensor
    shape = tuple(par.values())
    sum_ = Value(TensorType(t.dtype, shape), contract.result.hint)
    contraction = replace(
        contract.with_attrs(par=Pairs.of(par), red=Pairs.of({part: count, **red})), results=(sum_,)
    )
    rest = [op for op in second.body.ops[:-1] if op is not added]
    returned = second.body.ops[-1].operands
    if added.result.tensor.size != sum_.tensor.size or not t.dense:
        return None
    if (rest or returned != added.results) and added.result.type != sum_.type:
        return None
    new = {added.result: sum_}
    body = [*before, contraction, *(replace_in_op(op, new) for op in second.body.ops if op is not added)]
    params = (*first.params, *(p for i, p in enumerate(second.params) if i != position))
    types = tuple(new.get(v, v).type for v in returned)
    attrs = {DECISION: KernelDecision(CONTRACT.name, None, cost_of(first))}
    name = f"{first.name}_{second.name}"
    return Func(Level.TENSOR, name, Block(params, tuple(body)), types).with_attrs(**attrs)


def _sum_of_parts(second: Func, parts: Value) -> Op | None:
    """The map that adds all elements of the first dimension of `parts`, where nothing else reads them."""
    readers = [op for op in second.body.ops if parts in op.operands]
    if len(readers) != 1 or readers[0].name != "tensor.map" or set(readers[0].operands) != {parts}:
        return None
    (op,) = readers
    at = reads(op)
    names = [a[1:] for a in at]
    if len(at) != parts.tensor.shape[0] or [a[0] for a in at] != list(range(len(at))):
        return None
    straight = tuple(str(e) for e in names[0]) == tuple(dims(op, "par")) and len(op.results) == 1
    return op if straight and all(n == names[0] for n in names) and _adds_all(op) else None


def _adds_all(op: Op) -> bool:
    """True where the body is the sum of all its parameters, each once."""
    assert op.body is not None
    made = {inner.result: inner for inner in op.body.ops[:-1]}
    stack, terms = list(op.body.ops[-1].operands), []
    while stack:
        value = stack.pop()
        if value in made:
            if made[value].name != "scalar.add":
                return False
            stack += made[value].operands
        else:
            terms.append(value)
    return len(terms) == len(op.body.params) and set(terms) == set(op.body.params)
