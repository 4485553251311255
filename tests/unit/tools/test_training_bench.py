"""Rows of `tilewright bench --train`: their networks, labels and what is refused."""

from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError
from tilewright.tools.cli import main
from tilewright.tools.training_bench.curves import Curves, without_dropout
from tilewright.tools.training_bench.rows import ROWS, TrainingRow, rows_of, without_softmax

FOLDER = Path(__file__).parents[2] / "data" / "relay"


def test_a_row_is_a_network_at_its_batch_that_ends_in_logits():
    row = ROWS["resnet50_32_b32"]
    module = row.module(FOLDER)
    assert module.input_types[0].shape == (32, 3, 32, 32)
    assert module.main.body.ops[-2].name != "graph.softmax"
    tw.verify(module)
    (image,), labels = row.data(module, 0)
    assert image.shape == (32, 3, 32, 32)
    assert labels.shape == (32,)
    assert 0 <= labels.min() < labels.max() < 1000


def test_labels_of_every_word_and_of_probabilities():
    words = TrainingRow("w", "zoo:bert{batch=2}", "cross_entropy", "adamw")
    module = words.module(FOLDER)
    assert words.data(module, 0)[1].shape == (32,)
    chances = TrainingRow("c", "zoo:lstm_classifier{width=8,steps=2,classes=3,batch=2}", "bce", "sgd")
    assert set(np.unique(chances.data(chances.module(FOLDER), 0)[1])) <= {0.0, 1.0}


def test_only_a_softmax_at_the_end_is_taken_off():
    text = """module @m {
      graph.func @main(%x: f32[2, 4]) -> f32[2, 4] {
        %0 = graph.softmax(%x, axis = AXIS) : f32[2, 4]
        graph.return(%0)
      }
    }"""
    last = without_softmax(tw.parse(text.replace("AXIS", "-1")))
    assert [op.name for op in last.main.body.ops] == ["graph.return"]
    tw.verify(last)
    other = tw.parse(text.replace("AXIS", "0"))
    assert without_softmax(other) is other


def test_dropout_is_switched_off_for_curves():
    module = without_dropout(tw.frontends.zoo.build("bert"))
    assert {op["rate"] for op in module.main.body.ops if op.name == "graph.dropout"} == {0.0}


def test_curves_are_compared_after_smoothing():
    a, b = np.array([1.0, 2.0, 1.0, 2.0]), np.array([2.0, 1.0, 2.0, 1.0])
    curves = Curves(a, b, b)
    assert curves.largest_difference() == 1.0
    assert curves.largest_difference(2) == 0.0
    assert curves.of_rounding() == (1.0, 0.0)


def test_unknown_rows_and_other_networks_are_refused(capsys):
    with pytest.raises(InputError, match=r"--train: unknown row 'resnet'; known: resnet50_b64, "):
        rows_of(["resnet"])
    assert len(rows_of([])) == len(ROWS) == 14
    assert main(["bench", "mlp", "--train", "dlrm_b256"]) == 2
    assert "--train: expected rows alone, which name their networks and batches" in capsys.readouterr().err
