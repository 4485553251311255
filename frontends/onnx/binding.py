"""Decides which inputs of an ONNX graph stay inputs, and of what static shape."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.frontends.onnx import syntax
from tilewright.frontends.onnx.tensors import DTYPES
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.types import TensorType, dtype_name, storage_dtype

#: A shape by input name, or an extent by the name of a symbolic dimension.
Shapes = Mapping[str, Sequence[int] | int]
#: A shape some of whose extents are symbols or unknown (None); None where not even the rank is known.
_Shape = tuple[int | str | None, ...] | None
#: What a batch is called: a word with `batch`, a usual letter, or a number that an exporter gave.
_BATCH = re.compile(r".*batch.*|[nb]|bs|(.*[._])?(unk|s|d|dim|sym|dynamicdimension)[._]*\d+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Binding:
    """Inputs with their types, inputs bound to arrays, and a sentence on the extents nobody gave, or none."""

    inputs: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray]
    assumed: str = ""


def bind(model: syntax.Model, shapes: Shapes | None, constants: Mapping[str, Any] | None) -> Binding:
    """Types of all graph inputs that have no value; a batch whose extent nobody gives is 1.

    Raises InputError for names, shapes and values that do not fit, and lists everything whose extent stays
    unknown with the option that gives it; UnsupportedError lists every input that is no tensor of a type we
    have.
    """
    inputs = [i for i in model.graph.inputs if i.name not in model.graph.constants]
    names = {i.name for i in inputs}
    symbols = {d for i in inputs for d in i.shape or () if isinstance(d, str)}
    where = model.file
    given = dict(shapes or {})
    if unknown := sorted((given.keys() - names - symbols) | ((constants or {}).keys() - names)):
        known = ", ".join(sorted(names | symbols)) or "none"
        raise InputError(
            f"expected shapes and constants for inputs or symbolic dimensions of the model ({known}), "
            f"got {', '.join(unknown)}",
            where=where,
        )
    _refuse_foreign(inputs, where)
    arrays = {
        i.name: _array(i, constants[i.name], where) for i in inputs if constants and i.name in constants
    }
    given |= {name: a.shape for name, a in arrays.items()}
    extents = {name: _extent(name, n, where) for name, n in given.items() if name not in names}
    for i in inputs:
        if i.name in given:
            _unify(i, given[i.name], extents, where)
    opened = {i.name: _opened(i, given.get(i.name), extents) for i in inputs}
    batches = _batches(opened.values())
    closed = {name: _closed(shape, batches) for name, shape in opened.items()}
    if asked := [i for i in inputs if _static(closed[i.name]) is None]:
        raise InputError(_asked(asked, closed), where=where)
    types = {i.name: TensorType(DTYPES[i.element], _static(closed[i.name]) or ()) for i in inputs}
    return Binding({n: t for n, t in types.items() if n not in arrays}, arrays, _assumed(opened, closed))


def _refuse_foreign(inputs: Sequence[syntax.Input], where: str) -> None:
    foreign = [f"{i.name} ({i.kind})" for i in inputs if i.kind != "tensor"]
    foreign += [f"{i.name} ({i.element})" for i in inputs if i.kind == "tensor" and i.element not in DTYPES]
    if foreign:
        raise UnsupportedError(
            f"expected inputs to be tensors of {', '.join(DTYPES)}, got {', '.join(foreign)}", where=where
        )


def _array(i: syntax.Input, value: Any, where: str) -> np.ndarray:
    """The array that an input is fixed to: of its element type, which must hold the value exactly.

    A single number or a list is taken in the shape that the model declares, where that has as many elements.
    """
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(None)
    if array.dtype.kind not in "biufV":
        raise InputError(
            f"expected a number or an array for the constant {i.name}, got {value!r}", where=where
        )
    dtype = storage_dtype(DTYPES[i.element])
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
        exact = dtype_name(array.dtype) == DTYPES[i.element] or (
            array.dtype.kind in "biuf" and np.array_equal(cast.astype(array.dtype), array, equal_nan=True)
        )
    # a decimal fraction is no exact value of a narrow float; it is the nearest one that is meant
    if not exact and not (array.dtype.kind == "f" and np.issubdtype(dtype, np.floating)):
        raise InputError(
            f"expected a value of {DTYPES[i.element]} for the constant {i.name}, got {value!r}", where=where
        )
    declared = i.shape if i.shape is not None and all(isinstance(n, int) for n in i.shape) else None
    static = tuple(n for n in declared or () if isinstance(n, int))
    plain = not isinstance(value, np.ndarray)
    return cast.reshape(static) if plain and declared is not None and cast.size == np.prod(static) else cast


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


def _opened(i: syntax.Input, shape: Sequence[int] | int | None, extents: Mapping[str, int]) -> _Shape:
    """The shape of an input with the extents that are given; None where not even the rank is known."""
    dims = i.shape if shape is None or isinstance(shape, int) else tuple(shape)
    if dims is None:
        return None
    return tuple(extents.get(d, d) if isinstance(d, str) else d for d in dims)


def _batches(shapes: Iterable[_Shape]) -> frozenset[str | None]:
    """The names of batches: symbols in front of an input that are called so, and None for no name."""
    front = {s[0] for s in shapes if s is not None and len(s) > 1}
    return frozenset(d for d in front if d is None or (isinstance(d, str) and _BATCH.fullmatch(d)))


def _closed(shape: _Shape, batches: frozenset[str | None]) -> _Shape:
    """The shape with 1 for the batch; an extent without a name is one only in front of others."""
    if shape is None:
        return None
    unnamed = frozenset({0}) if len(shape) > 1 else frozenset()
    return tuple(1 if d in batches and (d or at in unnamed) else d for at, d in enumerate(shape))


def _static(shape: _Shape) -> tuple[int, ...] | None:
    """The shape where all of it is known."""
    known = tuple(n for n in shape or () if isinstance(n, int))
    return known if shape is not None and len(known) == len(shape) else None


def _asked(inputs: Sequence[syntax.Input], shapes: Mapping[str, _Shape]) -> str:
    """One sentence that names inputs with open extents, and the options that give all of them."""
    options: dict[str, str] = {}
    for i in inputs:
        shape = shapes[i.name]
        if shape is None:
            options[i.name] = "...,"
        elif None in shape:
            options[i.name] = ",".join(str(n) if isinstance(n, int) else "..." for n in shape)
        else:
            options |= {d: "..." for d in shape if isinstance(d, str)}
    python = ", ".join(f"{name!r}: {f'({s})' if ',' in s else s}" for name, s in options.items())
    return (
        f"expected static shapes, got {', '.join(f'{i.name} {_shown(i.shape)}' for i in inputs)}; give "
        f"{' '.join(f'--shape {name}={s}' for name, s in options.items())} (in Python shapes={{{python}}})"
    )


def _assumed(opened: Mapping[str, _Shape], closed: Mapping[str, _Shape]) -> str:
    """A sentence that names the extents taken as 1 and the options that set them; empty without any."""
    options: dict[str, str] = {}
    for name, shape in opened.items():
        for d, n in zip(shape or (), closed[name] or (), strict=True):
            if d is None and d != n:
                rest = ",".join(map(str, (closed[name] or ())[1:]))
                options[f"the batch of {name}"] = f"--shape {name}=...,{rest}"
            elif d != n:
                options[f"'{d}'"] = f"--shape {d}=..."
    verb, last = ("is", "sets it") if len(options) == 1 else ("are", "set them")
    return (
        f"{' and '.join(options)} {verb} taken as 1; {' '.join(options.values())} {last}" if options else ""
    )


def _shown(shape: Sequence[int | str | None] | None) -> str:
    if shape is None:
        return "of unknown rank"
    return f"({', '.join('?' if d is None else str(d) for d in shape)})"
