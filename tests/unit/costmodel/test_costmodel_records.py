"""Hardware records: every shipped one is complete, and bad ones are refused with one clear error."""

import ast
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import get_type_hints

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

ROOT = Path(__file__).parents[3]
IDENTITY = {"name", "targets", "device_names", "sources", "origin", "devices", "stands_for"}
RECORDS = Path(load_hardware.__code__.co_filename).parent / "records"


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("H100", "H100"), ("h200", "H200"), ("v100", "V100"), ("RTX 2080", "RTX 2080"), ("A100", "A100"),
        ("cuda:sm_90a", "H100"), ("cuda:sm_90", "H100"), ("cuda:sm_80", "A100"), ("cuda:sm_75", "RTX 2080"),
        ("opencl", "cpu-opencl"), ("cpu-opencl", "cpu-opencl"), ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 NVL", "H100 NVL"),
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
        ('targets = ["', 'targets = [3, "', "targets"),
        ("[chain]", "[chains]", "unknown key 'chains'"),
        ("[chain]\n", "[chain]\nhops = 1\n", "unknown constant 'chain.hops'"),
        ("loop_share = ", "loop_shares = ", "missing constant 'matrix.loop_share'"),
        ("loop_share = { value = 0.77", "loop_share = { value = 0.0", "matrix.loop_share to be positive"),
        ("barriers_per_stage = { value = 2,", "barriers_per_stage = { value = 2.5,", "whole number"),
        ('name = "H100"', 'name = "H100"\ncoefficients_of = "A100"', "got 'A100'"),
        ('name = "H100"', 'name = "H100"\ncoefficients_of = 3', "got 3"),
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


def test_a_record_without_coefficients_names_whose_it_takes(tmp_path: Path) -> None:
    text = (RECORDS / "a100.toml").read_text()
    path = tmp_path / "x2.toml"
    path.write_text(text)
    assert load_hardware_file(path) == load_hardware("A100")
    path.write_text(text.replace('coefficients_of = "H100"\n', ""))
    with pytest.raises(InputError, match=r"x2\.toml: expected a table \[contract\] of coefficients"):
        load_hardware_file(path)
    entry = '{ value = 2.0, source = "measured here", device = "X2" }'
    table = (RECORDS / "h100.toml").read_text().partition("[window]")[2].partition("\n[")[0]
    path.write_text(
        text + "\n[window]" + table.replace(table.splitlines()[1], f"start_instructions = {entry}")
    )
    record = load_hardware_file(path)
    assert isinstance(record, GpuHardware)
    assert record.window.start_instructions == 2.0
    assert record.matrix == load_hardware("H100").matrix
    assert dict(record.devices)["window.start_instructions"] == "X2"


def test_a_record_of_an_older_version_keeps_its_coefficients(tmp_path: Path) -> None:
    """They held some coefficients among their constants, by longer names, lacked the others, and had more."""
    own = "".join(
        f'{name} = {{ value = {value}, source = "measured here" }}\n'
        for name, value in (
            ("contract_launch_s", 5e-7),
            ("fusion_prologue_s", 2e-6),
            ("estimate_matrix_block_clk", 7),
            ("lat_smem_printed_clk", 29),
        )
    )
    path = tmp_path / "old.toml"
    path.write_text((RECORDS / "a100.toml").read_text().replace('coefficients_of = "H100"\n', "") + own)
    record, h100 = load_hardware_file(path), load_hardware("H100")
    assert isinstance(record, GpuHardware)
    assert isinstance(h100, GpuHardware)
    assert record.contract == replace(h100.contract, launch_s=5e-7)
    assert record.fusion == replace(h100.fusion, prologue_s=2e-6)
    assert record.matrix == replace(h100.matrix, block_clk=7.0)
    assert record.chain == h100.chain
    assert dict(record.sources)["contract.launch_s"] == "measured here"
    path.write_text(path.read_text() + 'contract_colour = { value = 1, source = "none" }\n')
    with pytest.raises(InputError, match=r"unknown constant 'contract\.colour'"):
        load_hardware_file(path)


def read_attributes(folders: tuple[str, ...]) -> set[str]:
    """The names of all attributes that are read in the files of these folders."""
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return {
        node.attr
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute)
    }


def test_every_constant_is_read() -> None:
    used = read_attributes(("costmodel", "passes", "compiler", "tools"))
    for kind in (GpuHardware, CpuHardware):
        for name, form in get_type_hints(kind).items():
            assert name in used or name in IDENTITY, f"{kind.__name__}.{name}"
            inner = {f.name for f in fields(form)} if is_dataclass(form) else set()
            assert inner <= used, f"{form}: {sorted(inner - used)}"


#: fractions in the code of estimates and choices that are no device's: instructions and registers of the
#: code that is generated, when a search gives up, and what a decision must gain to be worth its risk
NO_COEFFICIENTS = {
    *(
        "_CACHED_SHARE",
        "_HALO",
        "_OUTSIDE_INSTRUCTIONS",
        "_RIM_SHARE",
        "_ROUND_INSTRUCTIONS",
        "_COPY_INSTRUCTIONS",
        "_TEST_INSTRUCTIONS",
        "CLEARLY",
        "COMPUTED_REGISTERS",
        "COPIED_REGISTERS",
        "FREE_REGISTERS",
        "GAIN",
        "HOPELESS",
        "INSTRUCTIONS",
        "JOINS",
        "TWICE_GAIN",
    ),
    *(
        "LEFT_OVER_GAIN",
        "NEARLY",
        "LOAD_COST",
        "MOST_READ",
        "ROLES_GAIN",
        "SETS_GAIN",
        "SHARED_GAIN",
        "SHARING_GAIN",
        "SPLIT_ROLES_GAIN",
        "TF32_ROLES_GAIN",
        "TIMER_NOISE",
        "WAVES_GAIN",
        "_LEAST_GAIN",
        "_NEIGHBOUR_PENALTY",
    ),
}


def fractions(source: str) -> set[str]:
    """The constants at the top level of a file whose values hold floats."""
    found = set()
    for node in ast.parse(source).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if (
            targets
            and node.value
            and any(isinstance(c, ast.Constant) and type(c.value) is float for c in ast.walk(node.value))
        ):
            found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def test_what_was_fitted_stands_in_the_records() -> None:
    """A constant of an estimate belongs to a device: it has a source there, and says when it is borrowed."""
    folders = ("costmodel/kernels", "passes/kernels", "passes/tensor")
    files = (file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    assert set().union(*(fractions(file.read_text()) for file in files)) == NO_COEFFICIENTS
    assert fractions("A, _B = 1, 2.0\nC: float = 1e-6\nD = 3") == {"A", "_B", "C"}


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
