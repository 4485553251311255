"""Calibrations laid over records: the bound only gets more optimistic, estimators are replaced, bad files."""

import tomllib
import warnings
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
from contract_problems import conv_problem
from hypothesis import given

from tilewright.costmodel import (
    ContractProblem,
    contract_bound_of,
    global_bound,
    known_hardware,
    load_hardware,
)
from tilewright.costmodel.hardware.calibration import (
    SOURCE,
    Calibration,
    Measured,
    calibrated,
    calibrated_constants,
    calibration_text,
    fitted_constants,
    read_calibration,
    roles_of,
    with_constants,
)
from tilewright.costmodel.kernels.choose import choose_contract
from tilewright.costmodel.kernels.parameters import contract_point
from tilewright.devices import calibration_store as store
from tilewright.devices.targets import resolve_target
from tilewright.ir import InputError, WorkError

H100, CPU = load_hardware("H100"), load_hardware("opencl")
LAYER: ContractProblem = conv_problem(1, 64, 56, 56, 64, 3, 3, pad=(1, 1, 1, 1))


def calibration(record: str = "H100", **values: float) -> Calibration:
    constants = tuple((name, Measured(float(v), "1", 10, 0.01)) for name, v in values.items())
    fact = (("dram_latency_s", Measured(6e-7, "s", 10, 0.02)),)
    return Calibration(record, 'An "H100"', "driver \\ 1", "2026-01-02T03:04:05+00:00", constants, fact)


@given(st.sampled_from(known_hardware()), st.data())
def test_constants_of_the_bound_only_get_more_optimistic(record, data):
    roles = roles_of(record)
    name = data.draw(st.sampled_from(sorted(roles)))
    factor = data.draw(st.floats(0.01, 1.0 if "share" in name or "efficiency" in name else 100.0))
    shipped = getattr(record, name)
    changed = calibrated(record, calibration(record.name, **{name: shipped * factor}))
    value = getattr(changed, name)
    if roles[name] == "raise":
        assert value == max(shipped, shipped * factor)
    elif roles[name] == "lower":
        assert value == min(shipped, shipped * factor)
    else:
        assert value == (shipped if name in fitted_constants(record) else shipped * factor)
    assert replace(changed, **{name: shipped}) == record


@given(st.lists(st.floats(0.02, 50.0), min_size=40, max_size=40))
def test_no_calibration_raises_a_bound(factors):
    point = contract_point(1, 32, 4, 28, 1, 4, 1, 7, 8, 1)
    bounded = {n: r for n, r in roles_of(H100).items() if r != "replace"}
    values = {n: getattr(H100, n) * f for n, f in zip(bounded, factors, strict=False)}
    values["mma_sync_share"] = min(1.0, values["mma_sync_share"])
    changed = calibrated(H100, calibration(**values))
    for bound in (lambda h: contract_bound_of(LAYER, point, h), lambda h: global_bound(LAYER, h)):
        assert bound(changed).seconds <= bound(H100).seconds * (1 + 1e-12)


def test_constants_that_were_fitted_together_stay():
    assert "estimate_launch_s" in fitted_constants(H100)
    changed = calibrated(H100, calibration(estimate_launch_s=1e-6, estimate_barrier_clk=20.0))
    assert changed.estimate_launch_s == H100.estimate_launch_s
    assert changed.estimate_barrier_clk == 20.0
    rtx = load_hardware("cuda:sm_75")
    assert calibrated(rtx, calibration(rtx.name, estimate_launch_s=1e-6)).estimate_launch_s == 1e-6


def test_choices_follow_the_constants_they_were_made_with():
    shipped = choose_contract(LAYER, CPU)
    launch_s = 900 * CPU.estimate_launch_s
    slower = calibrated(CPU, calibration(CPU.name, estimate_launch_s=launch_s))
    assert choose_contract(LAYER, slower).estimate_s > shipped.estimate_s + launch_s / 2
    assert choose_contract(LAYER, CPU).estimate_s == shipped.estimate_s


def test_a_record_tells_where_it_comes_from():
    changed = calibrated(H100, calibration(dram_bytes_per_s=4e12))
    assert H100.origin == "shipped"
    assert calibrated_constants(H100) == {}
    assert changed.origin == 'calibrated 2026-01-02T03:04:05+00:00 on An "H100" (driver \\ 1)'
    assert calibrated_constants(changed)["dram_bytes_per_s"] == 4e12
    again = with_constants(H100, calibrated_constants(changed), changed.origin)
    assert (again, again.origin) == (changed, changed.origin)
    with pytest.raises(InputError, match="calibrated constants, got 'sm_count'"):
        with_constants(H100, {"sm_count": 1.0}, "x")
    with pytest.raises(InputError, match="dram_bytes_per_s from"):
        with_constants(H100, {"dram_bytes_per_s": 1.0}, "x")


def test_text_round_trip():
    found = calibration(dram_bytes_per_s=3.1e12, launch_floor_s=6.5e-7)
    text = calibration_text(found)
    assert read_calibration(text.encode(), "x.toml") == found
    entry = tomllib.loads(text)["constants"]["dram_bytes_per_s"]
    assert set(entry) == {"value", "unit", "source", "samples", "spread"}
    assert entry["source"] == SOURCE


