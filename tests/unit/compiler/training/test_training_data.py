"""Data of training: what batches hold, that they depend on seed and step alone, and what is refused."""

import numpy as np
import pytest

from tilewright.ir import InputError, TensorType
from tilewright.training.data import Rows, Windows, characters, divided, fitted, read_data
from tilewright.training.losses import Target

IMAGES = {"data": TensorType("f32", (4, 1, 2, 2))}
LABELS = {"labels": Target(TensorType("i32", (4,)), 0, 3)}
TOKENS = {"tokens": TensorType("i32", (2, 5))}
NEXT = {"labels": Target(TensorType("i32", (2, 5)), 0, 6)}


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def saved(folder, **arrays):
    np.savez(folder / "data.npz", **arrays)
    return f"npz:{folder / 'data.npz'}"


def test_an_epoch_has_every_example_once_and_each_its_own_order():
    rows = Rows((np.arange(10), 10 * np.arange(10)))
    epochs = [[rows.batch(e * 3 + i, 3, seed=5) for i in range(3)] for e in range(2)]
    for batches in epochs:
        seen = np.concatenate([x for x, _ in batches])
        assert len(set(seen.tolist())) == 9
        np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), 10 * seen)
    assert not np.array_equal(epochs[0][0][0], epochs[1][0][0])
    np.testing.assert_array_equal(rows.batch(4, 3, seed=5)[0], epochs[1][1][0])
    assert not np.array_equal(rows.batch(4, 3, seed=6)[0], epochs[1][1][0])


def test_in_order_every_example_counts_once():
    rows = Rows((np.arange(10),))
    batches = list(rows.in_order(4))
    assert [count for _, count in batches] == [4, 4, 2]
    assert all(len(x) == 4 for (x,), _ in batches)
    np.testing.assert_array_equal(np.concatenate([x[:n] for (x,), n in batches]), np.arange(10))


def test_targets_of_a_text_are_the_characters_that_follow():
    windows = Windows(np.arange(23, dtype=np.int32), 5)
    x, y = windows.batch(7, 3, seed=1)
    assert x.shape == y.shape == (3, 5)
    np.testing.assert_array_equal(y, x + 1)
    np.testing.assert_array_equal(windows.batch(7, 3, seed=1)[0], x)
    batches = list(windows.in_order(3))
    assert [count for _, count in batches] == [3, 1]
    got = np.concatenate([x[:n].reshape(-1) for (x, _), n in batches])
    np.testing.assert_array_equal(got, np.arange(20))


def test_the_last_character_can_be_a_target():
    windows = Windows(np.arange(6, dtype=np.int32), 5)
    assert windows.count == 1
    np.testing.assert_array_equal(windows.batch(0, 1, seed=0)[1], [[1, 2, 3, 4, 5]])


def test_a_fifth_of_every_label_is_held_out(rng):
    y = np.repeat([0, 1, 2], [50, 25, 10]).astype(np.int32)
    data = divided("x", (rng.standard_normal((85, 2)), y))
    assert np.bincount(data.held_out.arrays[1]).tolist() == [10, 5, 2]
    together = np.concatenate([data.training.arrays[0], data.held_out.arrays[0]])
    assert len(np.unique(together[:, 0])) == 85


def test_a_text_is_numbered_by_its_characters(tmp_path):
    file = tmp_path / "text"
    file.write_text("caféx" * 20, encoding="utf-8")
    data = read_data(f"text:{file}", TOKENS, NEXT)
    assert data.symbols == "acfxé"
    assert len(data.training.ids) == 90
    assert "".join(data.symbols[i] for i in data.training.ids[:5]) == "caféx"


