"""`tilewright partition count|search`: what is printed, and one line for bad arguments."""

import json
import re
from pathlib import Path

import pytest

from tilewright.tools.cli import main

PAGE = (Path(__file__).parents[3] / "docs" / "partition.md").read_text(encoding="utf-8")


@pytest.fixture
def run(capsys):
    def call(line):
        try:
            code = main(["partition", *line.split()])
        except SystemExit as e:
            code = e.code
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_count_as_json(run):
    assert run("count --output 448 --devices 4 --threshold 5 --json") == (0, '{"count": 518805}\n', "")
    code, out, _ = run("count --output 8 --devices 3 --threshold 20 --speeds 1,3,1 --no-overlap --json")
    assert (code, json.loads(out)) == (0, {"count": 3})


def test_count_as_text(run):
    _, out, _ = run("count --output 9 --devices 3 --threshold 100/3")
    assert out == "32 partitions of 9 rows over 3 devices, with overlap\n"


@pytest.mark.parametrize(("method", "value"), [("exact", 114.5022), ("pruned", 115.0)])
def test_search_as_json(run, method, value):
    options = f"--next 3,1,1 --speeds 1,1,1,1 --method {method} --json"
    code, out, _ = run(f"search --output 448 --devices 4 --threshold 5 {options}")
    found = json.loads(out)
    assert code == 0
    assert list(found) == ["intervals", "objective"]
    assert found["objective"] == pytest.approx(value, abs=5e-5)
    assert (found["intervals"][0][0], found["intervals"][-1][1]) == (0, 448)


def test_search_as_text(run):
    _, out, _ = run("search --output 8 --devices 2 --threshold 20 --next 3,1,1 --method pruned")
    assert out.splitlines() == [
        "pruned search over 2 devices: objective 6, 3 partitions evaluated",
        "  device 0: rows [0, 4), 4 of 8",
        "  device 1: rows [4, 8), 4 of 8",
    ]


def test_speeds_and_weights_count(run):
    _, out, _ = run(
        "search --output 40 --devices 2 --threshold 10 --speeds 3,1 --no-overlap --weights 1,0,0,0 --json"
    )
    assert json.loads(out) == {"intervals": [[0, 30], [30, 40]], "objective": 10.0}


def test_memory_limits_rows(run):
    _, out, _ = run("search --output 40 --devices 2 --threshold 50 --no-overlap --max-rows 12,30 --json")
    assert json.loads(out)["intervals"] == [[0, 12], [12, 40]]
    assert run("count --output 40 --devices 2 --max-rows 19,19 --json")[1] == '{"count": 0}\n'


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("count --output 8 --devices 2 --max-rows 4", "--max-rows: expected 2 numbers"),
        ("count --output 0 --devices 2", "--output: expected an integer from 1"),
        ("count --output 8 --devices 0", "--devices: expected an integer from 1"),
        ("count --output 8 --devices 2 --threshold x", "--threshold: expected a number like 5 or 100/3"),
        ("count --output 8 --devices 2 --threshold -1", "expected a threshold of at least 0"),
        ("count --output 8 --devices 2 --speeds 1", "--speeds: expected 2 numbers separated by commas"),
        ("count --output 8 --devices 2 --speeds 1,0", "expected positive speeds, got 0.0 for device 1"),
        ("search --output 8 --devices 2 --next 3,1", "--next: expected kernel, stride and padding"),
        ("search --output 8 --devices 2 --next 3,0,1", "--next: expected kernel, stride and dilation"),
        ("search --output 8 --devices 2 --next 30,1,1", "--next: expected a padded input of at least"),
        ("search --output 3 --devices 9", "expected sizes and memory that allow 9 devices to share 3 rows"),
        ("search --output 8 --devices 2 --weights 0,1,1,1", "use the corrected objective"),
    ],
)
def test_bad_arguments_end_in_one_line(run, line, message):
    code, out, err = run(line)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert message in err


def test_unknown_methods_are_refused(run):
    assert run("search --output 8 --devices 2 --method best")[0] == 2
    assert run("")[0] == 2


def test_commands_of_the_page_print_what_it_says(run):
    found = re.findall(r"\$ tilewright partition (.*)\n(.*)", PAGE)
    assert len(found) == 2
    for line, printed in found:
        assert run(line) == (0, printed + "\n", "")


def test_code_of_the_page_runs():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "docs/partition.md", "exec"), {})