GOOD = calibration_text(calibration(dram_bytes_per_s=3.1e12))


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("format = 1", "format = 2", "expected format 1 of a calibration, got 2"),
        ("format = 1", "", "missing key 'format'"),
        ("format = 1", "format = 1\nmore = 1", "unknown key 'more'"),
        ('record = "H100"', "record = 7", "expected record to be a text of one line"),
        ("dram_bytes_per_s", "sm_count", "unknown constant 'sm_count'"),
        ("value = 3100000000000.0", "value = nan", "expected a value of dram_bytes_per_s of at least 0"),
        ("value = 3100000000000.0", "value = true", "expected a value of dram_bytes_per_s of at least 0"),
        ("value = 3100000000000.0", 'value = "fast"', "expected a value of dram_bytes_per_s of at least 0"),
        ("value = 3100000000000.0, ", "", "expected dram_bytes_per_s = { value, unit, source"),
        ("samples = 10", "samples = 0", "at least one sample"),
        ("spread = 0.01", "spread = -0.5", "expected a spread of dram_bytes_per_s of at least 0"),
        (SOURCE, "the datasheet", "the source 'measured by tilewright calibrate'"),
        ("[constants]", "[constants", "expected a calibration as TOML"),
        ("[facts]\n", "[[facts]]\n", "expected a table of measured quantities"),
    ],
)
def test_a_file_that_is_none_is_refused(old, new, fault):
    assert old in GOOD
    with pytest.raises(InputError, match=r"bad\.toml") as caught:
        read_calibration(GOOD.replace(old, new, 1).encode(), "bad.toml")
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("values", "record", "fault"),
    [
        ({"dram_bytes_per_s": 1e18}, "H100", "expected dram_bytes_per_s from"),
        ({"launch_floor_s": 1e-12}, "H100", "expected launch_floor_s from"),
        ({"mma_sync_share": 1.5}, "H100", "expected mma_sync_share from"),
        ({"estimate_clock_hz": 2e9}, "H100", "unknown constant 'estimate_clock_hz'"),
        ({"dram_bytes_per_s": 3e12}, "A100", "expected a calibration of the record H100, got one of 'A100'"),
    ],
)
def test_values_that_cannot_have_been_measured_are_refused(values, record, fault):
    with pytest.raises(InputError) as caught:
        calibrated(H100, calibration(record, **values), "here.toml")
    assert fault in str(caught.value)
    assert "here.toml" in str(caught.value)


def stored(monkeypatch: pytest.MonkeyPatch, folder: Path, *, named: bool) -> Path:
    """The file of a device in a folder that is the user's or the cache's."""
    monkeypatch.delenv(store.FOLDER_VARIABLE, raising=False)
    monkeypatch.setenv(store.FOLDER_VARIABLE if named else "TILEWRIGHT_CACHE_DIR", str(folder))
    path = store.calibration_path("cuda", 'An "H100"', "driver \\ 1")
    store.save_calibration(calibration(dram_bytes_per_s=4e12), path)
    return path


@pytest.mark.parametrize("named", [False, True])
def test_a_stored_calibration_belongs_to_one_device_and_driver(monkeypatch, tmp_path, named):
    path = stored(monkeypatch, tmp_path, named=named)
    assert path.parent == (tmp_path if named else tmp_path / "calibration")
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert store.as_calibrated(H100, "cuda", 'An "H100"', "driver \\ 1").dram_bytes_per_s == 4e12
    for other in (("cuda", 'An "H100"', "driver 2"), ("cuda", "H200", "driver \\ 1")):
        assert store.as_calibrated(H100, *other) is H100
    assert store.has_calibrations("cuda")
    assert not store.has_calibrations("opencl")
    # A target without a device keeps the record as it is shipped.
    assert resolve_target("cuda:sm_90a").hardware.origin == "shipped"


def test_a_bad_file_of_the_cache_is_moved_aside(monkeypatch, tmp_path):
    path = stored(monkeypatch, tmp_path, named=False)
    path.write_text(GOOD.replace("format = 1", "format = 9"))
    with pytest.warns(RuntimeWarning, match=r"expected format 1 .* got 9.*moved to .*\.damaged"):
        assert store.as_calibrated(H100, "cuda", 'An "H100"', "driver \\ 1") is H100
    assert [p.name for p in path.parent.iterdir()] == [path.name + ".damaged"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.as_calibrated(H100, "cuda", 'An "H100"', "driver \\ 1") is H100


def test_a_bad_file_of_the_user_is_an_error_and_stays(monkeypatch, tmp_path):
    path = stored(monkeypatch, tmp_path, named=True)
    path.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"UTF-8.*") as caught:
        store.as_calibrated(H100, "cuda", 'An "H100"', "driver \\ 1")
    assert str(path) in str(caught.value)
    assert path.read_bytes() == b"\xff"


def test_files_that_cannot_be_used_are_named(monkeypatch, tmp_path):
    with pytest.raises(InputError, match=r"absent\.toml: cannot read the calibration: No such file"):
        store.load_calibration(tmp_path / "absent.toml")
    big = tmp_path / "big.toml"
    big.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(InputError, match="at most 1048576 bytes"):
        store.load_calibration(big)
    with pytest.raises(WorkError, match="cannot be written"):
        store.save_calibration(calibration(), big / "inside.toml")
    with pytest.raises(WorkError, match="No such file or directory"):
        store.save_calibration(calibration(), tmp_path / "folder" / "inside.toml")
    assert not (tmp_path / "folder").exists()
