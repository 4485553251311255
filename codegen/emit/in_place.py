"""Parameters of a kernel that may be one buffer: a thread reads only elements it writes later itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.expr import BinOp, Expr, Sym, substitute
from tilewright.ir.nodes import Block, Func, Op, Value
from tilewright.ir.simplify import Linear, Ranges, linear, simplify
from tilewright.ir.thread.launch_ops import constant_params, late_params
from tilewright.ir.types import ScalarType

#: what may stand around accesses whose elements are compared
_PLAIN_SCOPES = frozenset({"thread.loop", "thread.if"})


@dataclass(frozen=True)
class _Access:
    """An op that takes a parameter, the loops and conditions around it, and its place in each block."""

    op: Op
    around: tuple[Op, ...]
    path: tuple[int, ...]


def in_place_pairs(func: Func) -> tuple[tuple[int, int], ...]:
    """Positions (read, written) of parameters of a thread-level kernel that may be one and the same buffer.

    Both have the same type. The written one is stored to by one op, unconditionally, as often as it has
    elements: since a kernel defines its results wholly, each element is written once. Every op that takes
    the read one loads at the same index in a loop nest of the same extents, before that store in program
    order: so a thread reads just the elements that it writes, and each before it writes it.

    Where conditions stand around accesses, as in kernels whose last blocks reach beyond the result, there may
    be several stores and loads, all at one index that tells threads and iterations apart; no load may follow
    a store of the same thread and iteration.

    Only parameters of which the emitted text does not promise that they are apart qualify: those that are
    read after a wait for other launches (`tilewright.codegen.emit.launch`).
    """
    late = late_params(func)
    accesses: dict[Value, list[_Access]] = {v: [] for v in func.params if v in late}
    for access in _accesses(func.body, (), ()):
        for value in dict.fromkeys(access.op.operands):
            if value in accesses:
                accesses[value].append(access)
    read_at: dict[Value, tuple[_Place | None, tuple[int, ...]]] = {}
    positions = {v: i for i, v in enumerate(func.params)}
    pairs = []
    for written, stores in accesses.items():
        if not stores:
            continue
        once = len(stores) == 1 and _writes_each_element_once(func, stores[0], written)
        written_at = _written_at(stores[0]) if once else None
        for read, loads in accesses.items():
            if read is written or read.type != written.type:
                continue
            if read not in read_at:
                read_at[read] = _read_at(loads)
            place, last = read_at[read]
            if once:
                shared = written_at is not None and place == written_at and last < stores[0].path
            else:
                shared = _keeps_to_own_elements(func, loads, stores, written)
            if shared:
                pairs.append((positions[read], positions[written]))
    return tuple(sorted(pairs))


def may_overwrite(func: Func, read: int, written: int) -> bool:
    """Return whether two parameters of a thread-level kernel may be one buffer if its text is made for that.

    As for `in_place_pairs`, every op that takes the one read loads at the index of the one store of the
    other, in a loop nest of the same extents, before that store in program order. Different threads and
    iterations must have different elements: shown by the index, whose terms are digits of a number of mixed
    radix. So conditions around loads and stores do no harm. The text must not promise that the two are apart
    (see `tilewright.ir.thread.launch_ops.overwrites`).
    """
    source, target = func.params[read], func.params[written]
    if read == written or source.type != target.type or read in constant_params(func):
        return False
    loads, stores = [], []
    for access in _accesses(func.body, (), ()):
        if source in access.op.operands:
            loads.append(access)
        if target in access.op.operands:
            stores.append(access)
    if len(stores) != 1:
        return False
    store = stores[0]
    return _has_own_elements(func, store, target) and all(_precedes_at_index(load, store) for load in loads)


def _precedes_at_index(load: _Access, store: _Access) -> bool:
    """Whether an iteration's load takes just the elements that the same iteration stores later."""
    op, value = load.op, store.op.operands[0].type
    if op.name != "thread.load" or load.path >= store.path or not isinstance(value, ScalarType):
        return False
    if op["lanes"] != value.lanes or not all(s.name in _PLAIN_SCOPES for s in load.around):
        return False
    if _extents(load) != _extents(store):
        return False
    # A variable that a condition around the store bounds is one that the load's conditions bound as well.
    if not _bounds(store).items() <= _bounds(load).items():
        return False
    return _index(load) == _index(store)


