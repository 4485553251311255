"""The state of one kernel's emission, and the table of emitters: small functions of ops, which write to it.

The state: lines, names, values already in C, symbol ranges, helper functions. The table is open to third
parties and closed to duplicates.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tilewright.codegen.dialect import NARROW, Dialect
from tilewright.codegen.prelude.registry import Prelude
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.expr import BinOp, Expr, Sym
from tilewright.ir.nodes import Block, Func, Op, Value
from tilewright.ir.simplify import interval, multiple_of, simplify
from tilewright.ir.thread.shared_layout import swizzled_column
from tilewright.ir.types import ScalarType, TensorType

INT_MIN, INT_MAX = -(1 << 31), (1 << 31) - 1
#: what surrounds a subexpression: nothing or a comparison, the left and right of a sum, a product
_SUM, _SUM_RIGHT, _PRODUCT, _PRODUCT_RIGHT = 1, 2, 3, 4

Ranges = Mapping[str, tuple[int, int]]


class IndexText:
    """Renders simplified expressions; `symbol` names a symbol in C, `wide` is the 64-bit integer type.

    `need` asks for a helper function of the prelude and returns its name.
    """

    def __init__(self, symbol: Callable[[str], str], need: Callable[[str, str], str], wide: str) -> None:
        self.symbol, self.need, self.wide = symbol, need, wide

    def render(self, e: Expr, ranges: Ranges, precedence: int = 0) -> str:
        """C text of `e` within `ranges`, in `int` where every intermediate value fits, else in 64 bits."""
        e = simplify(e, ranges)
        wide = not _fits(e, ranges)
        return self._text(e, ranges, wide, precedence)

    def is_wide(self, e: Expr, ranges: Ranges) -> bool:
        """Return whether `render` needs 64-bit arithmetic for `e`."""
        return not _fits(simplify(e, ranges), ranges)

    def condition(self, mask: Sequence[Sequence[Expr]], ranges: Ranges) -> str | None:
        """C text that is true where the mask holds; None where it always holds, `0` where it never does."""
        terms: list[str] = []
        for e, low, high in mask:
            term = self._term(simplify(e, ranges), low, high, ranges)
            if term == "0":
                return "0"
            if term is not None and term not in terms:
                terms.append(term)
        return " && ".join(terms) if terms else None

    def _term(self, e: Expr, low: Expr, high: Expr, ranges: Ranges) -> str | None:
        above, below = (
            interval(simplify(e - low, ranges), ranges),
            interval(simplify(e - high, ranges), ranges),
        )
        if above[1] < 0 or below[0] >= 0:
            return "0"
        check_low, check_high = above[0] < 0, below[1] >= 0
        if check_low and check_high and low == 0 and isinstance(high, int) and not self.is_wide(e, ranges):
            return f"(unsigned int)({self.render(e, ranges)}) < {high}u"
        parts = []
        if check_low:
            parts.append(f"{self.render(e, ranges, _SUM)} >= {self.render(low, ranges, _SUM)}")
        if check_high:
            parts.append(f"{self.render(e, ranges, _SUM)} < {self.render(high, ranges, _SUM)}")
        return " && ".join(parts) if parts else None

    def _text(self, e: Expr, ranges: Ranges, wide: bool, precedence: int) -> str:
        if isinstance(e, int):
            text = str(e) if INT_MIN < e <= INT_MAX else f"(({self.wide}){e})"
            return text if e >= 0 or precedence == 0 else f"({text})"
        if isinstance(e, Sym):
            name = self.symbol(e.name)
            return f"({self.wide}){name}" if wide else name
        if e.op in ("min", "max"):
            sign = "<" if e.op == "min" else ">"
            a, b = (self._text(x, ranges, wide, _SUM) for x in (e.lhs, e.rhs))
            return f"({a} {sign} {b} ? {a} : {b})"
        if e.op in ("//", "%"):
            return self._divide(e, ranges, wide, precedence)
        p = _SUM if e.op in "+-" else _PRODUCT
        lhs = self._text(e.lhs, ranges, wide, p)
        text = f"{lhs} {e.op} {self._text(e.rhs, ranges, wide, p + 1)}"
        return f"({text})" if p < precedence else text

    def _divide(self, e: BinOp, ranges: Ranges, wide: bool, precedence: int) -> str:
        """C's `/` and `%` truncate: shift a possibly negative dividend by a multiple of the divisor."""
        low, _ = interval(e.lhs, ranges)
        if not isinstance(e.rhs, int) or low == float("-inf"):
            name = self.need("floordiv" if e.op == "//" else "floormod", "i64")
            a, b = (self._text(x, ranges, wide, 0) for x in (e.lhs, e.rhs))
            return f"{name}({a}, {b})"
        turns = 0 if low >= 0 else -(int(low) // e.rhs)
        shifted = simplify(e.lhs + turns * e.rhs, ranges) if turns else e.lhs
        text = f"{self._text(shifted, ranges, wide, _PRODUCT)} {'/' if e.op == '//' else '%'} {e.rhs}"
        if turns and e.op == "//":
            text = f"{text} - {turns}"
            return f"({text})" if precedence > _SUM else text
        # C's `a * b / c` associates to the left, so a quotient inside a product needs brackets.
        return f"({text})" if precedence >= _PRODUCT else text


def _fits(e: Expr, ranges: Ranges) -> bool:
    """Return whether every subexpression of `e`, as emitted, stays within 32 bits."""
    low, high = interval(e, ranges)
    if low < INT_MIN or high > INT_MAX:
        return False
    if not isinstance(e, BinOp):
        return True
    if e.op in ("//", "%") and isinstance(e.rhs, int):
        low, high = interval(e.lhs, ranges)
        turns = 0 if low >= 0 else -(low // e.rhs)
        if high + turns * e.rhs > INT_MAX:
            return False
    return _fits(e.lhs, ranges) and _fits(e.rhs, ranges)


_RESERVED = frozenset(
    re.findall(
        r"\w+",
        """
    auto break bool case char const continue default do double else enum extern false float for goto
    half if inline int kernel global local constant private long register restrict return short signed
    sizeof static struct switch true typedef union unsigned void volatile while uchar ushort uint ulong
    image asm min max abs exp log pow sin cos tan tanh sqrt erf erfc floor ceil round select mix step sign
    clamp dot cross length main template class this new delete operator public protected namespace using
    throw try catch and or not xor event_t size_t lane lane_row lane_pair tid bid_x bid_y bid_z
    threadIdx blockIdx NAN INFINITY
    """,
    )
)

#: a line that declares a name, unlike an assignment or a call
_DECLARES = re.compile(r"\w[\w ]* \w+(\[\d+\])*( =|;)")
#: characters that could end a comment's line or start something in it
_NOT_COMMENT = re.compile(r"[^ -~]|[?\\]")


@dataclass(frozen=True)
class EmittedValue:
    """A value as C text: one text (a scalar, or a native vector), or one per lane.

    constant: the number, where it is one. chunks: the same lanes as `(vector type, text)` memory words, so
    that a value that is only moved is not taken apart. limits: the least and the largest number that an index
    can be.
    """

    parts: tuple[str, ...]
    constant: float | int | bool | None = None
    chunks: tuple[tuple[str, str], ...] = ()
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class BufferRef:
    """A buffer as C text: `flat` ones are indexed by one offset, the others by dimension.

    swizzled: the 16-byte pieces of each row lie in the order that `swizzled_column` gives.
    """

    name: str
    type: TensorType
    flat: bool
    swizzled: bool = False


class Emission:
    """Collects the body of one kernel; emitters call its methods."""

    def __init__(self, func: Func, dialect: Dialect, grid: tuple[int, int, int], block: int) -> None:
        self.func, self.dialect, self.block_size = func, dialect, block
        self.lines: list[str] = []
        self.indent = 1
        self.taken: set[str] = set()
        #: by the beginning of a name the last number behind it up to which all are taken
        self.numbers: dict[str, int] = {}
        self.held: dict[Value, EmittedValue] = {}
        self.buffers: dict[Value, BufferRef] = {}
        #: declarations of parameters that exist only after the wait for other launches, and their values
        self.late_pointers: list[tuple[str, str]] = []
        #: names of the tensor maps that the kernel takes
        self.maps: list[str] = []
        #: statements that follow the wait for other launches
        self.after_wait: list[str] = []
        #: gives statements that follow an op, where a kernel is emitted with stamps of its phases
        self.behind: Callable[[Op], list[str]] | None = None
        self.loop_names: dict[str, str] = {}
        self.carried: list[tuple[EmittedValue, ...]] = []
        self.used_symbols: set[str] = set()
        self.prelude = Prelude(dialect)
        self.index = IndexText(self.symbol, self.need, dialect.wide)
        self.ranges: dict[str, tuple[int, int]] = {"tid": (0, block - 1)}
        self.ranges |= {f"bid.{axis}": (0, size - 1) for axis, size in zip("xyz", grid, strict=True)}
        #: the role being emitted, the C name of a warpgroup's number, and per channel the item being filled
        self.role: Op | None = None
        self.role_group = ""
        self.acquired: dict[Value, Expr] = {}
        self.origin = ""
        self.origins: dict[str, None] = {}

    # -- text ------------------------------------------------------------------------------------------------
    def line(self, text: str) -> None:
        """Append one statement at the current indentation."""
        self.lines.append("    " * self.indent + text)

    @contextmanager
    def braces(self, head: str) -> Iterator[None]:
        """A block in braces after `head` (maybe empty); names declared inside are free again after it."""
        start, outer, numbers = len(self.lines), set(self.taken), dict(self.numbers)
        self.line(f"{head} {{" if head else "{")
        self.indent += 1
        yield
        self.indent -= 1
        self.taken, self.numbers = outer, numbers
        inside = [text.strip() for text in self.lines[start + 1 :]]
        if not head and len(inside) == 1 and not _DECLARES.match(inside[0]):
            self.lines[start:] = ["    " * self.indent + inside[0]]
        else:
            self.line("}")

    def name(self, hint: str) -> str:
        """A fresh C identifier like `hint`."""
        plain = hint.isascii() and hint.isidentifier()
        base = hint if plain else re.sub(r"\W", "_", hint, flags=re.ASCII) or "v"
        if base[0].isdigit() or base.startswith(("tw_", "__")):
            base = "v" + base
        if base in _RESERVED or keyword.iskeyword(base):
            base += "_"
        unique, n = base, self.numbers.get(base, 1)
        while unique in self.taken:
            n += 1
            unique = f"{base}_{n}"
        self.numbers[base] = n
        self.taken.add(unique)
        return unique

    def need(self, function: str, dtype: str = "") -> str:
        """Name of a helper function for `dtype`, which the prelude will define."""
        return self.prelude.need(function, dtype)

    def symbol(self, name: str) -> str:
        """C name of an index symbol."""
        if name in self.loop_names:
            return self.loop_names[name]
        self.used_symbols.add(name)
        return name.replace(".", "_")

    # -- walking ---------------------------------------------------------------------------------------------
    def ops(self, block: Block) -> None:
        """Emit all ops of a block."""
        for op in block.ops:
            self.mark_origin(op.loc)
            emitter_of(op).emit(self, op)
            if self.behind is not None:
                self.lines += self.behind(op)

    def mark_origin(self, loc: str) -> None:
        """A comment wherever the origin of the statements changes."""
        if loc and loc != self.origin:
            self.origin = loc
            self.origins[loc] = None
            self.line("// " + _NOT_COMMENT.sub("_", loc))

    @contextmanager
    def known(self, ranges: dict[str, tuple[int, int]]) -> Iterator[None]:
        """Emit with narrower or additional symbol ranges."""
        before = self.ranges
        self.ranges = {**before, **ranges}
        yield
        self.ranges = before

    # -- values ----------------------------------------------------------------------------------------------
    def value(self, v: Value) -> EmittedValue:
        """A value emitted before; raises InputError where there is none."""
        held = self.held.get(v)
        if held is None:
            raise InputError(f"@{self.func.name}: a value is used that no op before defines")
        return held

    def scalar_type(self, v: Value) -> ScalarType:
        """The type of a value, known to be a scalar or short vector."""
        if not isinstance(v.type, ScalarType):
            raise InputError(f"@{self.func.name}: expected a scalar value, got one of type {v.type}")
        return v.type

    def lanes_of(self, v: Value, lanes: int) -> list[str]:
        """The texts of the single lanes of a value, broadcast to `lanes`."""
        held, have = self.value(v), self.scalar_type(v).lanes
        if have == 1:
            return [held.parts[0]] * lanes
        if not self.dialect.native_vectors:
            return list(held.parts)
        return [f"{held.parts[0]}.s{i:x}" for i in range(have)]

    def bind(self, v: Value, parts: Sequence[str], hint: str = "") -> None:
        """Declare a value: `parts` holds one text, or one per lane where vectors are not native."""
        t = self.scalar_type(v)
        name = self.name(v.hint or hint or "v")
        if len(parts) == 1:
            self.line(f"const {self.dialect.reg_type(t.dtype, t.lanes)} {name} = {parts[0]};")
            self.held[v] = EmittedValue((name,))
            return
        names = [self.name(f"{name}_{i}") for i in range(len(parts))]
        for n, text in zip(names, parts, strict=True):
            self.line(f"const {self.dialect.reg_type(t.dtype)} {n} = {text};")
        self.held[v] = EmittedValue(tuple(names))

    def bind_lanes(self, v: Value, lanes: Sequence[str], hint: str = "") -> None:
        """Declare a value from one text per lane, in either kind of dialect."""
        t = self.scalar_type(v)
        if t.lanes == 1 or not self.dialect.native_vectors:
            self.bind(v, lanes, hint)
        else:
            self.bind(v, [f"({self.dialect.reg_type(t.dtype, t.lanes)})({', '.join(lanes)})"], hint)

    # -- buffers ---------------------------------------------------------------------------------------------
    def buffer(self, v: Value) -> BufferRef:
        """A buffer declared before."""
        found = self.buffers.get(v)
        if found is None:
            raise InputError(f"@{self.func.name}: a buffer is used that no op before allocates")
        return found

    def offset(self, b: BufferRef, at: Sequence[Expr]) -> Expr:
        """The element offset of an access from the beginning of the buffer, simplified."""
        total: Expr = b.type.start
        for e, stride in zip(at, b.type.strides, strict=True):
            total = total + e * stride
        return simplify(total, self.ranges)

    def element(self, b: BufferRef, at: Sequence[Expr], plus: int = 0) -> str:
        """The lvalue of an element, `plus` elements after the access along the last dimension."""
        if b.flat:
            return f"{b.name}[{self.index.render(self.offset(b, at) + plus, self.ranges)}]"
        if not at:
            return f"{b.name}[0]"
        places = [*at[:-1], at[-1] + plus]
        if b.swizzled:
            places[-1] = simplify(swizzled_column(b.type, places[-2], places[-1]), self.ranges)
        return b.name + "".join(f"[{self.index.render(e, self.ranges)}]" for e in places)

    def alignment(self, b: BufferRef, at: Sequence[Expr], limit: int) -> int:
        """The largest power of two up to `limit` that divides the element offset of every execution."""
        known = multiple_of(self.offset(b, at), self.ranges)
        while limit > 1 and known % limit:
            limit //= 2
        return limit

    def condition(self, op: Op) -> str | None:
        """C text of the op's mask; None where it always holds."""
        return self.index.condition(op.get("mask", ()), self.ranges)  # type: ignore[arg-type]


def compute_dtype(dtype: str) -> str:
    """The dtype arithmetic on `dtype` happens in: f32 for floats of 16 and 8 bits."""
    return "f32" if dtype in NARROW else dtype


Emit = Callable[[Emission, Op], None]


@dataclass(frozen=True)
class Emitter:
    """The rule that writes one op as C; `writes` are the positions of the operands (buffers) it stores to."""

    op: str
    emit: Emit
    writes: tuple[int, ...] = ()


_EMITTERS: dict[str, Emitter] = {}


def emitter(*ops: str, writes: tuple[int, ...] = ()) -> Callable[[Emit], Emit]:
    """Register a function as the emitter of `ops`; a second one for an op raises ValueError naming both."""

    def register(emit: Emit) -> Emit:
        for op in ops:
            known = _EMITTERS.get(op)
            if known is not None:
                raise ValueError(f"op '{op}' has two emitters: {_origin(known.emit)} and {_origin(emit)}")
            _EMITTERS[op] = Emitter(op, emit, writes)
        return emit

    return register


def emitter_of(op: Op) -> Emitter:
    """The emitter of an op; raises UnsupportedError where there is none."""
    emitter_def = _EMITTERS.get(op.name)
    if emitter_def is None:
        raise UnsupportedError(f"no code can be generated for {op.name}", where=op.loc)
    return emitter_def


def emitted_ops() -> tuple[str, ...]:
    """Names of all ops that have an emitter, sorted."""
    return tuple(sorted(_EMITTERS))


def _origin(emit: Emit) -> str:
    return f"{emit.__module__}.{emit.__qualname__}"
