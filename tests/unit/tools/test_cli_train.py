"""`tilewright train`: records, checkpoints, resumption, an interrupt, bad input in one sentence."""

import inspect
import json
import os
import signal

import numpy as np
import pytest

import tilewright as tw
from tilewright.compilation.report_facts import parameter_facts
from tilewright.tools.arguments.train import LOSSES, OPTIMIZERS
from tilewright.tools.cli import main
from tilewright.training.data import Rows
from tilewright.training.loop import Measures

NET = "zoo:linear_classifier{features=4,classes=3,batch=8}"


@pytest.fixture
def data(tmp_path):
    """Points around three centres, which a linear classifier tells apart."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 100)
    x = 3 * np.eye(4)[y] + 0.3 * rng.standard_normal((100, 4))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return f"npz:{tmp_path / 'data.npz'}"


def train(data, *arguments, target="reference", net=NET):
    return main(["train", net, "--data", data, "--target", target, *map(str, arguments)])


def records(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_names_are_those_of_losses_and_optimizers():
    assert set(LOSSES) == set(tw.losses.NAMED)
    assert set(OPTIMIZERS) == set(tw.optim.NAMED)
    assert all("lr" in inspect.signature(make).parameters for make in tw.optim.NAMED.values())


@pytest.mark.parametrize("target", ["reference", "opencl"])
def test_a_network_learns_and_says_so(data, capsys, target):
    options = ("--epochs", 6, "--lr", 0.1, "--schedule", "cosine", "--warm-up", 4, "--clip-norm", 5)
    assert train(data, *options, "--json", target=target) == 0
    *rows, last = records(capsys)
    assert [r["step"] for r in rows] == [10, 20, 30, 40, 50, 60]
    assert rows[-1]["loss"] < rows[0]["loss"]
    assert last["held_out"]["accuracy"] == 1
    assert (last["steps"], last["batch"], last["parameters"]) == (60, 8, 15)


def test_a_person_reads_lines(data, capsys):
    assert train(data, "--steps", 4, "--eval-every", 2) == 0
    text = capsys.readouterr().out
    assert text.count("accuracy") == 2
    assert "15 parameters, 4 steps of 8 examples" in text
    assert "parameters: 15 trainable, 15 with all constants, 60 B" in text.splitlines()[0]


def state_of(file):
    from safetensors.numpy import load_file

    return {n: a.tobytes() for n, a in load_file(file).items()}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_resumed_run_ends_in_the_same_bits(data, tmp_path, capsys, optimizer):
    whole, parts = tmp_path / "whole.safetensors", tmp_path / "parts.safetensors"
    common = ("--optimizer", optimizer, "--lr", 0.05, "--seed", 3)
    assert train(data, "--steps", 13, "--checkpoint", whole, *common) == 0
    assert train(data, "--steps", 6, "--checkpoint", parts, *common) == 0
    capsys.readouterr()
    assert (
        train(data, "--steps", 13, "--checkpoint", parts, "--resume", "--json", *common[:2], "--seed", 3) == 0
    )
    assert records(capsys)[-1]["steps"] == 13
    assert state_of(whole) == state_of(parts)


def test_a_checkpoint_of_all_steps_is_not_trained_on(data, tmp_path, capsys):
    file = tmp_path / "c.safetensors"
    assert train(data, "--steps", 3, "--checkpoint", file) == 0
    before = file.read_bytes()
    assert train(data, "--steps", 3, "--checkpoint", file, "--resume") == 2
    assert "expected more steps than the 3 of the checkpoint, got 3" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_a_damaged_checkpoint_is_one_sentence(data, tmp_path, capsys):
    file = tmp_path / "c.safetensors"
    assert train(data, "--steps", 3, "--checkpoint", file) == 0
    file.write_bytes(file.read_bytes()[:-5])
    capsys.readouterr()
    assert train(data, "--steps", 6, "--checkpoint", file, "--resume") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "c.safetensors" in error


def test_another_seed_does_not_go_on_from_a_checkpoint(tmp_path, capsys):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.standard_normal((20, 16)), y=rng.integers(0, 10, 20))
    options = ("--checkpoint", tmp_path / "c.safetensors")
    net, arrays = "zoo:digits{size=4,width=2,batch=4}", f"npz:{tmp_path / 'd.npz'}"
    assert train(arrays, "--steps", 1, *options, net=net) == 0
    assert train(arrays, "--steps", 2, "--resume", "--seed", 1, *options, net=net) == 2
    assert "expected the seed that the checkpoint was made with" in capsys.readouterr().err


def test_an_interrupt_writes_the_checkpoint(data, tmp_path, capsys, monkeypatch):
    file = tmp_path / "c.safetensors"
    batch = Rows.batch

    def interrupted(self, step, size, seed):
        if step == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return batch(self, step, size, seed)

    monkeypatch.setattr(Rows, "batch", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert train(data, "--steps", 9, "--checkpoint", file) == 130
    assert f"interrupted after step 5 of 9; {file} holds the state" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    assert train(data, "--steps", 9, "--checkpoint", file, "--resume", "--json") == 0
    assert records(capsys)[-1]["steps"] == 9


def test_a_loss_that_is_no_number_ends_the_run_and_keeps_the_checkpoint(data, tmp_path, capsys):
    file = tmp_path / "c.safetensors"
    assert train(data, "--steps", 2, "--checkpoint", file) == 0
    before = file.read_bytes()
    options = ("--steps", 60, "--optimizer", "sgd", "--lr", 3e38, "--eval-every", 60)
    with np.errstate(all="ignore"):
        assert train(data, *options, "--checkpoint", file) == 1
    assert "a smaller rate (--lr) or a bound on gradients (--clip-norm) may help" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_the_trained_network_is_an_executable(data, tmp_path, capsys):
    out = tmp_path / "net.tw"
    assert train(data, "--epochs", 4, "--lr", 0.1, "--output", out, "--json", target="opencl") == 0
    accuracy = records(capsys)[-1]["held_out"]["accuracy"]
    x = np.load(data.removeprefix("npz:"))["x"][:8].astype(np.float32)
    y = np.load(data.removeprefix("npz:"))["y"][:8]
    (logits,) = tw.load(out)(x)
    assert accuracy == 1
    np.testing.assert_array_equal(logits.argmax(1), y)


def test_curves_are_drawn(data, tmp_path):
    picture = tmp_path / "curves.png"
    assert train(data, "--steps", 4, "--eval-every", 2, "--plot", picture) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_text_is_measured_in_bits(tmp_path, capsys):
    file = tmp_path / "text"
    file.write_text("abab" * 200)
    net = "zoo:gpt{layers=1,width=8,heads=2,vocabulary=2,context=8,sequence=8,batch=4}"
    assert train(f"text:{file}", "--steps", 25, "--lr", 0.03, "--json", net=net) == 0
    held_out = records(capsys)[-1]["held_out"]
    assert held_out["bits_per_character"] == pytest.approx(held_out["loss"] / np.log(2), rel=1e-6)
    assert held_out["bits_per_character"] < 0.5


def test_weights_that_are_not_trained_stay(data, tmp_path):
    file = tmp_path / "c.safetensors"
    assert train(data, "--steps", 2, "--trainable", "*.bias", "--checkpoint", file) == 0
    names = state_of(file).keys()
    assert "logits.bias" in names
    assert "logits.kernel" not in names


def test_another_batch_is_an_option(data, capsys):
    assert train(data, "--steps", 1, "--batch", 16, "--json") == 0
    assert records(capsys)[-1]["batch"] == 16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--loss", "mse"], "expected examples of shape [3] for 'targets'"),
        (["--loss", "hinge"], "--loss: invalid choice"),
        (["--resume"], "--resume: expected --checkpoint or --weights-folder with this option"),
        (["--resume", "--checkpoint", "absent.safetensors"], "no such file to resume from"),
        (["--checkpoint", "/no/such/c.safetensors"], "/no/such: no such folder to write to"),
        (["--momentum", "0.5"], "--momentum: expected --optimizer sgd or --optimizer rmsprop"),
        (["--lr", "-1"], "--lr: expected a number of 0 or more, got '-1'"),
        (["--steps", "4", "--epochs", "4"], "not allowed with"),
        (["--plot", "x.pdf"], "--plot: expected a file name that ends in .png or .svg"),
        (["--batch", "90"], "expected at least 90 examples, which a batch has, got 80"),
        (["--steps", "3", "--warm-up", "3"], "--warm-up: expected fewer steps of warm-up than the 3 updates"),
    ],
)
def test_bad_arguments_are_one_sentence(data, capsys, arguments, message):
    assert train(data, *arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_network_without_parameters_is_refused(tmp_path, data, capsys):
    file = tmp_path / "net.ir"
    file.write_text("""
