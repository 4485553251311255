"""Where the ops of a training step run when its forward pass is cut into layers: forward, backward, update.

With L layers there are 3 L - 1 places, in the order in which they run: 0 .. L - 1 are the forward passes of
layers, the last of them also the backward pass of the last layer; L .. 2 L - 2 the backward passes of the
other layers, last to first; 2 L - 1 + k the updates of layer k that have to wait for the whole backward pass
(as where gradients are scaled by the norm of all of them).

Only data flow counts, no names of ops. State that forward ops of a layer read belongs to the layer, and so
does state from which new values of such state are computed (moments, sums of gradients). An op of the
backward pass runs where its result is first needed, or at the last place before at which the state that it
reads is at hand, unless cuts would carry more bytes then. Numbers among the state that no layer owns
(counters, scales) are at hand everywhere, and change where they are last read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from tilewright.ir import Func, Op, Value
from tilewright.ir.errors import InputError
from tilewright.ir.opdef import op_def
from tilewright.passes.analysis.backward_pass import LOSS, forward_ops
from tilewright.passes.rewriting.values import making


@dataclass(frozen=True)
class Ownership:
    """The layers of state, and of values that only new state of one layer is made of (gradients of weights);
    state that is missing belongs to where it is first read."""

    states: Mapping[Value, frozenset[int]]
    homes: Mapping[Value, int]


def is_number(value: Value) -> bool:
    """Whether a value is one number (a rate, a norm), through which no state is owned."""
    return value.tensor.shape == ()


class StepFlow:
    """@main of a step by what its values are made of.

    given: state that the caller of `StepFlow` hands in like an input, by name (counters, rates).
    `states`: the other state, by value; `inputs`: inputs and given state; `new`: what state becomes;
    `returned`: results of the caller. `fixed`: ops of constants and state alone, by result: whoever needs
    their results computes them, so that no cut has to carry them. `ops`: all others, in program order.
    """

    def __init__(self, main: Func, given: Iterable[str] = ()) -> None:
        self.main, names = main, frozenset(given)
        pairs, results = dict(main.updates), main.body.ops[-1].operands
        self.states = tuple(main.params[i] for i in pairs if main.params[i].hint not in names)
        owned = set(self.states)
        self.inputs = tuple(p for p in main.params if p not in owned)
        self.new = {main.params[i]: results[j] for i, j in pairs.items() if main.params[i] in owned}
        taken = set(pairs.values())
        self.returned = tuple(v for j, v in enumerate(results) if j not in taken)
        moving, ops, fixed = set(self.inputs), list[Op](), dict[Value, Op]()
        for op in main.body.ops[:-1]:
            if any(v in moving for v in op.operands) or op_def(op.name).effects:
                ops.append(op)
                moving.update(op.results)
            else:
                fixed.update(dict.fromkeys(op.results, op))
        self.ops, self.fixed = tuple(ops), fixed

    @cached_property
    def forward(self) -> tuple[Op, ...]:
        """The moving ops that the loss depends on, in program order: what is cut into layers. All of them
        where nothing was differentiated."""
        if self.main.get(LOSS) is None:
            return self.ops
        forward = forward_ops(self.main)
        return tuple(op for op in self.ops if op in forward)

    def fixed_ops(self, values: Iterable[Value]) -> list[Op]:
        """The fixed ops that `values` need, operands first."""
        return making(self.fixed, values)

    @cached_property
    def _states_below(self) -> dict[Value, frozenset[Value]]:
        """The state that values which move through no op (fixed ones, and state itself) are made of."""
        below: dict[Value, frozenset[Value]] = {s: frozenset((s,)) for s in self.states}
        for op in self.main.body.ops[:-1]:
            if op.results and op.results[0] in self.fixed:
                made = frozenset[Value]().union(*(below.get(v, frozenset()) for v in op.operands))
                below.update(dict.fromkeys(op.results, made))
        return below

    def states_of(self, values: Iterable[Value]) -> frozenset[Value]:
        """The state that has to be at hand for `values`: itself, or what fixed values are made of."""
        return frozenset[Value]().union(*(self._states_below.get(v, frozenset()) for v in values))

    def owners(self, layer_of: Mapping[Op, int]) -> Ownership:
        """What belongs to which layers, by data flow."""
        owners: dict[Value, frozenset[int]] = {}
        for op in self.forward:
            for s in self.states_of(op.operands):
                owners[s] = owners.get(s, frozenset()) | {layer_of[op]}
        # reach: the layers whose state a value decides, as a set of bits; numbers pass nothing on
        reach: dict[Value, int] = {}
        for s, layers in owners.items():
            if self.new[s] is not s:
                reach[self.new[s]] = reach.get(self.new[s], 0) | sum(1 << k for k in layers)
        for op in reversed(self.main.body.ops[:-1]):
            bits = 0
            for r in op.results:
                if not is_number(r):
                    bits |= reach.get(r, 0)
            if bits:
                for v in op.operands:
                    reach[v] = reach.get(v, 0) | bits
        for s in self.states:
            if s not in owners and reach.get(s):
                owners[s] = frozenset(k for k in range(reach[s].bit_length()) if reach[s] >> k & 1)
        forward = {r for op in self.forward for r in op.results}
        homes = {
            v: bits.bit_length() - 1
            for v, bits in reach.items()
            if bits.bit_count() == 1 and v not in forward and not is_number(v)
        }
        return Ownership(owners, homes)


@dataclass(frozen=True)
class StepPlaces:
    """The place of every moving op, and of every change of state; see the module.

    of: by op. written: the place at which state gets its new value, for state that changes.
    """

    layers: int
    of: Mapping[Op, int]
    written: Mapping[Value, int]

    def layer(self, place: int) -> int:
        """The layer that a place belongs to."""
        return layer_of_place(place, self.layers)


def places_of_layer(layer: int, layers: int) -> tuple[int, ...]:
    """The places of a layer in order: forward, backward (one for the last layer), update."""
    return tuple(dict.fromkeys((layer, 2 * layers - 2 - layer, 2 * layers - 1 + layer)))


def layer_of_place(place: int, layers: int) -> int:
    """The layer whose state is at hand at a place."""
    if place < layers:
        return place
    return 2 * layers - 2 - place if place < 2 * layers - 1 else place - (2 * layers - 1)


def layers_of_cuts(flow: StepFlow, starts: Sequence[int]) -> dict[Op, int]:
    """The layer of every forward op: layer k + 1 begins at forward op number `starts[k]`.

    Raises InputError for starts that do not ascend within the forward pass.
    """
    count = len(flow.forward)
    bounds = [0, *starts, count]
    if any(not a < b for a, b in pairwise(bounds)):
        raise InputError(f"expected places of cuts that ascend between 0 and {count}, got {list(starts)}")
    out: dict[Op, int] = {}
    for k in range(len(bounds) - 1):
        out.update(dict.fromkeys(flow.forward[bounds[k] : bounds[k + 1]], k))
    return out


def place_step(flow: StepFlow, layer_of: Mapping[Op, int], owners: Ownership) -> StepPlaces:
    """Place all ops. layer_of: of the forward ops, which ascend in program order; owners: see `StepFlow`.

    owners may be those of a form of the step with more ops, matched by value.
    """
    return _Placing(flow, layer_of, owners).places()


class _Placing:
    def __init__(self, flow: StepFlow, layer_of: Mapping[Op, int], owners: Ownership) -> None:
        self.flow, self.layer_of = flow, layer_of
        self.layers = 1 + max(layer_of.values(), default=0)
        self.last = 2 * self.layers - 2  # the last place of the backward pass
        self.owners, self.homes = dict(owners.states), owners.homes
        self.made: dict[Value, int] = dict.fromkeys(flow.inputs, 0)

    def places(self) -> StepPlaces:
        of: dict[Op, int] = {}
        for op in self.flow.ops:
            earliest = max((self.made[v] for v in op.operands if v in self.made), default=0)
            if op in self.layer_of:
                place = self.layer_of[op]
                assert place >= earliest, "layers ascend in program order"
            else:
                place = self.earliest(op, earliest)
            of[op] = place
            self.made.update(dict.fromkeys(op.results, place))
        changed = {s: v for s, v in self.flow.new.items() if v is not s}
        written = {s: self.write(s, v) for s, v in changed.items() if not self.number(s)}
        last_read: dict[Value, int] = {}
        for op in self.flow.ops:
            for s in self.flow.states_of(op.operands):
                last_read[s] = max(of[op], last_read.get(s, 0))
        for s, v in changed.items():
            if s not in written:
                written[s] = max(self.made.get(v, 0), last_read.get(s, 0))
        self.delay(of, written)
        return StepPlaces(self.layers, of, written)

    def earliest(self, op: Op, earliest: int) -> int:
        """The first place from `earliest` on where the state that the op reads is at hand."""
        states = self.flow.states_of(op.operands)
        placed = [s for s in states if not self.number(s)]
        if placed:
            return self.at_hand(placed, earliest)
        home = self.homes.get(op.results[0]) if op.results and not states else None
        if home is None:
            return earliest
        return min((p for p in places_of_layer(home, self.layers) if p >= earliest), default=earliest)

    def number(self, state: Value) -> bool:
        """Whether the state is at hand everywhere."""
        return state not in self.owners and is_number(state)

    def at_hand(self, states: Iterable[Value], earliest: int) -> int:
        """The first place from `earliest` on where a layer owns one of `states`; it owns the others then."""
        states = tuple(states)
        for s in states:
            self.owners.setdefault(s, frozenset((layer_of_place(earliest, self.layers),)))
        return min(p for p in self.places_of(states) if p >= earliest)

    def places_of(self, states: Iterable[Value]) -> set[int]:
        """The places of the layers that own one of the states."""
        layers = frozenset[int]().union(*(self.owners[s] for s in states))
        return {p for layer in layers for p in places_of_layer(layer, self.layers)}

    def write(self, state: Value, new: Value) -> int:
        """The place at which state changes; in the backward pass where its new value is of state alone."""
        if new in self.made:
            return self.at_hand((state,), self.made[new])
        own = self.owners.get(state) or frozenset((0,))
        self.owners[state] = own
        return max(p for layer in own for p in places_of_layer(layer, self.layers) if p <= self.last)

    def delay(self, of: dict[Op, int], written: Mapping[Value, int]) -> None:
        """Move ops behind the forward pass to where their results are first needed.

        An op stays where it is if cuts would have to carry more bytes of its operands than of its results.
        """
        needed: dict[Value, int] = {}
        carried: dict[Value, int] = {}  # the last place of the backward pass that reads a value
        for s, place in written.items():
            v = self.flow.new[s]
            needed[v] = min(place, needed.get(v, place))
        for v in self.flow.returned:
            needed[v] = min(self.made.get(v, 0), needed.get(v, self.made.get(v, 0)))
        for op in reversed(self.flow.ops):
            users = [needed[r] for r in op.results if r in needed]
            if users and op not in self.layer_of:
                place = self.latest(op, of[op], min(users))
                longer = {v for v in op.operands if v in self.made and carried.get(v, 0) < place}
                if sum(v.tensor.nbytes for v in longer) <= sum(r.tensor.nbytes for r in op.results):
                    of[op] = place
            for v in op.operands:
                needed[v] = min(of[op], needed.get(v, of[op]))
                if of[op] <= self.last:
                    carried[v] = max(of[op], carried.get(v, 0))

    def latest(self, op: Op, first: int, needed: int) -> int:
        """The last place up to `needed` where the state that the op reads is at hand; `first` is one."""
        states = self.flow.states_of(op.operands)
        if not states:
            return max(first, needed)
        placed = [s for s in states if not self.number(s)]
        return max((p for p in self.places_of(placed) if first <= p <= needed), default=first)
