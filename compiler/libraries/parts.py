"""Long sums that two kernels compute, one in parts and one that adds them, as the one kernel they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from tilewright.ir import Block, Builder, Func, Level, Module, Op, Pairs, Ref, TensorType, Value
from tilewright.ir.tensor.ops import dims, reads
from tilewright.passes.kernels.contract.template import CONTRACT
from tilewright.passes.kernels.registry import TEMPLATE
from tilewright.passes.rewriting.values import replace_in_op, use_counts


@dataclass(frozen=True, eq=False)
class Parts:
    """Calls of two kernels: `first` computes sums in parts, `second` adds them (its parameter `position`).

    whole: one kernel that computes both; it takes the parameters of the first, then the others of the second.
    sites: the pairs of calls in @main.
    """

    first: Func
    second: Func
    position: int
    whole: Func
    sites: tuple[tuple[Op, Op], ...]

    @property
    def chosen(self) -> str:
        """The parameters of both kernels as text."""
        return str((self.first.get("params"), self.second.get("params")))

    def constants(self, known: Mapping[str, Collection[int]]) -> tuple[int, ...]:
        """Positions of the whole kernel's parameters that are constants at every site."""
        count = len(self.first.params)
        own = [i for i in known[self.first.name] if i < count]
        others = [i for i in known[self.second.name] if i != self.position]
        return (*own, *(count + i - (i > self.position) for i in others))

    def program(self) -> Module:
        """A module whose @main calls the two kernels."""
        params = [Value(p.type, p.hint) for p in self.whole.params]
        count, b = len(self.first.params), Builder()
        (parts,) = b.emit(
            "tensor.call", params[:count], {"callee": Ref(self.first.name)}, types=self.first.result_types
        )
        operands = params[count:]
        operands.insert(self.position, parts)
        results = b.emit(
            "tensor.call", operands, {"callee": Ref(self.second.name)}, types=self.second.result_types
        )
        b.emit("tensor.return", results)
        types = self.second.result_types
        main = Func(Level.TENSOR, "main", Block(tuple(params), tuple(b.ops)), types)
        return Module(self.whole.name, (self.first, self.second, main))

    def call(self, site: tuple[Op, ...]) -> Op:
        """The call of the whole kernel in the place of both calls of a site."""
        first, second = site
        others = tuple(v for i, v in enumerate(second.operands) if i != self.position)
        fresh = second.with_attrs(callee=Ref(self.whole.name))
        return replace(fresh, operands=(*first.operands, *others))


def parts_of(module: Module) -> list[Parts]:
    """All pairs of kernels whose calls always follow each other like that, with their sites."""
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
    found = []
    for (first, second, position), pairs in sites.items():
        whole = _whole(module[first], module[second], position)
        if whole is not None:
            result, given = whole.result_types, module[second].result_types
            kept = [(a, b) for a, b in pairs if result == given or not returned & set(b.results)]
            if kept:
                found.append(Parts(module[first], module[second], position, whole, tuple(kept)))
    return found


def _whole(first: Func, second: Func, position: int) -> Func | None:
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
    whole = replace(
        contract.with_attrs(par=Pairs.of(par), red=Pairs.of({part: count, **red})), results=(sum_,)
    )
    rest = [op for op in second.body.ops[:-1] if op is not added]
    returned = second.body.ops[-1].operands
    if added.result.tensor.size != sum_.tensor.size or not t.dense:
        return None
    if (rest or returned != added.results) and added.result.type != sum_.type:
        return None
    new = {added.result: sum_}
    body = [*before, whole, *(replace_in_op(op, new) for op in second.body.ops if op is not added)]
    params = (*first.params, *(p for i, p in enumerate(second.params) if i != position))
    types = tuple(new.get(v, v).type for v in returned)
    attrs = {TEMPLATE: CONTRACT.name, "cost": first.get("cost")}
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
    """Whether the body is the sum of all its parameters, each once."""
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
