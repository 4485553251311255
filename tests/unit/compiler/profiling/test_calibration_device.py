"""`tilewright calibrate` as a whole: measured on OpenCL, stored, found again, and used by compilations."""

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.calibration import calibrate as measuring
from tilewright.calibration.calibrate import calibrate
from tilewright.calibration.results import Results, gpu_constants
from tilewright.calibration.timing import TrialTimes, launch_s_of
from tilewright.calibration.trials import CpuSizes, gpu_sizes, gpu_trials
from tilewright.costmodel import load_hardware
from tilewright.costmodel.hardware.calibration import Calibration, calibrated
from tilewright.devices.calibration_store import (
    FOLDER_VARIABLE,
    calibration_path,
    load_calibration,
    save_calibration,
)
from tilewright.devices.targets import resolve_target, shipped_record
from tilewright.ir import InputError
from tilewright.tools.cli import main

SMALL = CpuSizes(1 << 18, groups=8, steps=512, launches=8, small_groups=256)
NETWORK = """module @net { graph.func @main(%x: f32[4, 64]) -> f32[4, 64] {
    %y = graph.relu(%x) : f32[4, 64]
    graph.return(%y)
} }"""


@pytest.fixture(scope="module")
def measured() -> Calibration:
    return calibrate(resolve_target("opencl"), sizes=SMALL, progress=False)


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def test_a_cpu_is_measured(measured):
    found = dict(measured.constants)
    assert set(found) == {
        "clock_hz",
        "dram_bytes_per_s",
        "launch_floor_s",
        "estimate_clock_hz",
        "estimate_dram_bytes_per_s",
        "estimate_launch_s",
        "estimate_work_group_s",
    }
    assert all(m.samples > 1 and m.spread >= 0 and m.value > 0 for m in found.values())
    # No CPU is as slow, or as fast, as that.
    assert 1e6 < found["estimate_clock_hz"].value <= found["clock_hz"].value < 1e11
    assert 1e7 < found["estimate_dram_bytes_per_s"].value <= found["dram_bytes_per_s"].value < 1e14
    assert 1e-9 < found["launch_floor_s"].value <= found["estimate_launch_s"].value < 1.0
    assert measured.record == "cpu-opencl"


def test_a_device_present_brings_its_calibration(measured, folder):
    assert resolve_target("opencl").hardware.origin == "shipped"
    save_calibration(measured, calibration_path("opencl", measured.device, measured.driver))
    target = resolve_target("opencl")
    assert target.hardware == calibrated(shipped_record(target), measured)
    assert target.hardware.origin == measured.origin
    assert resolve_target("reference").hardware.origin == "shipped"
    exe = tw.compile(tw.parse(NETWORK), target="opencl")
    facts = exe.report()
    assert (facts["hardware"], facts["hardware_origin"]) == ("cpu-opencl", measured.origin)
    assert facts["hardware_constants"]["estimate_launch_s"] == target.hardware.estimate_launch_s
    x = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    np.testing.assert_array_equal(exe(x)[0], np.maximum(x, 0))


