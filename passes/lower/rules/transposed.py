"""Transposed convolution: a contraction per phase of the strides, over windows of the input as it is.

Along one dimension, result element `y = s * j + p - b` (stride s, phase p) sums x[i] * w[r] over
s * i + r = y + pad. With i = j + first + t that leaves r = p + pad - b - s * (first + t): every phase has its
own taps of the kernel, which are gathered first, and the windows over x are those of stride 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ir import Builder, Expr, Op, Sym, TensorType, Value
from tilewright.ir.graph_ops.layouts import Window
from tilewright.ir.graph_ops.operands import zero
from tilewright.ir.graph_ops.transposed_convolution import transposed_convolution_of
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.lowering import (
    accumulated,
    converted,
    dim_names,
    lowering,
    mapped,
    multiply_add,
    reduced,
    result_type,
)
from tilewright.passes.lower.rules.windowed import OUTPUTS, TAPS, letters_of, tap_dims
from tilewright.passes.lower.scalars import Scalar, Scalars


@dataclass(frozen=True)
class _Phases:
    """One spatial dimension: `count` results of stride `stride`, in `blocks` of one result per phase.

    The first `skipped` phases of the first block lie before the result. A block reads `taps` elements of x,
    the first of them `first` after its own number, `dilation` apart; tap t of phase p is kernel element
    `p + origin - stride * t` (none where that is outside).

    turned: half the stride where half a block would lie before the result. Blocks then begin with the result:
    their first half are the phases from `turned` on, and their second half, phases 0 to `turned`, reads one
    element further.

    live: how many phases have a tap at all, the first ones. The others are zero, and not multiplied.
    """

    count: int
    stride: int
    skipped: int
    first: int
    taps: int
    dilation: int
    origin: int
    live: int
    turned: int = 0

    @property
    def blocks(self) -> int:
        return -(-(self.count + self.skipped) // self.stride)

    @property
    def exact(self) -> bool:
        """The blocks hold the result and nothing else."""
        return self.skipped == 0 and self.count % self.stride == 0 and self.live == self.stride

    def begun(self) -> _Phases:
        """The same in blocks that begin with the result, where half a block lies before it."""
        if 2 * self.skipped != self.stride or self.count % self.stride or self.live < self.stride:
            return self
        return replace(self, skipped=0, turned=self.skipped)

    def image(self, block: Expr, phase: Expr, tap: Expr) -> Expr:
        """Which element of x a block's phase reads for a tap."""
        further = phase // self.turned if self.turned else 0
        return block + further + tap * self.dilation + self.first

    def kernel(self, phase: Expr, tap: Expr) -> Expr:
        """Which element of the kernel a phase multiplies for a tap."""
        return (phase + self.turned) % self.stride + self.origin - tap * self.stride


