"""Which inputs of an ONNX graph stay inputs, and of what static shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.tensors import DTYPES
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.types import TensorType, dtype_name

#: A shape by input name, or an extent by the name of a symbolic dimension.
Shapes = Mapping[str, Sequence[int] | int]


@dataclass(frozen=True, slots=True)
class Binding:
    """Inputs with their types, and inputs bound to arrays."""

    inputs: Mapping[str, TensorType]
    values: Mapping[str, np.ndarray]


def bind(model: syntax.Model, shapes: Shapes | None, values: Mapping[str, Any] | None) -> Binding:
    """Types of all graph inputs that have no value.

    Raises InputError for names and shapes that do not fit, and lists every input whose shape stays unknown;
    UnsupportedError lists every input that is no tensor of a type we have.
    """
    inputs = [i for i in model.graph.inputs if i.name not in model.graph.constants]
    given, arrays = dict(shapes or {}), {name: np.asarray(v) for name, v in (values or {}).items()}
    names = {i.name for i in inputs}
    symbols = {d for i in inputs for d in i.shape or () if isinstance(d, str)}
    where = model.file
    if unknown := sorted((given.keys() - names - symbols) | (arrays.keys() - names)):
        known = ", ".join(sorted(names | symbols)) or "none"
        raise InputError(
            f"expected shapes and values for inputs or symbolic dimensions of the model ({known}), "
            f"got {', '.join(unknown)}",
            where=where,
        )
    given |= {name: a.shape for name, a in arrays.items()}
    _refuse_foreign(inputs, where)
    extents = {name: _extent(name, n, where) for name, n in given.items() if name not in names}
    for i in inputs:
        if i.name in given:
            _unify(i, given[i.name], extents, where)
    types = {i.name: _static(i, given.get(i.name), extents) for i in inputs}
    if dynamic := [i for i in inputs if types[i.name] is None]:
        shown = ", ".join(f"{i.name} {_shown(i.shape)}" for i in dynamic)
        raise InputError(
            f"expected static shapes, got {shown}; give them as shapes={{'{dynamic[0].name}': (1, ...)}} "
            f"or --shape {dynamic[0].name}=1,...",
            where=where,
        )
    found = {name: t for name, t in types.items() if t is not None}
    for name, array in arrays.items():
        if dtype_name(array.dtype) != found[name].dtype:
            raise InputError(f"expected a value of {found[name]} for {name}, got {array.dtype}", where=where)
    return Binding({n: t for n, t in found.items() if n not in arrays}, arrays)


def _refuse_foreign(inputs: Sequence[syntax.Input], where: str) -> None:
    foreign = [f"{i.name} ({i.kind})" for i in inputs if i.kind != "tensor"]
    foreign += [f"{i.name} ({i.element})" for i in inputs if i.kind == "tensor" and i.element not in DTYPES]
    if foreign:
        raise UnsupportedError(
            f"expected inputs to be tensors of {', '.join(DTYPES)}, got {', '.join(foreign)}", where=where
        )


def _extent(symbol: str, given: Sequence[int] | int, where: str) -> int:
    """The extent of a symbolic dimension, which may come as a sequence of one."""
    extents = (given,) if isinstance(given, int) else tuple(given)
    if len(extents) != 1 or extents[0] < 0:
        raise InputError(f"expected one extent for the dimension '{symbol}', got {given}", where=where)
    return extents[0]


def _unify(i: syntax.Input, shape: Sequence[int] | int, extents: dict[str, int], where: str) -> None:
    """Takes over the extents that a given shape means for symbols; raises InputError on contradictions."""
    dims = tuple(shape) if not isinstance(shape, int) else ()
    fits = not isinstance(shape, int) and all(type(n) is int and n >= 0 for n in dims)
    if fits and i.shape is not None:
        fits = len(dims) == len(i.shape) and all(
            not isinstance(want, int) or want == got for want, got in zip(i.shape, dims, strict=True)
        )
    if not fits:
        raise InputError(
            f"expected a shape for {i.name} that fits {_shown(i.shape)}, got {shape}", where=where
        )
    for want, got in zip(i.shape or (), dims, strict=False):
        if isinstance(want, str) and extents.setdefault(want, got) != got:
            raise InputError(
                f"expected one extent of '{want}', got {extents[want]} and {got} (input {i.name})",
                where=where,
            )


def _static(
    i: syntax.Input, shape: Sequence[int] | int | None, extents: Mapping[str, int]
) -> TensorType | None:
    """The type of an input; None where its shape is not known."""
    dims: Sequence[int | str | None] | None = (
        i.shape if shape is None or isinstance(shape, int) else tuple(shape)
    )
    if dims is None:
        return None
    known = [extents.get(d) if isinstance(d, str) else d for d in dims]
    static = tuple(n for n in known if n is not None)
    return TensorType(DTYPES[i.element], static) if len(static) == len(known) else None


def _shown(shape: Sequence[int | str | None] | None) -> str:
    if shape is None:
        return "of unknown rank"
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"
