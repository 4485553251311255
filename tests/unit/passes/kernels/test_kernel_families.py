"""Kernel templates: each family registers its own, and no code outside of a family compares their names."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.costmodel import MapParameters, load_hardware
from tilewright.ir import InputError, equal, parse, show
from tilewright.passes import PassContext
from tilewright.passes.kernels import registry
from tilewright.passes.kernels.decision import DECISION, KernelDecision, undecided
from tilewright.passes.kernels.registry import (
    check_decisions,
    choices_in_order,
    chosen_template,
    decision_faults,
    is_generated,
    least_s,
    parameters_chosen,
    register_choices,
    register_template,
    template_of,
    templates,
)
from tilewright.passes.kernels.template import Choices
from tilewright.passes.tensor.parameters.choose_parameters import choose_parameters
from tilewright.tools.irdump.run import read_source_file

ROOT = Path(__file__).parents[4]
FOLDERS = ("passes", "compiler", "tools", "costmodel", "codegen", "ir", "runtime")
FAMILIES = ROOT / "passes" / "kernels"
#: names of templates that mean other things too, where no template is spoken of
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
        about = "skeleton" in words or "template" in words
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


def decision(attributes):
    return f", decision = kernel<{attributes}>"


def test_the_template_of_a_kernel():
    assert template_of(kernel("")) is None
    assert is_generated(kernel(""))
    assert chosen_template(kernel(decision('template: "map"'))).name == "map"
    assert not is_generated(kernel(decision('template: "library"')))


def test_an_unknown_template_is_named_with_its_place():
    with pytest.raises(InputError, match=r"text>:2:.*expected a template among attention, .*got 'maps'"):
        kernel(decision('template: "maps"'))
    with pytest.raises(InputError, match=r"@k: expected a kernel with a 'decision'"):
        chosen_template(kernel(""))
    with pytest.raises(InputError, match=r"expected a template among .*got 'maps'"):
        template_of(kernel("").with_attrs(decision=KernelDecision("maps", None)))


GOOD = "parameters: (threads: 8, vec: 4, items: 1)"
COST = 'cost: (estimate_s: 1e-06, bound_s: 1e-07, fraction_of_peak: 0.1, limit: "DRAM", considered: 3)'
POINT = 'template: "map", parameters: (threads: 8, vec: 4, items: 1), estimate_s: 2e-06, measured_s: 3e-06'


@pytest.mark.parametrize(
    "attributes",
    [
        GOOD,
        f"{GOOD}, {COST}",
        f"{GOOD}, cost: (estimate_s: 1)",
        f"{GOOD}, measured_s: 3e-06, candidates: [({POINT})]",
    ],
)
def test_a_decision_that_fits_is_printed_as_it_was_read(attributes):
    module = parse(KERNEL.replace("ATTRIBUTES", decision(f'template: "map", {attributes}')))
    assert f'kernel<template: "map", {attributes}>' in show(module)
    assert equal(parse(show(module)), module)
    assert list(decision_faults(module["k"])) == parameters_chosen(module) == []
    assert module["k"][DECISION].parameters == MapParameters(8, 4, 1)


@pytest.mark.parametrize(
    ("attributes", "fault"),
    [
        ("parameters: (threads: 8, vec: 4)", "expected 'items' in parameters of template 'map'"),
        (
            "parameters: (threads: 8, vec: 4, items: 1, stages: 2)",
            "expected threads, vec, items in parameters of template 'map', got 'stages'",
        ),
        (
            'parameters: (threads: "8", vec: 4, items: 1)',
            "expected threads in parameters of template 'map' to be an integer of at least 1, got '8'",
        ),
        (
            "parameters: (threads: 8, vec: 4, items: true)",
            "expected items in parameters of template 'map' to be an integer of at least 1, got True",
        ),
        (
            "parameters: 8",
            "expected parameters of template 'map' to be pairs with threads, vec, items, got 8",
        ),
        (f"{GOOD}, cost: (bound_s: 1e-7)", "expected 'estimate_s' in cost"),
        (f'{GOOD}, cost: (estimate_s: "1")', "expected estimate_s in cost to be a number, got '1'"),
        (f"{GOOD}, weights: 1", "expected template, parameters, cost, measured_s, candidates in a decision"),
    ],
)
def test_a_decision_that_does_not_fit_is_one_sentence_with_its_place(attributes, fault, tmp_path):
    text = KERNEL.replace("ATTRIBUTES", decision(f'template: "map", {attributes}'))
    with pytest.raises(InputError) as e:
        parse(text)
    assert str(e.value).startswith("<text>:2:")
    assert fault in str(e.value)
    (tmp_path / "k.ir").write_text(text)
    with pytest.raises(InputError, match=r"k\.ir:2:"):
        read_source_file(str(tmp_path / "k.ir"))


@pytest.mark.parametrize(
    ("parameters", "fault"),
    [
        (
            "block: (m: 16, n: 8), warps: (m: 1, n: 1)",
            "expected 'k' in block in parameters of template 'matrix'",
        ),
        (
            "block: (m: 16, n: 8, k: 8), warps: (m: 1, n: 0)",
            "n in warps .* to be an integer of at least 1, got 0",
        ),
        ("block: (m: 16, n: 8, k: 8), warps: (m: 1, n: 1)", "engine .* to be one of mma, wgmma, got 'simt'"),
    ],
)
def test_nested_parameters_are_checked(parameters, fault):
    rest = 'stages: 2, channel: "c", raster: 1, engine: "simt"'
    with pytest.raises(InputError, match=fault):
        kernel(decision(f'template: "matrix", parameters: ({parameters}, {rest})'))


def test_parameters_of_another_template_are_a_fault():
    odd = kernel("").with_attrs(decision=KernelDecision("scan", MapParameters(8, 4, 1)))
    module = parse(KERNEL.replace("ATTRIBUTES", "")).with_funcs((odd,))
    fault = "@k: expected ScanParameters of 'scan', got MapParameters"
    assert list(decision_faults(odd)) == parameters_chosen(module) == [fault]
    with pytest.raises(InputError, match=f"^file.ir: {fault}"):
        check_decisions(module, "file.ir")


def test_text_of_older_versions_is_read_as_a_decision():
    params = "(threads: 8, vec: 4, items: 1)"
    older = (
        f', weights = [0], skeleton = "map", params = {params}, cost = (estimate_s: 1e-06), '
        f"measured_s = 3e-06, candidates = [(params: {params}, estimate_s: 2e-06, measured_s: 3e-06)], "
        "prefetch = [1]"
    )
    newer = f'template: "map", {GOOD}, cost: (estimate_s: 1e-06), measured_s: 3e-06, candidates: [({POINT})]'
    assert kernel(older).attrs == kernel(f", weights = [0]{decision(newer)}, prefetch = [1]").attrs
    with pytest.raises(InputError, match=r"text>:2:.* expected 'vec' in parameters of template 'map'"):
        kernel(', skeleton = "map", params = (threads: 8)')


def test_keys_of_tuning_databases_are_those_of_older_versions():
    given = kernel(
        f", weights = [0]{decision(f'template: {chr(34)}map{chr(34)}, {GOOD}, {COST}')}, prefetch = [1]"
    )
    names = [name for name, _ in undecided(given).attrs]
    assert names == ["weights", "skeleton", "params", "cost", "prefetch"]
    assert [name for name, _ in undecided(kernel("")).attrs] == []
    assert [name for name, _ in undecided(kernel(""), network=True).attrs] == ["skeleton", "params", "cost"]


def test_a_new_family_is_asked_without_a_change_to_the_pass(monkeypatch):
    def choose(kernel, hardware):
        return kernel.with_attrs(decision=KernelDecision("map", MapParameters(1, 1, 1)))

    choices_in_order()
    monkeypatch.setattr(registry, "_CHOICES", dict(registry._CHOICES))
    register_choices(Choices("new", 5, choose, lambda kernel, hardware: 2.0))
    chosen = choose_parameters.run(kernel(""), PassContext("cuda:sm_90a"))
    assert chosen["decision"].parameters == MapParameters(1, 1, 1)
    assert least_s(kernel(""), load_hardware("cuda:sm_90a")) == 2.0


def test_families_that_refuse_are_passed_over():
    gpu = load_hardware("cuda:sm_90a")
    asked = [c.family for c in choices_in_order() if c.choose(kernel(""), gpu) is not None]
    assert asked == ["map"]
    assert choose_parameters.run(kernel(""), PassContext("cuda:sm_90a"))["decision"].template == "map"


def test_two_families_of_one_precedence_are_refused():
    first = choices_in_order()[0]
    with pytest.raises(InputError, match=f"families '{first.family}' and 'new' both have precedence"):
        register_choices(replace(first, family="new"))


def test_given_parameters_are_checked_where_nothing_is_chosen():
    given = kernel(decision(f'template: "map", {GOOD}'))
    assert choose_parameters.run(given, PassContext("cuda:sm_90a")) is given
    odd = kernel("").with_attrs(decision=KernelDecision("scan", MapParameters(8, 4, 1)))
    with pytest.raises(InputError, match=r"^@k: expected ScanParameters of 'scan'"):
        choose_parameters.run(odd, PassContext("cuda:sm_90a"))


def test_a_fresh_process_parses_decisions():
    text = KERNEL.replace("ATTRIBUTES", decision(f'template: "map", {GOOD}'))
    code = f"import tilewright as tw; print(tw.show(tw.parse({text!r})))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f'kernel<template: "map", {GOOD}>' in shown