def test_arrays_keep_their_values(tmp_path, rng):
    x, y = rng.standard_normal((20, 4)), rng.integers(0, 3, 20)
    data = read_data(saved(tmp_path, x=x, y=y, x_test=x[:3], y_test=y[:3]), IMAGES, LABELS)
    assert data.training.arrays[0].shape == (20, 1, 2, 2)
    assert (data.training.arrays[0].dtype, data.training.arrays[1].dtype) == (np.float32, np.int32)
    np.testing.assert_array_equal(data.held_out.arrays[0].reshape(3, 4), x[:3].astype(np.float32))
    np.testing.assert_array_equal(data.held_out.arrays[1], y[:3])
    named = read_data(saved(tmp_path, data=x, labels=y), IMAGES, LABELS)
    assert named.training.count + named.held_out.count == 20


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": [0] * 9}, "expected an array named 'data' or 'x', got 'y'"),
        ({"x": np.zeros((9, 4))}, "expected an array named 'labels' or 'y', got 'x'"),
        ({"x": np.zeros((9, 4)), "y": [0] * 8}, "expected arrays with one row per example"),
        (
            {"x": np.zeros((9, 5)), "y": [0] * 9},
            r"expected examples of shape \[1, 2, 2\] for 'data', got \[5\]",
        ),
        (
            {"x": np.zeros((9, 4)), "y": [0, 1, 3, 0, 0, 0, 0, 0, 0]},
            "expected labels from 0 to 2, got 3",
        ),
        ({"x": np.zeros((9, 4)), "y": [-1] + [0] * 8}, "expected labels from 0 to 2, got -1"),
        ({"x": np.zeros((9, 4)), "y": np.zeros(9)}, "expected i32 for 'labels', got float64"),
        ({"x": np.full((9, 4), np.nan), "y": [0] * 9}, "expected finite numbers in 'data'"),
        ({"x": np.zeros((4, 4)), "y": [0] * 4}, "expected at least 4 examples, which a batch has, got 3"),
        (
            {"x": np.zeros((9, 4)), "y": [0] * 9, "x_test": np.zeros((9, 4))},
            "expected all held-out arrays or none, missing y_test",
        ),
        (
            {"x": np.zeros((9, 4)), "y": [0] * 9, "x_test": np.zeros((0, 4)), "y_test": np.zeros(0, int)},
            "expected examples that are held out, got none",
        ),
        ({"x": np.zeros((9, 4)), "y": [2**40] * 9}, "expected numbers of i32 in 'labels', got larger ones"),
    ],
)
def test_bad_arrays_are_one_sentence(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message) as error:
        read_data(saved(tmp_path, **{n: np.asarray(a) for n, a in arrays.items()}), IMAGES, LABELS)
    assert "data.npz" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a" * 30, "characters or more, got 3 in one"),
        ("abcdefgh" * 30, "expected characters from 0 to 5, got 6"),
    ],
)
def test_bad_texts_are_one_sentence(tmp_path, text, message):
    file = tmp_path / "text"
    file.write_text(text)
    with pytest.raises(InputError, match=message):
        read_data(f"text:{file}", TOKENS, NEXT)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("mnist", "expected digits, text:PATH or npz:PATH as data, got 'mnist'"),
        ("npz:", "expected digits, text:PATH or npz:PATH as data"),
        ("npz:/no/such.npz", "/no/such.npz"),
        ("text:/no/such", "/no/such"),
    ],
)
def test_unknown_data_is_refused(what, message):
    with pytest.raises(InputError, match=message):
        read_data(what, *((TOKENS, NEXT) if what.startswith("text") else (IMAGES, LABELS)))


def test_a_text_needs_a_network_for_texts(tmp_path):
    (tmp_path / "text").write_text("abc" * 100)
    with pytest.raises(InputError, match=r"expected a network of one input of integers \[batch, sequence\]"):
        read_data(f"text:{tmp_path / 'text'}", IMAGES, LABELS)
    last = {"labels": Target(TensorType("i32", (2, 1)), 0, 6)}
    with pytest.raises(InputError, match="expected a network that gives logits for each of 5 characters"):
        fitted(characters("abc" * 100, 5, "text"), TOKENS, last)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    (tmp_path / "text").write_bytes(b"abc\xff")
    with pytest.raises(
        InputError, match=r"expected a text in UTF-8.*byte 3|byte 3.*expected a text in UTF-8"
    ):
        read_data(f"text:{tmp_path / 'text'}", TOKENS, NEXT)


def test_digits_are_images_between_0_and_1():
    pytest.importorskip("sklearn")
    inputs = {"data": TensorType("f32", (64, 1, 8, 8))}
    data = read_data("digits", inputs, {"labels": Target(TensorType("i32", (64,)), 0, 10)})
    assert data.training.count + data.held_out.count == 1797
    assert abs(data.held_out.count - 1797 / 5) < 6
    x, y = data.training.batch(0, 64, seed=0)
    assert (x.min(), x.max()) == (0, 1)
    assert set(np.unique(y)) <= set(range(10))