def test_the_command_measures_stores_and_shows(monkeypatch, folder, tmp_path, capsys):
    monkeypatch.setattr(measuring, "cpu_sizes", lambda hardware: SMALL)
    assert main(["calibrate", "--target", "opencl", "--show"]) == 0
    assert capsys.readouterr().out.startswith("cpu-opencl: shipped\n")
    assert main(["calibrate", "--target", "opencl", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    path = Path(result["path"])
    assert path.parent == folder
    assert dict(load_calibration(path).constants)["clock_hz"].value == result["constants"][0]["value"]
    assert main(["calibrate", "--target", "opencl", "--show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["origin"].startswith("calibrated ")
    roles = {row["name"]: row for row in shown["constants"]}
    assert roles["clock_hz"]["used"] >= roles["clock_hz"]["shipped"]
    # With --output nothing else is written, and compilations go on as before.
    path.unlink()
    assert main(["calibrate", "--target", "opencl", "--output", str(tmp_path / "x.toml")]) == 0
    assert "estimate_work_group_s" in capsys.readouterr().out
    assert list(folder.iterdir()) == []
    assert load_calibration(tmp_path / "x.toml").record == "cpu-opencl"


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--target", "reference"], "expected a target with a device to measure (cuda, opencl), got"),
        (["--target", "emulator"], "expected a target with a device to measure (cuda, opencl), got"),
        (["--target", "tpu"], "expected a target among"),
        (["--show", "--output", "x.toml"], "--output: expected this option without --show"),
        (
            ["--output", "no-such-folder/x.toml"],
            "no-such-folder/x.toml: expected a file in a folder that exists",
        ),
    ],
)
def test_bad_arguments_are_named(folder, capsys, arguments, fault):
    assert main(["calibrate", *arguments]) == 2
    assert fault in capsys.readouterr().err
    assert not Path("no-such-folder").exists()


def test_a_bad_file_stops_the_command_and_measuring_again_mends_it(monkeypatch, measured, folder, capsys):
    monkeypatch.setattr(measuring, "cpu_sizes", lambda hardware: SMALL)
    path = calibration_path("opencl", measured.device, measured.driver)
    save_calibration(measured, path)
    path.write_text(path.read_text().replace("format = 1", "format = 0"))
    assert main(["calibrate", "--target", "opencl", "--show"]) == 2
    said = capsys.readouterr().err
    assert f"error: {path}: expected format 1 of a calibration, got 0; remove this file, or measure" in said
    with pytest.raises(InputError, match="remove this file"):
        resolve_target("opencl")
    assert main(["calibrate", "--target", "opencl"]) == 0
    assert main(["calibrate", "--target", "opencl", "--show"]) == 0


def test_noise_never_makes_a_launch_free():
    assert launch_s_of(3.0, 5.0, 2) == 1.0  # one second surrounds the launches
    assert launch_s_of(4.0, 4.0, 2) == 1.0  # no difference at all
    assert launch_s_of(1.0, 9.0, 2) == 2.25  # more than the whole
    assert launch_s_of(7.0, 8.0, 2) == 2.0  # less than half of the whole


def test_gpu_constants_from_times():
    h = load_hardware("H100")
    trials = gpu_trials(h, gpu_sizes(h), overlaps=True)
    rates = {
        "launch": 1 / 0.95e-6, "launch early": 1 / 0.65e-6, "dram copy": 2.8e12, "dram read": 3.0e12,
        "l2 read": 5.5e12, "shared read": 132 * 128 * 1.9e9, "fma": 2 * 132 * 128 * 1.9e9,
        "fma chain": 1.98e9 / 4.1, "l1 chain": 1.98e9 / 38, "l2 chain": 1.98e9 / 190, "dram chain": 1 / 6e-7,
        "shared chain": 1.98e9 / 29, "barrier": 1.98e9 / 22, "matrix f16": 6e14, "matrix bf16": 6.3e14,
        "matrix f32": 3.3e14, "matrix chain f16": 1.98e9 / 33, "matrix chain f32": 1.98e9 / 18,
        "launch first": 1 / 0.55e-6,
    }  # fmt: skip
    times = {
        t.name: TrialTimes(t.work / rates[t.name], 1.25 * t.work / rates[t.name], 10, 0.1) for t in trials
    }
    assert set(times) == set(rates)
    constants, facts = gpu_constants(Results(trials, times), h)
    value = {name: m.value for name, m in constants.items()}
    assert value["clock_hz"] == pytest.approx(1.9e9)
    assert value["dram_bytes_per_s"] == pytest.approx(3.0e12)
    assert value["launch_floor_s"] == pytest.approx(0.55e-6)
    assert value["estimate_launch_s"] == pytest.approx(0.65e-6 * 1.25)
    assert value["l2_bytes_per_clk"] == pytest.approx(5.5e12 / 1.98e9)
    assert value["smem_bytes_per_sm_per_clk"] == pytest.approx(128 * 1.9 / 1.98)
    assert value["estimate_dram_efficiency"] == pytest.approx(2.8e12 / 1.25 / 3.35e12)
    assert value["estimate_barrier_clk"] == pytest.approx(22 * 1.25)
    assert value["lat_l2_clk"] == pytest.approx(190)
    tf32 = 3.3e14 / (2 * 1024 * 132 * 1.98e9)
    assert value["mma_sync_share"] == pytest.approx(max(6.3e14 / (2 * 2048 * 132 * 1.98e9), tf32))
    assert value["lat_mma_clk"] == pytest.approx(18)
    assert facts["dram_latency_s"].value == pytest.approx(6e-7)
    changed = calibrated(h, Calibration("H100", "d", "v", "now", tuple(constants.items())))
    assert (changed.lat_l2_clk, changed.lat_mma_clk) == (pytest.approx(190), h.lat_mma_clk)
    assert (changed.dram_bytes_per_s, changed.launch_floor_s) == (h.dram_bytes_per_s, h.launch_floor_s)


def test_only_a_device_can_be_measured():
    with pytest.raises(InputError, match="expected a target with a device"):
        calibrate(resolve_target("null"))
