"""A record says which of its numbers are another device's, and none serves another device without a word."""

import json
import re
import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.api import compile as compile_module
from tilewright.costmodel import (
    find_hardware,
    known_hardware,
    load_hardware,
    load_hardware_file,
    nearest_hardware,
)
from tilewright.costmodel.hardware import loader
from tilewright.costmodel.hardware.calibration import calibrated_constants, with_constants
from tilewright.costmodel.hardware.provenance import borrowed_constants, borrowed_text
from tilewright.devices import targets
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, parse
from tilewright.tools.cli import main
from tilewright.tools.report.wording import hardware_text

RECORDS = Path(loader.__file__).parent / "records"
RELU = """module @m {
  graph.func @main(%x: f32[64]) -> f32[64] {
    %y = graph.relu(%x) : f32[64]
    graph.return(%y)
  }
}
"""


def present(monkeypatch: pytest.MonkeyPatch, arch: str, name: str, multiprocessors: int = 132) -> None:
    monkeypatch.setattr(targets, "_gpu", lambda: targets._Gpu(arch, name, "1", multiprocessors))


def test_a_source_that_names_another_gpu_names_it_as_the_device():
    """What is fitted on, measured on or taken from a GPU says which: nothing is borrowed in silence."""
    for record in known_hardware():
        devices = dict(record.devices)
        for constant, source in record.sources:
            if re.search(r"fitted|that of the|on an? [A-Z]+\d+|as the H100: ", source):
                assert constant in devices, f"{record.name}: {constant}"


def test_what_records_borrow():
    assert set(borrowed_constants(load_hardware("A100")).values()) == {"H100", "H200"}
    assert "contract.block_clk" in borrowed_constants(load_hardware("V100"))
    assert "contract.block_clk" not in borrowed_constants(load_hardware("H100"))
    assert set(borrowed_constants(load_hardware("RTX 2080")).values()) == {"H100", "H200", "A100", "T4"}
    assert borrowed_constants(load_hardware("opencl")) == {}


@pytest.mark.parametrize(
    ("borrowed", "stands_for", "text"),
    [
        ({}, "", ""),
        ({"a": "X2"}, "", "hardware record X1 takes 1 constant from the X2"),
        (
            {"a": "X3", "b": "X2", "c": "X2"}, "",
            "hardware record X1 takes 2 constants from the X2 and 1 from the X3",
        ),
        ({}, "the Y", "hardware record X1 is used for the Y, which has none of its own"),
        (
            {"a": "X2"}, "Y",
            "hardware record X1 is used for Y, which has none of its own; it takes 1 constant from the X2",
        ),
    ],
)  # fmt: skip
def test_the_line(borrowed: dict[str, str], stands_for: str, text: str):
    assert borrowed_text("X1", borrowed, stands_for) == text


def test_a_measured_constant_is_the_devices_own():
    shipped = load_hardware("A100")
    assert "estimate_launch_s" in borrowed_constants(shipped)
    measured = with_constants(shipped, {"estimate_launch_s": 0.9e-6}, "calibrated")
    assert "estimate_launch_s" not in borrowed_constants(measured)
    assert "contract.block_clk" in borrowed_constants(measured)
    again = with_constants(shipped, calibrated_constants(measured), "calibrated")
    assert borrowed_constants(again) == borrowed_constants(measured)


@pytest.mark.parametrize(
    ("arch", "name"),
    [
        ("sm_60", "V100"), ("sm_70", "V100"), ("sm_75", "RTX 2080"), ("sm_80", "A100"), ("sm_86", "A100"),
        ("sm_89", "A100"), ("sm_90", "H100"), ("sm_90a", "H100"), ("sm_100a", "H100"), ("sm_120", "H100"),
    ],
)  # fmt: skip
def test_the_nearest_record(arch: str, name: str):
    assert nearest_hardware(arch).name == name


@pytest.mark.parametrize("target", ["cuda:sm_90a", "cuda:sm_80", "null:sm_75", "opencl"])
def test_a_target_with_a_record_warns_of_nothing(target: str):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_target(target).hardware.stands_for == ""


@pytest.mark.parametrize("target", ["cuda:sm_89", "emulator:sm_89", "null:sm_89"])
def test_an_architecture_without_a_record_has_the_nearest_and_a_warning(target: str):
    with pytest.warns(RuntimeWarning, match="the architecture sm_89 has no hardware record.*A100"):
        found = resolve_target(target)
    assert (found.hardware.name, found.hardware.stands_for) == ("A100", "the architecture sm_89")


def test_a_gpu_without_a_record_has_the_nearest_and_a_warning(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, "sm_90a", "NVIDIA GH200 480GB")
    with pytest.warns(RuntimeWarning, match="^NVIDIA GH200 480GB has no hardware record.*H100"):
        found = resolve_target("cuda", with_calibration=False)
    assert (found.hardware.name, found.hardware.stands_for) == ("H100", "NVIDIA GH200 480GB")


@pytest.mark.parametrize(
    ("arch", "name", "multiprocessors", "record"),
    [
        ("sm_75", "NVIDIA GeForce RTX 2080 Ti", 68, "RTX 2080"),
        ("sm_90a", "NVIDIA H100 PCIe", 114, "H100"),
        ("sm_90a", "NVIDIA H100 NVL", 114, "H100 NVL"),
    ],
)
def test_a_gpu_of_a_records_name_and_another_size_has_a_warning(
    monkeypatch: pytest.MonkeyPatch, arch: str, name: str, multiprocessors: int, record: str
):
    present(monkeypatch, arch, name, multiprocessors)
    with pytest.warns(RuntimeWarning, match=f"^{name} has no hardware record.*{record}"):
        found = resolve_target("cuda", with_calibration=False)
    assert (found.hardware.name, found.hardware.stands_for) == (record, name)


