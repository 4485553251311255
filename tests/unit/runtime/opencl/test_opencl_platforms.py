"""Which OpenCL implementations are seen, in which order, by which names, and a fork after their use."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import runtime_samples

from tilewright.runtime.errors import DeviceMissingError
from tilewright.runtime.opencl import platforms, trust
from tilewright.runtime.opencl.platforms import full_name, list_opencl_devices, matches
from tilewright.runtime.opencl.trust import Verdict, find_device
from tilewright.tools.cli import main

CPU, GPU = 2, 4
VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
MLP = Path(__file__).parents[3] / "data/relay/mlp.relay"


@pytest.fixture
def vendors(tmp_path, monkeypatch):
    """A wheel's library and the system's folder of entries; `seen()`: what the loader is told."""
    library, system = tmp_path / "libintelocl.so", tmp_path / "vendors"
    library.touch()
    system.mkdir()
    (system / "pocl.icd").write_text("libpocl.so.2\n")
    (system / "intel64.icd").write_text("/opt/intel/libintelocl.so.2024.17\n")
    (system / "empty.icd").write_text("\n")
    (system / "binary.icd").write_bytes(b"\xff\xfe")
    (system / "notes.txt").write_text("libnotes.so\n")
    monkeypatch.setattr(platforms, "_SYSTEM_VENDORS", system)
    monkeypatch.setattr(platforms, "_libraries_of_wheels", lambda: iter([library]))
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)

    def seen():
        with platforms._vendors():
            folders = {os.environ[name] for name in VARIABLES}
            (folder,) = folders
            return [file.read_text().strip() for file in sorted(Path(folder).glob("*.icd"))], Path(folder)

    return SimpleNamespace(seen=seen, library=str(library), system=system)


def test_the_wheel_comes_first_and_other_copies_of_it_are_left_out(vendors):
    entries, folder = vendors.seen()
    assert entries == [vendors.library, "libpocl.so.2"]
    assert not folder.exists()
    assert not any(name in os.environ for name in VARIABLES)


def test_what_the_user_names_replaces_the_systems_folder_and_is_put_back(vendors, tmp_path, monkeypatch):
    own = tmp_path / "own"
    own.mkdir()
    (own / "gpu.icd").write_text("libgpu.so\n")
    for value, entries in (
        (str(own), ["libgpu.so"]),
        (str(own / "gpu.icd"), ["libgpu.so"]),
        ("/usr/lib/libother.so.1", ["/usr/lib/libother.so.1"]),
        ("/opt/libintelocl.so", []),
        ("", []),
    ):
        monkeypatch.setenv("OCL_ICD_VENDORS", value)
        assert vendors.seen()[0] == [vendors.library, *entries]
        assert os.environ["OCL_ICD_VENDORS"] == value
        assert "OPENCL_VENDOR_PATH" not in os.environ


def test_without_a_wheel_the_loader_is_left_alone(vendors, monkeypatch):
    monkeypatch.setattr(platforms, "_libraries_of_wheels", lambda: iter(()))
    with platforms._vendors():
        assert not any(name in os.environ for name in VARIABLES)


def device(name, platform, kind=CPU):
    made_by = SimpleNamespace(name=platform, vendor="v", version="3.0")
    return SimpleNamespace(
        name=name,
        type=kind,
        platform=made_by,
        version="3",
        driver_version="1",
        native_vector_width_float=8,
    )


OTHER = device("other cpu", "Some OpenCL")
POCL = device("pthread-EPYC", "Portable Computing Language")
INTEL = device("AMD EPYC", "Intel(R) OpenCL")
CARD = device("card", "Some OpenCL of cards", GPU)


@pytest.fixture
def machine(monkeypatch):
    """A machine with four platforms, one of which the loader knows twice, and one without devices."""

    class Error(Exception):
        pass

    def nothing():
        raise Error("no hardware")

    found = [OTHER, POCL, INTEL, INTEL, CARD]
    listed = [SimpleNamespace(**vars(d.platform), get_devices=lambda d=d: [d]) for d in found]
    listed.append(SimpleNamespace(name="empty", vendor="v", version="1", get_devices=nothing))
    kinds = SimpleNamespace(GPU=GPU)
    driver = SimpleNamespace(get_platforms=lambda: listed, device_type=kinds, Error=Error)
    monkeypatch.setattr(platforms, "import_pyopencl", lambda: driver)
    return found


def test_the_order_of_preference(machine):
    assert list_opencl_devices() == [CARD, INTEL, POCL, OTHER]


def test_a_loader_without_drivers(monkeypatch):
    def none():
        raise LookupError("-1001")

    driver = SimpleNamespace(get_platforms=none, Error=LookupError, device_type=SimpleNamespace(GPU=GPU))
    monkeypatch.setattr(platforms, "import_pyopencl", lambda: driver)
    assert list_opencl_devices() == []
    with pytest.raises(DeviceMissingError, match=r"found: none; pip install 'tilewright\[opencl\]'"):
        find_device()


@pytest.mark.parametrize(
    ("name", "meant"),
    [("intel", [INTEL]), ("pocl", [POCL]), ("EPYC", [POCL, INTEL]), ("some opencl", [OTHER]), ("warp", [])],
)
def test_names(name, meant):
    assert [d for d in (OTHER, POCL, INTEL) if matches(d, name)] == meant


@pytest.mark.parametrize(
    ("name", "found"), [("intel", INTEL), ("pocl", POCL), (None, CARD), ("other", OTHER)]
)
def test_find_device(machine, monkeypatch, name, found):
    monkeypatch.setattr(trust, "verdict_on", lambda d: Verdict(256, "right"))
    assert find_device(name) == (found, 256)


def test_refused_implementations_are_passed_over_and_named(machine, monkeypatch):
    crashed = "its compiler crashed (SIGSEGV) on exp of float8 on this machine"
    monkeypatch.setattr(trust, "verdict_on", lambda d: Verdict(0 if d is POCL else 128, crashed))
    assert find_device("epyc") == (INTEL, 128)
    with pytest.raises(DeviceMissingError) as refused:
        find_device("pocl")
    assert str(refused.value) == f"{full_name(POCL)} is refused: {crashed}"
    with pytest.raises(DeviceMissingError, match="expected an OpenCL device named like 'warp', found: card"):
        find_device("warp")


def test_the_command_line_says_so_with_exit_code_1(monkeypatch, capsys):
    assert main(["run", str(MLP), "--target", "opencl:warp"]) == 1
    assert "expected an OpenCL device named like 'warp', found: " in capsys.readouterr().err
    monkeypatch.setattr(trust, "verdict_on", lambda d: Verdict(0, "it computes exp of float4 wrongly"))
    assert main(["run", str(MLP), "--target", "opencl"]) == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "is refused: it computes exp of float4 wrongly" in line


FORK = """
import os, signal
from tilewright.runtime.errors import DeviceError
from tilewright.runtime.opencl.device import OpenClDevice
from runtime_samples import diamond, random_floats
loaded = OpenClDevice().load(diamond(), {"w": random_floats(2)})
loaded.run([random_floats(1)])
child = os.fork()
if child == 0:
    signal.alarm(20)
    said = 0
    for use in (OpenClDevice, lambda: loaded.run([random_floats(1)])):
        try:
            use()
        except DeviceError as error:
            said += "before this process was forked" in str(error)
    os._exit(said)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
loaded.run([random_floats(1)])
"""


def test_a_fork_after_use_is_an_error_in_the_child_and_not_a_hang():
    environment = {**os.environ, "PYTHONPATH": str(Path(runtime_samples.__file__).parent)}
    done = subprocess.run(
        [sys.executable, "-c", FORK], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr
