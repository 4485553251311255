"""Work-items stay apart: compilers that join them to vectors get some sums wrong."""

import os

import numpy as np
import pytest
from codegen_samples import SAMPLED_DEVICES, kernel, run

from tilewright.runtime.opencl.platforms import IMPLEMENTATIONS, list_opencl_devices, settings_of

#: a work-item sums its row; two factors are its own, and one of them changes its sign
SUMS = """
%sum = thread.alloc() : f32[1] in reg
%zero = scalar.const(value = 0.0, dtype = "f32") : f32
thread.store(%zero, %sum, at = [0])
thread.loop(var = s, extent = 50) {
  %c = thread.load(%w, at = [tid]) : f32
  %v = thread.load(%x, at = [bid.x, tid, s]) : f32
  %o = thread.load(%a, at = [bid.x, tid]) : f32
  %r = thread.load(%sum, at = [0]) : f32
  %p = scalar.mul(%v, %c) : f32
  %n = scalar.neg(%o) : f32
  %t = scalar.mul(%n, %p) : f32
  %u = scalar.add(%t, %r) : f32
  thread.store(%u, %sum, at = [0])
}
%y = thread.load(%sum, at = [0]) : f32
thread.store(%y, %out, at = [bid.x, tid])
"""


@pytest.mark.emulator
@pytest.mark.parametrize("device", SAMPLED_DEVICES)
def test_sums_with_factors_of_a_work_item(device):
    params = {"a": "f32[10, 4]", "x": "f32[10, 4, 50]", "w": "f32[4]", "out": "f32[10, 4]"}
    func = kernel(SUMS, params, grid="[10, 1, 1]", block=4)
    rng = np.random.default_rng(0)
    a, x, w = (rng.standard_normal(s).astype(np.float32) for s in ((10, 4), (10, 4, 50), (4,)))
    (got,) = run(func, device, [a, x, w]).values()
    np.testing.assert_allclose(got, (-a[..., None] * (x * w[:, None])).sum(-1), rtol=1e-4, atol=1e-4)


def test_the_environment_says_so_and_decides_which_binaries_are_kept():
    wanted = dict(pair for i in IMPLEMENTATIONS for pair in i.variables)
    devices = list_opencl_devices()
    assert wanted.keys() <= os.environ.keys()
    for device in devices:
        assert all("=" in setting for setting in settings_of(device))
    if any("Intel(R) OpenCL" in d.platform.name for d in devices):
        assert any(settings_of(d) for d in devices)