module @net {
  graph.func @main(%x: f32[8, 4]) -> f32[8, 3] {
    %0 = graph.strided_slice(%x, begin = [0, 0], size = [8, 3], strides = [1, 1]) : f32[8, 3]
    graph.return(%0)
  }
}
""")
    assert train(data, "--steps", 1, net=str(file)) == 2
    assert "expected a network that names its parameters" in capsys.readouterr().err


def test_a_softmax_at_the_end_is_left_out(tmp_path, capsys, data_dir):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "d.npz", x=rng.standard_normal((20, 784)), y=rng.integers(0, 10, 20))
    net = str(data_dir / "relay" / "mlp.relay")
    assert (
        train(f"npz:{tmp_path / 'd.npz'}", "--steps", 9, "--batch", 4, "--lr", 0.01, "--json", net=net) == 0
    )
    out = capsys.readouterr()
    assert "warning: the network ends in softmax" in out.err
    rows = [json.loads(line) for line in out.out.splitlines()]
    assert rows[-2]["loss"] < 0.8 * rows[0]["loss"]


def test_means_weigh_every_example_once():
    x = np.arange(5, dtype=np.float32)
    measures = Measures({"loss": tw.losses.mse()})
    got = measures.of(lambda a: [a * 2], Rows((x, np.zeros(5, np.float32))), 2, 1)
    assert got["loss"] == pytest.approx(float((4 * x**2).mean()))


def test_parameters_are_counted_of_networks_and_of_steps(tmp_path, capsys):
    net = tw.frontends.zoo.build("digits")
    statistics = [n for n in net.constants if "moving" in n]
    sizes = {n: a.size for n, a in net.constants.items()}
    total, kernel = sum(sizes.values()), sizes["conv1.kernel"]
    whole = {"trainable": total - sum(sizes[n] for n in statistics), "total": total, "bytes": 4 * total}
    assert parameter_facts(net) == whole
    step = tw.train_step(net, "cross_entropy", tw.optim.adamw(lr=0.1), trainable=["conv1.kernel"])
    assert parameter_facts(step) == {**whole, "trainable": kernel}
    assert main(["explain", "zoo:digits", "--target", "cuda:sm_90a"]) == 0
    assert f"parameters: {whole['trainable']:,} trainable, {total:,} with all" in capsys.readouterr().out
    out = str(tmp_path / "net.tw")
    assert main(["compile", "zoo:linear_classifier", "--target", "opencl", "-o", out, "--json"]) == 0
    counts = json.loads(capsys.readouterr().out)["parameters"]
    assert counts == parameter_facts(tw.frontends.zoo.build("linear_classifier"))
    assert main(["explain", out]) == 0
    assert f"parameters: {counts['trainable']:,} trainable" in capsys.readouterr().out
