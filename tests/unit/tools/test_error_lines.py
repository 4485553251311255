"""Lines of errors: where a text ends, what a terminal would obey, names too long, half characters."""

import json
import warnings

import pytest

import tilewright as tw
from tilewright.frontends import relay
from tilewright.ir import InputError
from tilewright.tools.arguments.printing import MAX_CHARS, one_line, one_line_warnings
from tilewright.tools.cli import main
from tilewright.tools.irdump.command import main as irdump
from tilewright.tuning.database.database import TuningDatabase

RELAY = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) {'
IR = "module @m {\n  graph.func @main(%x: f32[2]) -> f32[2] {\n    graph.return(%x)\n  }\n}\n"


# -- places ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("", "1:1"),
        ("module @m {", "1:12"),
        ("module @m {\n  graph.func @main(%x: f32[2]) -> f32[2] {\n\n", "2:43"),
        (IR.rstrip()[:-1], "4:4"),
    ],
)
def test_the_end_of_ir_has_a_place(text, place):
    with pytest.raises(InputError, match=rf"^net\.ir:{place}: expected .* got the end of the text$"):
        tw.ir.parse(text, where="net.ir")


@pytest.mark.parametrize(("name", "text"), [("n.ir", IR), ("n", IR), ("n.relay", f"{RELAY} nn.relu(%x) }}")])
def test_a_byte_order_mark_is_skipped(tmp_path, capsys, name, text):
    (tmp_path / "plain").mkdir()
    (tmp_path / name).write_text("\ufeff" + text)
    (tmp_path / "plain" / name).write_text(text)
    printed = []
    for folder in (tmp_path, tmp_path / "plain"):
        assert irdump([str(folder / name), "--no-locations", "--target", "cuda:sm_90a"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def test_a_byte_order_mark_in_text():
    assert tw.ir.equal(tw.parse("\ufeff" + IR), tw.parse(IR))
    header = f"\ufeff# pipeline: cse\n{IR}"
    assert tw.parse(header).name == "m"


# -- control characters ----------------------------------------------------------------------------------
@pytest.mark.parametrize("odd", ["\x1b[31m", "\0", "\x07", "\u202e", "\x9b"])
@pytest.mark.parametrize("place", ["nn.{}relu(%x) }}", '"{}" }}', "%{} }}", "nn.relu(%x) }} # {}\n def"])
def test_control_characters_of_relay_stay_out_of_the_terminal(tmp_path, capsys, odd, place):
    path = tmp_path / "n.relay"
    path.write_text(f"{RELAY} {place.format(odd)}", encoding="utf-8")
    for command in (lambda: irdump([str(path)]), lambda: main(["run", str(path), "--target", "reference"])):
        assert command() == 2
        said = capsys.readouterr().err
        assert said.endswith("\n")
        assert said[:-1].isprintable()


def test_lines_escape_and_are_cut():
    assert one_line("a\n b\x1b[0m \ufeff\ud800 é") == r"a b\x1b[0m \ufeff\ud800 é"
    assert len(one_line("x" * 10 * MAX_CHARS)) == MAX_CHARS + len(" ... ")


def test_warnings_are_one_line_without_our_code(capsys):
    with one_line_warnings():
        warnings.warn("the cache\nis \x1b odd", RuntimeWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: the cache is \\x1b odd\n"


# -- names -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("suffix", [".relay", ".ir", ".onnx", ".json", ".tw", ".pt2", ""])
def test_file_names_that_are_too_long(suffix, capsys):
    assert main(["run", "x" * 5000 + suffix, "--target", "reference"]) == 2
    said = capsys.readouterr().err
    assert "internal fault" not in said
    assert len(said) < 5000
    assert irdump(["x" * 5000 + suffix]) == 2
    assert "internal fault" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["--params", "LONG.npz"],
        ["--input", "LONG.npz"],
        ["--output", "LONG.npz"],
    ],
)
def test_other_names_that_are_too_long(arguments, capsys, data_dir):
    given = [a.replace("LONG", "x" * 5000) for a in arguments]
    assert main(["run", str(data_dir / "relay" / "mlp.relay"), "--target", "reference", *given]) == 2
    assert "too long" in capsys.readouterr().err


@pytest.mark.parametrize("action", [["export", "out"], ["import", "in"]])
def test_a_database_whose_name_is_too_long(action, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with TuningDatabase.open("own") as db:
        db.export_lines("in")
    assert main(["db", *action, "--tuning-db", "x" * 5000]) == 2
    assert "too long" in capsys.readouterr().err


def test_a_name_that_only_its_weights_make_too_long(tmp_path):
    path = tmp_path / ("x" * 250 + ".ir")
    path.write_text(IR)
    assert tw.ir.parse_file(path).name == "m"


# -- half characters -------------------------------------------------------------------------------------
def test_half_a_character_in_a_name_of_json(data_dir, tmp_path, capsys):
    text = (data_dir / "relay" / "mlp.json").read_text()
    assert '"fc1_weight"' in text
    path = tmp_path / "net.json"
    path.write_text(text.replace('"fc1_weight"', '"fc1_\\ud800"'))
    for params in ([], ["--params", "random"]):
        assert main(["run", str(path), *params, "--target", "reference"]) == 2
        assert f"{path}: expected text, got '\\ud800', which is no character" in capsys.readouterr().err
    path.write_text(text.replace('"fc1_weight"', '"fc1_\\ud83d\\ude00"'))
    assert "fc1_\N{GRINNING FACE}" in relay.load(path, params="random").constants


def test_half_a_character_in_ir():
    with pytest.raises(InputError, match="expected a string with JSON escapes"):
        tw.parse(IR.replace("%x", '%"a\\ud800"'))
    name = json.dumps("\N{GRINNING FACE}")
    assert tw.parse(IR.replace("%x", f"%{name}")).input_names == ("\N{GRINNING FACE}",)
