"""Decides which parameters of @main stay inputs and which become constants, and checks every given array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.frontends.tvm import ast
from tilewright.frontends.weights.deferred import Deferred
from tilewright.frontends.weights.files import open_params
from tilewright.frontends.weights.random_weights import random_weight
from tilewright.ir.errors import InputError, UnsupportedError, expect
from tilewright.ir.npz_file import ArrayHeader, NpzFile
from tilewright.ir.types import TensorType, dtype_name, storage_dtype

#: What `load` takes as `params`: nothing, "random", a file, or arrays by name.
Params = None | str | Path | Mapping[str, np.ndarray]
#: An array, or what a file says of one that was not read yet.
Described = np.ndarray | ArrayHeader
#: Element types of token numbers and masks, which weights rarely have.
_INDEX_TYPES = ("int32", "int64", "bool")
#: Names that a message lists.
_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a parameter: the parameter itself, or a field of a tuple (`states.0`)."""

    name: str
    type: ast.Type | None
    span: ast.Span


@dataclass(frozen=True)
class Binding:
    """Types of the inputs and arrays of the constants, by leaf name, in parameter order.

    Random ones are drawn when they are read: what is wrong with a network is found before.
    """

    inputs: Mapping[str, TensorType]
    constants: Mapping[str, np.ndarray | Deferred]


def leaves_of(variable: ast.Var) -> Iterator[Leaf]:
    """The tensors a parameter consists of, in order."""
    todo: list[tuple[str, ast.Type | None]] = [(variable.name, variable.type)]
    while todo:
        name, kind = todo.pop()
        if isinstance(kind, ast.TupleType):
            todo.extend((f"{name}.{i}", kind.fields[i]) for i in reversed(range(len(kind.fields))))
        else:
            yield Leaf(name, kind, variable.span)


def bind(main: ast.Function, params: Params, inputs: Sequence[str] | None, seed: int, file: str) -> Binding:
    """Inputs and constants of `main`. Raises InputError naming every unknown, missing or wrong parameter."""
    leaves = [leaf for variable in main.params for leaf in leaves_of(variable)]
    if len({leaf.name for leaf in leaves}) != len(leaves):
        raise InputError("expected distinct parameter names, got one twice", where=file)
    named = None if inputs is None else _named_inputs(leaves, inputs, file)
    if isinstance(params, str) and params == "random":
        return _random(leaves, _first_and_integers(leaves) if named is None else named, seed, file)
    values = _arrays(params)
    arrays = values.headers if isinstance(values, NpzFile) else values
    if named is not None:
        input_names = named
    elif params is None:
        input_names = frozenset(leaf.name for leaf in leaves)
    else:
        input_names = _leading_inputs(main, arrays)
    _check_names(leaves, arrays, input_names, inputs, file)
    valued = [leaf for leaf in leaves if leaf.name in arrays and leaf.name not in input_names]
    faults = [fault for leaf in valued for fault in _mismatch(leaf, arrays[leaf.name])]
    if faults:
        raise InputError(f"expected parameters as @main declares them: {'; '.join(faults)}", where=file)
    names = [leaf.name for leaf in valued]
    bound = values.read(names) if isinstance(values, NpzFile) else {name: values[name] for name in names}
    return Binding(_input_types([leaf for leaf in leaves if leaf.name not in bound], file), bound)


def _named_inputs(leaves: Sequence[Leaf], inputs: Sequence[str], file: str) -> frozenset[str]:
    """The leaves of the parameters that the caller names; InputError for a name that @main has not."""
    names = (
        (inputs,) if isinstance(inputs, str) else tuple(expect(inputs, Iterable, "inputs as a list of names"))
    )
    known = {leaf.name: {leaf.name} for leaf in leaves}
    for leaf in leaves:
        known.setdefault(leaf.name.split(".")[0], set()).add(leaf.name)
    unknown = [name for name in names if name not in known]
    if unknown:
        have = ", ".join(leaf.name for leaf in leaves[:8]) + (", ..." if len(leaves) > 8 else "")
        raise InputError(
            f"expected inputs among the parameters of @main ({have}), got {', '.join(unknown)}", where=file
        )
    return frozenset().union(*(known[name] for name in names))


def _first_and_integers(leaves: Sequence[Leaf]) -> frozenset[str]:
    """The inputs of a network without given values: the first parameter and the integer ones."""
    return frozenset(leaf.name for i, leaf in enumerate(leaves) if i == 0 or _is_integer(leaf.type))


