"""Relay's Fourier transforms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.frontends.emitter import Emitter, Result
from tilewright.frontends.relay.attributes import Attributes
from tilewright.frontends.relay.evaluate import Rule


def _dft(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    return emit.values("dft", emit.tensors(args, 2), inverse=attrs.flag("inverse", False))


def _stft(emit: Emitter, args: Sequence[Result], attrs: Attributes) -> Result:
    sizes = {name: attrs.integer(name) for name in ("n_fft", "hop_length", "win_length")}
    normalized, onesided = attrs.flag("normalized", False), attrs.flag("onesided", True)
    return emit.value("stft", *emit.tensors(args, 2), **sizes, normalized=normalized, onesided=onesided)


RULES: Mapping[str, Rule] = {"dft": _dft, "stft": _stft}
