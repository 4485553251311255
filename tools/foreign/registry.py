"""All foreign networks; what holds torch classes is imported when one of them is built."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

from tilewright.ir import InputError
from tilewright.tools.foreign import (
    language_networks,
    packaged_networks,
    perception_networks,
    timm_networks,
    torchvision_networks,
)
from tilewright.tools.foreign.entry import Feed, ForeignNetwork, image, tokens
from tilewright.tools.foreign.packaged import Packaged


def _written(name: str, **options: Any) -> Any:
    return getattr(import_module("tilewright.tools.foreign.written_networks"), name)(**options)


def _tagger(cell: str) -> Any:
    return _written("Tagger", cell=getattr(import_module("torch").nn, cell))


def _net(name: str, family: str, kind: str, feeds: tuple[Feed, ...]) -> ForeignNetwork:
    return ForeignNetwork(name, family, "torch", partial(_written, kind), feeds)


WRITTEN = (
    _net("unet", "U-Net (group norms)", "UNet", image(64)),
    _net("diffusion_unet", "diffusion U-Net", "DiffusionUNet", (*image(32), Feed((), 1000))),
    _net("tcn", "TCN", "TemporalConvolutions", (Feed((4, 100)),)),
    ForeignNetwork("bilstm_tagger", "BiLSTM tagger", "torch", partial(_tagger, "LSTM"), tokens(24, 200)),
    ForeignNetwork("gru_tagger", "GRU tagger", "torch", partial(_tagger, "GRU"), tokens(24, 200)),
    _net("super_resolution", "super-resolution (PixelShuffle)", "SuperResolution", image(48)),
    _net("hourglass", "keypoints (hourglass)", "Hourglass", image(96)),
    _net("crnn", "text recognition (CRNN)", "Recogniser", (Feed((1, 32, 100)),)),
    _net("pointnet", "point sets", "PointNet", (Feed((64, 3)),)),
    _net("translator", "torch.nn.Transformer", "Translator", (*tokens(20, 300), *tokens(16, 300))),
)

ENTRIES: Mapping[str, ForeignNetwork | Packaged] = {
    e.name: e
    for e in (
        *timm_networks.NETWORKS,
        *torchvision_networks.NETWORKS,
        *language_networks.NETWORKS,
        *perception_networks.NETWORKS,
        *WRITTEN,
        *packaged_networks.NETWORKS,
    )
}


def chosen(names: Sequence[str]) -> list[ForeignNetwork | Packaged]:
    """The entries of these names, all where none is given; raises InputError for an unknown one."""
    for name in names:
        if name not in ENTRIES:
            near = difflib.get_close_matches(name, ENTRIES, 1, 0.5)
            hint = f"did you mean '{near[0]}'" if near else f"known: {', '.join(ENTRIES)}"
            raise InputError(f"unknown network '{name}', {hint}")
    return [ENTRIES[n] for n in names] if names else list(ENTRIES.values())
