"""Which kernels might become one chain: a kernel and producers whose results nothing else reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.ir import Func, Module, Op, Value
from tilewright.ir.tensor.ops import callee_of
from tilewright.passes.analysis.constant_params import WEIGHTS
from tilewright.passes.kernels.decision import estimate_of
from tilewright.passes.tensor.chains.attention_masks import with_computed_masks
from tilewright.passes.tensor.joins.merge import kernel_of, merged, reshapes_filled

#: kernels of one chain at most
MAX_KERNELS = 7
#: a chain estimated at this many times its kernels is not grown further
HOPELESS = 1.4
#: times that a result which is read outside of a chain is smaller than the one that is read inside
SAVED_SHARE = 8


@dataclass(frozen=True)
class ChainCandidate:
    """Calls of @main that could be one kernel, in program order; values it is called with and returns."""

    calls: tuple[Op, ...]
    chosen: Func
    arguments: tuple[Value, ...]
    returned: tuple[Value, ...]
    separate_s: float

    @property
    def gain_s(self) -> float:
        """Estimated seconds saved."""
        return self.separate_s - estimate_of(self.chosen)


class ChainSearch:
    """Finds candidates in a module of outlined kernels.

    choose: the parameters of a merged kernel, None where it is no legal chain; seconds: of a kernel alone.
    wanted: whether a chain of kernels with these ops, by name and number, can be of use. unfinished: whether
    a merged kernel that is no legal chain, or a slow one, is grown nevertheless. saving: whether a chosen
    kernel may also return statistics of lines that ops behind it read. marked: kernels say which of their
    parameters are constants, whose order in memory is free.
    """

    def __init__(
        self,
        module: Module,
        choose: Callable[[Func], Func | None],
        seconds: Callable[[Func], float],
        wanted: Callable[[Counter[str]], bool] = bool,
        unfinished: Callable[[Func], bool] = lambda kernel: False,
        saving: Callable[[Func], bool] = lambda kernel: False,
        *,
        marked: bool = False,
    ) -> None:
        self.choose, self.seconds, self.wanted, self.unfinished = choose, seconds, wanted, unfinished
        self.saving, self.marked = saving, marked
        # what other passes already decided about a kernel or a call would be lost
        self.kernels = {f.name: f for f in module.funcs if f.name != "main" and not f.attrs}
        self.names_of: dict[str, Counter[str]] = {}  # of the ops of kernels
        self.ops = module.main.body.ops
        self.constants = module.constants
        self.names = {op.result: str(op["name"]) for op in self.ops if op.name == "tensor.constant"}
        self.position = {id(op): i for i, op in enumerate(self.ops)}
        self.producer = {r: op for op in self.ops if op.name == "tensor.call" for r in op.results}
        self.readers: dict[Value, list[Op]] = {}
        for op in self.ops:
            for v in op.operands:
                self.readers.setdefault(v, []).append(op)

    def all(self) -> Iterator[ChainCandidate]:
        """Every legal candidate, by the call that ends it."""
        for op in self.ops:
            if self._free(op) and self.wanted(self._ops_above(op)):
                yield from self._ending_in(op)

    def _free(self, call: Op) -> bool:
        """Return whether the call may become part of a chain."""
        return kernel_of(call, self.kernels) is not None

    def _ops_above(self, last: Op) -> Counter[str]:
        """Names of the ops in all kernels that a chain which ends in this call could have."""
        calls, fresh = {id(last): last}, [last]
        while fresh:
            producers = [self.producer.get(v) for v in fresh.pop().operands]
            more = [p for p in producers if p is not None and id(p) not in calls and self._free(p)]
            calls.update((id(p), p) for p in more)
            fresh += more
        out: Counter[str] = Counter()
        for name, times in Counter(map(callee_of, calls.values())).items():
            if name not in self.names_of:
                self.names_of[name] = Counter(op.name for op in self.kernels[name].body.ops)
            for op, count in self.names_of[name].items():
                out[op] += times * count
        return out

    def _ending_in(self, last: Op) -> Iterator[ChainCandidate]:
        """Grow by the latest producer that only these calls read, as long as the result is a legal chain."""
        calls, refused = [last], set[int]()
        while len(calls) < MAX_KERNELS:
            producer = self._latest(calls, refused)
            if producer is None:
                return
            grown = sorted([*calls, producer], key=lambda op: self.position[id(op)])
            candidate, unfinished = self._candidate(grown)
            if candidate is None and len(calls) > 1 and not unfinished:
                refused.add(id(producer))
                continue
            calls = grown
            if candidate is not None:
                yield candidate
                if estimate_of(candidate.chosen) > HOPELESS * candidate.separate_s and not unfinished:
                    return

    def _latest(self, calls: Sequence[Op], refused: set[int]) -> Op | None:
        inside = set(map(id, calls))
        producers = [
            p
            for op in calls
            for v in op.operands
            if (p := self.producer.get(v)) is not None
            and id(p) not in inside | refused
            and self._free(p)
            and self._read_inside(p, inside, calls[-1])
        ]
        return max(producers, key=lambda op: self.position[id(op)], default=None)

    def _read_inside(self, producer: Op, inside: set[int], last: Op) -> bool:
        """Return whether nothing but these calls reads a producer's results.

        What follows the last of them may read small ones: statistics of lines that are saved.
        """
        largest = max(r.tensor.size for r in producer.results)
        for r in producer.results:
            outside = [x for x in self.readers.get(r, ()) if id(x) not in inside]
            if outside and r.tensor.size * SAVED_SHARE > largest:
                return False
            if any(self.position[id(x)] < self.position[id(last)] for x in outside):
                return False
        return True

    def _saved(self, calls: Sequence[Op]) -> set[Value]:
        """The results of all calls but the last that other ops read."""
        inside = set(map(id, calls))
        made = (r for op in calls[:-1] for r in op.results)
        return {r for r in made if any(id(x) not in inside for x in self.readers.get(r, ()))}

    def _with_marks(self, kernel: Func, arguments: Sequence[Value]) -> Func:
        """The kernel with the positions of its constant parameters, where these are asked for."""
        if not self.marked:
            return kernel
        return kernel.with_attrs(**{WEIGHTS: tuple(i for i, v in enumerate(arguments) if v in self.names)})

    def _array(self, v: Value) -> np.ndarray | None:
        """The data of a constant that the module holds."""
        name = self.names.get(v, "")
        return np.asarray(self.constants[name]) if name in self.constants else None

    def _candidate(self, calls: Sequence[Op]) -> tuple[ChainCandidate | None, bool]:
        """The calls as one kernel, where that is legal; whether it may be a part of one that is."""
        if reshapes_filled(calls, self.kernels):
            return None, False
        saved = self._saved(calls)
        outputs = {*calls[-1].results, *saved}
        name = f"{callee_of(calls[-1])}_chain"
        kernel, arguments, returned = merged(calls, self.kernels, outputs, name)
        kernel, arguments = with_computed_masks(kernel, arguments, self._array)
        kernel = self._with_marks(kernel, arguments)
        chosen, unfinished = self.choose(kernel), self.unfinished(kernel)
        if chosen is None or (saved and not self.saving(chosen)):
            return None, unfinished
        apart = (self._with_marks(self.kernels[callee_of(c)], c.operands) for c in calls)
        separate = sum(map(self.seconds, apart))
        return ChainCandidate(tuple(calls), chosen, tuple(arguments), tuple(returned), separate), unfinished
