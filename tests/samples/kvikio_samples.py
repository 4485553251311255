"""A kvikio made up for tests: it reads into the host memory that stands for a GPU's."""

import ctypes
import sys
from types import ModuleType


class Future:
    def __init__(self, result):
        self.result = result

    def done(self):
        return True

    def get(self):
        if isinstance(self.result, Exception):
            raise self.result
        return self.result


class CuFile:
    """Reads into the host memory that stands for the device's."""

    fault = None

    def __init__(self, path, flags):
        assert flags == "r"
        self.data = open(path, "rb").read()  # noqa: SIM115
        self.closed = False

    def pread(self, buf, size, file_offset):
        interface = buf.__cuda_array_interface__
        assert (interface["shape"], interface["typestr"], interface["data"][1]) == ((size,), "|u1", False)
        if self.fault is not None:
            return Future(self.fault)
        ctypes.memmove(interface["data"][0], self.data[file_offset : file_offset + size], size)
        return Future(size)

    def close(self):
        self.closed = True


def made_up_kvikio(monkeypatch):
    """Put the module where `import kvikio` finds it."""
    package = ModuleType("kvikio")
    package.CuFile = CuFile
    package.cufile_driver, package.defaults = (
        ModuleType("kvikio.cufile_driver"),
        ModuleType("kvikio.defaults"),
    )
    package.cufile_driver.get = {"is_gds_available": False}.__getitem__
    package.defaults.get = {"task_size": 4 << 20, "num_threads": 8}.__getitem__
    for name in ("", ".cufile_driver", ".defaults"):
        module = package if not name else getattr(package, name[1:])
        monkeypatch.setitem(sys.modules, f"kvikio{name}", module)
    monkeypatch.setattr(CuFile, "fault", None)
    return package
