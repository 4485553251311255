"""torch.compile(model, backend="tilewright") trains: losses and weights beside those of eager torch."""

import copy
import warnings

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tvm")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402, N812

from tilewright.dynamo import FallbackWarning, backend  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Perceptron(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 5)
        )

    def forward(self, x, labels):
        return F.cross_entropy(self.layers(x), labels)


class Convolutions(nn.Module):
    """Batch norm, both kinds of pooling, a grouped convolution with a stride, a turned one."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.pool = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.MaxPool2d(2)
        self.second, self.turned = nn.Conv2d(8, 8, 3, stride=2, groups=2), nn.ConvTranspose2d(8, 4, 2)
        self.last = nn.Linear(4, 5)

    def forward(self, x, labels):
        x = self.pool(F.relu(self.norm(self.first(x))))
        x = F.avg_pool2d(self.turned(F.gelu(self.second(x))), 2, 1, 1)
        return F.cross_entropy(self.last(F.adaptive_avg_pool2d(x, 1).flatten(1)), labels, label_smoothing=0.1)


class Layer(nn.Module):
    """Words, attention and layer norms with dropout."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(11, 16), nn.Linear(16, 5)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True, activation="gelu")

    def forward(self, x, labels):
        words = (x[:, 0, :, 0] * 7).long() % 11
        return F.cross_entropy(self.head(self.layer(self.words(words)).mean(1)), labels)


def trained(model, run, steps=20):
    """Losses of some steps of SGD on seeded data."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(2)
    losses = []
    for _ in range(steps):
        x = torch.randn(6, 1, 8, 8, generator=generator)
        labels = torch.randint(0, 5, (6,), generator=generator)
        optimizer.zero_grad()
        loss = run(x, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("network", [Perceptron, Convolutions, Layer])
def test_twenty_steps_agree_with_eager_torch(network):
    model = network()
    other = copy.deepcopy(model)
    losses = trained(model, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        got = trained(other, torch.compile(other, backend=backend))
    assert got == pytest.approx(losses, rel=1e-4)
    for a, b in zip([*model.state_dict().values()], [*other.state_dict().values()], strict=True):
        torch.testing.assert_close(b, a, rtol=1e-3, atol=1e-5)


def test_what_cannot_be_imported_falls_back_with_a_warning_and_trains():
    weight = torch.randn(4, 4, requires_grad=True)

    def loss(x):
        return torch.linalg.det(x @ weight + 4 * torch.eye(4)).tanh().sum()

    x = torch.randn(4, 4)
    with pytest.warns(FallbackWarning, match="forward runs in eager PyTorch.*linalg_det"):
        torch.compile(loss, backend=backend)(x).backward()
    (wanted,) = torch.autograd.grad(loss(x), weight)
    torch.testing.assert_close(weight.grad, wanted)


def test_gradients_of_inputs_and_what_has_none():
    frozen = nn.Linear(4, 4).requires_grad_(False)
    x = torch.randn(3, 4, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        y, same = torch.compile(lambda v: (frozen(v).sigmoid().sum(), v), backend=backend)(x)
        y.backward()
    (wanted,) = torch.autograd.grad(frozen(x).sigmoid().sum(), x)
    torch.testing.assert_close(x.grad, wanted)
    assert same is x