def _phases(w: Window, stride: int, pad: int) -> _Phases:
    """The phases of a dimension whose result `w` counts; skips phases where that saves taps."""
    if w.dilation > 1:  # of stride 1: the input has been spread
        return _Phases(w.count, 1, 0, -w.before, w.kernel, w.dilation, w.kernel - 1, 1)

    def skipping(skipped: int) -> _Phases:
        low = pad - skipped
        first, last = -((w.kernel - 1 - low) // stride), (low + stride - 1) // stride
        live = min(w.kernel, stride)
        return _Phases(w.count, stride, skipped, first, last - first + 1, 1, low - stride * first, live)

    if w.kernel < stride:  # behind those of the kernel, phases have no taps
        return skipping(pad % stride)
    return min((skipping(0), skipping(pad % stride).begun()), key=lambda p: p.taps)


@lowering("graph.conv1d_transpose", "graph.conv2d_transpose", "graph.conv3d_transpose")
def transposed_convolution(b: Builder, op: Op, x: Sequence[Value]) -> Sequence[Value]:
    """A contraction whose kernel has a dimension per phase; phases that were skipped are cut off."""
    attrs = op.attributes
    data, weight = x
    t = result_type(op)
    layout = attrs["data_layout"]
    letters = letters_of(layout)
    g = transposed_convolution_of(data.tensor, weight.tensor, attrs, len(letters))
    along: dict[str, _Phases] = {}
    steps: dict[str, int] = {}
    for d, w, stride, pad in zip(letters, g.windows, g.strides, attrs["padding"], strict=False):
        steps[d] = stride if w.dilation > 1 else 1
        along[d] = _phases(w, stride, pad)
    spread = _spread(b, data, layout, steps)
    par, block, phase = _domain(layout, accumulated(t), along)
    # Where every channel is on its own, windows have channels that no sum mixes.
    alone = attrs["groups"] > 1 and g.channels == 1
    red = tap_dims({d: p.taps for d, p in along.items()}, {} if alone else {"c": g.channels})
    ranges = {d: (0, n - 1) for d, n in (par | red).items()}
    channel: Expr = Sym("k") // g.filters * g.channels + (0 if alone else Sym("c"))
    image: dict[str, Expr] = {"N": Sym("n"), "C": channel}
    for d, p in along.items():
        image[d] = p.image(block[d], phase[d], Sym(TAPS[d]))
    kernel = [channel, *(phase[d] for d in letters), *(Sym(TAPS[d]) for d in letters)]
    kernel.append(Sym("k") % g.filters)
    reads = [tuple(simplify(e, ranges) for e in at) for at in ([image[d] for d in layout], kernel)]
    operands = [spread, _turned(b, weight, attrs["kernel_layout"], along)]
    whole = TensorType(accumulated(t).dtype, tuple(par.values()))
    fill = (zero(data.tensor.dtype), None)
    name = "tensor.window" if alone else "tensor.contract"
    sums = reduced(b, name, operands, whole, par, red, reads, multiply_add, fill=fill)
    sums = converted(b, sums, TensorType(t.dtype, whole.shape))
    return [sums if all(p.exact for p in along.values()) else _placed(b, sums, t, layout, along)]


def _domain(
    layout: str, result: TensorType, along: Mapping[str, _Phases]
) -> tuple[dict[str, int], dict[str, Expr], dict[str, Expr]]:
    """Parallel dimensions, and each spatial dimension's block and phase in terms of them.

    Where blocks hold nothing but the result, they are its own dimensions, divided.
    """
    par: dict[str, int] = {}
    block: dict[str, Expr] = {}
    phase: dict[str, Expr] = {}
    for d, n in zip(layout, result.shape, strict=True):
        if d not in along:
            par[{"N": "n", "C": "k"}[d]] = n
            continue
        name, stride = OUTPUTS[d], along[d].stride
        if along[d].exact:
            par[name] = n
            block[d], phase[d] = Sym(name) // stride, Sym(name) % stride
            continue
        par[name] = along[d].blocks
        block[d], phase[d] = Sym(name), 0
        if along[d].live > 1:
            par[f"{name}_phase"], phase[d] = along[d].live, Sym(f"{name}_phase")
    return par, block, phase


def _turned(b: Builder, weight: Value, layout: str, along: Mapping[str, _Phases]) -> Value:
    """The kernel as [I, phases.., taps.., O] in the order windows meet it; 0 where a phase lacks a tap."""
    extent = dict(zip(layout, weight.tensor.shape, strict=True))
    phases = {f"{OUTPUTS[d]}_phase": p.live for d, p in along.items()}
    taps = {TAPS[d]: p.taps for d, p in along.items()}
    par = {"i": extent["I"], **phases, **taps, "o": extent["O"]}
    at: dict[str, Expr] = {"I": Sym("i"), "O": Sym("o")}
    ranges = {d: (0, n - 1) for d, n in par.items()}
    for d, p in along.items():
        at[d] = simplify(p.kernel(Sym(f"{OUTPUTS[d]}_phase"), Sym(TAPS[d])), ranges)
    t = TensorType(weight.tensor.dtype, tuple(par.values()))
    outside = (zero(t.dtype),)
    return mapped(b, [weight], t, par, [tuple(at[d] for d in layout)], lambda i, v: v[0], outside)


def _placed(b: Builder, x: Value, result: TensorType, layout: str, along: Mapping[str, _Phases]) -> Value:
    """The result out of [.., blocks, phases, ..] of each dimension whose blocks hold less or more than it."""
    names = dim_names(result.rank)
    at: list[Expr] = []
    between: Expr = 0
    for d, name in zip(layout, names, strict=True):
        if d not in along or along[d].exact:
            at.append(Sym(name))
            continue
        p = along[d]
        place = Sym(name) + p.skipped
        at.append(place // p.stride)
        if p.live > 1:
            at.append(place % p.stride)  # outside of the phases that have taps is 0
        elif p.stride > 1:
            between += place % p.stride

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        return p[0] if between == 0 else (i.index(between) > 0).select(0, p[0])

    fewer = any(1 < p.live < p.stride for p in along.values())
    par = dict(zip(names, result.shape, strict=True))
    return mapped(b, [x], result, par, [tuple(at)], body, (zero(result.dtype) if fewer else None,))


def _spread(b: Builder, x: Value, layout: str, steps: Mapping[str, int]) -> Value:
    """`x` with `step - 1` zeros between neighbours along every spatial dimension."""
    if set(steps.values()) == {1}:
        return x
    t = x.tensor
    names = dim_names(t.rank)
    at: dict[str, Expr] = {d: Sym(n) for d, n in zip(layout, names, strict=True)}
    extent = dict(zip(layout, t.shape, strict=True))
    gap: Expr = 0
    for d, step in steps.items():
        gap += at[d] % step
        at[d] = at[d] // step
        extent[d] = (extent[d] - 1) * step + 1
    result = TensorType(t.dtype, tuple(extent[d] for d in layout))

    def body(i: Scalars, p: Sequence[Scalar]) -> Scalar:
        between = i.index(gap) > 0
        return between.select(0, p[0])

    par = dict(zip(names, result.shape, strict=True))
    return mapped(b, [x], result, par, [tuple(at[d] for d in layout)], body)
