"""A random graph under construction, evaluated op by op: its values are finite and of moderate size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.ir import Builder, Constants, Func, Level, Module, TensorType, Value, widened
from tilewright.ir.opdef import facts_of, op_def
from tilewright.ir.types import FLOATS, numpy_dtype

MAX_ELEMENTS = 8192
#: larger values make rounding errors that hide others, and overflow 16 bits
MAX_MAGNITUDE = {"f64": 1e4, "f32": 1e4, "bf16": 1e4, "f16": 1e3}
INTEGERS = ("i32", "i64", "u8", "i8")

T = TypeVar("T")


class Rejected(Exception):
    """A draw does not make a valid or a well-conditioned op; another draw may."""


@dataclass(frozen=True)
class DrawnValue:
    """A value with what the reference computes for it, in its own dtype and with every float as float64.

    exact: both are the same bits, whatever the order of operations; only such values may decide something.
    """

    value: Value
    native: np.ndarray
    wide: np.ndarray
    exact: bool

    @property
    def type(self) -> TensorType:
        return self.value.tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    @property
    def dtype(self) -> str:
        return self.type.dtype


class RandomGraph:
    """Random choices, and the graph made so far."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.builder = Builder()
        self.entries: list[DrawnValue] = []
        self.params: list[Value] = []
        self.inputs: list[np.ndarray] = []
        self.constants: dict[str, np.ndarray] = {}

    # -- choices -----------------------------------------------------------------------------------------
    def chance(self, p: float) -> bool:
        """True with probability `p`."""
        return bool(self.rng.random() < p)

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]."""
        return int(self.rng.integers(low, high + 1))

    def choose(self, options: Sequence[T]) -> T:
        """One of the options; Rejected where there are none."""
        if not options:
            raise Rejected("nothing to choose from")
        return options[self.integer(0, len(options) - 1)]

    def dtype(self, kinds: str = "float") -> str:
        """A dtype: mostly float32 for `float`; `number` adds integers, `any` booleans."""
        names, weights = ["f32", "f16", "bf16", "f64"], [0.76, 0.1, 0.06, 0.08]
        if kinds != "float" and self.chance(0.3):
            names, weights = [*INTEGERS, *(["bool"] if kinds == "any" else [])], []
        p = weights or [1 / len(names)] * len(names)
        return str(self.rng.choice(names, p=p))

    def shape(self, rank: int | None = None, most: int = 12) -> tuple[int, ...]:
        """A shape of small and odd extents, sometimes with a long one."""
        r = self.integer(0, 4) if rank is None else rank
        dims = [self.integer(1, most) for _ in range(r)]
        if dims and self.chance(0.15):
            dims[self.integer(0, r - 1)] = self.choose([1, 16, 33, 64, 130])
        while math.prod(dims) > MAX_ELEMENTS // 4:
            dims[int(np.argmax(dims))] //= 2
        return tuple(max(1, d) for d in dims)

    # -- values ------------------------------------------------------------------------------------------
    def fresh(self, shape: Sequence[int], dtype: str, low: float = -2.0, high: float = 2.0) -> DrawnValue:
        """An input or a constant with values in [low, high]."""
        shape = tuple(shape)
        if 0 in shape:
            raise Rejected("nothing to draw")
        if dtype in FLOATS:
            array = self.rng.uniform(low, high, shape).astype(numpy_dtype(dtype))
        elif dtype == "bool":
            array = self.rng.random(shape) < 0.5
        else:
            bottom = max(0, int(low)) if dtype == "u8" else int(low)
            array = self.rng.integers(bottom, max(int(high), bottom) + 1, shape).astype(numpy_dtype(dtype))
        return self.given(np.asarray(array), dtype, constant=self.chance(0.4))

    def given(self, array: np.ndarray, dtype: str, *, constant: bool) -> DrawnValue:
        """An input or a constant that holds `array`."""
        t = TensorType(dtype, array.shape)
        if constant:
            name = f"c{len(self.constants)}"
            self.constants[name] = array
            (value,) = self.builder.emit("graph.constant", (), {"name": name}, types=[t])
        else:
            value = Value(t, f"x{len(self.params)}")
            self.params.append(value)
            self.inputs.append(array)
        wide = array.astype(np.float64) if dtype in FLOATS else array
        entry = DrawnValue(value, array, wide, True)
        self.entries.append(entry)
        return entry

    def pick(
        self,
        kinds: str = "float",
        ranks: Sequence[int] = (0, 1, 2, 3, 4),
        *,
        exact: bool = False,
        test: Callable[[DrawnValue], bool] = lambda _: True,
    ) -> DrawnValue:
        """A value of one of `ranks`, most often an older one; kinds: float, integer, number, bool or any."""
        matches = [
            e
            for e in self.entries[-8:]
            if _is(e.dtype, kinds) and e.rank in ranks and (e.exact or not exact) and test(e)
        ]
        if matches and self.chance(0.85):
            return self.choose(matches)
        dtype = {"bool": "bool", "integer": self.choose(INTEGERS)}.get(kinds) or self.dtype(kinds)
        entry = self.fresh(self.shape(self.choose(ranks)), dtype)
        if not test(entry):
            raise Rejected("a fresh value does not pass the test")
        return entry

    def like(self, x: DrawnValue, low: float = -2.0, high: float = 2.0, *, exact: bool = False) -> DrawnValue:
        """A value of the dtype of `x` that broadcasts with it: an older one, or a fresh one."""
        fitting = [
            e
            for e in self.entries
            if e.dtype == x.dtype and (e.exact or not exact) and _fit(e.shape, x.shape)
        ]
        if (low, high) == (-2.0, 2.0) and fitting and self.chance(0.5):
            return self.choose(fitting)
        shape = [1 if self.chance(0.2) else n for n in x.shape]
        return self.fresh(shape[self.integer(0, len(shape)) if self.chance(0.4) else 0 :], x.dtype, low, high)

    # -- ops ---------------------------------------------------------------------------------------------
    def emit(self, name: str, *operands: DrawnValue, **attrs: Any) -> list[DrawnValue]:
        """Append `graph.name`; Rejected where a result is large, empty, infinite or ill-conditioned."""
        full = f"graph.{name}"
        before = len(self.builder.ops)
        values = self.builder.emit(full, [o.value for o in operands], attrs)
        op = self.builder.ops[-1]
        try:
            arrays = [self._evaluate(full, [o.wide if wide else o.native for o in operands], op.attrs, wide)
                      for wide in (False, True)]  # fmt: skip
            exact = facts_of(full).exact and all(o.exact for o in operands)
            made = []
            for v, n, w in zip(values, *arrays, strict=True):
                same = np.array_equal(n.astype(w.dtype), w)  # a bound or a filling may be rounded
                made.append(DrawnValue(v, n, w, v.tensor.dtype not in FLOATS or (exact and same)))
            for e in made:
                _check(e)
        except Rejected:
            del self.builder.ops[before:]
            raise
        self.entries += made
        return made

    def _evaluate(self, name: str, arrays: list[np.ndarray], attrs: Any, wide: bool) -> list[np.ndarray]:
        evaluate = op_def(name).evaluate
        assert evaluate is not None, name
        with widened(wide), np.errstate(all="ignore"):
            return [np.asarray(r) for r in evaluate(arrays, dict(attrs))]

    def module(self) -> Module:
        """The graph with all that nothing reads as results, and a few of the other values."""
        read = {v for op in self.builder.ops for v in op.operands}
        made = [r for op in self.builder.ops if op.name != "graph.constant" for r in op.results]
        results = [v for v in made if v not in read or self.chance(0.1)]
        self.builder.do("graph.return", *results)
        types = tuple(v.type for v in results)
        func = Func(Level.GRAPH, "main", self.builder.block(self.params), types)
        return Module("fuzz", (func,), constants=Constants(self.constants))


def _is(dtype: str, kinds: str) -> bool:
    return {
        "float": dtype in FLOATS,
        "integer": dtype in INTEGERS,
        "number": dtype != "bool",
        "bool": dtype == "bool",
        "any": True,
    }[kinds]


def _fit(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(x == y or 1 in (x, y) for x, y in zip(reversed(a), reversed(b), strict=False))


def _check(e: DrawnValue) -> None:
    if not 0 < e.native.size <= MAX_ELEMENTS:
        raise Rejected(f"{e.native.size} elements")
    if e.dtype not in FLOATS:
        if not np.array_equal(e.native, e.wide):
            raise Rejected("rounding decides a result")
        return
    native = e.native.astype(np.float64)
    limit = MAX_MAGNITUDE[e.dtype]
    if not (np.isfinite(native).all() and np.isfinite(e.wide).all() and np.abs(e.wide).max() <= limit):
        raise Rejected("values out of range")
    # an op that cancels or divides by nearly nothing shows in the gap between both precisions
    if np.abs(native - e.wide).max() > 0.05 * (np.abs(e.wide).max() + 1e-3):
        raise Rejected("ill-conditioned")
