"""On an NVIDIA GPU: every template, graph replay against step-by-step launches, DLPack, errors, no leaks."""

import numpy as np
import pytest
from template_kernels import CASES, check

import tilewright as tw
from tilewright.runtime.cuda.device import CudaDevice


@pytest.fixture(scope="module")
def module(request):
    path = request.getfixturevalue("data_dir") / "relay" / "dqn.relay"
    return tw.frontends.relay.load(str(path), params="random", inputs=("data",), seed=0)


@pytest.fixture(scope="module")
def x():
    return np.random.default_rng(5).standard_normal((1, 4, 84, 84)).astype(np.float32)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_templates(case):
    assert check(case, "cuda") < 1e-6


def test_graph_replay_equals_step_by_step(module, x):
    exe = tw.compile(module, target="cuda")
    (replayed,) = exe(x)
    with CudaDevice(replay="eager") as device, device.load(exe.plan, exe.artifact.constants) as loaded:
        (stepped,) = loaded.run([x])
    np.testing.assert_array_equal(replayed, stepped)


def test_dlpack_in(module, x):
    torch = pytest.importorskip("torch")
    with tw.compile(module, target="cuda") as exe:
        (wanted,) = exe(x)
        for tensor in (torch.from_numpy(x), torch.from_numpy(x).cuda()):
            (got,) = exe(tensor)
            np.testing.assert_array_equal(got, wanted)


def test_save_and_load(module, x, tmp_path):
    with tw.compile(module, target="cuda") as exe:
        exe.save(tmp_path / "dqn.tw")
        (wanted,) = exe(x)
    with tw.load(tmp_path / "dqn.tw") as again:
        np.testing.assert_array_equal(again(x)[0], wanted)


def test_wrong_inputs(module, x):
    with tw.compile(module, target="cuda") as exe, pytest.raises(tw.InputError, match="data"):
        exe(x[:, :, :-1])


def test_load_and_close_leak_nothing(module, x):
    torch = pytest.importorskip("torch")
    exe = tw.compile(module, target="cuda")
    exe(x)
    exe.close()
    free, _ = torch.cuda.mem_get_info()
    for _ in range(50):
        exe(x)
        exe.close()
    assert torch.cuda.mem_get_info()[0] >= free - (8 << 20)


def test_profile(module, x):
    with tw.compile(module, target="cuda") as exe:
        (before,) = exe(x)
        profile = exe.profile(x, repeats=5, compare_serial=True)
        np.testing.assert_array_equal(exe(x)[0], before)
    print(profile)
    assert 0 < profile.resolution_s <= 2e-6
    assert profile.critical_s <= profile.span_s + 2 * profile.resolution_s
    # The instrumented replay is the same work: the span lies near the whole time by events.
    assert 0.3 * profile.total_s < profile.span_s < 3 * profile.total_s
    assert [c.direction for c in profile.copies] == ["in", "out"]
    for span in profile.launches:
        assert span.arrived_s <= span.start_s < span.end_s + profile.resolution_s
        assert sum(p.blocks for p in span.processors) == span.blocks
        for dep in span.deps:
            # A kernel starts when those it waits for have ended, to the step of the clock.
            assert profile.launches[dep].end_s <= span.start_s + profile.resolution_s
