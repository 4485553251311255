"""The suite of `tilewright bench --foreign` without PyTorch: its networks, what is drawn, what travels."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import Constants, InputError
from tilewright.tools.cli import main
from tilewright.tools.foreign_bench import carried, command
from tilewright.tools.foreign_bench.suite import DRAWN, TimedNetwork, chosen, drawn, fixed


def test_there_are_enough_networks_of_all_families_through_both_ways():
    networks = fixed()
    assert len(networks) >= 40
    assert len({n.name for n in networks}) == len(networks)
    families = {
        "vision transformer", "convolutional network", "encoder", "decoder", "diffusion", "detector",
        "segmentation", "speech", "recommendation", "recurrent",
    }  # fmt: skip
    assert {n.family for n in networks} >= families
    for way in ("export", "onnx"):
        assert sum(n.via == way for n in networks) >= 15
    assert any(n.options.get("groups", 0) > 1 for n in networks)


def test_a_seed_draws_ten_networks_and_another_seed_others():
    first, again, other = drawn(3), drawn(3), drawn(4)
    assert len(first) == DRAWN == len({n.kind for n in first}) == 10
    assert first == again
    assert all(a.options != b.options for a, b in zip(first, other, strict=True))
    assert {n.name for n in chosen([], 3)} == {n.name for n in (*fixed(), *first)}


@pytest.mark.parametrize("seed", range(40))
def test_drawn_networks_can_exist(seed):
    vit, _, residual, _, decoder, denoiser, *_ = (n.options for n in drawn(seed))
    assert vit["size"] % vit["patch"] == 0
    assert all(width % residual["group"] == 0 for width in residual["widths"])
    assert decoder["heads"] % decoder["groups"] == 0
    assert denoiser["width"] % 32 == 0


def test_inputs_of_a_larger_batch_begin_with_those_of_a_smaller_one():
    (network,) = chosen(["interactions"], None)
    small, large = network.inputs(2, 5), network.inputs(3, 5)
    assert [a.shape for a in large] == [(3, 13), (3, 26)]
    assert large[1].dtype == np.int64
    assert 0 <= large[1].min() < large[1].max() < 10000
    assert all(np.array_equal(a, b[:2]) for a, b in zip(small, large, strict=True))


def test_unknown_networks_are_refused():
    with pytest.raises(
        InputError, match=r"--foreign: unknown network 'vit_smal' .* did you mean 'vit_small'"
    ):
        chosen(["vit_smal"], None)


MODULE = """module @m { graph.func @main(%x: f32[2, 3]) -> f32[2, 4] {
  %w = graph.constant(name = "w") : f32[3, 4]
  %t = graph.constant(name = "t") : f32[4]
  %k = graph.constant(name = "k") : f32[1, 4]
  %0 = graph.matmul(%x, %w) : f32[2, 4]
  %1 = graph.add(%0, %t) : f32[2, 4]
  %2 = graph.add(%1, %k) : f32[2, 4]
  graph.return(%2) } }"""
NETWORK = TimedNetwork("n", "encoder", "language.Encoder", {"width": 3}, ())


class Tensor:
    """What a network of PyTorch holds, as far as `state_arrays` asks."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    cpu = detach

    def numpy(self):
        return self.array


def network_of(seed):
    rng = np.random.default_rng(seed)
    held = {"layer.weight": Tensor(rng.standard_normal((4, 3), np.float32))}
    tables = {"table": Tensor(rng.standard_normal(4, np.float32))}
    return SimpleNamespace(named_parameters=held.items, named_buffers=tables.items)


def module_of(net):
    held = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    arrays = {"w": held["layer.weight"].array.T, "t": held["table"].array, "k": np.ones((1, 4), np.float32)}
    return tw.parse(MODULE).with_constants(Constants(arrays))


def test_files_hold_no_weights_and_take_those_of_the_network_that_reads_them(tmp_path):
    path = carried.write(tmp_path, NETWORK, 2, module_of(network_of(0)), network_of(0))
    other = network_of(1)
    module = carried.read(path, other)
    x = np.ones((2, 3), np.float32)
    assert np.array_equal(tw.interpret(module, x)[0], tw.interpret(module_of(other), x)[0])
    looked_up = carried.module_of(NETWORK, other, 2, tmp_path)
    assert tw.show(looked_up) == tw.show(module)
    wider = TimedNetwork("n", "encoder", "language.Encoder", {"width": 4}, ())
    assert carried._path(tmp_path, wider, 2) != path


