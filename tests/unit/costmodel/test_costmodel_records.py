"""Hardware records: every shipped one is complete, and bad ones are refused with one clear error."""

from dataclasses import replace
from pathlib import Path

import pytest

from tilewright.costmodel import (
    CpuHardware,
    GpuHardware,
    StreamProblem,
    choose_map,
    fill_from_machine,
    known_hardware,
    load_hardware,
    load_hardware_file,
)
from tilewright.ir.errors import InputError

RECORDS = Path(load_hardware.__code__.co_filename).parent / "records"


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("H100", "H100"), ("h200", "H200"), ("v100", "V100"), ("RTX 2080", "RTX 2080"), ("A100", "A100"),
        ("cuda:sm_90a", "H100"), ("cuda:sm_90", "H100"), ("cuda:sm_80", "A100"), ("cuda:sm_75", "RTX 2080"),
        ("opencl", "cpu-opencl"), ("cpu-opencl", "cpu-opencl"), ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"), ("Tesla V100-SXM2-16GB", "V100"), ("pocl-x86_64", "cpu-opencl"),
    ],
)  # fmt: skip
def test_lookup_by_name_target_and_device(name: str, record: str) -> None:
    assert load_hardware(name).name == record


@pytest.mark.parametrize("name", ["H900", "cuda:sm_61", "", "H100 or H200"])
def test_unknown_names_list_what_is_known(name: str) -> None:
    with pytest.raises(InputError, match=r"expected a known device or target.*H100.*cuda:sm_90a"):
        load_hardware(name)


def test_every_constant_has_a_source() -> None:
    for record in known_hardware():
        sources = dict(record.sources)
        assert len(sources) == len(record.sources) >= 15
        assert all(len(text) > 10 for text in sources.values())


def test_targets_are_unambiguous() -> None:
    targets = [t for record in known_hardware() for t in record.targets]
    assert len(set(targets)) == len(targets)


def test_records_hash_and_compare_by_value() -> None:
    again = load_hardware_file(RECORDS / "h100.toml")
    assert again == load_hardware("H100")
    assert hash(again) == hash(load_hardware("H100"))


def test_filling_from_the_machine() -> None:
    record = load_hardware("opencl")
    assert isinstance(record, CpuHardware)
    filled = fill_from_machine(record)
    assert filled.cores >= 1
    assert filled.simd_lanes in (4, 8, 16)
    assert filled.clock_hz == record.clock_hz


def test_a_new_gpu_is_one_file(tmp_path: Path) -> None:
    text = (RECORDS / "h100.toml").read_text().replace('name = "H100"', 'name = "X1"')
    path = tmp_path / "x1.toml"
    path.write_text(text)
    record = load_hardware_file(path)
    assert isinstance(record, GpuHardware)
    assert record.name == "X1"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "gpu"', 'kind = "tpu"', "expected kind"),
        ('kind = "gpu"', "", "expected kind"),
        ('name = "H100"', "name = 3", "name"),
        ('name = "H100"', 'name = "H100"\ncolour = 1', "unknown key 'colour'"),
        ("[constants]", "[constant]", "unknown key"),
        ("sm_count = ", "sm_counts = ", "missing constant 'sm_count'"),
        ("{ value = 132,", '{ value = "132",', "sm_count"),
        ("{ value = 132,", "{ value = 13.2,", "whole number"),
        ("{ value = 132,", "{ value = true,", "whole number"),
        ("{ value = 132,", "{ value = 0,", "positive"),
        ("{ value = 132,", "{ value = -1,", "whole number"),
        ("{ value = 1.98e9,", "{ value = nan,", "clock_hz"),
        ("{ value = 1.98e9,", "{ value = inf,", "clock_hz"),
        ("{ value = 1.98e9,", "{", "clock_hz"),
        ("[constants]", "[constants", "expected TOML"),
        ("[constants]", '[constants]\nestimate_overlap_loss = { value = 0.6, source = "fit" }',
         "of an older version: remove estimate_overlap_loss, which nothing reads"),
        ('targets = ["', 'targets = [3, "', "targets"),
    ],
)  # fmt: skip
def test_malformed_records_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = (RECORDS / "h100.toml").read_text()
    assert old in text
    path = tmp_path / "bad.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=message) as caught:
        load_hardware_file(path)
    assert "bad.toml" in str(caught.value)


def test_unreadable_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read"):
        load_hardware_file(tmp_path / "absent.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        load_hardware_file(tmp_path / "binary.toml")
    (tmp_path / "nested.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(InputError):
        load_hardware_file(tmp_path / "nested.toml")


@pytest.mark.parametrize("name", ["H100", "opencl"])
def test_what_the_longer_of_work_and_traffic_does_not_hide_is_the_records(name: str) -> None:
    record = load_hardware(name)
    problem = StreamProblem(4 << 20, 4 << 20, 1 << 20, 1 << 20)
    hidden = choose_map(problem, replace(record, estimate_exposed_share=1e-9)).estimate_s
    assert hidden < choose_map(problem, record).estimate_s
