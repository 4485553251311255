"""Pass fold-channels: convolutions of images with few channels sum over a row of their window at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.ir import Builder, Expr, Func, Level, Op, Pairs, Sym, TensorType, Value
from tilewright.ir.expr import symbols
from tilewright.ir.hardware_facts import ASYNC_COPY_BYTES, MMA_K_BYTES
from tilewright.ir.simplify import coefficients
from tilewright.ir.tensor.ops import dims, domain, fills, ranges_of, reads
from tilewright.ir.types import itemsize
from tilewright.passes import PassContext, register_pass
from tilewright.passes.analysis.copies import copied
from tilewright.passes.analysis.index_sets import identity_read, sums_samples
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

    Their gradient sums the same rows over all windows, for all taps and channels of a row as one dimension.
    """
    if not has_matrix_units(func, ctx) or any(op.name == "tensor.call" for op in func.body.ops):
        return func
    b = Builder()
    env: dict[Value, Value] = {}
    producers = {r: op for op in func.body.ops for r in op.results}
    for op in func.body.ops:
        fresh = op.with_operands(tuple(env.get(v, v) for v in op.operands))
        image = _image(fresh) if on_tensor_cores(fresh) else None
        gradient = _gradient_image(fresh) if image is None and on_tensor_cores(fresh) else None
        if image is None and gradient is None:
            b.append(fresh)
            continue
        with b.at(op.loc):
            if image is not None:
                env[op.result] = _folded(b, fresh, image, producers.get(fresh.operands[0]))
            elif gradient is not None:
                env[op.result] = _folded_gradient(b, fresh, gradient, producers.get(fresh.operands[1]))
    return func.with_body(func.body.with_ops(tuple(b.ops))) if env else func


@dataclass(frozen=True)
class _Image:
    """A convolution over [n, channel, row, column]: names of its dimensions, and how columns are read.

    operand: which one the image is. A column is `step * x + s + first`; `width` channels are kept per column,
    `length` elements are summed (or, of a gradient, found) per row of the window.
    """

    channel: str
    x: str
    s: str
    step: int
    first: int
    width: int
    length: int
    operand: int = 0


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
    if channel not in map(str, weights):
        return None
    return _folding(form[0], form[1], channel, taps=red, windows=par, size=size, operand=0)


def _gradient_image(op: Op) -> _Image | None:
    """The image of few channels over whose windows a gradient by weights sums; None for any other op."""
    if len(op.operands) != 2 or not sums_samples(op) or fills(op)[0] is not None:
        return None
    cotangents, at = reads(op)[:2]
    par, red, size = dims(op, "par"), dims(op, "red"), itemsize(op.operands[1].tensor.dtype)
    if len(at) != 4 or fills(op)[1] not in (None, 0.0):
        return None
    if not isinstance(at[1], Sym) or at[1].name not in par:
        return None
    form = coefficients(at[3], list({**par, **red}), ranges_of(op))
    if form is None or not isinstance(form[1], int):
        return None
    image = _folding(form[0], form[1], at[1].name, taps=par, windows=red, size=size, operand=1)
    if image is None or {image.channel, image.s} & {
        d for e in (*cotangents, at[0], at[2]) for d in symbols(e)
    }:
        return None
    return image


def _folding(
    form: Mapping[str, int],
    first: int,
    channel: str,
    *,
    taps: Mapping[str, int],
    windows: Mapping[str, int],
    size: int,
    operand: int,
) -> _Image | None:
    """The image whose columns a form reads, if it has few channels and windows of several columns."""
    extents = {**taps, **windows}
    inner = [d for d in form if d in taps]
    outer = [d for d in form if d in windows]
    if len(inner) != 1 or len(outer) != 1 or form[inner[0]] != 1 or taps[inner[0]] == 1:
        return None
    width = 4 if extents[channel] <= 4 else 8
    if extents[channel] * size >= COPY_BYTES or extents[channel] > width:
        return None
    step = MMA_K_BYTES // size
    length = -(-taps[inner[0]] * width // step) * step
    return _Image(channel, outer[0], inner[0], form[outer[0]], first, width, length, operand)


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


def _folded_gradient(b: Builder, op: Op, image: _Image, maker: Op | None) -> Value:
    rows = _rows_of(b, op, image, maker)
    taps = unused("t", domain(op))
    par = dims(op, "par")
    kept = {d: n for d, n in par.items() if d not in (image.channel, image.s)}
    cotangents, at = reads(op)[:2]
    column = Sym(image.x) * (image.step * image.width) + Sym(taps)
    attrs = {
        **dict(op.attrs),
        "par": Pairs.of({**kept, taps: image.length}),
        "reads": (cotangents, (at[0], at[2], column)),
    }
    t = TensorType(op.result.tensor.dtype, (*kept.values(), image.length))
    (sums,) = b.emit(op.name, (op.operands[0], rows), attrs, types=[t], body=op.body)
    place = (*map(Sym, kept), Sym(image.s) * image.width + Sym(image.channel))
    return copied(b, sums, par, place)


def _rows_of(b: Builder, op: Op, image: _Image, maker: Op | None) -> Value:
    """The image as [n, row, column * width + channel], zero outside; a cast before it is made on the way."""
    x = op.operands[image.operand]
    n, _, h, _ = x.tensor.shape
    length = image.step * image.width * (domain(op)[image.x] - 1) + image.length
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
