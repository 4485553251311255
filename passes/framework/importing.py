"""Python files and modules that a user names, imported so that they register their passes."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tilewright.ir.errors import InputError


def import_passes(names: Sequence[str]) -> None:
    """Import Python files or modules, which register their passes; raises InputError naming what failed."""
    for name in names:
        try:
            _import_file(Path(name)) if name.endswith(".py") else importlib.import_module(name)
        except Exception as e:  # foreign code: whatever it raises is reported as its fault
            raise InputError(f"cannot import '{name}': {type(e).__name__}: {e}") from e


def _import_file(path: Path) -> ModuleType:
    """The module of a file under a name of its own, so that files of one name do not clash."""
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = importlib.util.spec_from_file_location(f"pass_file_{path.stem}_{place}", path)
    if spec is None or spec.loader is None:
        raise ImportError("not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[spec.name]
        raise
    return module
