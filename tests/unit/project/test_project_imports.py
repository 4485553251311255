"""The import table of the architecture: which folder may import which, and which files may touch a driver.

The rooms inside the top folders stand in `import_table.toml`, from the bottom up.
"""

import ast
import functools
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TABLE = tomllib.loads(Path(__file__).with_name("import_table.toml").read_text())

MAY_IMPORT = {
    "ir": set(),
    "costmodel": {"ir"},
    "passes": {"ir", "costmodel"},
    "codegen": {"ir"},
    "runtime": set(),
    "frontends": {"ir"},
    "compiler": {"ir", "costmodel", "passes", "codegen", "runtime", "frontends"},
    "tools": {"ir", "costmodel", "passes", "codegen", "runtime", "frontends", "compiler"},
}
#: `python -m tilewright` is the command line, which stands above the compiler
ENTRY_POINTS = {"compiler/__main__.py": "tools"}
#: errors, what the machine has and the recipes of tensor maps stand in the runtime, at the very bottom; the
#: IR takes them from there for all above it
TAKEN_FROM_THE_RUNTIME = {
    ("ir/errors.py", "tilewright.runtime.errors"),
    ("ir/machine.py", "tilewright.runtime.machine"),
    ("ir/thread/tensor_maps.py", "tilewright.runtime.plan.tensor_map"),
}
FILES_THAT_MAY_IMPORT = {
    # The recorder of the process replay puts a module that builds nothing in the place of NVRTC.
    "cuda": {"codegen/builders/nvrtc.py", "runtime/cuda/device.py", "tools/process_replay/recorder.py"},
}


@functools.cache
def imported_names(source: str, path: str) -> tuple[tuple[int, str], ...]:
    """Line and full dotted name of everything `source` imports, wherever in the file it does so."""
    found = []
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return tuple(found)


def folder_of(name: str) -> str:
    """The folder a dotted name below `tilewright` comes from; its own modules lie in `compiler`."""
    part = name.split(".")[1:2]
    return part[0] if part and part[0] in MAY_IMPORT else "compiler"


def faults(path: str, source: str) -> list[str]:
    """One line for each import in the file `path` (relative to the root) that the tables do not allow."""
    folder = ENTRY_POINTS.get(path, path.split("/")[0])
    found = []
    for line, name in imported_names(source, path):
        top = name.split(".")[0]
        if top == "":
            found.append(f"{path}:{line}: relative import {name}")
        elif (path, name.rpartition(".")[0]) in TAKEN_FROM_THE_RUNTIME:
            continue
        elif top == "tilewright" and folder_of(name) not in MAY_IMPORT[folder] | {folder}:
            allowed = ", ".join(sorted(MAY_IMPORT[folder])) or "no other folder"
            found.append(f"{path}:{line}: {folder}/ may import {allowed}; this is {name}")
        elif path not in FILES_THAT_MAY_IMPORT.get(top, {path}):
            found.append(f"{path}:{line}: only {sorted(FILES_THAT_MAY_IMPORT[top])} may import {name}")
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_folder_keeps_to_the_import_table(folder):
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert not [fault for file in files for fault in faults(str(file.relative_to(ROOT)), file.read_text())]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ir/types.py", "from tilewright.passes import registry"),
        ("ir/types.py", "def late():\n    import tilewright.codegen.cuda"),
        ("ir/types.py", "from tilewright import compile"),
        ("ir/types.py", "from tilewright import frontends"),
        ("ir/types.py", "import tilewright"),
        ("ir/types.py", "from tilewright.runtime.errors import InputError"),
        ("ir/errors.py", "from tilewright.runtime.dtypes import DTYPES"),
        ("runtime/plan/execution_plan.py", "from tilewright.ir.errors import InputError"),
        ("codegen/emit.py", "from tilewright.costmodel import hardware"),
        ("frontends/relay/load.py", "from . import grammar"),
        ("passes/graph/fuse.py", "from cuda.bindings import driver"),
        ("compiler/compilation/lowering.py", "from tilewright.tools.cli import main"),
    ],
)
def test_a_wrong_import_is_found(path, source):
    assert len(faults(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("passes/lower/graph_to_tensor.py", "from tilewright.ir import Module"),
        ("tools/irdump/command.py", "import tilewright"),
        ("runtime/cuda/device.py", "from cuda.bindings import driver"),
        ("ir/errors.py", "from tilewright.runtime.errors import InputError"),
        ("runtime/null/device.py", "from tilewright.runtime.plan.execution_plan import ExecutionPlan"),
    ],
)
def test_a_right_import_passes(path, source):
    assert faults(path, source) == []


def module_of(path: str) -> str:
    """The dotted name of the module in a file; a folder's `__init__.py` is the folder's."""
    parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
    return ".".join(("tilewright", *parts[parts[0] == "compiler" :]))


def imported_modules(sources: dict[str, str]) -> dict[str, set[str]]:
    """By module name, the modules among `sources` (text by path) that its file imports anywhere in itself.

    `from folder import name` imports the module of that name where there is one, and else the folder's own
    file. What Python runs besides, the `__init__.py` of the folders above, is no import of the file.
    """
    modules = {module_of(path): path for path in sources}
    found = {}
    for module, path in modules.items():
        names = {name for _, name in imported_names(sources[path], path)}
        found[module] = {n if n in modules else n.rpartition(".")[0] for n in names} & set(modules) - {module}
    return found


