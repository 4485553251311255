"""The networks of the suite: a fixed list, and ten that are drawn by a seed from the same families."""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any

import numpy as np

from tilewright.ir import InputError
from tilewright.tools.foreign.entry import Feed, image, tokens
from tilewright.tools.foreign_bench.weights import undrawn

#: how many networks are drawn
DRAWN = 10


@dataclass(frozen=True)
class TimedNetwork:
    """A network with random weights. kind: its class as `module.Class`, options: what that takes.

    via: the way in, `export` (torch.export) or `onnx` (the ONNX exporter of torch).
    """

    name: str
    family: str
    kind: str
    options: Mapping[str, Any]
    feeds: tuple[Feed, ...]
    via: str = "export"

    def build(self) -> Any:
        """The network in evaluation mode; what PyTorch would draw at random is left for `weights.fill`."""
        module, _, name = self.kind.partition(".")
        kind = getattr(import_module(f"tilewright.tools.foreign_bench.{module}"), name)
        with undrawn():
            return kind(**self.options).eval().requires_grad_(False)

    def inputs(self, batch: int, seed: int) -> list[np.ndarray]:
        """Seeded arrays; a larger batch begins with the samples of a smaller one. Integers have 64 bits."""
        arrays: list[np.ndarray] = []
        for number, feed in enumerate(self.feeds):
            rng = np.random.default_rng([seed, number])
            shape = (batch, *feed.shape)
            arrays.append(
                rng.integers(0, feed.below, shape) if feed.below else rng.standard_normal(shape, np.float32)
            )
        return arrays


def _net(
    name: str, family: str, kind: str, feeds: tuple[Feed, ...], via: str = "export", **options: Any
) -> TimedNetwork:
    return TimedNetwork(name, family, kind, options, feeds, via)


_VIT, _CNN, _ENCODER, _DECODER = "vision transformer", "convolutional network", "encoder", "decoder"
_DIFFUSION, _DETECTOR, _SEGMENTS, _SPEECH = "diffusion", "detector", "segmentation", "speech"
_RECURRENT = "recurrent"


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read(name: str, entry: Mapping[str, Any]) -> TimedNetwork:
    feeds = tuple(Feed(tuple(f["shape"]), f.get("below", 0)) for f in entry["feeds"])
    options = {key: _tuples(value) for key, value in entry["options"].items()}
    return TimedNetwork(name, entry["family"], entry["kind"], options, feeds, entry["via"])


def fixed() -> tuple[TimedNetwork, ...]:
    """The networks of suite.toml, in its order."""
    text = resources.files(__package__).joinpath("suite.toml").read_text(encoding="utf-8")
    return tuple(_read(name, entry) for name, entry in tomllib.loads(text).items())


def drawn(seed: int) -> tuple[TimedNetwork, ...]:
    """Ten networks of several families whose sizes a seed draws: nobody looked at them before."""
    return tuple(
        draw(np.random.default_rng([seed, i]), f"drawn{i}_s{seed}") for i, draw in enumerate(_DRAWERS)
    )


def _one(rng: np.random.Generator, values: Sequence[Any]) -> Any:
    return values[int(rng.integers(len(values)))]


def _way(rng: np.random.Generator) -> str:
    return str(_one(rng, ("export", "onnx")))


def _draw_vit(rng: np.random.Generator, name: str) -> TimedNetwork:
    heads, size, patch = int(rng.integers(3, 13)), _one(rng, (192, 224, 256)), _one(rng, (14, 16, 32))
    size -= size % patch
    return _net(
        name,
        _VIT,
        "vision.VisionTransformer",
        image(size),
        _way(rng),
        size=size,
        patch=patch,
        width=64 * heads,
        depth=int(rng.integers(6, 15)),
        heads=heads,
        mean=bool(rng.integers(2)),
        scale=bool(rng.integers(2)),
    )


def _draw_convnext(rng: np.random.Generator, name: str) -> TimedNetwork:
    width = 8 * int(rng.integers(5, 13))
    depths = (*rng.integers(1, 4, 2).tolist(), int(rng.integers(3, 10)), int(rng.integers(1, 4)))
    widths = tuple(width << i for i in range(4))
    return _net(
        name,
        _CNN,
        "vision.ConvNext",
        image(_one(rng, (160, 192, 224))),
        _way(rng),
        widths=widths,
        depths=depths,
        response=bool(rng.integers(2)),
    )


def _draw_residual(rng: np.random.Generator, name: str) -> TimedNetwork:
    group = 8 * int(rng.integers(1, 9))
    widths = [group * int(rng.integers(2, 5))]
    for _ in range(3):
        widths.append(group * math.ceil(widths[-1] * float(rng.uniform(1.6, 2.6)) / group))
    return _net(
        name,
        _CNN,
        "vision.Residual",
        image(224),
        _way(rng),
        widths=tuple(widths),
        depths=tuple(rng.integers(1, 7, 4).tolist()),
        group=group,
        squeeze=bool(rng.integers(2)),
    )


