"""Exported programs of torch: networks, parameters, outputs, and one error for all that is in the way."""

import copy
import json
import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

import tilewright as tw  # noqa: E402
from tilewright.frontends.torch.weights import host_array  # noqa: E402
from tilewright.tools.cli import main  # noqa: E402
from tilewright.tools.irdump import command as irdump  # noqa: E402

from_exported = tw.frontends.torch.from_exported


class Residual(nn.Module):
    """Two convolutions with norms and a shortcut, as in ResNet."""

    def __init__(self, channels, stride):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, 1, 1)
        self.shortcut = nn.Conv2d(channels, channels, 1, stride)

    def forward(self, x):
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + self.shortcut(x))


class SqueezeExcite(nn.Module):
    """A depthwise convolution with hard activations and a gate, as in MobileNetV3."""

    def __init__(self):
        super().__init__()
        self.deep = nn.Conv2d(8, 8, 5, padding=2, groups=8)
        self.down, self.up = nn.Conv2d(8, 2, 1), nn.Conv2d(2, 8, 1)

    def forward(self, x):
        x = F.hardswish(self.deep(x))
        return x * F.hardsigmoid(self.up(F.relu(self.down(F.adaptive_avg_pool2d(x, 1)))))


class Decoder(nn.Module):
    """Embeddings, causal attention and a feed-forward block, as in GPT-2."""

    def __init__(self, width=16, heads=2, words=30, length=12):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm, self.last = nn.LayerNorm(width), nn.LayerNorm(width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, ids):
        batch, length = ids.shape
        x = self.words(ids) + self.places(torch.arange(length))
        parts = self.attend(self.norm(x)).chunk(3, -1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, -1))
        x = x + self.shrink(F.gelu(self.grow(self.last(x)), approximate="tanh"))
        return x @ self.words.weight.t()


class ConvNext(nn.Module):
    """A wide depthwise convolution and a norm over channels that come last."""

    def __init__(self):
        super().__init__()
        self.stem, self.deep = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 8, 7, padding=3, groups=8)
        self.norm, self.grow, self.shrink = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.scale = nn.Parameter(torch.full((8,), 0.1))

    def forward(self, x):
        x = self.stem(x)
        y = self.shrink(F.gelu(self.grow(self.norm(self.deep(x).permute(0, 2, 3, 1))))) * self.scale
        return (x + y.permute(0, 3, 1, 2)).mean((-2, -1))


class Recurrent(nn.Module):
    def __init__(self, kind=nn.LSTM, both=False):
        super().__init__()
        self.words, self.cells = nn.Embedding(20, 8), kind(8, 6, 2, batch_first=True, bidirectional=both)

    def forward(self, ids):
        steps, state = self.cells(self.words(ids))
        return steps[:, -1], state


class Encoder(nn.Module):
    """A transformer encoder with a buffer and dropout that is off, as in BERT."""

    def __init__(self):
        super().__init__()
        self.words, self.drop = nn.Embedding(20, 16), nn.Dropout(0.1)
        self.register_buffer("places", torch.arange(12)[None], persistent=False)
        self.where = nn.Embedding(12, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, activation="gelu", batch_first=True)
        self.pool = nn.Linear(16, 16)

    def forward(self, ids, mask):
        x = self.drop(self.words(ids) + self.where(self.places[:, : ids.shape[1]]))
        x = self.layer(x) * mask[..., None].to(x.dtype)
        return {"last": x, "pooled": torch.tanh(self.pool(x[:, 0]))}


IMAGE, IDS = torch.randn(1, 8, 9, 9), torch.randint(0, 20, (2, 5))
NETWORKS = {
    "residual": (lambda: nn.Sequential(Residual(8, 2), Residual(8, 1)), (IMAGE,)),
    "squeeze-excite": (SqueezeExcite, (IMAGE,)),
    "decoder": (Decoder, (IDS,)),
    "convnext": (ConvNext, (torch.randn(1, 3, 16, 16),)),
    "lstm": (Recurrent, (IDS,)),
    "lstm-both-ways": (lambda: Recurrent(both=True), (IDS,)),
    "gru": (lambda: Recurrent(nn.GRU), (IDS,)),
    "encoder": (Encoder, (IDS, torch.ones(2, 5, dtype=torch.long))),
}


def seeded(make):
    torch.manual_seed(0)
    return make().eval()


def leaves(result):
    return [host_array(t) for t in torch.utils._pytree.tree_leaves(result)]


def exported(model, *inputs, **options):
    with torch.no_grad():
        return torch.export.export(model, inputs, **options)


def close(got, wanted):
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
def test_network_agrees_with_eager_torch(name):
    make, inputs = NETWORKS[name]
    model = seeded(make)
    module = from_exported(exported(model, *inputs))
    with torch.no_grad():
        wanted = leaves(model(*inputs))
    close(tw.interpret(module, *map(host_array, inputs)), wanted)