def _leading_inputs(main: ast.Function, arrays: Mapping[str, Described]) -> frozenset[str]:
    """The leaves of the first parameter, and of the indices right behind it, as far as none has a value.

    Any other parameter without a value is a weight that was forgotten: nobody can tell it from an input.
    """
    names: list[str] = []
    for number, variable in enumerate(main.params):
        leaves = list(leaves_of(variable))
        if any(leaf.name in arrays for leaf in leaves):
            break
        if number and not all(_is_index(leaf.type) for leaf in leaves):
            break
        names += [leaf.name for leaf in leaves]
    return frozenset(names)


def _is_index(kind: ast.Type | None) -> bool:
    return isinstance(kind, ast.TensorType) and kind.dtype in _INDEX_TYPES


def _is_integer(kind: ast.Type | None) -> bool:
    return isinstance(kind, ast.TensorType) and "int" in kind.dtype


def _random(leaves: Sequence[Leaf], input_names: frozenset[str], seed: int, file: str) -> Binding:
    types = _input_types(leaves, file)
    constants = {name: _drawn(name, t, seed) for name, t in types.items() if name not in input_names}
    return Binding({name: t for name, t in types.items() if name in input_names}, constants)


def _drawn(name: str, t: TensorType, seed: int) -> Deferred:
    dtype = storage_dtype(t.dtype)
    return Deferred(t.shape, dtype, lambda: random_weight(name, t.shape, dtype.name, seed))


def _arrays(params: Params) -> NpzFile | Mapping[str, np.ndarray]:
    if params is None:
        return {}
    if isinstance(params, str | Path):
        return open_params(params)
    if not isinstance(params, Mapping):
        kind = type(params).__name__
        raise InputError(f"expected params to be None, 'random', a path or a dict of arrays, got {kind}")
    return {str(name): np.asarray(value) for name, value in params.items()}


def _check_names(
    leaves: Sequence[Leaf],
    arrays: Mapping[str, Described],
    input_names: frozenset[str],
    inputs: Sequence[str] | None,
    file: str,
) -> None:
    declared = {leaf.name for leaf in leaves}
    extra = [name for name in arrays if name not in declared]
    missing = [leaf.name for leaf in leaves if leaf.name not in arrays and leaf.name not in input_names]
    faults = [f"@main has no parameter {_listed(extra)}"] if extra else []
    if missing:
        advice = "" if inputs is not None else " (name the inputs with --inputs or inputs=)"
        faults.append(f"no value is given for {_listed(missing)}{advice}")
    if faults:
        raise InputError(
            f"expected a value for each parameter that is no input: {'; '.join(faults)}", where=file
        )


def _listed(names: Sequence[str]) -> str:
    """The first names; a network may have a thousand."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def _mismatch(leaf: Leaf, array: Described) -> Iterator[str]:
    try:
        dtype = dtype_name(array.dtype)
    except InputError:
        yield f"'{leaf.name}' has dtype {array.dtype}"
        return
    if not isinstance(leaf.type, ast.TensorType):
        return
    fits = len(leaf.type.shape) == array.ndim and all(
        want is None or want == got for want, got in zip(leaf.type.shape, array.shape, strict=True)
    )
    if not fits or dtype != dtype_name(leaf.type.dtype):
        yield f"'{leaf.name}' is declared {leaf.type}, got {array.dtype}{list(array.shape)}"


def _input_types(leaves: Sequence[Leaf], file: str) -> dict[str, TensorType]:
    """Types of parameters without a value; UnsupportedError lists those that are not static tensors."""
    types: dict[str, TensorType] = {}
    faults: list[str] = []
    for leaf in leaves:
        kind = leaf.type
        if not isinstance(kind, ast.TensorType):
            faults.append(f"%{leaf.name}: {kind or 'no type'}")
        elif None in kind.shape:
            faults.append(f"%{leaf.name}: {kind}")
        else:
            types[leaf.name] = tensor_type(kind, leaf.span)
    if faults:
        raise UnsupportedError(
            f"expected parameters that are tensors of constant shape, got {', '.join(faults)}", where=file
        )
    return types


def tensor_type(kind: ast.TensorType, span: ast.Span) -> TensorType:
    """Our type for a static Relay tensor type; raises UnsupportedError for a dtype we do not have."""
    try:
        return TensorType(dtype_name(kind.dtype), tuple(d for d in kind.shape if d is not None))
    except InputError as error:
        raise UnsupportedError(str(error), where=str(span)) from None