def circles_of_files(imports: dict[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module (or room), by what each imports."""

    def reachable(start: str) -> set[str]:
        seen, left = set(), [start]
        while left:
            new = imports[left.pop()] - seen
            seen |= new
            left += new
        return seen

    reached = {module: reachable(module) for module in imports}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in imports
        if module in reached[module]
    }


@functools.cache
def all_sources() -> dict[str, str]:
    """The text of every file of the package by its path."""
    files = [file for folder in MAY_IMPORT for file in sorted((ROOT / folder).rglob("*.py"))]
    return {str(f.relative_to(ROOT)): f.read_text() for f in files}


def room_of(path: str) -> str:
    """The folder of a file; its `__init__.py`, which stands above its other files, is a room of its own."""
    return ENTRY_POINTS.get(path) or (path if path.endswith("/__init__.py") else path.rpartition("/")[0])


def imported_rooms(sources: dict[str, str]) -> dict[str, set[str]]:
    """By room, the other rooms that its files import."""
    rooms = {module_of(path): room_of(path) for path in sources}
    found: dict[str, set[str]] = {room: set() for room in rooms.values()}
    for module, imported in imported_modules(sources).items():
        found[rooms[module]] |= {rooms[m] for m in imported} - {rooms[module]}
    return found


def test_no_circle_of_files():
    found = circles_of_files(imported_modules(all_sources()))
    assert {tuple(sorted(c)) for c in found} == set()


def test_no_circle_of_folders():
    rooms = rooms_of_the_package()
    assert len(rooms) > 80
    assert {tuple(sorted(c)) for c in circles_of_files(rooms)} == set()


@functools.cache
def rooms_of_the_package() -> dict[str, set[str]]:
    """Return the rooms that every room of the package imports."""
    return imported_rooms(all_sources())


def rooms_below(folder: str) -> dict[str, list[str]]:
    """By room of a top folder, the other rooms of it that its files import, sorted; "." are its own files.

    What a room's `__init__.py` imports does not count, since it offers what lies below it; nor does importing
    the `__init__.py` of a room below, which registers what that room holds.
    """
    found = {}
    for room, imported in rooms_of_the_package().items():
        if room.split("/")[0] == folder and not room.endswith("/__init__.py"):
            others = {
                o.removesuffix("/__init__.py")
                for o in imported
                if not o.startswith(f"{room}/") or "." not in o
            }
            own = {o for o in others if o.split("/")[0] == folder} - {room}
            found[room] = sorted(o.removeprefix(folder).removeprefix("/") or "." for o in own)
    return {room.removeprefix(folder).removeprefix("/") or ".": others for room, others in found.items()}


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_rooms_import_what_the_table_says_and_no_more(folder):
    """An arrow that is new, or gone, is seen where it is drawn."""
    assert rooms_below(folder) == TABLE[folder]


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_the_table_names_rooms_from_the_bottom_up(folder):
    order = list(TABLE[folder])
    assert [
        (room, o) for i, room in enumerate(order) for o in TABLE[folder][room] if o not in order[:i]
    ] == []


#: how many files a folder may hold, but for those that hold one per subject of the kind named here
MOST_FILES = 16
ONE_PER_SUBJECT = {
    "ir": "notion that all levels share",
    "ir/graph_ops": "family of ops",
    "codegen/emit": "family of ops",
    "passes/lower/rules": "family of ops",
    "passes/graph/gradients/rules": "family of ops",
    "tools/arguments": "command",
}


def test_folders_are_no_heaps():
    files: dict[str, int] = {}
    for path in all_sources():
        if not path.endswith("/__init__.py"):
            files[path.rpartition("/")[0]] = files.get(path.rpartition("/")[0], 0) + 1
    assert {folder for folder, count in files.items() if count > MOST_FILES} == set(ONE_PER_SUBJECT), files


def test_a_circle_of_folders_is_found():
    sources = {
        "compiler/api.py": "from tilewright.running.load import load",
        "compiler/running/load.py": "def late():\n    from tilewright.ranks.world import x",
        "compiler/ranks/__init__.py": "from tilewright.ranks.world import x",
        "compiler/ranks/world.py": "from tilewright.levels import y",
        "compiler/levels.py": "",
        "compiler/__main__.py": "from tilewright.tools.cli import main",
        "tools/cli.py": "from tilewright.levels import y",
    }
    found = circles_of_files(imported_rooms(sources))
    assert found == {frozenset({"compiler", "compiler/running", "compiler/ranks"})}


@pytest.mark.parametrize(
    "back",
    [
        "from tilewright.ir.a import x",
        "from tilewright.ir import a",
        "def late():\n    import tilewright.ir.a",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tilewright.ir.a import X",
    ],
)
def test_a_circle_of_files_is_found(back):
    sources = {
        "ir/a.py": "from tilewright.ir.b import y",
        "ir/b.py": "from tilewright.levels import z",
        "compiler/levels.py": back,
        "ir/c.py": "import tilewright.ir.a",
    }
    found = circles_of_files(imported_modules(sources))
    assert found == {frozenset({"tilewright.ir.a", "tilewright.ir.b", "tilewright.levels"})}


def test_a_circle_through_a_folders_own_file_is_found():
    sources = {"ir/__init__.py": "from tilewright.ir.a import x", "ir/a.py": "from tilewright.ir import y"}
    assert circles_of_files(imported_modules(sources)) == {frozenset({"tilewright.ir", "tilewright.ir.a"})}
