"""Published sizes of GPT-style decoders, each a builder that further options change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tilewright.frontends.zoo.gpt import gpt
from tilewright.ir.nodes import Module


def _size(
    layers: int, width: int, heads: int, vocabulary: int, context: int, sequence: int
) -> dict[str, Any]:
    return {
        "layers": layers,
        "width": width,
        "heads": heads,
        "vocabulary": vocabulary,
        "context": context,
        "sequence": sequence,
    }


#: GPT-2: Radford et al. 2019, table 2, heads of 64 channels; GPT-3: Brown et al. 2020, table 2.1
_SIZES: Mapping[str, Mapping[str, Any]] = {
    "gpt": {},
    "gpt_tiny": _size(2, 64, 4, 256, 64, 16),
    "gpt2_small": _size(12, 768, 12, 50257, 1024, 128),
    "gpt2_medium": _size(24, 1024, 16, 50257, 1024, 128),
    "gpt2_large": _size(36, 1280, 20, 50257, 1024, 128),
    "gpt2_xl": _size(48, 1600, 25, 50257, 1024, 128),
    "gpt3_2_7b": _size(32, 2560, 32, 50257, 2048, 128),
    "gpt3_6_7b": _size(32, 4096, 32, 50257, 2048, 128),
}

#: Builders by name: `gpt` with sizes of its own, and the published ones.
GPT_NETWORKS: Mapping[str, Callable[..., Module]] = {
    name: partial(gpt, name=name, **size) for name, size in _SIZES.items()
}
