"""A foreign network ready to run: seeded weights under which every part matters, inputs, float64 results."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.frontends.torch.weights import host_array
from tilewright.tools.foreign.entry import ForeignNetwork
from tilewright.tools.foreign.ways import WAYS, Way


class Prepared:
    """One network in evaluation mode that takes tensors in order and gives a tuple of float tensors."""

    def __init__(self, entry: ForeignNetwork, seed: int = 0) -> None:
        torch = import_module("torch")
        torch.manual_seed(seed)
        self._entry = entry
        network = entry.build().eval().requires_grad_(False)
        self.network = _flat(torch, network, entry.names)
        _enliven(torch, network)
        _normalise(torch, self.network, self.inputs(4, seed + 1))

    def inputs(self, batch: int, seed: int = 0) -> list[Any]:
        """Seeded tensors, one per feed; a larger batch begins with the samples of a smaller one."""
        torch = import_module("torch")
        tensors = []
        for number, feed in enumerate(self._entry.feeds):
            rng = np.random.default_rng([seed, number])
            shape = (batch, *feed.shape)
            array: np.ndarray
            if not feed.below:
                array = rng.standard_normal(shape, np.float32)
            elif feed.below == 2:
                # Padding masks end in zeros and are never zero throughout.
                array = np.sort(rng.integers(0, 2, shape))[..., ::-1].copy()
                array[..., 0] = 1
            else:
                array = rng.integers(0, feed.below, shape)
            tensors.append(torch.from_numpy(array))
        return tensors

    def way(self, via: str, inputs: list[Any]) -> Way:
        """The network by one of the ways in, for inputs of these shapes."""
        way: Way = WAYS[via](self.network, inputs)
        return way

    def exact(self, inputs: list[Any]) -> list[np.ndarray]:
        """Results that torch computes in float64."""
        torch = import_module("torch")
        with torch.no_grad():
            wide = copy.deepcopy(self.network).double()
            results = wide(*(x.double() if x.is_floating_point() else x for x in inputs))
        return [host_array(y) for y in results]

    def rounded(self, inputs: list[Any], precision: str) -> list[np.ndarray]:
        """Results that torch computes with weights and inputs in 16 bits, on a GPU where it sees one."""
        torch = import_module("torch")
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[precision]
        place = "cuda" if torch.cuda.is_available() else "cpu"
        with torch.no_grad():
            narrow = copy.deepcopy(self.network).to(place, dtype)
            arguments = (x.to(place, dtype) if x.is_floating_point() else x.to(place) for x in inputs)
            return [host_array(y.float().cpu()) for y in narrow(*arguments)]


def _flat(torch: Any, network: Any, names: tuple[str, ...]) -> Any:
    leaves = import_module("torch.utils._pytree").tree_leaves

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """Passes inputs by their names and gives the float tensors of whatever comes."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, *given: Any) -> Any:
            """A tuple of tensors."""
            named = dict(zip(names, given, strict=True)) if names else {}
            results = self.network(*(() if names else given), **named)
            return tuple(y for y in leaves(results) if isinstance(y, torch.Tensor) and y.is_floating_point())

    return Flat().eval()


def _enliven(torch: Any, network: Any) -> None:
    """Redraw what training starts at one value or near zero: such a scale would hide the branch behind it."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.numel() < 2 or weight.dtype == torch.bool:
                continue
            constant = bool((weight == weight.flatten()[0]).all())
            if weight.dim() > 1 and "gamma" not in name and "scale" not in name:
                # A head that starts at a thousandth would leave the biases alone to be compared.
                if constant or float(weight.std()) < 1e-3:
                    weight.normal_(0.0, 0.05)
            elif constant and name.endswith(("bias", "beta")):
                weight.normal_(0.0, 0.1)
            elif constant:
                weight.uniform_(0.5, 1.0)


def _normalise(torch: Any, network: Any, inputs: list[Any]) -> None:
    """Give batch norms the statistics of a random batch, as training would."""
    norms = [m for m in network.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    for norm in norms:
        norm.momentum, norm.training = 1.0, True
    if norms:
        with torch.no_grad():
            network(*inputs)
    for norm in norms:
        norm.momentum, norm.training = 0.1, False
        norm.running_var.clamp_(min=1e-2)
