"""On an NVIDIA GPU: `torch.compile` of models whose weights and inputs lie there; TVM needs no CUDA."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from tilewright.dynamo import FallbackWarning, backend  # noqa: E402


class Positions(torch.nn.Module):
    """A weight, a buffer, and numbers that the graph makes on its device."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)
        self.register_buffer("scale", torch.rand(8))

    def forward(self, x):
        return self.linear(x) * self.scale + torch.arange(8, device=x.device)


def test_weights_on_the_gpu():
    torch._dynamo.reset()
    model = Positions().eval().cuda()
    x = torch.randn(4, 16, device="cuda")
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        got = torch.compile(model, backend=backend)(x)
        torch.testing.assert_close(got, model(x), rtol=1e-4, atol=1e-4)
    assert got.device == x.device
    assert {p.device.type for p in (*model.parameters(), *model.buffers())} == {"cuda"}


class Convolutions(torch.nn.Module):
    """Batch norm in training mode, pooling, and a loss."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(128, 5),
        )  # fmt: skip

    def forward(self, x, labels):
        return torch.nn.functional.cross_entropy(self.body(x), labels)


def trained(model, run, steps):
    """Losses of some steps of SGD on seeded data."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        x = torch.randn(6, 1, 8, 8, generator=generator).cuda()
        labels = torch.randint(0, 5, (6,), generator=generator).cuda()
        optimizer.zero_grad()
        loss = run(x, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_training_on_the_gpu_agrees_with_eager_torch(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Convolutions().cuda()
    other = copy.deepcopy(model)
    losses = trained(model, model, 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        got = trained(other, torch.compile(other, backend=backend), 10)
    assert got == pytest.approx(losses, rel=1e-3)
    for a, b in zip([*model.state_dict().values()], [*other.state_dict().values()], strict=True):
        assert b.device.type == "cuda"
        torch.testing.assert_close(b, a, rtol=1e-2, atol=1e-4)


def test_dropout_is_drawn_on_the_gpu():
    """Eager torch draws the same share of zeros there by another generator's order."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight = torch.ones(1000, device="cuda", requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        run = torch.compile(lambda w: torch.nn.functional.dropout(w, 0.25), backend=backend)
        first, second = run(weight), run(weight)
    assert sorted(set(first.tolist())) == pytest.approx([0, 1 / 0.75])
    assert 650 < int((first > 0).sum()) < 850
    assert not torch.equal(first, second)
    first.sum().backward()
    torch.testing.assert_close(weight.grad, first.detach())