def test_parameters_are_constants_under_their_names():
    module = from_exported(exported(seeded(lambda: nn.Linear(3, 2)), torch.randn(4, 3)))
    assert {"weight", "bias"} <= set(module.constants)
    assert [p.hint for p in module.main.body.params] == ["input"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes_stay_what_torch_says(dtype):
    model, x = seeded(lambda: nn.Linear(3, 2)).to(dtype), torch.randn(4, 3, dtype=dtype)
    (got,) = tw.interpret(from_exported(exported(model, x)), host_array(x))
    with torch.no_grad():
        wanted = host_array(model(x))
    assert got.dtype == wanted.dtype
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), atol=2e-2)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(self, *args)


def test_inputs_that_are_fixed_and_outputs_that_are_inputs():
    x = torch.randn(3)
    program = exported(Function(lambda _, x, n: (x * n, x, x)), x, 3)
    close(tw.interpret(from_exported(program), x.numpy()), [3 * x.numpy(), x.numpy(), x.numpy()])


def test_everything_in_the_way_is_told_at_once():
    def forward(_, x):
        return torch.fft.fft(F.dropout(x, 0.5, training=True)).real + torch.linalg.det(x) + torch.rand(3)

    with pytest.raises(tw.UnsupportedError) as caught:
        from_exported(exported(Function(forward), torch.randn(3, 3)))
    message = str(caught.value)
    assert "operators in training mode" in message
    assert "random numbers: rand" in message
    assert __file__ in message
    with pytest.raises(tw.UnsupportedError, match=r"_fft_r2c.*linalg_det"):
        from_exported(
            exported(Function(lambda _, x: torch.fft.fft(x).real + torch.linalg.det(x)), torch.eye(3))
        )


def test_a_buffer_that_changes_is_refused():
    model = Function(lambda self, x: x + self.count.add_(1))
    model.register_buffer("count", torch.zeros(1))
    with pytest.raises(tw.UnsupportedError, match="changes in place and keeps: buffer_mutation of count"):
        from_exported(exported(model, torch.randn(2)))


def test_random_numbers_that_nothing_reads_are_no_matter():
    def layer(self, x):
        # Layers that training skips at random draw in either mode.
        skipped = torch.rand([])
        return x if self.training and skipped < 0.1 else x + 1

    x = torch.randn(3)
    program = exported(Function(layer).eval(), x)
    assert any(node.name.startswith("rand") for node in program.graph.nodes)
    with tw.compile(from_exported(program), target="reference", progress=False) as exe:
        np.testing.assert_array_equal(exe(x.numpy())[0], (x + 1).numpy())


def test_batch_norm_in_training_is_refused():
    with pytest.raises(tw.UnsupportedError, match="training mode"):
        from_exported(exported(nn.BatchNorm1d(3).train(), torch.randn(4, 3)))