def test_files_of_another_network_and_damaged_ones_are_refused(tmp_path):
    path = carried.write(tmp_path, NETWORK, 2, module_of(network_of(0)), network_of(0))
    empty = SimpleNamespace(named_parameters={}.items, named_buffers={}.items)
    with pytest.raises(InputError, match=r"expected a network with the weight 'layer\.weight'"):
        carried.read(path, empty)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match="expected an imported network of the suite foreign"):
        carried.read(path, network_of(0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--foreign", "vit_small", "--train"], "expected --train or --foreign, got both"),
        (["mlp", "--foreign"], "--foreign: expected names of its networks alone"),
        (["mlp", "--drawn", "3"], "--drawn: expected --foreign with this option"),
        (["mlp", "--compiled", "a", "--only-compile", "b"], "--only-compile: expected one folder"),
        (["mlp", "--compiled", "no/such/folder"], "expected a folder that bench --only-compile wrote"),
    ],
)
def test_bad_arguments_are_one_sentence(arguments, message, capsys):
    assert main(["bench", *arguments, "--target", "opencl", "--peers", "none"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_without_pytorch_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["bench", "--foreign", "vit_small", "--target", "opencl", "--peers", "none"]) == 2
    assert "--foreign: expected torch, in which these networks are written" in capsys.readouterr().err


def test_rows_are_compiled_for_machines_elsewhere(tmp_path, data_dir, monkeypatch, capsys):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "elsewhere"))
    fixed_arguments = ("--folder", str(data_dir / "relay"), "--target", "cuda:sm_90a")
    out = tmp_path / "rows.json"
    folder = tmp_path / "folder"
    arguments = ("bench", "mlp", *fixed_arguments, "--only-compile", str(folder), "--json", str(out))
    assert main(arguments) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["status"] == "compiled"
    kept = list((folder / "binaries").iterdir())
    assert len(kept) == row["ours"][0]["kernels"] == 3
    assert "compiled in" in capsys.readouterr().out
    stamps = [p.stat().st_mtime_ns for p in kept]
    assert main(arguments) == 0
    assert sorted((folder / "binaries").iterdir()) == sorted(kept)
    assert stamps != []


