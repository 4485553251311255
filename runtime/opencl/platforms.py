"""OpenCL implementations: those of the package index and of the system behind one loader, the best first.

Wheels put their libraries into the Python environment, where an OpenCL loader does not look. So the first
listing of platforms gives the loader a folder for the time of its search that names the libraries of wheels
by their true paths and holds the entries of the system as well; nobody needs to set a variable.
"""

from __future__ import annotations

import importlib.metadata
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tilewright.runtime.errors import DeviceError, DeviceMissingError

_SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
#: where loaders look instead of there, by their environment
_VENDOR_VARIABLES = ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH")
#: of one entry file, which holds a library's path
_MAX_ENTRY_BYTES = 4096


@dataclass(frozen=True)
class Implementation:
    """An OpenCL implementation for CPUs that the package index has.

    `key` is how a target names it (`opencl:intel`); `platform` is what its platform's name contains;
    `distribution` the wheel with the library `library` that a loader must be told of, or where the loader
    finds it by itself, an empty name. `self_test`: whether it may be used only after a test on this machine,
    because its compiler is too old to know every CPU. `cache_variable`: where it compiles a kernel when that
    is first launched and keeps the result in files of its own, the variable that names their folder, and
    `cache_folder` the folder below the user's cache that is taken without the variable. `one_at_a_time`:
    whether one thread of a process at a time may build programs, as its compiler is not safe in several.
    `variables`: what the environment must hold when its library is loaded, where the user has not set them.
    """

    key: str
    platform: str
    distribution: str = ""
    library: str = ""
    self_test: bool = False
    cache_variable: str = ""
    cache_folder: str = ""
    one_at_a_time: bool = False
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def compiles_at_launch(self) -> bool:
        """True where its compiler runs when a kernel is first launched."""
        return bool(self.cache_variable)


#: Intel's compiler joins work-items to vectors unless it is told not to, and gets some of them wrong (2026.0,
#: AVX-512): of a row for each work-item, a sum over `-a[item] * (x[i] * c[item])` in a loop that is not
#: unrolled comes out as other numbers. Kernels have vectors of their own, and take 0 to 9 % longer without.
_ITEMS_APART = (("CL_CONFIG_CPU_VECTORIZER_MODE", "1"),)
#: in order of preference
IMPLEMENTATIONS = (
    Implementation(
        "intel",
        "Intel(R) OpenCL",
        "intel-opencl-rt",
        "libintelocl.so",
        one_at_a_time=True,
        variables=_ITEMS_APART,
    ),
    Implementation(
        "pocl",
        "Portable Computing Language",
        self_test=True,
        cache_variable="POCL_CACHE_DIR",
        cache_folder="pocl/kcache",
    ),
)

_listing = threading.Lock()
_used = False  # whether this process, or the one it was forked from, has listed devices
_forked = False  # whether this process was forked after that


def check_not_forked() -> None:
    """Raise `DeviceError` in a process that was forked after OpenCL was used."""
    if _forked:
        raise DeviceError(
            "OpenCL was used before this process was forked, and its threads did not come along; "
            "start processes with the method 'spawn' (multiprocessing.set_start_method('spawn'))"
        )


def _after_fork() -> None:
    global _forked
    _forked = _used


os.register_at_fork(after_in_child=_after_fork)


def import_pyopencl() -> ModuleType:
    """The package; raises `DeviceMissingError` where it is not installed."""
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceMissingError(
            f"OpenCL needs pyopencl and a driver: pip install 'tilewright[opencl]' ({error})"
        ) from None
    return pyopencl


def list_opencl_devices() -> list[Any]:
    """Every OpenCL device of this machine: GPUs first, then by `IMPLEMENTATIONS`, then all others.

    Raises `DeviceMissingError` without pyopencl, `DeviceError` in a process forked after OpenCL was used.
    """
    cl = import_pyopencl()
    check_not_forked()
    with _listing:
        devices = _listed(cl)
    return sorted(devices, key=lambda d: (not d.type & cl.device_type.GPU, _rank(d)))


def implementation_of(device: Any) -> Implementation | None:
    """The implementation that a device belongs to; None for any but `IMPLEMENTATIONS`."""
    return next((i for i in IMPLEMENTATIONS if i.platform in device.platform.name), None)


