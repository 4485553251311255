"""Planted faults: each is found in this tree; the tests of a small tree catch one and miss one."""

import json
import subprocess
from pathlib import Path

import pytest

from tilewright.ir import InputError
from tilewright.tools import planted_faults as planted
from tilewright.tools.planted_faults import PlantedFault, pytest_arguments, read_faults
from tilewright.tools.process_replay.snapshot import package_folders

ROOT = Path(__file__).parents[3]
FOLDERS = tuple(package_folders(ROOT).values())
SMALL = """
[[fault]]
name = "seen"
what = "A sum is a difference."
search = "a + b"
replace = "a - b"
tests = ["test_sums.py add"]

[[fault]]
name = "unseen"
what = "A product is a quotient."
search = "a * b"
replace = "a / b"
tests = ["test_sums.py add"]
"""


@pytest.mark.parametrize("fault", read_faults(), ids=lambda fault: fault.name)
def test_the_text_of_each_fault_is_there_once_and_its_tests_exist(fault):
    file = fault.file_in(ROOT, FOLDERS)
    assert fault.search != fault.replace
    compile(file.read_text().replace(fault.search, fault.replace), str(file), "exec")
    assert all(pytest_arguments(ROOT, tests) for tests in fault.tests)


def test_ten_kinds_are_planted():
    assert len(read_faults()) >= 10


@pytest.fixture
def tree(tmp_path, monkeypatch):
    folder = tmp_path / "tree"
    for name, text in {
        "pyproject.toml": '[tool.setuptools.package-dir]\n"tilewright" = "compiler"\n',
        "compiler/__init__.py": "def add(a, b):\n    return a + b\n\n\ndef times(a, b):\n    return a * b\n",
        "tests/test_sums.py": "from tilewright import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n",
        "faults.toml": SMALL,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    subprocess.run(["git", "-C", str(folder), "init", "-q"], check=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return folder


def test_what_is_caught_and_what_is_not(tree, capsys):
    assert planted.main(["--from", "faults.toml", "--json", "out.json"]) == 1
    out = capsys.readouterr().out
    assert "seen (compiler/__init__.py): 1 of 1 tests fail" in out
    assert "  test_sums.py::test_add\n" in out
    assert "  NOT CAUGHT\n" in out
    assert "1 of 2 faults are caught" in out
    assert [bool(row["failed"]) for row in json.loads((tree / "out.json").read_text())] == [True, False]


def test_tests_that_fail_anyway_catch_nothing(tree, capsys):
    file = tree / "tests" / "test_sums.py"
    file.write_text(file.read_text().replace("3", "4"))
    assert planted.main(["seen", "--from", "faults.toml"]) == 1
    assert "test_sums.py add fails without any fault" in capsys.readouterr().err


def test_bad_lists_and_arguments_are_told(tree, capsys):
    assert planted.main(["other", "--from", "faults.toml"]) == 2
    assert "expected a fault among seen, unseen, got 'other'" in capsys.readouterr().err
    (tree / "faults.toml").write_text(SMALL.replace("a * b", "no such text"))
    assert planted.main(["--from", "faults.toml"]) == 2
    assert "expected the searched text of unseen once, got it 0 times" in capsys.readouterr().err
    (tree / "faults.toml").write_text(SMALL.replace("unseen", "seen"))
    assert planted.main(["--from", "faults.toml"]) == 2
    assert planted.main(["--from", "none.toml"]) == 2
    (tree / "faults.toml").write_text(SMALL.replace("what", "why"))
    assert planted.main(["--list", "--from", "faults.toml"]) == 2
    assert "expected a fault with name, replace, search, tests, what" in capsys.readouterr().err


def test_a_planted_file_is_restored(tree):
    file = tree / "compiler" / "__init__.py"
    right = file.read_text()
    fault = PlantedFault("f", "", "a + b", "a - b", ())
    with fault.planted(tree, ["compiler"]):
        assert "a - b" in file.read_text()
    assert file.read_text() == right
    wrong = PlantedFault("f", "", "a + b", "a +", ())
    with pytest.raises(InputError, match=r"makes __init__\.py no Python"), wrong.planted(tree, ["compiler"]):
        pass
    assert file.read_text() == right
