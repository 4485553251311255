"""The demonstration of training, with little of everything."""

import numpy as np
import pytest

from tilewright.tools import demo_train
from tilewright.training.data import Windows, divided

SMALL = demo_train.Sizes(
    seeds=(0, 1), epochs=2, width=2, text_steps=4, eval_every=2, layers=1, text_width=8, sequence=8,
    text_batch=4, resumed_steps=2, sample=5, characters=1500,
)  # fmt: skip


def test_digits_are_trained_by_seed(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = rng.random((400, 1, 8, 8), np.float32), rng.integers(0, 10, 400).astype(np.int32)
    monkeypatch.setattr(demo_train, "digits", lambda: divided("digits", arrays))
    median = demo_train.train_digits(tmp_path, "reference", SMALL)
    text = capsys.readouterr().out
    assert f"median of 2 seeds: {100 * median:.2f} % after 8 steps each" in text
    assert text.count("a convolutional network, seed") == 2
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


def test_a_text_is_trained_sampled_and_resumed(tmp_path, capsys):
    bits = demo_train.train_text(tmp_path, "reference", SMALL)
    text = capsys.readouterr().out
    assert f"step     4: {bits:.3f} bits per held-out character" in text
    assert "after 2 more steps all" in text
    assert (tmp_path / "text.safetensors").exists()


def test_the_entropy_of_tables():
    ids = np.asarray([0, 1] * 50 + [0], np.int32)
    assert demo_train.entropy(ids, 0) == pytest.approx(1, abs=1e-3)
    assert demo_train.entropy(ids, 1) == pytest.approx(0, abs=1e-3)
    fair = np.random.default_rng(0).integers(0, 4, 100_000).astype(np.int32)
    assert demo_train.entropy(fair, 1) == pytest.approx(2, abs=1e-3)
    assert Windows(ids, 4).count == 25


def test_characters_are_drawn_after_those_before_them():
    def follows(tokens):
        return np.eye(3)[(tokens[0, -1] + 1) % 3] * 1e3

    assert demo_train.drawn(follows, "\nab", 4, 7) == "ab\nab\na"
