"""`tilewright bench --foreign`: the suite of foreign networks beside PyTorch, reported whole."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir import InputError, Module
from tilewright.running.checking import largest_error
from tilewright.tools.arguments.bench import BATCHES
from tilewright.tools.bench.command import apart, run_bench, settings_of
from tilewright.tools.bench.comparison import Entrants, Settings, compare, guarded
from tilewright.tools.bench.peers import Peers
from tilewright.tools.bench.rows import Row
from tilewright.tools.bench.side_by_side import SideBySide, Turn
from tilewright.tools.bench.torch_contenders import DTYPES, VARIANTS, TorchNetwork, torch_inputs
from tilewright.tools.foreign_bench import carried
from tilewright.tools.foreign_bench.suite import TimedNetwork, chosen
from tilewright.tools.foreign_bench.weights import fill


def run_foreign_bench(a: argparse.Namespace) -> None:
    """Time the suite; raises WorkError at the end where a result was wrong."""
    if a.networks or a.suite or a.kernels is not None or a.shape or a.constant:
        raise InputError("expected names of its networks alone", where="--foreign")
    if find_spec("torch") is None:
        raise InputError(
            "expected torch, in which these networks are written (pip install torch)", where="--foreign"
        )
    run_bench(a, partial(_rows, chosen(a.foreign, a.drawn)))


def _rows(
    networks: Sequence[TimedNetwork], a: argparse.Namespace, peers: tuple[str, ...], settings: Settings
) -> Iterator[Row]:
    batches = a.batch or BATCHES
    if apart(a, peers, settings.device):
        ends_at = time.time() + settings.left_s()
        # The whole suite in one precision at one batch comes before the next: time may end.
        requests = [
            _Request(network, batch, precision, a, peers, settings.device, ends_at)
            for precision in a.precision
            for batch in batches
            for network in networks
        ]
        way = SideBySide(_row_apart, _Request.lost, _Request.without, settings.left_s, settings.turn_s)
        yield from way.rows(requests, a.jobs)
        return
    imports = _Imports(a)
    for network in networks:
        for batch in batches:
            for precision in a.precision:
                yield _row(network, batch, precision, imports, settings)


@dataclass(frozen=True)
class _Request:
    """A row that a process of its own makes; `ends_at` is when the whole run has to end, in Unix time."""

    network: TimedNetwork
    batch: int
    precision: str
    arguments: argparse.Namespace
    peers: tuple[str, ...]
    device: str
    ends_at: float

    def without(self, peer: str) -> _Request:
        """The same row without a peer, given with its variant."""
        return replace(self, peers=tuple(p for p in self.peers if p != peer.partition(" ")[0]))

    def lost(self, reason: str) -> Row:
        """The row of a process that ended without one."""
        return _head(self.network, self.batch, self.precision) | {"status": "failed", "reason": reason}


def _row_apart(request: _Request, turn: Turn) -> Row:
    a = request.arguments
    settings = settings_of(a, request.peers, request.device, lambda: request.ends_at - time.time())
    settings = replace(settings, turn=turn, doing=turn.doing)
    return _row(request.network, request.batch, request.precision, _Imports(a), settings)


class _Imports:
    """The latest network in PyTorch, and its latest import: rows of one network follow each other."""

    def __init__(self, a: argparse.Namespace) -> None:
        self._seed = a.seed
        self._folder = Path(a.compiled or a.only_compile) if a.compiled or a.only_compile else None
        self._keep = a.only_compile is not None
        self._net: tuple[TimedNetwork, Any] | None = None
        self._module: tuple[TimedNetwork, int, Module] | None = None

    def net(self, network: TimedNetwork) -> Any:
        """The network in PyTorch with its drawn weights."""
        if self._net is None or self._net[0] != network:
            self._net = self._module = None
            net = network.build()
            fill(net, self._seed)
            self._net = network, net
        return self._net[1]

    def module(self, network: TimedNetwork, batch: int) -> Module:
        """The network as it comes in at a batch; kept in the folder where rows are only compiled."""
        if self._module is None or self._module[:2] != (network, batch):
            net = self.net(network)
            self._module = None
            module = carried.module_of(network, net, batch, self._folder)
            if self._keep and self._folder is not None:
                carried.write(self._folder, network, batch, module, net)
            self._module = network, batch, module
        return self._module[2]


def _head(network: TimedNetwork, batch: int, precision: str) -> Row:
    return {"network": network.name, "family": network.family, "batch": batch, "precision": precision}


def _row(network: TimedNetwork, batch: int, precision: str, imports: _Imports, settings: Settings) -> Row:
    def compared() -> Row:
        net, module = imports.net(network), imports.module(network, batch)
        inputs = network.inputs(batch, settings.seed)
        exact = _TorchExact(net, settings.device)

        def entrants(peers: Peers) -> Entrants:
            return Entrants(
                peers.contenders_of(_variants(net), partial(_as_peer, peers, net, inputs, precision))
            )

        return compare(module, inputs, precision, exact, settings, entrants)

    return guarded(_head(network, batch, precision), settings, compared)


def _variants(net: Any) -> tuple[str, ...]:
    """Contiguous, and channels last where there are images."""
    torch = import_module("torch")
    return VARIANTS[: 2 if any(isinstance(m, torch.nn.Conv2d) for m in net.modules()) else 1]


def _as_peer(
    peers: Peers, net: Any, inputs: Sequence[np.ndarray], precision: str, variant: str
) -> TorchNetwork:
    """A copy of the network on the clock's device, in a precision's types and a variant's memory format."""
    clock = peers.clock
    assert clock is not None
    torch = clock.torch
    own = copy.deepcopy(net).to(clock.device, getattr(torch, DTYPES[precision]))
    if variant == "channels_last":
        own = own.to(memory_format=torch.channels_last)
    return TorchNetwork(_as_list(torch, own), torch_inputs(clock, inputs, precision, variant), variant)


def _as_list(torch: Any, net: Any) -> Any:
    """The network with its result, or its tuple of results, as a list."""

    class Listed(torch.nn.Module):  # type: ignore[misc]
        """Gives a list of tensors."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, *inputs: Any) -> Any:
            """All results."""
            results = self.net(*inputs)
            return list(results) if isinstance(results, tuple) else [results]

    return Listed().eval()


class _TorchExact:
    """Results of the first and the last sample that PyTorch computes in float64."""

    def __init__(self, net: Any, device: str) -> None:
        self._torch = import_module("torch")
        self._net, self._device = net, device
        self._results: list[np.ndarray] | None = None

    def error(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> float:
        """The largest relative error of these samples."""
        picked = sorted({0, inputs[0].shape[0] - 1})
        if self._results is None:
            torch = self._torch
            wide = _as_list(torch, copy.deepcopy(self._net).to(self._device, torch.float64))
            tensors = [torch.from_numpy(x[picked]).to(self._device) for x in inputs]
            with torch.no_grad():
                made = wide(*(x.double() if x.is_floating_point() else x for x in tensors))
            self._results = [y.cpu().numpy() for y in made]
        return largest_error([y[picked] for y in outputs], self._results)