TINY = {
    "vision.VisionTransformer": (
        {"size": 32, "patch": 8, "width": 32, "depth": 1, "heads": 2, "scale": True},
        [(3, 32, 32)],
    ),
    "vision.Mixer": ({"size": 32, "patch": 8, "width": 32, "depth": 1}, [(3, 32, 32)]),
    "vision.Swin": ({"size": 64, "width": 16, "depths": (2, 1), "heads": (2, 2), "window": 4}, [(3, 64, 64)]),
    "vision.Pools": ({"widths": (8, 16), "depths": (1, 1)}, [(3, 32, 32)]),
    "vision.ConvNext": ({"widths": (8, 16), "depths": (1, 1), "response": True}, [(3, 32, 32)]),
    "vision.Residual": ({"widths": (16, 32), "depths": (1, 2), "group": 8, "squeeze": True}, [(3, 32, 32)]),
    "vision.ShuffleNet": ({"widths": (16, 32), "depths": (2, 2)}, [(3, 32, 32)]),
    "vision.PlainNet": ({"widths": (8, 16), "depths": (1, 2)}, [(3, 16, 16)]),
    "vision.ConvMixer": ({"width": 16, "depth": 2, "kernel": 3, "patch": 4}, [(3, 16, 16)]),
    "vision.Inverted": (
        {
            "stem": 8,
            "stages": ((8, 1, 1, 3, 1, "relu", False, True), (16, 2, 4, 5, 2, "hardswish", True, False)),
            "head": 32,
            "act": "hardswish",
        },
        [(3, 32, 32)],
    ),
    "language.Encoder": (
        {"words": 50, "length": 8, "width": 32, "depth": 1, "heads": 2, "positions": "relative"},
        [8],
    ),
    "language.Decoder": (
        {"words": 50, "length": 8, "width": 32, "depth": 2, "heads": 4, "groups": 2, "window": 4},
        [8],
    ),
    "language.Translator": ({"words": 50, "length": 8, "width": 32, "depth": 1, "heads": 2}, [8, 8]),
    "dense.Denoiser": (
        {"channels": 4, "width": 16, "multiples": (1, 2), "attend": (1,), "heads": 2, "context": 12},
        [(4, 8, 8), (), (5, 12)],
    ),
    "dense.DiffusionTransformer": (
        {"channels": 4, "size": 8, "patch": 2, "width": 32, "depth": 1, "heads": 2},
        [(4, 8, 8), ()],
    ),
    "dense.OneStage": ({"width": 8, "depths": (1, 1, 1, 1)}, [(3, 64, 64)]),
    "dense.Pyramid": ({"widths": (16, 32, 64), "depths": (1, 1, 1), "width": 16}, [(3, 64, 64)]),
    "dense.SetOfBoxes": (
        {
            "size": 64,
            "widths": (16, 32, 64, 64),
            "depths": (1, 1, 1, 1),
            "width": 32,
            "layers": 1,
            "queries": 5,
        },
        [(3, 64, 64)],
    ),
    "dense.UNet": ({"width": 8, "levels": 2}, [(3, 16, 16)]),
    "dense.Dilated": ({"widths": (16, 32), "depths": (1, 1), "width": 8, "rates": (2, 4)}, [(3, 32, 32)]),
    "dense.SegFormer": (
        {"widths": (8, 16, 16, 16), "depths": (1, 1, 1, 1), "heads": (1, 2, 2, 2)},
        [(3, 64, 64)],
    ),
    "dense.Enlarger": ({"width": 8, "blocks": 1}, [(3, 8, 8)]),
    "dense.Generator": ({"channels": 4, "widths": (16, 8)}, [(4, 4, 4)]),
    "sequences.SpeechEncoder": ({"bands": 8, "frames": 16, "width": 32, "depth": 1, "heads": 2}, [(8, 16)]),
    "sequences.Conformer": ({"bands": 16, "width": 16, "depth": 1, "heads": 2, "kernel": 3}, [(32, 16)]),
    "sequences.WaveEncoder": ({"width": 32, "depth": 1, "heads": 2, "channels": 16}, [(1600,)]),
    "sequences.Series": ({"bands": 8, "widths": (8, 16), "repeats": 2, "kernel": 5}, [(8, 16)]),
    "sequences.SpectrumReader": ({"bands": 16, "hidden": 8, "layers": 1}, [(16, 32)]),
    "sequences.Interactions": (
        {"dense": 4, "tables": 3, "rows": 20, "width": 8, "bottom": (8,), "top": (8,)},
        [(4,), 3],
    ),
    "sequences.Crosses": ({"fields": 3, "rows": 20, "width": 4, "layers": 2, "deep": (8,)}, [3]),
    "sequences.NextItem": ({"items": 20, "length": 6, "width": 16, "depth": 1, "heads": 2}, [6]),
    "sequences.Recurrent": (
        {
            "cell": "lstm",
            "words": 20,
            "width": 8,
            "hidden": 8,
            "layers": 2,
            "results": 5,
            "both": True,
            "whole": True,
        },
        [5],
    ),
    "sequences.Points": ({"widths": (8, 16), "classes": 5}, [(3, 12)]),
}


@pytest.mark.parametrize("way", ["export", "onnx"])
@pytest.mark.parametrize("kind", TINY)
def test_architectures_come_in_and_agree_with_pytorch(kind, way):
    torch = pytest.importorskip("torch")
    pytest.importorskip("tvm" if way == "export" else "onnxscript")
    from tilewright.tools.foreign.entry import Feed
    from tilewright.tools.foreign_bench.weights import fill

    options, shapes = TINY[kind]
    feeds = []
    for shape in shapes:
        integers = isinstance(shape, int) or shape == ()
        feeds.append(Feed((shape,) if isinstance(shape, int) else shape, 20 if integers else 0))
    network = TimedNetwork("tiny", "", kind, options, tuple(feeds), way)
    net = network.build()
    fill(net)
    module = carried.imported(network, net, 2)
    inputs = network.inputs(2, 1)
    with torch.no_grad():
        wide = net.double()
        tensors = [torch.from_numpy(x) for x in inputs]
        expected = wide(*(x.double() if x.is_floating_point() else x for x in tensors))
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, exact in zip(tw.interpret(module, *inputs), expected, strict=True):
        assert np.linalg.norm(got - exact.numpy()) <= 1e-5 * np.linalg.norm(exact.numpy())
        assert float(exact.std()) > 0
