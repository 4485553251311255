"""Small stores of tensors for the tests of `runtime/storage`, and what they leave behind."""

import os
import threading

import ml_dtypes
import numpy as np

from tilewright.runtime.dtypes import DTYPES
from tilewright.runtime.storage.buffers import AlignedAllocator
from tilewright.runtime.storage.layout import StepSpec, TensorSpec
from tilewright.runtime.storage.store_writer import StoreWriter

BUFFERS = AlignedAllocator()


def specs(steps):
    """The specs of steps given as {step name: {tensor name: array}}."""
    return [
        StepSpec(name, tuple(TensorSpec(key, a.dtype.name, a.shape) for key, a in arrays.items()))
        for name, arrays in steps.items()
    ]


def every_dtype(seed=0):
    """Steps with all element types, an empty tensor, a scalar, many small tensors, and a step without any."""
    rng = np.random.default_rng(seed)
    types = {f"t.{n}": rng.integers(0, 2, (3, 5, 7)).astype(dtype) for n, dtype in DTYPES.items()}
    odd = {
        "empty": np.empty((0, 4), np.float32),
        "scalar": np.array(3.5, np.float64),
        "naïve \N{SNOWMAN}": rng.normal(size=129).astype(ml_dtypes.bfloat16),
    }
    small = {f"small{i}": rng.integers(0, 9, i % 5, dtype=np.int16) for i in range(200)}
    return {"types": types, "nothing": {}, "odd": odd, "small": small}


def large_steps(count=3, nbytes=(5 << 19) + 1000, seed=0):
    """Steps of one tensor each that spans several checksums and ends inside a page."""
    rng = np.random.default_rng(seed)
    return {f"step{i}": {f"w{i}": rng.integers(0, 256, nbytes, dtype=np.uint8)} for i in range(count)}


def write(path, steps):
    """Write a store and return its path."""
    with StoreWriter(path, specs(steps)) as writer:
        for arrays in steps.values():
            writer.write_step(arrays)
    return path


def buffer_for(source):
    """A buffer that holds any step, full of ones."""
    buffer = BUFFERS.allocate(source.layout.largest_step_bytes)
    buffer.view[:] = b"\xff" * buffer.nbytes
    return buffer


def same(found, expected):
    """Whether two dicts of arrays have the same names in the same order, dtypes, shapes and bytes."""
    return list(found) == list(expected) and all(
        found[n].dtype == a.dtype and found[n].shape == a.shape and found[n].tobytes() == a.tobytes()
        for n, a in expected.items()
    )


def threads_of_storage():
    """The threads that readers and writers started and that still run; other pools have other names."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("tilewright-")]


def open_descriptors():
    """How many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
