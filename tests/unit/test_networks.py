"""The seven networks end to end: stored results of TVM on PoCL, and CUDA builds for several architectures."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.driver import build, lower
from tilewright.frontends.relay.random_weights import random_input
from tilewright.targets import resolve_target

NETWORKS = ["mlp", "dqn", "resnet18", "squeezenet", "mobilenet", "resnet50", "vgg16"]


def load(data_dir, name):
    return tw.frontends.relay.load(
        str(data_dir / "relay" / f"{name}.relay"), params="random", inputs=("data",), seed=0
    )


def compared(data_dir, name, outputs):
    stored = np.load(data_dir / "relay" / "ref" / f"{name}.npz")
    got, wanted = outputs[0].reshape(-1), stored["out0"].reshape(-1)
    if "stride_out0" in stored.files:
        got = got[:: int(stored["stride_out0"])]
    return np.linalg.norm(got.astype(np.float64) - wanted) / np.linalg.norm(wanted.astype(np.float64))


@pytest.mark.parametrize("name", NETWORKS)
def test_on_pocl_as_tvm(data_dir, name):
    module = load(data_dir, name)
    (shape,) = (t.shape for t in module.input_types)
    x = random_input("data", shape, "float32", 0)
    with tw.compile(module, target="opencl") as exe:
        outputs = exe(x)
    assert all(np.isfinite(o).all() for o in outputs)
    assert compared(data_dir, name, outputs) < 1e-4


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90a"])
@pytest.mark.parametrize("name", NETWORKS)
def test_builds_for_cuda(data_dir, name, arch):
    target = resolve_target(f"cuda:{arch}")
    plan = build(lower(load(data_dir, name), target), target, progress=False)
    assert plan.kernels
    assert all(k.binary for k in plan.kernels)
    if arch == "sm_90a":
        spilled = {
            k.name: k.resources.spill_bytes for k in plan.kernels if k.resources and k.resources.spill_bytes
        }
        assert not spilled


def test_the_arena_is_far_smaller_than_all_buffers(data_dir):
    target = resolve_target("opencl")
    plan = build(lower(load(data_dir, "resnet18"), target), target)
    total = sum(b.nbytes for b in plan.buffers if b.kind == "arena")
    assert plan.arena_bytes < total / 3
