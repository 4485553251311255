"""Test session set-up: private caches, Hypothesis profiles, tests that need a device, and options.

`--update-golden` rewrites case files, `--shuffle SEED` runs the tests in another order, and `--vector-bits N`
compiles for the OpenCL device as on a processor with narrower vectors.
"""

import ctypes
import gc
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from tilewright.runtime.opencl import trust

TESTS = Path(__file__).parent
CACHE_VARIABLES = ("TILEWRIGHT_CACHE_DIR", "XDG_CACHE_HOME", "POCL_CACHE_DIR", "TILEWRIGHT_CALIBRATION_DIR")
#: files of tests after which the objects that are still there are frozen
FILES_PER_FREEZE = 20
_FILES = itertools.count(1)

hypothesis.settings.register_profile("explore", deadline=None, max_examples=60)
hypothesis.settings.register_profile("repeatable", deadline=None, max_examples=60, derandomize=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="rewrite the expected output of the case files below tests/cases with what came out",
    )
    parser.addoption(
        "--shuffle",
        type=int,
        metavar="SEED",
        help="run files, and tests in them, in a random order that the seed decides",
    )
    parser.addoption(
        "--vector-bits",
        type=int,
        choices=(128, 256, 512),
        help="let the OpenCL device have vectors of at most so many bits (not in processes that tests start)",
    )


def pytest_configure(config: pytest.Config) -> None:
    repeatable = "CI" in os.environ or "TILEWRIGHT_REPEATABLE" in os.environ
    hypothesis.settings.load_profile("repeatable" if repeatable else "explore")
    trust.MOST_BITS = config.getoption("--vector-bits") or trust.MOST_BITS
    if not hasattr(config, "workerinput"):  # parallel workers inherit the controller's folder
        folder = tempfile.mkdtemp(prefix="tilewright-test-cache-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        os.environ.update(dict.fromkeys(CACHE_VARIABLES, folder))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (seed := config.getoption("--shuffle")) is not None:
        rng = random.Random(seed)
        places = {path: rng.random() for path in dict.fromkeys(item.path for item in items)}
        # Tests of one file stay together, as what they share is made once for all of them.
        items.sort(key=lambda item: (places[item.path], rng.random()))
    missing = {"device": missing_gpu(), "emulator": missing_cxx()}
    for item in items:
        if TESTS / "device" in item.path.parents:
            item.add_marker("device")
        for mark, reason in missing.items():
            if reason and item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Collect garbage seldom, and not among the tests themselves: that took a tenth of their time.

    Modules in compilation are many small objects without cycles, and each round walks all of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@pytest.fixture(scope="module", autouse=True)
def kept_objects_are_frozen() -> Iterator[None]:
    """Take what many files of tests left in caches out of the rounds of the collector.

    Tests that collect garbage themselves would walk all of it each time.
    """
    yield
    if next(_FILES) % FILES_PER_FREEZE == 0:
        gc.collect()
        gc.freeze()


def missing_gpu() -> str | None:
    """Why no test can run on an NVIDIA GPU here, or None if one can."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no NVIDIA driver (libcuda.so.1) on this machine"
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        return "an NVIDIA driver, but no usable NVIDIA GPU on this machine"
    return None


def missing_cxx() -> str | None:
    """Why the emulator cannot build kernels here, or None if it can."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if any(name and shutil.which(name) for name in names):
        return None
    return "no C++ compiler (c++, g++, clang++ or $CXX) on this machine"


@pytest.fixture(scope="session")
def update_golden(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--update-golden"))


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of small checked-in networks and arrays."""
    return TESTS / "data"


@pytest.fixture(scope="session")
def cases_dir() -> Path:
    """The folder of `.ir` case files."""
    return TESTS / "cases"
