"""The import table of the architecture: which folder may import which, and which files may touch a driver."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

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
#: rooms of the runtime, each of which may import those before it; devices know nothing of each other
RUNTIME = ("storage", "libraries", "plan", "arena", "streams", "communication", "interface")
DEVICES = ("cuda", "opencl", "emulator", "null")
#: importers, which know nothing of each other but that torch comes through Relax
FORMATS = ("relay", "relax", "onnx", "torch")
#: rooms that know nothing of others: what a pass needs to know of later ones, its context tells
APART = {
    **{f"runtime/{room}": (*RUNTIME[i + 1 :], *DEVICES) for i, room in enumerate(RUNTIME)},
    **{f"runtime/{device}": tuple(other for other in DEVICES if other != device) for device in DEVICES},
    "costmodel/hardware": ("kernels", "cluster", "partition"),
    "costmodel/kernels": ("cluster", "partition"),
    "costmodel/partition": ("cluster",),
    "costmodel/cluster/inputs": ("cluster.modes", "cluster.measured"),
    "costmodel/cluster/modes": ("cluster.measured",),
    "frontends/weights": ("importing", "tvm", *FORMATS, "zoo"),
    "frontends/importing": ("tvm", *FORMATS, "zoo"),
    "frontends/tvm": (*FORMATS, "zoo"),
    "frontends/zoo": ("tvm", *FORMATS),
    "frontends/relay": ("relax", "onnx", "torch", "zoo"),
    "frontends/relax": ("relay", "onnx", "torch", "zoo"),
    "frontends/onnx": ("tvm", "relay", "relax", "torch", "zoo"),
    "frontends/torch": ("relay", "onnx", "zoo"),
    "passes/framework": ("graph", "lower", "tensor", "thread", "kernels", "estimation"),
    "passes/analysis": ("graph", "lower", "tensor", "thread", "kernels", "estimation"),
    "passes/graph": ("lower", "tensor", "thread", "kernels", "estimation"),
    "passes/graph/distribute/sharding": tuple(
        f"graph.distribute.{room}" for room in ("pipeline", "rows", "space")
    ),
    "passes/graph/distribute/pipeline": ("graph.distribute.rows", "graph.distribute.space"),
    "passes/graph/distribute/rows": ("graph.distribute.pipeline", "graph.distribute.space"),
    "passes/kernels": ("graph", "lower", "tensor", "thread", "estimation"),
    "passes/lower": ("tensor", "thread", "estimation"),
    "passes/tensor": ("thread", "estimation"),
    "passes/thread": ("estimation",),
}
#: the errors stand in the runtime, at the very bottom; the IR takes them from there for all above it
ERRORS = ("ir/errors.py", "tilewright.runtime.errors")
FILES_THAT_MAY_IMPORT = {
    # The recorder of the process replay puts a module that builds nothing in the place of NVRTC.
    "cuda": {"codegen/builders/nvrtc.py", "runtime/cuda/device.py", "tools/process_replay/recorder.py"},
}


def imported_names(source: str, path: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything `source` imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source, path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


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
        elif (path, name.rpartition(".")[0]) == ERRORS:
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


@pytest.mark.parametrize("room", APART)
def test_rooms_import_no_later_ones(room):
    above = room.split("/")[0]
    others = tuple(f"tilewright.{above}.{other}." for other in APART[room])
    found = [
        f"{file.relative_to(ROOT)}:{line}: {name}"
        for file in sorted((ROOT / room).rglob("*.py"))
        for line, name in imported_names(file.read_text(), str(file))
        if f"{name}.".startswith(others)
    ]
    assert found == []


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


def modules_of_kernels():
    """The modules below passes/kernels by name, each with those of them that it imports."""
    files = sorted((ROOT / "passes" / "kernels").rglob("*.py"))
    names = {".".join(("tilewright", *f.relative_to(ROOT).with_suffix("").parts)): f for f in files}
    imported = {n: {i for _, i in imported_names(f.read_text(), str(f))} for n, f in names.items()}
    return {
        n: {m for i in found for m in (i, i.rpartition(".")[0]) if m in names}
        for n, found in imported.items()
    }


def circles(needs):
    """The names from which a circle can be reached; `needs` has those that each one needs."""
    left = {n: set(needed) for n, needed in needs.items()}
    while free := [n for n, needed in left.items() if not needed & set(left)]:
        for n in free:
            del left[n]
    return sorted(left)


def test_files_of_kernel_families_form_no_circle():
    modules = modules_of_kernels()
    assert modules
    assert circles(modules) == []


def test_folders_of_kernel_families_form_no_circle():
    """Files that lie in passes/kernels itself count as one folder more."""
    needs = {}
    for name, imported in modules_of_kernels().items():
        folder = name.rpartition(".")[0]
        needs.setdefault(folder, set()).update({i.rpartition(".")[0] for i in imported} - {folder})
    assert len(needs) > 2
    assert circles(needs) == []


def test_a_circle_is_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set(), "e": {"d"}}) == ["a", "b", "c"]


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
    rooms = imported_rooms(all_sources())
    assert len(rooms) > 80
    assert {tuple(sorted(c)) for c in circles_of_files(rooms)} == set()


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
