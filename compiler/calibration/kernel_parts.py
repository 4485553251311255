"""Parts that the thread-level functions of the micro-benchmarks share: parameters, loops, vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.ir import Attr, Block, Builder, Func, Level, TensorType, Value
from tilewright.ir.expr import Expr, Sym

TID, BLOCK = Sym("tid"), Sym("bid.x")
#: 32-bit elements of a 16-byte vector
VECTOR = 4


def array(name: str, extent: int, dtype: str = "f32") -> Value:
    """A one-dimensional parameter in global memory."""
    return Value(TensorType(dtype, (extent,)), name)


def kernel(name: str, b: Builder, params: Sequence[Value], *, blocks: int, threads: int) -> Func:
    """The function of the ops built so far, which writes its results to parameters."""
    b.do("thread.return")
    attrs = (("grid", (blocks, 1, 1)), ("block", threads))
    return Func(Level.THREAD, name, Block(tuple(params), tuple(b.ops)), (), attrs)


def repeat(
    b: Builder,
    var: str,
    extent: int,
    start: Sequence[Value],
    step: Callable[[Builder, tuple[Value, ...]], Sequence[Value]],
    *,
    unroll: int = 0,
) -> tuple[Value, ...]:
    """A loop that carries values: `step` builds one iteration and gives what the next one starts from."""
    inner = Builder()
    params = tuple(Value(v.type, "held") for v in start)
    inner.do("thread.yield", *step(inner, params))
    attrs: dict[str, Attr] = {"var": Sym(var), "extent": extent, "unroll": unroll}
    return b.emit(
        "thread.loop", start, attrs, types=[v.type for v in start], body=inner.block(params), hint="held"
    )


def zero_vector(b: Builder) -> Value:
    """Four zeros of f32."""
    return b.value("scalar.broadcast", b.const(0.0, "f32"), lanes=VECTOR)


def load_vector(b: Builder, buffer: Value, at: Expr) -> Value:
    """16 bytes of f32 from element `at` on, a multiple of four."""
    return b.value("thread.load", buffer, at=(at,), lanes=VECTOR)


def total(b: Builder, vectors: Sequence[Value]) -> Value:
    """The sum of all lanes of all vectors of four, vectors first."""
    whole = vectors[0]
    for v in vectors[1:]:
        whole = b.value("scalar.add", whole, v)
    lanes = [b.value("scalar.extract", whole, lane=i) for i in range(VECTOR)]
    out = lanes[0]
    for lane in lanes[1:]:
        out = b.value("scalar.add", out, lane)
    return out