def _has_own_elements(func: Func, store: _Access, buffer: Value) -> bool:
    """Return whether no two threads or iterations store the same element."""
    op = store.op
    if op.name != "thread.store" or op.operands[1] is not buffer or op.operands[0] is buffer:
        return False
    if not all(s.name in _PLAIN_SCOPES for s in store.around):
        return False
    value = op.operands[0].type
    assert isinstance(value, ScalarType)
    extents = _variables(func, _extents(store))
    ranges = {name: (0, max(0, n - 1)) for name, n in extents.items()}
    from_zero: dict[str, Expr] = {}  # variables that start later, as numbers from 0
    for name, (low, high) in _bounds(store).items():
        low = max(0, low)
        ranges[name] = (0, min(ranges[name][1], high - 1) - low)
        from_zero[name] = Sym(name) + low
    extents = {name: last + 1 for name, (_, last) in ranges.items() if last > 0}
    index = [simplify(substitute(e, from_zero), ranges) for e in _index(store)]
    shape = buffer.tensor.shape
    # Indices that are quotients and remainders of one number are that number again in row-major order.
    address: Expr = 0
    for e, n in zip(index, shape, strict=True):
        address = address * n + e
    return _tell_apart(index, extents, ranges, value.lanes) or _tell_apart(
        (address,), extents, ranges, value.lanes
    )


def _keeps_to_own_elements(
    func: Func, loads: Sequence[_Access], stores: Sequence[_Access], written: Value
) -> bool:
    """Return whether all accesses are at one index of a thread and iteration, and no load follows a store."""
    if not loads or any(a.op.name != "thread.load" for a in loads):
        return False
    scopes = {s.name for a in (*loads, *stores) for s in a.around}
    if "thread.if" not in scopes or not scopes <= _PLAIN_SCOPES:
        return False
    places: set[_Place | None] = {(a.op.integer("lanes"), _extents(a), _index(a)) for a in loads}
    for store in stores:
        op = store.op
        if op.name != "thread.store" or op.operands[1] is not written or op.operands[0] is written:
            return False
        if op["mask"]:
            return False
        places.add(_written_at(store))
    place = places.pop()
    if places or place is None:
        return False
    lanes, loops, index = place
    if not _digits_tell_apart(index, _variables(func, loops), lanes):
        return False
    return all(load.path < store.path or _exclude(load, store) for load in loads for store in stores)


def _digits_tell_apart(index: Sequence[Expr], extents: Mapping[str, int], lanes: int) -> bool:
    """The same as `_tell_apart`, where quotients and remainders stand for variables, or for such in turn."""
    ranges: Ranges = {name: (0, n - 1) for name, n in extents.items()}
    forms = [linear(e, ranges) for e in index]
    divisors: dict[Expr, int] = {}
    for form in forms:
        for atom, _ in form.terms:
            e: Expr = atom
            while isinstance(e, BinOp) and e.op in ("//", "%") and isinstance(e.rhs, int):
                divisors.setdefault(e.lhs, e.rhs)
                e = e.lhs
    digits = [digit for name, n in extents.items() for digit in _digits(Sym(name), n, divisors)]
    names: dict[Expr, Sym] = {e: Sym(f"digit{i}") for i, (e, _) in enumerate(digits)}
    parts = {names[e].name: n for e, n in digits if n > 1}
    # An atom that is no digit keeps its name, which tells nothing apart.
    plain = [Linear.of({names.get(a, a): c for a, c in form.terms}, form.constant).expr() for form in forms]
    return _tell_apart(plain, parts, {name: (0, n - 1) for name, n in parts.items()}, lanes)


