"""Rows of `tilewright bench --train`: their networks, labels and what is refused."""

import json
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import InputError
from tilewright.tools.bench.rows import judged
from tilewright.tools.cli import main
from tilewright.tools.training_bench import curves as curves_module
from tilewright.tools.training_bench import curves_command
from tilewright.tools.training_bench.command import why_wrong
from tilewright.tools.training_bench.cudnn_networks import CUDNN_NETWORKS
from tilewright.tools.training_bench.curves import Curves, wider, without_dropout
from tilewright.tools.training_bench.ours import training_step
from tilewright.tools.training_bench.rows import ROWS, TrainingRow, rows_of, without_softmax
from tilewright.tools.training_bench.table import training_table, training_text
from tilewright.tools.training_bench.torch_steps import TorchLoss, exact_loss

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


@pytest.mark.parametrize(("name", "size"), [("inception_v3_224_b64", 224), ("densenet121_32_b32", 32)])
def test_a_mean_over_the_whole_image_follows_other_sizes(name, size):
    module = ROWS[name].module(FOLDER)
    assert module.input_types[0].shape[2:] == (size, size)
    names = [op.name for op in module.main.body.ops]
    assert names.count("graph.global_avg_pool2d") == 1
    assert "graph.avg_pool2d" in names  # windows of a part of the image stay
    tw.verify(module)


#: small forms of the rows that PyTorch has a second network for
RECURRENT = {
    "lstm_classifier": "layers=2,width=8,steps=3,classes=3,batch=2",
    "deep_speech": "layers=2,width=8,channels=2,frequencies=9,frames=6,characters=5,batch=2",
    "attention_rnn": "width=8,vocabulary=11,source=4,target=3,batch=2",
}


@pytest.mark.parametrize("name", CUDNN_NETWORKS)
def test_networks_of_cudnn_layers_are_those_of_the_graph(name):
    """The same loss and the same gradients, in float64, from the same parameters."""
    torch = pytest.importorskip("torch")
    row = TrainingRow("small", f"zoo:{name}{{{RECURRENT[name]}}}", "cross_entropy", "adam")
    assert row.cudnn_network == name
    module = row.module(FOLDER)
    results = []
    for cudnn in (False, True):
        loss_of = TorchLoss(torch, row, module, None, "cpu", cudnn=cudnn)
        loss = loss_of(*loss_of.on_device(*row.data(module, 0)))
        loss.backward()
        norms = sorted(float(p.grad.norm()) for p in loss_of.net.parameters() if p.grad is not None)
        results.append((float(loss.detach()), norms))
    (loss, norms), (other, other_norms) = results
    assert other == pytest.approx(loss, rel=1e-12)
    whole, other_whole = (np.sqrt(np.square(n).sum()) for n in (norms, other_norms))
    if name != "lstm_classifier":  # there the graph has both biases in one
        assert other_norms == pytest.approx(norms, rel=1e-9, abs=1e-12)
    assert other_whole >= whole * (1 - 1e-12)


def test_a_loss_is_wrong_where_it_is_further_off_than_pytorchs():
    assert why_wrong(6.79, [6.97, 7.07], exact=6.90) is None
    assert why_wrong(1.009, [1.0], exact=1.0) is None
    assert why_wrong(1.02, [], exact=1.0) == "the loss of the first step is 1.02, in float64 1"
    assert why_wrong(1.05, [1.02, float("nan")], exact=1.0) == (
        "the loss of the first step is 1.05, PyTorch's 1.02, nan, in float64 1"
    )
    assert why_wrong(float("nan"), [1.5], exact=1.0) is not None


def test_the_exact_loss_is_that_of_the_graph_in_float64():
    torch = pytest.importorskip("torch")
    row = TrainingRow("small", "zoo:digits{dropout=false}", "cross_entropy", "sgd")
    module = row.module(FOLDER)
    inputs, labels = data = row.data(module, 0)
    (wanted,), _ = tw.interpret_step(training_step(row, module), [*inputs, labels], precision="fp64")
    assert exact_loss(torch, row, module, data, "cpu") == pytest.approx(float(wanted), rel=1e-5)


