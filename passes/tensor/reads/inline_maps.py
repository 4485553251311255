"""Pass inline-maps: cheap maps of training steps, and of bytes, are computed where they are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from tilewright.ir import Func, Level, Module, Op, Value
from tilewright.ir.tensor.ops import fills
from tilewright.ir.types import BYTES, FLOAT8
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.backward_pass import LOSS, RECOMPUTED, forward_ops
from tilewright.passes.analysis.index_sets import is_copy, recompute_cost
from tilewright.passes.rewriting.dead_ops import live_ops
from tilewright.passes.rewriting.inlined import with_bodies
from tilewright.passes.rewriting.values import readers

#: additions per point up to which a map is cheap, those of the maps inlined in it included
MAX_COST = 8
#: the same of what the backward pass computes again: a norm with its root and its division, and what follows
MAX_COST_AGAIN = 48
#: bytes of inputs of the function up to which reading them again costs less than a launch
SMALL_BYTES = 1 << 16
#: ops whose bodies may hold those of maps that they read
_WITH_MAPS = frozenset({"tensor.map", "tensor.reduce"})


@register_pass(Level.TENSOR)
def inline_maps(module: Module, ctx: PassContext) -> Module:
    """Write maps that make more than they read into the bodies of the maps that read them.

    rewrite:  %hit = tensor.map(%labels) {index(c) == label}; %y = tensor.map(%x, %hit) {select(hit, x, 0)}
        -->   %y = tensor.map(%x, %labels) {select(index(c) == label, x, 0)}

    A backward pass reads such values (masks of labels, gradients that are one number for all elements) in
    several kernels, where one that is stored would be written and read again and again. Of functions without
    state (`updates`) only maps that make numbers of bytes are written into others: what a quantised network
    adds is read as the bytes that products read as well.

    Sums compute what they add, where that takes no more reading than storing it would write and read: the
    gradient by a factor of a norm, or a 16-bit value as float32, which others read in 16 bits.

    rewrite:  %p = tensor.map(%dy, %x) {mul}; %s = tensor.reduce(%p) {add}
        -->   %s = tensor.reduce(%dy, %x) {fma}

    A map of one value that the backward pass reads anyway is computed there and not stored beside the value,
    where that moves no more bytes: where a relu let its operand pass. What is computed again for a product
    is stored, yet maps beside it that read the value instead wait for no kernel that stores it.

    rewrite:  %hit = tensor.map(%y) {y > 0}; %x = tensor.map(%hit, %d) {select}; %w = tensor.contract(%d, %y)
        -->   %x = tensor.map(%y, %d) {select(y > 0, d, 0)}; %w = tensor.contract(%d, %y)

    Without state, too, a map of one value is computed where it is read if none of its readers can share the
    kernel of that value, which is in memory anyway: the squares whose mean a norm takes of a sum that
    goes on along a residual connection. Parts of a training step, which name a loss, leave that out.

    rewrite:  %y = tensor.map(%a, %b) {add}; %q = tensor.map(%y) {mul(y, y)}; %s = tensor.reduce(%q) {add}
        -->   %y = tensor.map(%a, %b) {add}; %s = tensor.reduce(%y) {fma(y, y, s)}

    Scatters each get a copy of a map that makes what they update (zeros) of little data: it becomes a part of
    their kernels.
    """
    main = module.main
    if main.level is not Level.TENSOR:
        return module
    if main.updates:
        new = _summed(_inlined(_reread(main)))
    else:
        new = _inlined(main, of_bytes=True)
        new = _read_late(new) if main.get(LOSS) is None else new
    return module.with_funcs(tuple(new if f is main else f for f in module.funcs))


def _reread(main: Func) -> Func:
    """Backward maps and sums with the bodies of maps of one value each that they can read as fast."""
    forward = forward_ops(main)
    kept = _kept(main, forward)
    recomputed = main.get(RECOMPUTED) is not None
    read_by = readers(main.body)
    again: dict[Value, Op] = {}
    ops: list[Op] = []
    for op in main.body.ops:
        new = op
        if op.name in _WITH_MAPS and op not in forward:
            new = with_bodies(op, again)
        if op.name == "tensor.map" and len(op.results) == 1 and not is_copy(op):
            later = [x for x in read_by[op.result] if x not in forward]
            stored, cost = len(later) < len(read_by[op.result]), MAX_COST
            if recomputed and op not in forward:
                maps = [x for x in later if x.name != "tensor.contract"]
                stored, cost = stored or len(maps) < len(later), MAX_COST_AGAIN
                later = maps
            if _is_reread(new, kept, later, stored=stored, cost=cost):
                again[op.result] = new
        ops.append(new)
    return _live(main, ops)


def _kept(main: Func, forward: Collection[Op]) -> set[Value]:
    """What of the forward pass is in memory when the backward pass runs.

    The backward pass reads it in products, or together with what they lead to. All else that it reads of the
    forward pass may be read by forward kernels, which store what the backward pass makes of it.
    """
    late: set[Value] = set()
    made = {*main.params, *(r for op in forward for r in op.results)}
    if main.get(RECOMPUTED) is not None:  # no forward kernel makes anything for the backward pass
        return {v for op in main.body.ops[:-1] if op not in forward for v in op.operands if v in made}
    kept: set[Value] = set()
    for op in main.body.ops[:-1]:
        if op in forward:
            continue
        if (op.name not in _WITH_MAPS and op.operands) or any(v in late for v in op.operands):
            late.update(op.results)
            kept.update(v for v in op.operands if v in made)
    return kept


def _is_reread(op: Op, kept: set[Value], later: Sequence[Op], *, stored: bool, cost: int) -> bool:
    """Whether backward ops compute a map of one large value with no more traffic than storing it takes.

    later: those ops. stored: whether others read the result, too, so that it may be stored anyway. cost: of
    the map at most, in additions.
    """
    made = op.result.tensor.nbytes
    if made <= SMALL_BYTES or recompute_cost(op) > cost or any(fill is not None for fill in fills(op)):
        return False
    wide = {v for v in op.operands if v.tensor.nbytes > SMALL_BYTES}
    if len(wide) != 1 or not wide <= kept:
        return False
    (value,) = wide
    if value.tensor.size != op.result.tensor.size or not later:
        return False
    indexed = op.body is not None and any(o.name == "scalar.index" for o in op.body.ops)
    for x in later:
        takes = x.name == "tensor.map" or (x.name == "tensor.reduce" and not indexed)
        if (
            not takes
            or is_copy(x)
            or any(v is op.result and fill is not None for v, fill in zip(x.operands, fills(x), strict=True))
        ):
            return False
    more = sum(value not in x.operands for x in later)
    return more * value.tensor.nbytes <= (len(later) + (not stored)) * made


def _read_late(main: Func) -> Func:
    """Maps of one stored value written into readers that no kernel can compute together with that value."""
    stage, read_by = _stages(main), readers(main.body)
    crossing = _crossing(main, stage, read_by)
    composed: dict[Value, Op] = {}
    sources: dict[Value, Value] = {}
    for op in main.body.ops:
        if op in crossing and (value := _source(new := with_bodies(op, composed))) is not None:
            composed[op.result], sources[op.result] = new, value
    # A value that its other readers do not bring to memory would have to be stored instead of what maps make.
    chains = Counter(v for made, v in sources.items() if any(x not in crossing for x in read_by[made]))
    again = {}
    for result, op in composed.items():
        value = sources[result]
        others = any(_is_late(x, stage[value], stage) for x in read_by[value] if x not in crossing)
        if (
            others
            or chains[value] > 1
            or value in main.params
            or value.tensor.nbytes < op.result.tensor.nbytes
        ):
            again[result] = op
    ops = [with_bodies(op, again) if op.name in _WITH_MAPS else op for op in main.body.ops]
    return _live(main, ops)


def _stages(main: Func) -> dict[Value, int]:
    """For every value the most ops other than maps on a way that leads to it."""
    stage = dict.fromkeys(main.params, 0)
    for op in main.body.ops:
        last = max((stage[v] for v in op.operands), default=0)
        stage.update(dict.fromkeys(op.results, last + (op.name != "tensor.map" and bool(op.operands))))
    return stage


def _is_late(op: Op, stage: int, stages: dict[Value, int]) -> bool:
    """Whether an op that reads a value of a stage cannot be a map of the kernel that computes the value."""
    return op.name != "tensor.map" or any(stages[r] > stage for r in op.results)


def _crossing(main: Func, stages: dict[Value, int], read_by: dict[Value, list[Op]]) -> set[Op]:
    """Cheap maps whose readers all are sums, late maps, or such maps in turn."""
    found: set[Op] = set()
    for op in reversed(main.body.ops):
        if op.name != "tensor.map" or len(op.results) != 1 or is_copy(op) or op.body is None:
            continue
        if op.result.tensor.nbytes <= SMALL_BYTES or any(fill is not None for fill in fills(op)):
            continue
        indexed = any(o.name == "scalar.index" for o in op.body.ops)
        later = read_by[op.result]
        takes = [
            x.name in _WITH_MAPS
            and not is_copy(x)
            and all(v is not op.result or fill is None for v, fill in zip(x.operands, fills(x), strict=True))
            and (x in found or _is_late(x, stages[op.result], stages))
            for x in later
        ]
        if later and all(takes) and not indexed:
            found.add(op)
    return found


def _source(op: Op) -> Value | None:
    """The only large value that a cheap map reads, where it makes a number of at least its size of each."""
    wide = {v for v in op.operands if v.tensor.nbytes > SMALL_BYTES}
    if len(wide) != 1 or recompute_cost(op) > MAX_COST:
        return None
    (value,) = wide
    made = op.result.tensor
    return value if value.tensor.size == made.size and value.tensor.nbytes <= made.nbytes else None


def _inlined(main: Func, *, of_bytes: bool = False) -> Func:
    """The function with cheap maps in those that read them; of_bytes: only those that read bytes."""
    cheap: dict[Value, Op] = {}
    of_little: dict[Value, Op] = {}
    reduced = {v for op in main.body.ops if op.name == "tensor.reduce" for v in op.operands}
    small = {p for p in main.params if p.tensor.nbytes <= SMALL_BYTES}
    ops: list[Op] = []
    for op in main.body.ops:
        if op.name == "tensor.constant" and op.result.tensor.nbytes <= SMALL_BYTES:
            small.add(op.result)
        new = op
        if op.name == "tensor.map" and not is_copy(op):
            new = with_bodies(op, cheap)
            taken = not of_bytes or any(v.tensor.dtype in (*BYTES, *FLOAT8) for v in new.operands)
            if taken and len(new.results) == 1 and _is_cheap(new, small, reduced):
                cheap[new.result] = new
        elif op.name == "tensor.scatter" and op.operands[0] in of_little and not of_bytes:
            first = of_little[op.operands[0]]
            own = Value(first.result.type, first.result.hint)
            ops.append(replace(first, results=(own,)))
            new = op.with_operands((own, *op.operands[1:]))
        little = op.name == "tensor.map" and all(v in small for v in new.operands)
        if little and len(new.results) == 1 and recompute_cost(new) <= MAX_COST:
            of_little[new.result] = new
        ops.append(new)
    return _live(main, ops)


def _summed(main: Func) -> Func:
    """Sums with the bodies of the maps that they read as fast as their results."""
    read: dict[Value, Op] = {}
    stored = _stored_anyway(main)
    elsewhere = {v for op in main.body.ops if op.name != "tensor.reduce" for v in op.operands}
    ops: list[Op] = []
    for op in main.body.ops:
        if op.name == "tensor.map" and len(op.results) == 1 and _is_read_as_fast(op, stored, elsewhere):
            read[op.result] = op
        ops.append(with_bodies(op, read) if op.name == "tensor.reduce" else op)
    return _live(main, ops)


def _live(main: Func, ops: Sequence[Op]) -> Func:
    block = main.body.with_ops(tuple(ops))
    return main if block is main.body else main.with_body(block.with_ops(live_ops(block)))


def _is_cheap(op: Op, small: set[Value], reduced: set[Value]) -> bool:
    """Whether computing a map again costs less than storing it.

    It does where the map makes more than it reads, or reads little; and where it only shifts or scales what a
    reduction reads as well, which is in memory therefore: logits less their maximum.
    """
    if recompute_cost(op) > MAX_COST:
        return False
    if recompute_cost(op) == 1 and op.result.tensor.nbytes > SMALL_BYTES:
        large = [v for v in op.operands if v.tensor.nbytes >= op.result.tensor.nbytes]
        rest = sum(v.tensor.nbytes for v in op.operands if v not in large)
        if len(large) == 1 and large[0] in reduced and 8 * rest <= op.result.tensor.nbytes:
            return large[0].tensor.nbytes == op.result.tensor.nbytes
    if op.result.tensor.nbytes > sum(v.tensor.nbytes for v in op.operands):
        return True
    return all(v in small for v in op.operands)


def _stored_anyway(main: Func) -> set[Value]:
    """Values that are in memory whether or not one map reads them: several ops do, or no map makes them."""
    read_by = Counter(v for op in main.body.ops for v in set(op.operands))
    maps = {r for op in main.body.ops if op.name == "tensor.map" for r in op.results}
    return {v for v, n in read_by.items() if n > 1 or v not in maps}


def _is_read_as_fast(op: Op, stored: set[Value], elsewhere: set[Value]) -> bool:
    """Whether sums of a large map read its operands about as fast as they would read it.

    elsewhere: what others than reductions read, and so is stored in any case. Each element is read once, so
    that nothing is computed twice; a map of an index is left alone, because dimensions of a sum may be cut
    later.
    """
    made = op.result.tensor
    if made.nbytes <= SMALL_BYTES or recompute_cost(op) > MAX_COST or op.body is None:
        return False
    if any(fill is not None for fill in fills(op)) or any(o.name == "scalar.index" for o in op.body.ops):
        return False
    read = [v for v in dict.fromkeys(op.operands) if 2 * v.tensor.size >= made.size]
    if any(v.tensor.size != made.size for v in read):
        return False
    total = sum(v.tensor.nbytes for v in read)
    if op.result in elsewhere or any(v not in stored for v in read):
        return total < made.nbytes
    return total <= 2 * made.nbytes