def matches(device: Any, name: str) -> bool:
    """Return whether `name` means a device: its implementation's key, or part of a name, in any case."""
    made_by = implementation_of(device)
    wanted = name.lower()
    if wanted in {i.key for i in IMPLEMENTATIONS}:
        return made_by is not None and made_by.key == wanted
    return wanted in device.name.lower() or wanted in device.platform.name.lower()


def full_name(device: Any) -> str:
    """A device with its platform: one processor may have several."""
    return f"{device.name.strip()} ({device.platform.name.strip()})"


def version_of(device: Any) -> str:
    """Return what decides how fast a device's code is; a CPU's cores are those that this process may use."""
    platform, driver = device.platform.version.strip(), device.driver_version.strip()
    return f"{platform}, driver {driver}, {device.max_compute_units} compute units"


def settings_of(device: Any) -> tuple[str, ...]:
    """Return what the environment tells the device's compiler, by the variables of its implementation."""
    made_by = implementation_of(device)
    return () if made_by is None else tuple(f"{n}={os.environ.get(n, '')}" for n, _ in made_by.variables)


def _rank(device: Any) -> int:
    made_by = implementation_of(device)
    return len(IMPLEMENTATIONS) if made_by is None else IMPLEMENTATIONS.index(made_by)


def _listed(cl: ModuleType) -> list[Any]:
    global _used
    for name, value in (pair for i in IMPLEMENTATIONS for pair in i.variables):
        os.environ.setdefault(name, value)
    with nullcontext() if _used else _vendors():
        try:
            platforms = cl.get_platforms()
        except cl.Error:
            # A loader without any driver reports an error where it could report an empty list.
            return []
        finally:
            _used = True
    # The loader may know a library by two entries; pyopencl's own one lists its neighbours besides.
    distinct = {(p.name, p.vendor, p.version): p for p in platforms}
    devices: list[Any] = []
    for platform in distinct.values():
        with suppress(cl.Error):  # a driver whose hardware is missing has no devices, which is no fault
            devices += platform.get_devices()
    return devices


@contextmanager
def _vendors() -> Iterator[None]:
    """Have the loader, which reads its variable once, find the libraries of wheels beside the system's."""
    libraries = list(_libraries_of_wheels())
    if not libraries:
        yield
        return
    before = {name: os.environ[name] for name in _VENDOR_VARIABLES if name in os.environ}
    with tempfile.TemporaryDirectory(prefix="tilewright-opencl-") as folder:
        for number, entry in enumerate([*map(str, libraries), *_entries(before, libraries)]):
            Path(folder, f"{number:02}.icd").write_text(f"{entry}\n", encoding="utf-8")
        os.environ.update(dict.fromkeys(_VENDOR_VARIABLES, folder))
        try:
            yield
        finally:
            for name in _VENDOR_VARIABLES:
                os.environ.pop(name, None)
            os.environ.update(before)


def _libraries_of_wheels() -> Iterator[Path]:
    for implementation in IMPLEMENTATIONS:
        if not implementation.distribution:
            continue
        with suppress(importlib.metadata.PackageNotFoundError):
            files = importlib.metadata.distribution(implementation.distribution).files or ()
            files_found = (Path(str(f.locate())).resolve() for f in files if f.name == implementation.library)
            yield from (path for path in files_found if path.is_file())


def _entries(variables: dict[str, str], libraries: Sequence[Path]) -> Iterator[str]:
    """Return what the loader would have read without us, but for other copies of the `libraries`."""
    named = next((variables[name] for name in _VENDOR_VARIABLES if name in variables), None)
    place = Path(named) if named is not None else _SYSTEM_VENDORS
    if place.is_dir():
        files = sorted(place.glob("*.icd"))
    elif place.suffix == ".icd":
        files = [place]
    else:  # a loader takes a library in the place of a folder
        if named and not _same_library(named, libraries):
            yield named
        return
    for file in files:
        with suppress(OSError, UnicodeDecodeError), open(file, "rb") as stream:
            entry = stream.read(_MAX_ENTRY_BYTES).decode().strip()
            if entry and not _same_library(entry, libraries):
                yield entry


def _same_library(entry: str, libraries: Sequence[Path]) -> bool:
    """Return whether an entry names a copy of one of the libraries, of whatever version."""
    return Path(entry).name.partition(".so")[0] in {path.name.partition(".so")[0] for path in libraries}
