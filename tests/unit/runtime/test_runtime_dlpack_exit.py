"""Memory that consumers of our DLPack capsules still hold when the process ends."""

import subprocess
import sys

SCRIPT = """
import atexit
import ctypes
import builtins

# registered first, it runs last
atexit.register(lambda: print([bool(e.managed.deleter) for e in dlpack._exports.values()]))

import numpy as np
from tilewright.runtime import dlpack

class Exported:
    def __init__(self):
        self.memory = (ctypes.c_float * 4)(1, 2, 3, 4)
    def __dlpack_device__(self):
        return dlpack.CPU, 0
    def __dlpack__(self, **_):
        return dlpack.make_capsule(ctypes.addressof(self.memory), dlpack.CPU, 0, "float32", (4,), self)

early = np.from_dlpack(Exported())
print(len(dlpack._exports))
del early
print(len(dlpack._exports))
# the last thing that the interpreter lets go of
builtins.kept = np.from_dlpack(Exported())
print(builtins.kept.sum())
"""


def test_consumers_may_outlive_the_interpreter():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["1", "0", "10.0", "[False]"]
    assert (done.returncode, done.stderr) == (0, "")