@pytest.mark.parametrize(
    ("arch", "name", "multiprocessors"),
    [
        ("sm_75", "NVIDIA GeForce RTX 2080", 46),
        ("sm_90a", "NVIDIA H100 80GB HBM3", 132),
        ("sm_90a", "NVIDIA H100 NVL", 132),
    ],
)
def test_a_gpu_of_a_records_name_and_size_warns_of_nothing(
    monkeypatch: pytest.MonkeyPatch, arch: str, name: str, multiprocessors: int
):
    present(monkeypatch, arch, name, multiprocessors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_target("cuda", with_calibration=False).hardware.stands_for == ""


def test_a_gpu_that_two_records_claim_is_an_error(monkeypatch: pytest.MonkeyPatch):
    present(monkeypatch, "sm_90a", "NVIDIA H100 or H200")
    with pytest.raises(InputError, match="expected a known device"):
        resolve_target("cuda", with_calibration=False)


def test_a_damaged_record_is_an_error_and_never_another_gpus(monkeypatch, tmp_path):
    for file in RECORDS.glob("*.toml"):
        (tmp_path / file.name).write_text(file.read_text())
    (tmp_path / "a100.toml").write_text("name = ")
    monkeypatch.setattr(loader, "_RECORDS", tmp_path)
    monkeypatch.setattr(loader, "known_hardware", loader.known_hardware.__wrapped__)
    present(monkeypatch, "sm_90a", "NVIDIA H100 80GB HBM3")
    with pytest.raises(InputError, match=r"a100\.toml: expected TOML"):
        resolve_target("cuda", with_calibration=False)


@pytest.mark.parametrize("name", ["NVIDIA GH200 480GB", "XA100", "H1000"])
def test_part_of_a_word_is_no_device_name(name: str):
    assert find_hardware(name) is None


@pytest.mark.parametrize("device", ['device = ""', "device = 3", "devices = 'H100'"])
def test_the_device_of_a_constant_is_a_name(tmp_path, device: str):
    text = (RECORDS / "v100.toml").read_text()
    (tmp_path / "bad.toml").write_text(text.replace('device = "H100"', device, 1))
    with pytest.raises(InputError, match=r"bad\.toml: expected .*launch_floor_s"):
        load_hardware_file(tmp_path / "bad.toml")


def test_reports_say_it_once(tmp_path, capsys):
    network = tmp_path / "relu.ir"
    network.write_text(RELU)
    line = "hardware record RTX 2080 takes "
    for command in ("explain", "compile"):
        assert main([command, str(network), "--target", "null:sm_75"]) == 0
        assert capsys.readouterr().out.count(line) == 1
    assert main(["compile", str(network), "--target", "null:sm_75", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["hardware_borrowed"]["launch_floor_s"] == "H100"
    assert hardware_text(facts).startswith(line)


def test_the_command_line_warns_once_of_the_nearest_record(tmp_path, capsys):
    network = tmp_path / "relu.ir"
    network.write_text(RELU)
    assert main(["compile", str(network), "--target", "null:sm_89"]) == 0
    out, err = capsys.readouterr()
    assert err.count("has no hardware record") == 1
    assert out.count("hardware record A100 is used for the architecture sm_89") == 1


def test_a_saved_file_of_an_older_version_says_nothing_of_it():
    exe = compile_module(parse(RELU), target="null:sm_75")
    facts = {k: v for k, v in exe.report().items() if k not in ("hardware_borrowed", "hardware_stands_for")}
    assert hardware_text(facts) == ""
    assert hardware_text({**facts, "hardware_stands_for": "the X"}).endswith(
        "the X, which has none of its own"
    )


def test_the_devices_of_constants_make_no_record_another():
    record = load_hardware("A100")
    assert replace(record, devices=(), stands_for="the X") == record


@pytest.mark.parametrize(
    ("device", "name"), [("h200", "H200"), ("h100-nvl", "H100 NVL"), ("NVIDIA H200", "H200")]
)
def test_a_target_names_a_device_that_is_not_there(device, name):
    target = resolve_target(f"cuda:sm_90a:{device}")
    assert (str(target), target.hardware.name) == ("cuda:sm_90a", name)
    exe = compile_module(parse(RELU), f"cuda:sm_90a:{device}", progress=False)
    assert (exe.target, exe.report()["hardware"]) == ("cuda:sm_90a", name)


@pytest.mark.parametrize(
    ("target", "clause"),
    [
        ("cuda:sm_90a:h300", "expected a known device or target, got 'h300'"),
        ("cuda:sm_90a:", "expected a known device or target, got ''"),
        ("cuda:sm_90a:opencl", "expected a GPU, got"),
        ("cuda:h200", "expected an architecture such as sm_80 or sm_90a, got 'h200'"),
        ("cuda::h200", "expected an architecture such as sm_80 or sm_90a, got ''"),
    ],
)
def test_devices_that_are_not_known(target, clause):
    with pytest.raises(InputError, match=re.escape(clause)):
        resolve_target(target)
