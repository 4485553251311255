"""New named constants of a module, with names that depend only on what they are made from."""

from __future__ import annotations

import hashlib

import numpy as np

from tilewright.ir.constants import Constants
from tilewright.ir.nodes import Op

MAX_NAME = 80


class ConstantPool:
    """Collects new constants beside those of a module; `constants` holds all of them."""

    def __init__(self, constants: Constants | None = None) -> None:
        self._given = constants if constants is not None else Constants()
        self._new: dict[str, np.ndarray] = {}

    @property
    def constants(self) -> Constants:
        """All constants; the given object when nothing was added."""
        return self._given.updated(self._new)

    def array(self, op: Op | None) -> np.ndarray | None:
        """The array behind a constant op; None for other ops and where only the name is known."""
        if op is None or not op.name.endswith(".constant"):
            return None
        name = str(op["name"])
        return self._new.get(name, self._given.get(name))

    def add(self, name: str, array: np.ndarray) -> str:
        """Name `array`: `name`, or `name.2`, `name.3`, ... where that is taken by another array."""
        if len(name) > MAX_NAME:
            name = f"{name[:40]}.{hashlib.sha256(name.encode()).hexdigest()[:12]}"
        candidate, count = name, 1
        while not self._free(candidate, array):
            count += 1
            candidate = f"{name}.{count}"
        if candidate not in self._given:
            self._new[candidate] = array
        return candidate

    def _free(self, name: str, array: np.ndarray) -> bool:
        other = self._new.get(name, self._given.get(name))
        return other is None or (
            other.dtype == array.dtype and other.shape == array.shape and other.tobytes() == array.tobytes()
        )
