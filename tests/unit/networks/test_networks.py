"""Networks end to end: stored results of TVM on OpenCL, and CUDA builds for several architectures."""

import pytest

import tilewright as tw
from tilewright.compilation.lowering import build, lower
from tilewright.devices.targets import resolve_target
from tilewright.tools.conformance.suites import network_suite

#: one of each kind that compiles in a few seconds on OpenCL; `make conformance` runs all of them
ON_OPENCL = [
    "mlp", "dqn", "resnet18", "squeezenet", "lstm", "dcgan", "bert_base", "pt_dlrm", "pt_mobilenet_v2",
]  # fmt: skip
#: several kinds of networks, each for an architecture
ON_CUDA = [
    ("mlp", "sm_75"), ("dqn", "sm_75"), ("mobilenet", "sm_80"), ("resnet50", "sm_90a"),
]  # fmt: skip


def load(data_dir, name):
    return tw.frontends.relay.load(
        str(data_dir / "relay" / f"{name}.relay"), params="random", inputs=("data",), seed=0
    )


@pytest.mark.parametrize("name", ON_OPENCL)
def test_on_opencl_as_tvm_and_as_float64(data_dir, name):
    assert network_suite(data_dir / "relay").run(name, "opencl") < 1e-5


@pytest.mark.parametrize(("name", "arch"), ON_CUDA)
def test_builds_for_cuda(data_dir, name, arch):
    target = resolve_target(f"cuda:{arch}")
    plan = build(lower(load(data_dir, name), target), progress=False)
    assert plan.kernels
    assert all(k.binary for k in plan.kernels)
    if arch == "sm_90a":
        spilled = {
            k.name: k.resources.spill_bytes for k in plan.kernels if k.resources and k.resources.spill_bytes
        }
        assert not spilled


def test_the_arena_is_far_smaller_than_all_buffers(data_dir):
    target = resolve_target("opencl")
    plan = build(lower(load(data_dir, "resnet18"), target))
    total = sum(b.nbytes for b in plan.buffers if b.kind == "arena")
    assert plan.arena_bytes < total / 3