def test_dropout_is_switched_off_for_curves():
    module = without_dropout(tw.frontends.zoo.build("bert"))
    assert {op["rate"] for op in module.main.body.ops if op.name == "graph.dropout"} == {0.0}


def test_curves_are_compared_after_smoothing():
    a, b = np.array([1.0, 2.0, 1.0, 2.0]), np.array([2.0, 1.0, 2.0, 1.0])
    curves = Curves(a, b, b)
    assert curves.largest_difference() == 0.5  # of the first loss
    assert curves.largest_difference(2) == 0.0
    assert curves.of_rounding() == (0.5, 0.0)
    assert (wider("fp32"), wider("bf16")) == (None, "fp32")


def test_curves_of_both_are_compared(monkeypatch, tmp_path, capsys):
    pytest.importorskip("torch")
    row = TrainingRow("small", "zoo:digits{dropout=false,batch=8}", "cross_entropy", "sgd")
    monkeypatch.setattr(curves_command, "rows_of", lambda names: [row])
    path = tmp_path / "curves.json"
    command = ["bench", "--train", "small", "--curves", "5", "--target", "opencl", "--precision", "fp32"]
    assert main([*command, "--json", str(path)]) == 0
    assert "small fp32: ok: first loss " in capsys.readouterr().out
    (made,) = json.loads(path.read_text())["rows"]
    assert len(made["ours"]) == len(made["torch"]) == len(made["wide"]) == 5
    assert made["ours"][-1] < made["ours"][0]
    assert made["off"] < 1e-5
    clipped = replace(row, clip_norm=1e-3)
    monkeypatch.setattr(curves_command, "rows_of", lambda names: [clipped])
    assert main([*command, "--json", str(path)]) == 0
    (slow,) = json.loads(path.read_text())["rows"]
    assert slow["off"] < 1e-5
    assert made["ours"][-1] < slow["ours"][-1]
    theirs = curves_module._theirs
    monkeypatch.setattr(curves_module, "_theirs", lambda *a: (2 * loss for loss in theirs(*a)))
    assert main(command) == 1
    assert "small in fp32: losses are " in capsys.readouterr().err


def test_rows_of_several_precisions_share_what_pytorch_trained(monkeypatch, tmp_path, capsys):
    """Each is a process of its own; fp32 is a row, and what bf16 is compared with."""
    pytest.importorskip("torch")
    row = TrainingRow("small", "zoo:digits{dropout=false,batch=8}", "cross_entropy", "sgd")
    monkeypatch.setattr(curves_command, "rows_of", lambda names: [row])
    path = tmp_path / "curves.json"
    command = ["bench", "--train", "--curves", "6", "--target", "opencl", "--precision", "bf16", "fp32"]
    assert main([*command, "--jobs", "2", "--time-limit", "200", "--json", str(path)]) == 0
    by_precision = {r["precision"]: r for r in json.loads(path.read_text())["rows"]}
    narrow, full = by_precision["bf16"], by_precision["fp32"]
    assert narrow["wide"] == full["torch"]
    assert narrow["seconds"].keys() == {"compiling", "ours", "PyTorch", "wider"}
    assert "| seconds |" in capsys.readouterr().out


def test_a_precision_is_trained_in_once(monkeypatch, tmp_path):
    """Also where another process asks, which finds the losses in the folder."""
    asked = []

    def trained(row, module, data, precision, *rest):
        asked.append(precision)
        return iter([2.0, 1.0])

    monkeypatch.setattr(curves_module, "_theirs", trained)
    row = ROWS["dlrm_b256"]
    first, second = (
        curves_module.TorchLosses(row, None, [], 2, torch=None, device="cpu", folder=tmp_path) for _ in "ab"
    )
    assert first.losses("fp32").tolist() == second.losses("fp32-strict").tolist() == [2.0, 1.0]
    assert second.losses(None).tolist() == first.losses(None).tolist()
    assert asked == ["fp32", None]


