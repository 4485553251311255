"""`tilewright streams`: what it prints, and one line for every bad file or policy."""

import json
import re
from pathlib import Path

import pytest

from tilewright.runtime.streams import NAMES
from tilewright.tools.cli import main

FORK = {"n": 4, "edges": [[0, 1], [0, 2], [1, 3], [2, 3], [0, 3]]}


@pytest.fixture
def run(tmp_path, capsys):
    def call(graph, *options):
        path = tmp_path / "graph.json"
        path.write_text(graph if isinstance(graph, str) else json.dumps(graph))
        code = main(["streams", str(path), *options])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_json_is_streams_and_syncs(run):
    code, out, _ = run(FORK, "--policy", "exact", "--json")
    assert code == 0
    assert json.loads(out) == {"streams": [[0, 1, 3], [2]], "syncs": [[0, 2], [2, 3]]} or json.loads(out) == {
        "streams": [[0, 2, 3], [1]],
        "syncs": [[0, 1], [1, 3]],
    }
    assert run(FORK, "--json")[1] == out
    assert run({**FORK, "edges": FORK["edges"][::-1]}, "--json")[1] == out


@pytest.mark.parametrize(
    ("policy", "streams"),
    [
        ("serial", 1),
        ("nimble", 2),
        ("nimble-code", 2),
        ("ios", 2),
        ("limited(1)", 1),
        ("limited(5)", 2),
        ("resource", 2),
        ("auto", 2),
    ],
)
def test_every_policy_has_a_name(run, policy, streams):
    code, out, _ = run(FORK, "--policy", policy, "--json")
    assert code == 0
    assert len(json.loads(out)["streams"]) == streams


def test_order_is_added_on_request(run):
    plan = json.loads(run(FORK, "--json", "--order")[1])
    assert sorted(plan["order"]) == [0, 1, 2, 3]


def test_costs_and_resources_count(run):
    full = {**FORK, "costs": [1, 2, 3, 4], "resources": [1, 1.0, 1, 1], "sync_cost": 0.5}
    assert len(json.loads(run(full, "--policy", "auto", "--json")[1])["streams"]) == 1
    assert "on one stream 10" in run(full)[1]


def test_text_names_streams_and_waits(run):
    code, out, _ = run(FORK)
    assert code == 0
    assert "4 nodes, 5 edges (4 without implied ones)" in out
    assert "policy exact: 2 streams, 2 synchronisations" in out
    assert "modelled time of a replay: 3, on one stream 4" in out
    assert "waits: none" in run({"n": 2, "edges": []})[1]
    assert "in all)" in run({"n": 40, "edges": [[v, v + 1] for v in range(39)]})[1]
    assert "auto (by the model: exact)" in run(FORK, "--policy", "auto")[1]


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("{", "not JSON"),
        ("[]", "expected an object"),
        ({"n": 2}, "misses 'edges'"),
        ({"n": 2, "edges": [], "weights": []}, "unknown key 'weights'"),
        ({"n": "2", "edges": []}, "n to be of type int"),
        ({"n": True, "edges": []}, "n to be of type int"),
        ({"n": 2.0, "edges": []}, "n to be of type int"),
        ({"n": -1, "edges": []}, "got -1"),
        ({"n": 2, "edges": {}}, "edges to be of type list"),
        ({"n": 2, "edges": [[0]]}, "edges[0]: expected two integers"),
        ({"n": 2, "edges": [[0, 1], [0, 1.0]]}, "edges[1]: expected two integers"),
        ({"n": 2, "edges": [[0, True]]}, "edges[0]: expected two integers"),
        ({"n": 2, "edges": [[0, 2]]}, "expected nodes from 0 to 1"),
        ({"n": 2, "edges": [[0, 1], [1, 0]]}, "without cycles"),
        ({"n": 1, "edges": [[0, 0]]}, "without cycles"),
        ({"n": 2, "edges": [], "costs": [1]}, "expected 2 numbers"),
        ({"n": 1, "edges": [], "costs": ["1"]}, "costs[0]: expected a number"),
        ({"n": 1, "edges": [], "costs": None}, "costs to be of type list"),
        ({"n": 1, "edges": [], "resources": [2]}, "a share from 0 to 1"),
        ({"n": 1, "edges": [], "sync_cost": []}, "sync_cost: expected a number"),
        ('{"n": 1, "edges": [], "costs": [1e999]}', "a finite number"),
        ('{"n": 1, "edges": [], "costs": [NaN]}', "not JSON"),
    ],
)
def test_bad_graphs_are_one_line_and_exit_code_2(run, graph, message):
    code, out, err = run(graph, "--json")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "graph.json" in err
    assert message in err


@pytest.mark.parametrize("policy", ["best", "limited(0)", "limited"])
def test_bad_policies_are_one_line_and_exit_code_2(run, policy):
    code, out, err = run(FORK, "--policy", policy)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--policy" in err
    assert "serial" in err


def test_a_missing_file_is_one_line_and_exit_code_2(tmp_path, capsys):
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "missing.json", binary, tmp_path):
        assert main(["streams", str(path), "--json"]) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_documentation_is_true(run):
    page = (Path(__file__).parents[4] / "docs" / "streams.md").read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for code in examples:
        exec(code, {})
    graph, printed = re.search(r"echo '(.*?)'.*?--json\n(.*?\n)", page, re.DOTALL).groups()
    assert run(graph, "--json")[1] == printed
    assert all(f"| `{name}`" in page for name in NAMES)