def _digits(e: Expr, extent: int, divisors: Mapping[Expr, int]) -> Iterator[tuple[Expr, int]]:
    """What a number below `extent` is divided into, and how many values each part has."""
    by = divisors.get(e)
    if by is None:
        yield e, extent
        return
    yield from _digits(BinOp("//", e, by), -(-extent // by), divisors)
    yield from _digits(BinOp("%", e, by), min(by, extent), divisors)


def _exclude(load: _Access, store: _Access) -> bool:
    """Return whether conditions outside of loops let no thread run both."""
    return any(
        e == other and (high <= low2 or high2 <= low)
        for e, low, high in _outer_conditions(load)
        for other, low2, high2 in _outer_conditions(store)
    )


def _outer_conditions(access: _Access) -> Iterator[tuple[Expr, int, int]]:
    """Expressions with their first number and the one behind the last, of conditions outside of loops."""
    for scope in access.around:
        if scope.name != "thread.if":
            return
        mask: Any = scope["mask"]
        for e, low, high in mask:
            if isinstance(low, int) and isinstance(high, int):
                yield e, low, high


def _variables(func: Func, loops: Sequence[int]) -> dict[str, int]:
    """The extents, by name, of what tells threads and iterations of such loops apart."""
    block, grid = func["block"], func["grid"]
    assert isinstance(block, int)
    assert isinstance(grid, tuple)
    extents = {f"bid.{axis}": int(n) for axis, n in zip("xyz", grid, strict=True)}  # type: ignore[arg-type]
    return {**extents, "tid": block, **{f"loop.{i}": n for i, n in enumerate(loops)}}


def _tell_apart(index: Sequence[Expr], extents: Mapping[str, int], ranges: Ranges, lanes: int) -> bool:
    """Whether an index tells apart all values of the variables of these extents, each with so many lanes.

    It does where every variable is a digit of one dimension: it moves further than all smaller ones together.
    """
    digits: list[list[tuple[int, int]]] = []  # per dimension the factors and extents of its variables
    seen: set[str] = set()
    for e in index:
        terms = []
        for atom, factor in linear(e, ranges).terms:
            if not isinstance(atom, Sym) or atom.name in seen or atom.name not in extents or factor <= 0:
                return False
            seen.add(atom.name)
            terms.append((factor, extents[atom.name]))
        digits.append(sorted(terms))
    if seen != set(extents):
        return False
    for place, terms in enumerate(digits):
        span = lanes if place == len(digits) - 1 else 1
        for factor, extent in terms:
            if factor < span:
                return False
            span += factor * (extent - 1)
    return True


def _loops(access: _Access) -> list[Op]:
    return [s for s in access.around if s.name == "thread.loop"]


def _bounds(access: _Access) -> dict[str, tuple[int, int]]:
    """What conditions around an access let single variables be, from the first to before the second; loops'
    variables are named by depth."""
    names: dict[str, Expr] = {_variable(s): Sym(f"loop.{i}") for i, s in enumerate(_loops(access))}
    out: dict[str, tuple[int, int]] = {}
    for scope in access.around:
        if scope.name == "thread.if":
            mask: Any = scope["mask"]
            for e, low, high in mask:
                bounded = substitute(e, names)
                if isinstance(bounded, Sym) and isinstance(low, int) and isinstance(high, int):
                    first, end = out.get(bounded.name, (low, high))
                    out[bounded.name] = (max(first, low), min(end, high))
    return out


def _accesses(block: Block, around: tuple[Op, ...], path: tuple[int, ...]) -> Iterator[_Access]:
    for index, op in enumerate(block.ops):
        yield _Access(op, around, (*path, index))
        if op.body is not None:
            yield from _accesses(op.body, (*around, op), (*path, index))


def _writes_each_element_once(func: Func, store: _Access, buffer: Value) -> bool:
    op = store.op
    if op.name != "thread.store" or op.operands[1] is not buffer or op.operands[0] is buffer or op["mask"]:
        return False
    if any(scope.name != "thread.loop" for scope in store.around):
        return False
    grid, block, value = func["grid"], func["block"], op.operands[0].type
    assert isinstance(grid, tuple)
    assert isinstance(block, int)
    assert isinstance(value, ScalarType)
    threads = math.prod(g for g in grid if isinstance(g, int)) * block
    times = math.prod(scope.integer("extent") for scope in store.around)
    return threads * times * value.lanes == math.prod(buffer.tensor.shape)


#: elements of a buffer that the iterations of a loop nest take: lanes, extents of loops, index
_Place = tuple[int, tuple[int, ...], tuple[Expr, ...]]


def _read_at(accesses: Sequence[_Access]) -> tuple[_Place | None, tuple[int, ...]]:
    """Where plain loads of a buffer read it, all of them in one place, and the last of their paths."""
    places: set[_Place] = set()
    for access in accesses:
        op = access.op
        if op.name != "thread.load" or op["mask"] or any(s.name != "thread.loop" for s in access.around):
            return None, ()
        places.add((op.integer("lanes"), _extents(access), _index(access)))
        if len(places) > 1:
            return None, ()
    return (places.pop(), max(a.path for a in accesses)) if places else (None, ())


def _written_at(store: _Access) -> _Place | None:
    """Return where a store writes its buffer; None where it stores no scalars."""
    value = store.op.operands[0].type
    return (value.lanes, _extents(store), _index(store)) if isinstance(value, ScalarType) else None


def _extents(access: _Access) -> tuple[int, ...]:
    return tuple(loop.integer("extent") for loop in _loops(access))


def _index(access: _Access) -> tuple[Expr, ...]:
    """The index expressions with loop variables named by depth."""
    names: dict[str, Expr] = {_variable(s): Sym(f"loop.{i}") for i, s in enumerate(_loops(access))}
    at = access.op["at"]
    assert isinstance(at, tuple)
    return tuple(substitute(e, names) for e in at)  # type: ignore[arg-type]


def _variable(loop: Op) -> str:
    variable = loop["var"]
    assert isinstance(variable, Sym)
    return variable.name
