"""Data to train with: arrays of an .npz file, characters of a text, the digits of scikit-learn.

Which examples a step sees is a pure function of a seed and of the number of the step: a run that is resumed
continues exactly, and no place in the data is part of a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

import numpy as np

from tilewright.ir.bounded_file import read_bounded
from tilewright.ir.errors import InputError
from tilewright.ir.npz_file import ArrayHeader, NpzFile
from tilewright.ir.types import FLOATS, TensorType, storage_dtype
from tilewright.training.losses import Target

#: larger texts are refused unread
MAX_TEXT_BYTES = 1 << 30
#: the share of examples, or of a text, that is held out where nobody says what to hold out
HELD_OUT = 0.2
TEXT_HELD_OUT = 0.1
#: what the held-out arrays of an .npz file are called behind the names of the others
TEST = "_test"
#: seed of the division into training and held-out examples, which no option changes
_DIVISION_SEED = 0

Arrays = tuple[np.ndarray, ...]


class Source(Protocol):
    """Examples of which batches are made."""

    @property
    def count(self) -> int:
        """The number of examples that an epoch has."""
        ...

    def batch(self, step: int, size: int, seed: int) -> Arrays:
        """Inputs and target of step `step` (from 0): `size` examples."""
        ...

    def in_order(self, size: int) -> Iterator[tuple[Arrays, int]]:
        """All examples once, in batches of `size`, each with the number of its examples that count.

        The last batch is filled up with examples that were seen.
        """
        ...


@dataclass(frozen=True)
class Rows:
    """Arrays with one example per row of the first dimension: inputs, and the target behind them."""

    arrays: Arrays

    @property
    def count(self) -> int:
        return len(self.arrays[0])

    def batch(self, step: int, size: int, seed: int) -> Arrays:
        """Every epoch goes through the examples in an order of its own; what fills no batch is left out."""
        epoch, place = divmod(step, self.count // size)
        order = np.random.default_rng((seed, epoch)).permutation(self.count)
        rows = order[place * size : (place + 1) * size]
        return tuple(a[rows] for a in self.arrays)

    def in_order(self, size: int) -> Iterator[tuple[Arrays, int]]:
        for start in range(0, self.count, size):
            rows = np.arange(start, start + size)
            yield tuple(a[rows % self.count] for a in self.arrays), min(size, self.count - start)


@dataclass(frozen=True)
class Windows:
    """Runs of `length` characters of a text, each with the characters that follow as its target."""

    ids: np.ndarray
    length: int

    @property
    def count(self) -> int:
        return (len(self.ids) - 1) // self.length

    def _at(self, starts: np.ndarray) -> Arrays:
        places = starts[:, None] + np.arange(self.length)
        return self.ids[places], self.ids[places + 1]

    def batch(self, step: int, size: int, seed: int) -> Arrays:
        """Windows that begin anywhere, drawn for each step."""
        rng = np.random.default_rng((seed, step))
        return self._at(rng.integers(0, len(self.ids) - self.length, size))

    def in_order(self, size: int) -> Iterator[tuple[Arrays, int]]:
        """Windows one behind the other."""
        for start in range(0, self.count, size):
            numbers = np.arange(start, start + size) % self.count
            yield self._at(numbers * self.length), min(size, self.count - start)


@dataclass(frozen=True)
class Data:
    """Examples to train with and examples held out. symbols: of a text, its characters by their numbers."""

    name: str
    training: Source
    held_out: Source
    symbols: str = ""


def read_data(what: str, inputs: Mapping[str, TensorType], targets: Mapping[str, Target]) -> Data:
    """The data that `what` names, for a step with these inputs and targets, batches in the first dimension.

    digits: the images of scikit-learn, in [0, 1], of which a fifth is held out, class by class.
    text:PATH: the characters of a text; the network maps numbers of characters to logits of the next ones.
    npz:PATH: arrays by the names of inputs and target (`x` and `y` where there is one of each), and arrays
    with `_test` behind their names, or a fifth of the others, held out.
    Raises InputError for anything that does not fit, labels out of range included.
    """
    batches = {t.shape[0] if t.shape else 0 for t in (*inputs.values(), *(t.type for t in targets.values()))}
    if len(batches) != 1 or 0 in batches or len(targets) != 1:
        shapes = [f"{n} {t}" for n, t in (*inputs.items(), *((n, t.type) for n, t in targets.items()))]
        raise InputError(
            "expected a network whose inputs and one target have a batch as their first dimension, got "
            f"{', '.join(shapes)}"
        )
    kind, _, path = what.partition(":")
    if what == "digits":
        data = digits()
    elif kind in ("text", "npz") and path:
        data = read_text(path, inputs) if kind == "text" else read_arrays(path, inputs, targets)
    else:
        raise InputError(f"expected digits, text:PATH or npz:PATH as data, got '{what:.200}'")
    return fitted(data, inputs, targets)


def fitted(data: Data, inputs: Mapping[str, TensorType], targets: Mapping[str, Target]) -> Data:
    """The data in the shapes and types of a step; raises InputError where they do not fit."""
    (batch,) = {t.shape[0] for t in inputs.values()}
    names = [*inputs, *targets]
    types = [*inputs.values(), *(t.type for t in targets.values())]
    parts = []
    for source in (data.training, data.held_out):
        if isinstance(source, Windows):
            _check_windows(source, types, data)
            _check_labels(source.ids, next(iter(targets.values())), "characters", data.name)
        else:
            assert isinstance(source, Rows)
            if len(source.arrays) != len(types):
                raise InputError(
                    f"expected a network with {len(source.arrays) - 1} inputs, got one with {len(inputs)}",
                    where=data.name,
                )
            arrays = zip(names, source.arrays, types, strict=True)
            source = Rows(tuple(_like(n, a, t, data.name) for n, a, t in arrays))
            _check_labels(source.arrays[-1], next(iter(targets.values())), names[-1], data.name)
        parts.append(source)
    training, held_out = parts
    if training.count < batch:
        raise InputError(
            f"expected at least {batch} examples, which a batch has, got {training.count}", where=data.name
        )
    if not held_out.count:
        raise InputError("expected examples that are held out, got none", where=data.name)
    return Data(data.name, training, held_out, data.symbols)


# -- digits --------------------------------------------------------------------------------------------------
def digits() -> Data:
    """1797 images of 8 x 8 pixels that come with scikit-learn; raises InputError where that is missing."""
    try:
        load_digits = import_module("sklearn.datasets").load_digits
    except ImportError:
        raise InputError(
            "the digits come with scikit-learn: pip install 'tilewright[demo]', or give data of your own"
        ) from None
    images, labels = load_digits(return_X_y=True)
    x = np.asarray(images, np.float32).reshape(-1, 1, 8, 8) / 16
    return divided("digits", (x, np.asarray(labels, np.int32)))


def divided(name: str, arrays: Arrays) -> Data:
    """Rows of which a fifth is held out: of each label where the last array holds labels, else of all."""
    target = arrays[-1]
    labelled = target.ndim == 1 and np.issubdtype(target.dtype, np.integer)
    rng = np.random.default_rng(_DIVISION_SEED)
    order = rng.permutation(len(target))
    groups = [order[target[order] == label] for label in np.unique(target)] if labelled else [order]
    cuts = [round(HELD_OUT * len(g)) for g in groups]
    test = np.sort(np.concatenate([g[:n] for g, n in zip(groups, cuts, strict=True)]))
    train = np.sort(np.concatenate([g[n:] for g, n in zip(groups, cuts, strict=True)]))
    return Data(name, Rows(tuple(a[train] for a in arrays)), Rows(tuple(a[test] for a in arrays)))


# -- text ----------------------------------------------------------------------------------------------------
def read_text(path: str | Path, inputs: Mapping[str, TensorType]) -> Data:
    """The characters of a file in UTF-8, of which the last tenth is held out."""
    try:
        text = read_bounded(path, MAX_TEXT_BYTES, "text").decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError("expected a text in UTF-8", where=f"{path}, byte {error.start}") from None
    types = list(inputs.values())
    if len(types) != 1 or len(types[0].shape) != 2 or types[0].dtype in FLOATS:
        shown = ", ".join(f"{n} {t}" for n, t in inputs.items())
        raise InputError(
            f"expected a network of one input of integers [batch, sequence] for a text, got {shown}"
        )
    return characters(text, types[0].shape[1], str(path))


def characters(text: str, length: int, name: str) -> Data:
    """Windows of `length` characters, numbered in their order in Unicode; the last tenth is held out."""
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    found, ids = np.unique(codes, return_inverse=True)
    ids = ids.reshape(-1).astype(np.int32)
    cut = len(ids) - int(len(ids) * TEXT_HELD_OUT)
    symbols = "".join(map(chr, found.tolist()))
    return Data(name, Windows(ids[:cut], length), Windows(ids[cut:], length), symbols)


def _check_windows(source: Windows, types: Sequence[TensorType], data: Data) -> None:
    """Raise InputError where a text is too short for one window, or the target has another length."""
    least = source.length + 1
    if len(source.ids) < least:
        raise InputError(
            f"expected a text whose training and held-out parts have {least} characters or more, got "
            f"{len(source.ids)} in one",
            where=data.name,
        )
    if types[-1].shape != types[0].shape:
        raise InputError(
            f"expected a network that gives logits for each of {types[0].shape[1]} characters, its target is "
            f"{types[-1]}",
            where=data.name,
        )


# -- arrays --------------------------------------------------------------------------------------------------
def read_arrays(path: str | Path, inputs: Mapping[str, TensorType], targets: Mapping[str, Target]) -> Data:
    """The arrays of an .npz file; see `read_data`."""
    file = NpzFile(path)
    names = _names(file.headers, inputs, targets, str(path))
    tests = [f"{n}{TEST}" for n in names]
    absent = [n for n in tests if n not in file.headers]
    if 0 < len(absent) < len(tests):
        raise InputError(
            f"expected all held-out arrays or none, missing {', '.join(absent)}", where=str(path)
        )
    loaded = file.read(names if absent else [*names, *tests])
    training = _alike(names, loaded, str(path))
    if absent:
        return divided(str(path), training)
    return Data(str(path), Rows(training), Rows(_alike(tests, loaded, str(path))))


def _names(
    headers: Mapping[str, ArrayHeader],
    inputs: Mapping[str, TensorType],
    targets: Mapping[str, Target],
    where: str,
) -> list[str]:
    """The names of the arrays for inputs and targets: `x` and `y` stand for the only one of each."""
    out = []
    for group, short in ((inputs, "x"), (targets, "y")):
        for name in group:
            choices = [name, short] if len(group) == 1 else [name]
            known = [n for n in choices if n in headers]
            if not known:
                have = ", ".join(map(repr, list(headers)[:8])) or "none"
                raise InputError(
                    f"expected an array named {' or '.join(map(repr, choices))}, got {have}", where=where
                )
            out.append(known[0])
    return out


def _alike(names: Sequence[str], loaded: Mapping[str, np.ndarray], where: str) -> Arrays:
    """The arrays of these names, which have equally many rows."""
    arrays = tuple(loaded[n] for n in names)
    if any(a.ndim == 0 for a in arrays) or len({len(a) for a in arrays}) != 1:
        shapes = ", ".join(f"'{n}' {list(a.shape)}" for n, a in zip(names, arrays, strict=True))
        raise InputError(f"expected arrays with one row per example, got {shapes}", where=where)
    return arrays


# -- what a step takes ---------------------------------------------------------------------------------------
def _like(name: str, array: np.ndarray, t: TensorType, where: str) -> np.ndarray:
    """Rows in the shape and type that a step takes, where no value changes but by rounding of floats."""
    row, wanted = array.shape[1:], tuple(t.shape[1:])
    if row != wanted and int(np.prod(row)) != int(np.prod(wanted)):
        raise InputError(
            f"expected examples of shape {list(wanted)} for '{name}', got {list(row)}", where=where
        )
    dtype = storage_dtype(t.dtype)
    floats = np.issubdtype(array.dtype, np.floating)
    if floats and t.dtype not in FLOATS:
        raise InputError(f"expected {t.dtype} for '{name}', got {array.dtype}", where=where)
    if floats and not np.isfinite(array).all():
        raise InputError(f"expected finite numbers in '{name}', got others", where=where)
    cast = array.astype(dtype)
    if not floats and t.dtype not in FLOATS and not np.array_equal(cast, array):
        raise InputError(f"expected numbers of {t.dtype} in '{name}', got larger ones", where=where)
    return np.ascontiguousarray(cast).reshape(len(array), *wanted)


def _check_labels(values: np.ndarray, labels: Target, name: str, where: str) -> None:
    """Raise InputError for the first label that the loss does not know."""
    if labels.low is None or labels.high is None:
        return
    bad = (values < labels.low) | (values >= labels.high)
    if labels.ignored is not None:
        bad &= values != labels.ignored
    if bad.any():
        place = int(np.argmax(bad.reshape(-1)))
        got = int(values.reshape(-1)[place])
        number = place // max(1, int(np.prod(values.shape[1:])))
        raise InputError(
            f"expected {name} from {labels.low} to {labels.high - 1}, got {got} (example {number})",
            where=where,
        )
