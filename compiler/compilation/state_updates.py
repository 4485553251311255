"""Decides at the thread level how state gets its new values: in place, or by a copy once all is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from itertools import pairwise

from tilewright.codegen.emit.in_place import in_place_pairs, may_overwrite
from tilewright.ir import (
    Builder,
    Func,
    InputError,
    Level,
    Module,
    Op,
    Ref,
    Sym,
    TensorType,
    Value,
    scalar_body,
    structured,
)
from tilewright.ir.tensor.communication_ops import COMMUNICATE
from tilewright.ir.tensor.ops import callee_of
from tilewright.ir.thread.launch_ops import OVERWRITES, in_place, overwrites

LowerCopies = Callable[[Module], Module]


def written_state(module: Module) -> dict[Value, Value]:
    """The new values of state that changes: result of a call in @main -> the parameter that it becomes."""
    main = module.main
    results = main.body.ops[-1].operands
    pairs = ((main.params[p], results[r]) for p, r in main.updates)
    return {new: old for old, new in pairs if new is not old}


def settle_updates(module: Module, lower_copies: LowerCopies) -> Module:
    """A module of kernels whose @main says how state is updated: a launch writes each new value in its place.

    module: @main of calls, communications, joins and constants, as `plan_module` takes it. lower_copies: the
    way down of a tensor-level module of one copy to a kernel of the same target.

    rewrite:  %1 = call(%w, %g, callee = @k); return(%1) with %1 the update of %w
        -->   the same, with @k listing that its result may overwrite %w, behind all other readers of %w
        -->   or %1 = call(%w, %g, callee = @k); %2 = call(%1, callee = @copy); return(%2)

    A value that is no result of a launch's own (another parameter, a constant, a part of a joined array, the
    update of two parameters), that a kernel computes in an order that reads what it has overwritten, or that
    another reader of the old value needs, is copied. Results that are the old value of state that changes are
    copied as well: when the caller reads them, the state is new. A module without updates stays as it is.
    A kernel that writes some rows of a result must be given state: raises InputError where it is not.
    """
    if all(module.main.params[p] is module.main.body.ops[-1].operands[r] for p, r in module.main.updates):
        return module
    return _Settling(module).settled(lower_copies)


class _Settling:
    """The ops of @main in a growing order: `edges` are pairs of ops beyond those of values."""

    def __init__(self, module: Module) -> None:
        self.module, self.main = module, module.main
        self.funcs = {f.name: f for f in module.funcs}
        self.ops = list(self.main.body.ops[:-1])
        self.results = list(self.main.body.ops[-1].operands)
        self.maker = {r: op for op in self.ops for r in op.results}
        self.copies: list[Op] = []  # in order, of a kernel that is still to be made
        self.after: dict[Op, set[Op]] = {
            op: set() for op in self.ops
        }  # what must run later, by value or order
        self.pairs: dict[str, set[tuple[int, int]]] = {}  # of kernels that are to overwrite what they read
        self.in_place: dict[str, frozenset[tuple[int, int]]] = {}  # pairs that kernels allow as they are
        communications = [op for op in self.ops if op.name == COMMUNICATE]
        for first, second in pairwise(communications):
            self.after[first].add(second)
        for op in self.ops:
            self._link(op)

    def _link(self, op: Op) -> None:
        for v in op.operands:
            if v in self.maker:
                self.after[self.maker[v]].add(op)

    def settled(self, lower_copies: LowerCopies) -> Module:
        """See `settle_updates`."""
        updates = [(self.main.params[p], r) for p, r in self.main.updates]
        for old, r in updates:
            if not old.tensor.size:
                self.results[r] = old
        changing = {old for old, r in updates if self.results[r] is not old}
        updated = {r for _, r in updates}
        for i, v in enumerate(self.results):
            if v in changing and i not in updated:
                self.results[i] = self._copy(v)
        own = self._own_results()
        taken: set[Value] = set()
        for old, r in updates:
            if old in changing and (self.results[r] not in own or self.results[r] in taken):
                self.results[r] = self._copy(self.results[r])
            taken.add(self.results[r])
        # Those that only write in place come first: no order that others are given stands in their way.
        updates.sort(key=lambda update: not self._must_write_in_place(self.results[update[1]]))
        for old, r in updates:
            if old in changing and not self._writes_in_place(self.results[r], old):
                if self._must_write_in_place(self.results[r]):
                    raise InputError(
                        f"expected what changes rows of the state '{old.hint}' to run behind its readers"
                    )
                self.results[r] = self._copy(self.results[r])
                self._order(self.maker[self.results[r]], old)
        return self._module(lower_copies)

    def _must_write_in_place(self, new: Value) -> bool:
        """Whether the kernel of a value writes a part of it alone, so that the rest must be there already."""
        op = self.maker.get(new)
        if op is None or op in self.copies or op.name != "tensor.call":
            return False
        written = len(op.operands) + op.results.index(new)
        return any(w == written for _, w in in_place(self.funcs[callee_of(op)]))

    def _own_results(self) -> set[Value]:
        """Results of calls that have a buffer of their own."""
        joined = {v for op in self.ops if op.name == "tensor.join" for v in op.operands}
        return {r for op in self.ops if op.name == "tensor.call" for r in op.results if r not in joined}

    def _copy(self, v: Value) -> Value:
        """A fresh value that a copy kernel fills with `v`."""
        op = Op("tensor.call", (v,), (), (Value(v.type, f"{v.hint or 'state'}.stored"),))
        self.copies.append(op)
        self.ops.append(op)
        self.maker[op.result] = op
        self.after[op] = set()
        self._link(op)
        return op.result

    def _writes_in_place(self, new: Value, old: Value) -> bool:
        """Whether the launch of `new` writes it over `old`; that orders the launch behind all readers."""
        op = self.maker[new]
        if op in self.copies:
            may, pair = old not in op.operands, None
        else:
            may, pair = self._may_write(op, new, old)
        if not may or not self._order(op, old):
            return False
        if pair is not None:
            self.pairs.setdefault(callee_of(op), set()).add(pair)
        return True

    def _may_write(self, op: Op, new: Value, old: Value) -> tuple[bool, tuple[int, int] | None]:
        """Whether a call may write `new` where `old` is, and the pair of parameters to mark for that."""
        func = self.funcs[callee_of(op)]
        if func.level is not Level.THREAD:  # devices call libraries once before the first run
            return False, None
        if old not in op.operands:
            return True, None
        pair = op.operands.index(old), len(op.operands) + op.results.index(new)
        if op.operands.count(old) > 1:
            return False, None
        # A buffer may be given for one pair only: with two, one of them would not hold what it needs.
        if func.name not in self.in_place:
            self.in_place[func.name] = frozenset((*in_place_pairs(func), *in_place(func)))
        if pair in self.in_place[func.name]:
            return True, None
        return may_overwrite(func, *pair), pair

    def _order(self, writer: Op, old: Value) -> bool:
        """Put `writer` behind all other readers of `old`; False where one of them needs what it writes."""
        readers = [op for op in self.ops if old in op.operands and op is not writer]
        later = self._descendants(writer)
        if any(op in later for op in readers):
            return False
        for op in readers:
            self.after[op].add(writer)
        return True

    def _descendants(self, op: Op) -> set[Op]:
        later: set[Op] = set()
        stack = [op]
        while stack:
            for follower in self.after[stack.pop()]:
                if follower not in later:
                    later.add(follower)
                    stack.append(follower)
        return later

    def _module(self, lower_copies: LowerCopies) -> Module:
        ops, funcs = self._in_order(), dict(self.funcs)
        for name, pairs in self.pairs.items():
            listed = tuple(sorted({*overwrites(funcs[name]), *pairs}))
            funcs[name] = funcs[name].with_attrs(**{OVERWRITES: listed})
        kernels = _copy_kernels(self.copies, funcs, lower_copies)
        ops = [op.with_attrs(callee=kernels[op]) if op in kernels else op for op in ops]
        end = replace(self.main.body.ops[-1], operands=tuple(self.results))
        main = self.main.with_body(self.main.body.with_ops((*ops, end)))
        before = [f for f in funcs.values() if f.name != "main"]
        return self.module.with_funcs((*before, main))

    def _in_order(self) -> list[Op]:
        """The ops in program order, but for those that must wait for later ones."""
        waits = dict.fromkeys(self.ops, 0)
        for followers in self.after.values():
            for op in followers:
                waits[op] += 1
        out: list[Op] = []
        place = {op: i for i, op in enumerate(self.ops)}
        ready = [i for op, i in place.items() if not waits[op]]  # sorted, so a heap
        while ready:
            op = self.ops[heappop(ready)]
            out.append(op)
            for follower in self.after[op]:
                waits[follower] -= 1
                if not waits[follower]:
                    heappush(ready, place[follower])
        assert len(out) == len(self.ops)
        return out


def _copy_kernels(
    copies: Sequence[Op], funcs: dict[str, Func], lower_copies: LowerCopies
) -> Mapping[Op, Ref]:
    """The kernel of every copy; new ones are added to `funcs`. Copies of equal many elements share one."""
    kinds = dict.fromkeys(_flat(op.operands[0].tensor) for op in copies)
    kernels: dict[TensorType, Ref] = {}
    for t in kinds:
        lowered = lower_copies(_copy_module(t))
        (call,) = (op for op in lowered.main.body.ops if op.name == "tensor.call")
        func = next(f for f in lowered.funcs if f.name == callee_of(call))
        name = _free(f"store_{t.dtype}", funcs)
        funcs[name] = replace(func, name=name)
        kernels[t] = Ref(name)
    return {op: kernels[_flat(op.operands[0].tensor)] for op in copies}


def _flat(t: TensorType) -> TensorType:
    if t != TensorType(t.dtype, t.shape):
        raise InputError(f"expected state in the order of its shape, got {t}")
    return TensorType(t.dtype, (t.size,))


def _copy_module(t: TensorType) -> Module:
    """A tensor-level module that copies its parameter."""
    b, new = Builder(), Value(t, "new")
    element, (x,) = scalar_body([t.dtype])
    element.do("scalar.yield", x)
    par, body = {"i": t.size}, element.block((x,))
    copy = structured(b, "tensor.map", [new], par=par, reads=[(Sym("i"),)], types=[t], body=body)
    b.do("tensor.return", *copy)
    return Module("copy", (Func(Level.TENSOR, "main", b.block((new,)), (t,)),))


def _free(name: str, taken: Iterable[str]) -> str:
    names = set(taken)
    number = 0
    while f"{name}_{number}" in names:
        number += 1
    return f"{name}_{number}"
