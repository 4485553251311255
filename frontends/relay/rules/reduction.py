"""Relay operators that reduce over axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule
from tilewright.ir.errors import InputError
from tilewright.ir.graph_ops.operands import axes_of


def _axes(attrs: Attributes, rank: int) -> tuple[int, ...]:
    """The reduced axes: no list and an empty one mean all; `exclude` means all but those given."""
    given, exclude = attrs.integers("axis", None), attrs.flag("exclude", False)
    if given is None and exclude:
        raise InputError("expected axes to exclude, got none")
    axes = axes_of(given or range(rank), rank, "axis")
    if exclude and given:
        return tuple(d for d in range(rank) if d not in axes)
    return tuple(sorted(axes))


def _reduction(name: str, operands: int = 1, flag: str = "") -> Rule:
    def rule(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
        given = emit.tensors(args, operands)
        axes, keepdims = _axes(attrs, given[0].tensor.rank), attrs.flag("keepdims", False)
        extra = {flag: attrs.flag(flag, False)} if flag else {}
        return emit.value(name, *given, axis=axes, keepdims=keepdims, **extra)

    return rule


RULES: Mapping[str, Rule] = {
    **{name: _reduction(name) for name in ("sum", "mean", "max", "min", "prod", "all", "any")},
    "variance": _reduction("variance", 2, "unbiased"),
    "argmax": _reduction("argmax", 1, "select_last_index"),
    "argmin": _reduction("argmin", 1, "select_last_index"),
}
