"""Random weights are drawn when the network is known to be right, and once."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.frontends.tvm import binding

TEXT = """#[version = "0.0.5"]
def @main(%x: Tensor[(2, 4), float32], %w: Tensor[({n}, 4), float32], %b: Tensor[({m}), float32]) {{
  %0 = nn.dense(%x, %w, units=None);
  add(%0, %b)
}}
"""


def written(folder, n, m):
    path = folder / "net.relay"
    path.write_text(TEXT.format(n=n, m=m))
    return path


def test_a_wrong_type_is_told_before_any_weight_is_drawn(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(binding, "random_weight", lambda name, *rest: drawn.append(name))
    with pytest.raises(tw.InputError, match=r"net\.relay"):
        tw.frontends.relay.load(written(tmp_path, 1_000_000_000, 3), params="random")
    assert drawn == []


def test_every_weight_is_drawn_once(tmp_path, monkeypatch):
    drawn = []

    def zeros(name, shape, dtype, seed):
        drawn.append(name)
        return np.zeros(shape, dtype)

    monkeypatch.setattr(binding, "random_weight", zeros)
    module = tw.frontends.relay.load(written(tmp_path, 3, 3), params="random")
    assert drawn == ["w", "b"]
    assert module.constants["w"].shape == (3, 4)


def test_too_little_memory_names_the_parameter(tmp_path, monkeypatch):
    from tilewright.frontends.weights import random_weights

    def full(*_):
        raise MemoryError("Unable to allocate 3 bytes")

    monkeypatch.setattr(random_weights, "_generator", full)
    with pytest.raises(tw.WorkError, match="parameter %w: out of memory: Unable to allocate"):
        tw.frontends.relay.load(written(tmp_path, 3, 3), params="random")