class Trained(nn.Module):
    """A network with a batch norm, dropout, and attention that drops weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.drop = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.linear, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)

    def forward(self, x):
        x = self.drop(F.relu(self.norm(self.conv(x)))).flatten(2).transpose(1, 2)
        return self.head(self.layer(self.linear(x)).mean(1))


def test_dropout_and_batch_norms_are_kept_to_be_trained():
    model, x = seeded(Trained), torch.randn(4, 1, 5, 5)
    rates = {}
    for training in (True, False):
        module = from_exported(exported(model.train(training), x), training=training)
        dropouts = [op for op in module.main.body.ops if op.name == "graph.dropout"]
        rates[training] = sorted(op["rate"] for op in dropouts)
        assert sum(op.name == "graph.batch_norm" for op in module.main.body.ops) == 1
        close(tw.interpret(module, x.numpy()), [model.eval()(x).detach().numpy()])
    assert rates == {True: [0.1] * 4 + [0.3], False: [0.1] * 3 + [0.3]}
    with pytest.raises(tw.UnsupportedError, match=r"training=True.*batch_norm.*scaled_dot_product_attention"):
        from_exported(exported(model.train(), x))


def test_a_program_in_training_mode_becomes_a_step():
    model, x = seeded(Trained), torch.randn(4, 1, 5, 5)
    network = from_exported(exported(model.train(), x), training=True)
    step = tw.train_step(network, "cross_entropy", tw.optim.sgd(lr=0.1))
    tw.verify(step)
    names = [op.name for op in step.main.body.ops]
    assert names.count("graph.random_bits") == 5
    assert names.count("graph.batch_norm_training") == 1


def test_dynamic_shapes_are_refused_by_name():
    shapes = ({0: torch.export.Dim("batch")},)
    program = exported(seeded(lambda: nn.Linear(3, 2)), torch.randn(4, 3), dynamic_shapes=shapes)
    with pytest.raises(tw.UnsupportedError, match="dimensions that are not constant"):
        from_exported(program)


def test_a_mask_as_index_is_refused_with_its_place():
    with pytest.raises(tw.UnsupportedError, match="not constant"):
        from_exported(exported(Function(lambda _, x: x[x > 0].sum()), torch.randn(4)))


@pytest.mark.parametrize("program", [None, nn.Linear(2, 2)])
def test_what_is_no_exported_program_is_refused(program):
    with pytest.raises(tw.InputError, match=r"expected a torch\.export\.ExportedProgram"):
        from_exported(program)


def test_a_saved_program_runs_from_the_command_line(tmp_path, capsys):
    path = tmp_path / "net.pt2"
    torch.export.save(exported(seeded(SqueezeExcite), IMAGE), path)
    assert main(["run", str(path), "--target", "opencl", "--check", "--repeats", "1"]) == 0
    assert "error" in capsys.readouterr().out
    assert main(["run", str(path), "--params", "other.npz"]) == 2


@pytest.fixture
def program_in_training_mode(tmp_path):
    path = tmp_path / "net.pt2"
    torch.export.save(exported(seeded(Trained).train(), torch.randn(4, 1, 5, 5)), path)
    return str(path)


def test_a_saved_program_in_training_mode_is_trained_and_compiled(program_in_training_mode, tmp_path, capsys):
    net, data = program_in_training_mode, tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    np.savez(data, x=rng.standard_normal((40, 1, 5, 5), np.float32), y=rng.integers(0, 3, 40))
    trained = ["train", net, "--data", f"npz:{data}", "--target", "reference", "--steps", "3", "--json"]
    assert main(trained) == 0
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    size = sum(p.numel() for p in Trained().parameters())
    assert (last["steps"], last["parameters"], last["trained"]) == (3, size, size)
    assert main(["explain", net, "--target", "cuda:sm_90a", "--train", "adamw"]) == 0
    assert f"parameters: {size:,} trainable" in capsys.readouterr().out
    assert main(["run", net, "--training-mode", "--target", "opencl", "--check", "--repeats", "1"]) == 0
    assert irdump.main([net, "--training-mode"]) == 0
    assert "graph.batch_norm" in capsys.readouterr().out


def test_training_mode_has_to_be_asked_for(program_in_training_mode, tmp_path, capsys):
    net = program_in_training_mode
    for command in (main, irdump.main):
        words = ["compile", net, "--target", "opencl", "-o", str(tmp_path / "a.tw")]
        assert command(words if command is main else [net]) == 2
        assert "training=True, on the command line --training-mode" in capsys.readouterr().err
    assert not (tmp_path / "a.tw").exists()
    (tmp_path / "net.ir").write_text(tw.show(tw.frontends.zoo.build("linear_classifier")))
    for command, words in ((main, ["run"]), (irdump.main, [])):
        assert command([*words, str(tmp_path / "net.ir"), "--training-mode"]) == 2
        assert "--training-mode" in capsys.readouterr().err


def test_a_file_that_is_no_program_is_refused(tmp_path):
    path = tmp_path / "net.pt2"
    path.write_bytes(b"nothing")
    with pytest.raises(tw.InputError, match=r"torch\.export\.save"):
        tw.frontends.torch.load(path)


def test_importing_changes_nothing_of_the_program():
    program = exported(seeded(lambda: nn.Linear(3, 2)), torch.randn(4, 3))
    before = copy.deepcopy(str(program))
    from_exported(program)
    assert str(program) == before


def test_parameters_of_training_are_those_with_a_gradient_and_no_buffers():
    model = Residual(4, 1).eval()
    model.second.bias.requires_grad_(False)
    x = torch.zeros(1, 4, 5, 5)
    module = from_exported(torch.export.export(model, (x,)))
    named = {n for n, p in model.named_parameters() if p.requires_grad}
    assert set(module.parameters) == named
    statistics = {n for n, b in model.named_buffers() if b.is_floating_point()}
    assert statistics
    assert statistics <= set(module.constants)
    assert all((module.constants[n] == model.state_dict()[n].numpy()).all() for n in named | statistics)


class Tied(nn.Module):
    """An embedding whose table also gives the logits, and a buffer that no state_dict holds."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)
        self.register_buffer("const_0", torch.full((4,), 3.0))

    def forward(self, ids):
        return self.head(self.table(ids) * self.scale + self.const_0) + 1.5


def test_tied_weights_are_one_parameter_and_buffers_keep_their_names():
    model, ids = seeded(Tied).train(), torch.tensor([[0, 5, 5]])
    module = from_exported(torch.export.export(model, (ids,)), training=True)
    assert len(module.parameters) == 1
    assert module.parameters[0] in model.state_dict()
    assert {"scale", "const_0"} <= set(module.constants)
    with torch.no_grad():
        close(tw.interpret(module, host_array(ids)), [host_array(model(ids))])


def test_the_page_on_training_moves_a_loop_over():
    page = (Path(__file__).parents[3] / "docs" / "training.md").read_text(encoding="utf-8")
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)))
    x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
    names = {"torch": torch, "tw": tw, "np": np, "model": model, "x": x, "batches": [(x, y)] * 30}
    first = nn.functional.cross_entropy(model.eval()(x), y).item()
    blocks = re.findall(r"```python torch\n(.*?)```", page, re.DOTALL)
    assert len(blocks) == 2
    for code in blocks:
        exec(code, names)
    with torch.no_grad():
        logits = model.eval()(x)
    assert nn.functional.cross_entropy(logits, y).item() < first
    (ours,) = names["exe"].inference()(x.numpy())
    np.testing.assert_allclose(np.asarray(ours), host_array(logits), atol=0.05)  # bf16 beside float32
