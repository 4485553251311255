"""On an NVIDIA GPU: plans for several batches on one device, their weights stored once."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.devices import opening
from tilewright.runtime.cuda.device import CudaDevice
from tilewright.runtime.shared_memory import content_key

BATCHES = (1, 2, 16)


@pytest.fixture(scope="module")
def module(request):
    path = request.getfixturevalue("data_dir") / "relay" / "dqn.relay"
    return tw.frontends.relay.load(str(path), params="random", inputs=("data",), seed=0)


def images(n):
    return np.random.default_rng(n).standard_normal((n, 4, 84, 84)).astype(np.float32)


def test_every_batch_has_its_plan_and_weights_are_shared(module, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(opening, "open_device", lambda target: opened.append(CudaDevice()) or opened[-1])
    with tw.compile(module, "cuda", shapes=[images(n).shape for n in BATCHES]) as exe:
        exe.load()
        (device,) = opened
        distinct = {content_key(array) for e in exe.executables for array in e.artifact.constants.values()}
        assert len(device.pool.weights) == len(distinct)
        for n in (*BATCHES, *reversed(BATCHES)):
            wanted = tw.interpret(tw.with_input_shapes(module, {"data": images(n).shape}), images(n))[0]
            np.testing.assert_allclose(exe(images(n))[0], wanted, rtol=1e-4, atol=1e-4)
        exe.save(tmp_path / "net.tw")
        with tw.load(tmp_path / "net.tw") as again:
            np.testing.assert_array_equal(again(images(16))[0], exe(images(16))[0])


def test_arrays_on_the_gpu_find_their_plan(module):
    torch = pytest.importorskip("torch")
    with tw.compile(module, "cuda", shapes=[images(n).shape for n in BATCHES]) as exe:
        for n in BATCHES:
            np.testing.assert_array_equal(exe(torch.from_numpy(images(n)).cuda())[0], exe(images(n))[0])
