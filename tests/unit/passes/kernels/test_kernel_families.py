"""Kernel templates: each family registers its own, and no code outside of a family compares their names."""

import ast
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.costmodel import load_hardware
from tilewright.ir import InputError, Pairs, parse
from tilewright.passes import PassContext
from tilewright.passes.kernels import registry
from tilewright.passes.kernels.decision import check_decisions, decision_faults, parameters_chosen
from tilewright.passes.kernels.registry import (
    TEMPLATE,
    choices_in_order,
    chosen_template,
    is_generated,
    register_choices,
    register_template,
    template_of,
    templates,
)
from tilewright.passes.kernels.template import Choices
from tilewright.passes.tensor.choose_parameters import choose_parameters, least_s
from tilewright.tools.irdump.run import read_source_file

ROOT = Path(__file__).parents[4]
FOLDERS = ("passes", "compiler", "tools", "costmodel", "codegen", "ir", "runtime")
FAMILIES = ROOT / "passes" / "kernels"
#: names of templates that mean other things too, where no skeleton is spoken of
AMBIGUOUS = {"attention", "chain", "contract", "library", "map", "rows", "scan", "scatter", "window"}
NAMES = {t.name for t in templates()}

KERNEL = """module @m {
  tensor.func @k(%x: f32[8]ATTRIBUTES) -> f32[8] {
    %y = tensor.map(%x, par = (i: 8), reads = [[i]]) : f32[8] {
      ^(%v: f32)
      %e = scalar.exp(%v) : f32
      scalar.yield(%e)
    }
    tensor.return(%y)
  }
}
"""


def kernel(attributes):
    return parse(KERNEL.replace("ATTRIBUTES", attributes))["k"]