def test_rows_of_small_images_come_first():
    rows = curves_command._cheap_first([])
    assert len(rows) == len(ROWS)
    assert not rows[0].shapes
    assert rows[-1].name == "inception_v3_b256"


def test_steps_of_a_graph_go_on_where_calls_ended():
    """A GPU is imitated: what captures a step takes none, and a replay takes it on what the inputs hold."""
    torch = _ImitatedTorch()
    batches = [([_Held(10 * n)], _Held(n)) for n in range(4)]
    losses = curves_module._replayed(torch, torch.step, batches, 10)
    assert [loss.value for loss in losses] == [(n, 10 * (n % 4), n % 4) for n in range(10)]


class _Held:
    """A tensor of one value."""

    def __init__(self, value):
        self.value = value

    def clone(self):
        return _Held(self.value)

    def copy_(self, other):
        self.value = other.value


class _ImitatedTorch:
    """As much of PyTorch as a captured step needs; `step` counts the steps that were taken."""

    def __init__(self):
        self.cuda, self.taken, self.captured = self, 0, None
        self.Stream = self.CUDAGraph = lambda: self

    def step(self, inputs, target):
        loss = _Held(None)

        def take():
            loss.value = (self.taken, inputs[0].value, target.value)
            self.taken += 1

        if self.captured is None:
            take()
        else:
            self.captured.append(take)
        return loss

    def wait_stream(self, other):
        pass

    def synchronize(self):
        pass

    def current_stream(self):
        return self

    def stream(self, stream):
        return nullcontext()

    @contextmanager
    def graph(self, graph, *, stream):
        self.captured = []
        yield
        self.replays, self.captured = self.captured, None

    def replay(self):
        for take in self.replays:
            take()


def test_curves_need_training_steps(capsys):
    assert main(["bench", "mlp", "--curves", "5"]) == 2
    assert "--curves: expected --train with this option" in capsys.readouterr().err
    assert main(["bench", "--train", "dlrm_b256", "--curves", "5", "--peers", "none"]) == 2
    assert "--curves: expected neither --peers nor --only-compile" in capsys.readouterr().err


def test_unknown_rows_and_other_networks_are_refused(capsys):
    with pytest.raises(InputError, match=r"--train: unknown row 'resnet'; known: resnet50_b64, "):
        rows_of(["resnet"])
    assert len(rows_of([])) == len(ROWS) == 24
    assert main(["bench", "mlp", "--train", "dlrm_b256"]) == 2
    assert "--train: expected rows alone, which name their networks and batches" in capsys.readouterr().err


def test_budgets_of_memory_are_one_or_one_per_row(capsys):
    steps = ["bench", "--target", "reference", "--train", "dlrm_b256", "dlrm_plain_b256", "--memory-budget"]
    assert main([*steps, "1GB", "2GB", "3GB"]) == 2
    assert "--memory-budget: expected one budget or one for each of 2 rows, got 3" in capsys.readouterr().err
    assert main([*steps, "much"]) == 2
    assert "--memory-budget: expected an amount of memory such as 2GiB" in capsys.readouterr().err


def test_a_step_within_a_budget_stands_beside_the_one_without():
    spread = {"p10_ms": 1.9, "p90_ms": 2.6, "wall_ms": 3.0}
    free = {"variant": "", "median_ms": 2.0, "peak_bytes": 3e9, **spread}
    within = {"variant": "within 1GB", "median_ms": 2.5, "peak_bytes": 1e9, **spread}
    row = {
        "network": "n_b4",
        "batch": 4,
        "precision": "bf16",
        "status": "ok",
        "ours": [free, within],
        "peers": [],
        **judged([free, within], []),
    }
    said = "within 1GB: 2.500 ms, peak 1,000 MB, 1.25 of the time"
    assert training_text(row).endswith(f"| peak 3,000 MB, least peer - MB | {said}")
    assert f"n_b4 bf16 {said}" in training_table([row])
