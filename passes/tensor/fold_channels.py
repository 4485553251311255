"""Pass fold-channels: convolutions of images with few channels sum over a row of their window at once."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir import Builder, Expr, Func, Level, Op, Pairs, Sym, Value
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES, MMA_K_BYTES
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.index_sets import identity_read
from tilewright.passes.rewriting.names import unused
from tilewright.passes.tensor.layouts.cost import has_matrix_units, on_tensor_cores

#: bytes of one asynchronous copy
COPY_BYTES = ASYNC_COPY_BYTES[0]


@register_pass(Level.TENSOR)
def fold_channels(func: Func, ctx: PassContext) -> Func:
    """Let tensor-core convolutions of images with fewer channels than one copy holds read rows of taps.

    rewrite:  %y = tensor.contract(%x, %w, red = (c: 3, r: 7, s: 7),
                                   reads = [[n, c, 2 y + r - 3, 2 x + s - 3], [k, c, r, s]])
        -->   %i = rows of %x with 4 channels side by side, and zeros beside the image
              %y = tensor.contract(%i, %v, red = (r: 7, t: 32),
                                   reads = [[n, 2 y + r - 3, 8 x + t], [k, r, t]])

    A tap of three channels would fill a fifth of what tensor cores sum in one step, and its elements would be
    copied one by one; a row of taps lies in one run. The weights get the same order, zeros for what is added.
    """
    if not has_matrix_units(func, ctx) or any(op.name == "tensor.call" for op in func.body.ops):
        return func
    b = Builder()
    env: dict[Value, Value] = {}
    producers = {r: op for op in func.body.ops for r in op.results}
    for op in func.body.ops:
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        image = _image(fresh) if on_tensor_cores(fresh) else None
        if image is None:
            b.append(fresh)
            continue
        with b.at(op.loc):
            env[op.result] = _folded(b, fresh, image, producers.get(fresh.operands[0]))
    return func.with_body(func.body.with_ops(tuple(b.ops))) if env else func


@dataclass(frozen=True)
class _Image:
    """A convolution over [n, channel, row, column]: names of its dimensions, and how columns are read.

    A column is `step * x + s + first`; `width` channels are kept per column, `length` elements are summed per
    row of the window.
    """

    channel: str
    x: str
    s: str
    step: int
    first: int
    width: int
    length: int


def _image(op: Op) -> _Image | None:
    """The image that a two-dimensional convolution with few channels reads; None for any other op."""
    at, weights = reads(op)[0], reads(op)[1]
    par, red, size = dims(op, "par"), dims(op, "red"), itemsize(op.operands[0].tensor.dtype)
    if len(op.operands) != 2 or len(at) != 4 or len(weights) != 4 or len(red) != 3:
        return None
    if not all(isinstance(e, Sym) for e in weights) or fills(op)[1] is not None:
        return None
    channel = at[1].name if isinstance(at[1], Sym) and at[1].name in red else ""
    form = coefficients(at[3], list({**par, **red}), ranges_of(op))
    if not channel or form is None or not isinstance(form[1], int) or fills(op)[0] not in (None, 0.0):
        return None
    inner = [d for d in form[0] if d in red]
    outer = [d for d in form[0] if d in par]
    if len(inner) != 1 or len(outer) != 1 or form[0][inner[0]] != 1 or red[inner[0]] == 1:
        return None
    width = 4 if red[channel] <= 4 else 8
    if red[channel] * size >= COPY_BYTES or red[channel] > width or channel not in map(str, weights):
        return None
    step = MMA_K_BYTES // size
    length = -(-red[inner[0]] * width // step) * step
    return _Image(channel, outer[0], inner[0], form[0][outer[0]], form[1], width, length)


def _folded(b: Builder, op: Op, image: _Image, maker: Op | None) -> Value:
    rows = _rows_of(b, op, image, maker)
    taps = unused("t", domain(op))
    weights = _weights_of(b, op, image, taps)
    first, second = reads(op)[:2]
    column = Sym(image.x) * (image.step * image.width) + Sym(taps)
    red = {d: n for d, n in dims(op, "red").items() if d not in (image.channel, image.s)}
    new = op.with_attrs(
        red=Pairs.of({**red, taps: image.length}),
        reads=(
            (first[0], first[2], column),
            (*(e for e in second if str(e) not in (image.channel, image.s)), Sym(taps)),
        ),
    )
    (out,) = b.append(
        replace(new, operands=(rows, weights), results=(Value(op.result.type, op.result.hint),))
    )
    return out


def _rows_of(b: Builder, op: Op, image: _Image, maker: Op | None) -> Value:
    """The image as [n, row, column * width + channel], zero outside; a cast before it is made on the way."""
    x = op.operands[0]
    n, _, h, _ = x.tensor.shape
    length = image.step * image.width * (dims(op, "par")[image.x] - 1) + image.length
    u: Expr = Sym("u")
    column = u // image.width + image.first
    at = (Sym("n"), u % image.width, Sym("h"), column)
    source = maker.operands[0] if maker is not None and _casts(maker) else x
    return copied(b, source, {"n": n, "h": h, "u": length}, at, dtype=x.tensor.dtype, fill=0.0)


def _casts(op: Op) -> bool:
    """Return whether a map does nothing but change the dtype of every element."""
    if op.name != "tensor.map" or len(op.operands) != 1 or op.body is None or not identity_read(op, 0):
        return False
    return [o.name for o in op.body.ops] == ["scalar.cast", "scalar.yield"]


def _weights_of(b: Builder, op: Op, image: _Image, taps: str) -> Value:
    """The weights with channel and column of the window as one dimension, last; zero for what is added."""
    w, t = op.operands[1], Sym(taps)
    names = [str(e) for e in reads(op)[1]]
    par: dict[str, int] = {}
    place: list[Expr] = []
    for name, extent in zip(names, w.tensor.shape, strict=True):
        if name == image.channel:
            place.append(t % image.width)
        elif name == image.s:
            place.append(t // image.width)
        else:
            par[name] = extent
            place.append(Sym(name))
    return copied(b, w, {**par, taps: image.length}, place, fill=0.0)