def _draw_encoder(rng: np.random.Generator, name: str) -> TimedNetwork:
    heads, length, words = (
        int(rng.integers(4, 13)),
        _one(rng, (64, 128, 192, 384)),
        int(rng.integers(8000, 50000)),
    )
    return _net(
        name,
        _ENCODER,
        "language.Encoder",
        tokens(length, words),
        _way(rng),
        words=words,
        length=length,
        width=64 * heads,
        depth=int(rng.integers(3, 13)),
        heads=heads,
        inner=64 * heads * _one(rng, (2, 3, 4)),
        before=bool(rng.integers(2)),
        positions=_one(rng, ("learnt", "relative", "alibi")),
        act=_one(rng, ("gelu", "relu", "silu")),
    )


def _draw_decoder(rng: np.random.Generator, name: str) -> TimedNetwork:
    groups, share, head = int(rng.integers(1, 5)), int(rng.integers(1, 5)), _one(rng, (64, 96, 128))
    heads, length, words = groups * share, _one(rng, (128, 256, 384, 512)), int(rng.integers(16000, 50000))
    width = 128 * int(rng.integers(4, 11))
    return _net(
        name,
        _DECODER,
        "language.Decoder",
        tokens(length, words),
        _way(rng),
        words=words,
        length=length,
        width=width,
        depth=int(rng.integers(4, 11)),
        heads=heads,
        groups=groups,
        head=head,
        inner=64 * int(width * float(rng.uniform(2, 4)) / 64),
        rotary=_one(rng, (0.5, 1.0)),
        norm=_one(rng, ("rms", "layer")),
        act=_one(rng, ("silu", "gelu")),
        gated=bool(rng.integers(2)),
        bias=bool(rng.integers(2)),
        window=_one(rng, (None, None, 64)),
    )


def _draw_denoiser(rng: np.random.Generator, name: str) -> TimedNetwork:
    stages, width = int(rng.integers(2, 5)), 32 * int(rng.integers(2, 6))
    attend = tuple(i for i in range(1, stages) if rng.integers(2))
    return _net(
        name,
        _DIFFUSION,
        "dense.Denoiser",
        (*image(_one(rng, (32, 64))), Feed((), 1000)),
        _way(rng),
        channels=3,
        width=width,
        multiples=tuple(int(min(4, 1 + i)) for i in range(stages)),
        attend=attend,
        heads=4,
    )


def _draw_detector(rng: np.random.Generator, name: str) -> TimedNetwork:
    return _net(
        name,
        _DETECTOR,
        "dense.OneStage",
        image(32 * int(rng.integers(6, 14))),
        _way(rng),
        width=8 * int(rng.integers(2, 6)),
        depths=tuple(rng.integers(1, 4, 4).tolist()),
    )


def _draw_segmentation(rng: np.random.Generator, name: str) -> TimedNetwork:
    return _net(
        name,
        _SEGMENTS,
        "dense.UNet",
        image(32 * int(rng.integers(3, 8))),
        _way(rng),
        width=8 * int(rng.integers(2, 7)),
        levels=int(rng.integers(3, 5)),
        norm=_one(rng, ("group", "batch")),
    )


def _draw_speech(rng: np.random.Generator, name: str) -> TimedNetwork:
    heads, bands = int(rng.integers(3, 9)), _one(rng, (64, 80))
    return _net(
        name,
        _SPEECH,
        "sequences.Conformer",
        (Feed((100 * int(rng.integers(2, 8)), bands)),),
        _way(rng),
        bands=bands,
        width=64 * heads,
        depth=int(rng.integers(3, 9)),
        heads=heads,
        kernel=_one(rng, (7, 15, 31)),
    )


def _draw_recurrent(rng: np.random.Generator, name: str) -> TimedNetwork:
    words = int(rng.integers(2000, 20000))
    return _net(
        name,
        _RECURRENT,
        "sequences.Recurrent",
        tokens(int(rng.integers(16, 97)), words),
        _way(rng),
        cell=_one(rng, ("lstm", "gru")),
        words=words,
        width=64 * int(rng.integers(2, 9)),
        hidden=64 * int(rng.integers(2, 9)),
        layers=int(rng.integers(1, 4)),
        results=int(rng.integers(10, 2000)),
        both=bool(rng.integers(2)),
        whole=bool(rng.integers(2)),
    )


_DRAWERS: tuple[Callable[[np.random.Generator, str], TimedNetwork], ...] = (
    _draw_vit, _draw_convnext, _draw_residual, _draw_encoder, _draw_decoder, _draw_denoiser, _draw_detector,
    _draw_segmentation, _draw_speech, _draw_recurrent,
)  # fmt: skip


def chosen(names: Sequence[str], seed: int | None) -> list[TimedNetwork]:
    """The networks of these names, all where none is given: the fixed, and with a seed those it draws.

    Raises InputError for unknown names.
    """
    known = {n.name: n for n in (*fixed(), *(() if seed is None else drawn(seed)))}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known)}"
            raise InputError(f"unknown network '{name}' of the suite foreign, {hint}", where="--foreign")
    return [known[n] for n in dict.fromkeys(names)] if names else list(known.values())
