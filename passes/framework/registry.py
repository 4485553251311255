"""All known passes by name: ours are found in the sub-packages, others by import or through entry points."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from tilewright.ir.errors import InputError
from tilewright.passes.framework.context import PassDef
from tilewright.passes.rewriting.names import did_you_mean

#: the entry-point group in which installed packages name a module (or an object of it) that registers passes
ENTRY_POINT_GROUP = "tilewright.passes"
_FOLDERS = ("graph", "lower", "tensor", "thread")
_PASSES: dict[str, PassDef[Any]] = {}
_loaded: set[str] = set()


def add_pass(definition: PassDef[Any]) -> None:
    """Make a pass known. A taken name is an error naming both modules, unless the same module is reloaded."""
    if not definition.own:
        load_own()  # a foreign pass takes no name of ours, whichever is loaded first
    other = _PASSES.get(definition.name)
    if other is not None and not _same_source(other, definition):
        raise InputError(
            f"pass '{definition.name}' is defined twice: by {other.place} and by {definition.place}"
        )
    _PASSES[definition.name] = definition


def _same_source(a: PassDef[Any], b: PassDef[Any]) -> bool:
    """A reloaded module defines its passes again; that replaces them."""
    return (a.origin, a.run.__qualname__, a.file) == (b.origin, b.run.__qualname__, b.file)


def find_pass(name: str) -> PassDef[Any]:
    """The pass of this name; raises InputError with a hint. Plugins are loaded when it is none of ours."""
    if name not in _PASSES or not _PASSES[name].own:
        load_own()
    if name not in _PASSES or not _PASSES[name].own:
        load_plugins()  # of two foreign passes of one name neither is taken silently
    if name in _PASSES:
        return _PASSES[name]
    raise InputError(f"unknown pass '{name}'{did_you_mean(name, _PASSES)}")


def pass_defs() -> tuple[PassDef[Any], ...]:
    """All passes by name, those of installed plugins included."""
    load_own()
    load_plugins()
    return tuple(_PASSES[name] for name in sorted(_PASSES))


def load_own() -> None:
    """Import every module below the folders of passes, once."""
    if "own" in _loaded:
        return
    for folder in _FOLDERS:
        package = importlib.import_module(f"tilewright.passes.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    _loaded.add("own")


def load_plugins() -> None:
    """Load every installed plugin, once; raises InputError naming the one that is broken."""
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        key = f"{entry.name} = {entry.value}"
        if key not in _loaded:
            _load_plugin(entry)
            _loaded.add(key)


def _load_plugin(entry: EntryPoint) -> None:
    distribution = f" of package {entry.dist.name}" if entry.dist is not None else ""
    try:
        entry.load()
    except Exception as e:  # a plugin is foreign code: whatever it raises is reported as its fault
        plugin = f"'{entry.name}' ({entry.value}){distribution}"
        raise InputError(f"cannot load the pass plugin {plugin}: {type(e).__name__}: {e}") from e


@contextmanager
def scoped_registry() -> Iterator[None]:
    """Forget what is registered inside (for tests and notebooks)."""
    load_own()
    passes, loaded = dict(_PASSES), set(_loaded)
    try:
        yield
    finally:
        _PASSES.clear()
        _PASSES.update(passes)
        _loaded.intersection_update(loaded)