def faults(path: str, source: str) -> Iterator[str]:
    """One line for each place of a file that decides by the name of a template."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Compare):
            parts = (node.left, *node.comparators)
        elif isinstance(node, ast.Dict):
            parts = tuple(k for k in node.keys if k is not None)
        elif isinstance(node, ast.Match):
            parts = (node.subject, *(case.pattern for case in node.cases))
        else:
            continue
        texts = {c.value for p in parts for c in ast.walk(p) if isinstance(c, ast.Constant)}
        words = " ".join(ast.unparse(p) for p in parts).lower()
        about = TEMPLATE in words or "template" in words
        keys = isinstance(node, ast.Dict)
        named = {t for t in texts if t in NAMES}
        if (
            (about and named and not keys)
            or named - AMBIGUOUS
            or (keys and len(named) > 1 and named == texts)
        ):
            yield f"{path}:{node.lineno}: {', '.join(sorted(named))}"


def test_no_code_outside_of_a_family_compares_its_name():
    files = [f for folder in FOLDERS for f in sorted((ROOT / folder).rglob("*.py"))]
    outside = [f for f in files if f.parent.parent != FAMILIES]
    assert len(outside) < len(files)
    assert [x for f in outside for x in faults(str(f.relative_to(ROOT)), f.read_text())] == []


@pytest.mark.parametrize(
    "source",
    [
        'kernel.get("skeleton") == "contract"',
        'kernel["skeleton"] not in ("contract", "attention")',
        'f.get("skeleton") != "library"',
        'name in ("rows_kept", "other")',
        'template.name == "map"',
        'LOWER = {"contract": 1, "matrix": 2}',
        'STEPS = {"map": 1, "window": 2}',
        'match skeleton:\n    case "contract":\n        pass',
    ],
)
def test_a_comparison_of_names_is_found(source):
    assert len(list(faults("x.py", source))) == 1


def test_every_family_registers_in_its_own_folder():
    folders = {p.parent.name for p in FAMILIES.glob("*/lowering.py")} | {"library"}
    assert {p.parent.name for p in FAMILIES.glob("*/template.py")} == folders
    assert len(NAMES) >= len(folders)


def test_a_name_is_registered_once():
    with pytest.raises(InputError, match="'map' is registered twice"):
        register_template(replace(templates()[0], name="map"))


def test_the_template_of_a_kernel():
    assert template_of(kernel("")) is None
    assert is_generated(kernel(""))
    assert chosen_template(kernel(', skeleton = "map"')).name == "map"
    assert not is_generated(kernel(', skeleton = "library"'))


def test_an_unknown_template_is_named_with_its_kernel():
    with pytest.raises(InputError, match=r"@k: expected a skeleton among attention, .*got 'maps'"):
        template_of(kernel(', skeleton = "maps"'))
    with pytest.raises(InputError, match=r"expected a skeleton among .*got None"):
        chosen_template(kernel(""))


GOOD = "params = (threads: 8, vec: 4, items: 1)"
COST = 'cost = (estimate_s: 1e-6, bound_s: 1e-7, fraction_of_peak: 0.1, limit: "DRAM", considered: 3)'


@pytest.mark.parametrize("attributes", [GOOD, f"{GOOD}, {COST}", f"{GOOD}, cost = (estimate_s: 1)"])
def test_a_decision_that_fits_has_no_faults(attributes):
    assert list(decision_faults(kernel(f', skeleton = "map", {attributes}'))) == []


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ("params = (threads: 8, vec: 4)", "expected 'items' in params of skeleton 'map'"),
        (
            "params = (threads: 8, vec: 4, items: 1, stages: 2)",
            "expected threads, vec, items in params of skeleton 'map', got 'stages'",
        ),
        (
            'params = (threads: "8", vec: 4, items: 1)',
            "expected threads in params of skeleton 'map' to be an integer of at least 1, got '8'",
        ),
        (
            "params = (threads: 8, vec: 4, items: true)",
            "expected items in params of skeleton 'map' to be an integer of at least 1, got True",
        ),
        ("params = 8", "expected params of skeleton 'map' to be pairs with threads, vec, items, got 8"),
        (f"{GOOD}, cost = (bound_s: 1e-7)", "expected 'estimate_s' in cost"),
        (f'{GOOD}, cost = (estimate_s: "1")', "expected estimate_s in cost to be a number, got '1'"),
    ],
)
def test_a_decision_that_does_not_fit_is_one_sentence_with_the_kernel(attributes, fault):
    module = parse(KERNEL.replace("ATTRIBUTES", f', skeleton = "map", {attributes}'))
    assert list(decision_faults(module["k"])) == [f"@k: {fault}"]
    assert parameters_chosen(module) == [f"@k: {fault}"]
    with pytest.raises(InputError, match=f"^file.ir: @k: {fault.split(',')[0]}"):
        check_decisions(module, "file.ir")


def test_nested_parameters_are_checked():
    tiles = "block: (m: 16, n: 8), warps: (m: 1, n: 0)"
    params = f'params = ({tiles}, stages: 2, channel: "c", raster: 1, engine: "simt")'
    named = "params of skeleton 'matrix'"
    assert list(decision_faults(kernel(f', skeleton = "matrix", {params}'))) == [
        f"@k: expected 'k' in block in {named}",
        f"@k: expected n in warps in {named} to be an integer of at least 1, got 0",
        f"@k: expected engine in {named} to be one of mma, wgmma, got 'simt'",
    ]


def test_irdump_refuses_a_decision_that_does_not_fit(tmp_path):
    file = tmp_path / "k.ir"
    file.write_text(KERNEL.replace("ATTRIBUTES", ', skeleton = "rows", params = (threads: 8)'))
    with pytest.raises(
        InputError, match=r"k\.ir: @k: expected 'threads_per_row' in params of skeleton 'rows'"
    ):
        read_source_file(str(file))


def test_a_new_family_is_asked_without_a_change_to_the_pass(monkeypatch):
    def choose(kernel, hardware):
        return kernel.with_attrs(skeleton="map", params=Pairs.of({"threads": 1, "vec": 1, "items": 1}))

    choices_in_order()
    monkeypatch.setattr(registry, "_CHOICES", dict(registry._CHOICES))
    register_choices(Choices("new", 5, choose, lambda kernel, hardware: 2.0))
    chosen = choose_parameters.run(kernel(""), PassContext("cuda:sm_90a"))
    assert chosen["params"].as_dict() == {"threads": 1, "vec": 1, "items": 1}
    assert least_s(kernel(""), load_hardware("cuda:sm_90a")) == 2.0


def test_families_that_refuse_are_passed_over():
    gpu = load_hardware("cuda:sm_90a")
    asked = [c.family for c in choices_in_order() if c.choose(kernel(""), gpu) is not None]
    assert asked == ["map"]
    assert choose_parameters.run(kernel(""), PassContext("cuda:sm_90a"))["skeleton"] == "map"


def test_two_families_of_one_precedence_are_refused():
    first = choices_in_order()[0]
    with pytest.raises(InputError, match=f"families '{first.family}' and 'new' both have precedence"):
        register_choices(replace(first, family="new"))


def test_given_parameters_are_checked_where_nothing_is_chosen():
    given = kernel(f', skeleton = "map", {GOOD}')
    assert choose_parameters.run(given, PassContext("cuda:sm_90a")) is given
    with pytest.raises(InputError, match=r"^@k: expected 'vec' in params of skeleton 'map'"):
        choose_parameters.run(kernel(', skeleton = "map", params = (threads: 8)'), PassContext("cuda:sm_90a"))
