"""What importers of all formats share: calls, rules in tables, findings."""

from types import ModuleType

import pytest

from tilewright.frontends.importing.call import Call
from tilewright.frontends.importing.emitter import Emitter
from tilewright.frontends.importing.findings import Findings
from tilewright.frontends.importing.rules import axis, direct, entries, gathered, integer, text
from tilewright.ir import InputError, UnsupportedError
from tilewright.ir.nodes import Value
from tilewright.ir.types import TensorType

X = Value(TensorType("f32", (2, 3)), hint="x")


def test_a_direct_rule_reads_the_attributes_it_states():
    emit, call = Emitter(()), Call((X,), {"dim": -1, "repeats": 2})
    out = direct("repeat", repeats=integer(), axis=axis(name="dim"))(emit, call)
    call.finish()
    assert out.tensor.shape == (2, 6)
    assert emit.builder.ops[-1]["axis"] == 1


def test_an_attribute_nobody_reads_is_an_error():
    call = Call((X,), {"alpha": 1.0, "beta": 2.0})
    call.real("alpha")
    with pytest.raises(InputError, match="unknown attribute 'beta'"):
        call.finish()


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda call: call.integer("missing"), "expected attribute 'missing', got none"),
        (lambda call: call.integer("word"), "'word' to be an integer, got 'abc'"),
        (lambda call: call.choice("word", ("a", "b")), "expected word among a, b, got 'abc'"),
        (lambda call: entries(2)(call, "three"), "expected 2 entries in 'three', got 3"),
        (lambda call: text()(call, "three"), "'three' to be a string"),
        (lambda call: call.tensors(2), "expected 2 arguments, got 1"),
        (lambda call: call.fields(), "argument 0 to be a tuple of tensors"),
    ],
)
def test_errors_say_what_was_expected(read, said):
    with pytest.raises(InputError, match=said):
        read(Call((X,), {"word": "abc", "three": (1, 2, 3)}))


def test_two_rules_of_one_operator_are_refused(tmp_path, monkeypatch):
    folder = tmp_path / "doubled"
    folder.mkdir()
    for name in ("__init__", "first", "second"):
        (folder / f"{name}.py").write_text("" if name == "__init__" else 'RULES = {"relu": None}\n')
    monkeypatch.syspath_prepend(tmp_path)
    package = ModuleType("doubled")
    package.__path__ = [str(folder)]
    with pytest.raises(ValueError, match=r"operators with two rules: relu, again in doubled\.second"):
        gathered(package)


def test_findings_list_the_first_places():
    findings = Findings()
    for line in range(7):
        findings.add("operators", "foo", f"net:{line}")
    findings.add("operators", "bar", "net:9")
    with pytest.raises(UnsupportedError) as error:
        findings.check("net")
    assert str(error.value) == (
        "net: operators: bar (at net:9), foo (at net:0, net:1, net:2, net:3, net:4 and 2 more)"
    )
