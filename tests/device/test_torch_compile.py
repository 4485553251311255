"""On an NVIDIA GPU: `torch.compile` of a model whose weights and inputs lie there; TVM needs no CUDA."""

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
