"""Networks of torchvision; where its compiled operators cannot load, their schemas alone are declared."""

from __future__ import annotations

from functools import cache, partial
from importlib import import_module
from typing import Any

from tilewright.tools.foreign.entry import Feed, ForeignNetwork, image

#: operators whose Python registrations torchvision runs at import, whether its library loaded or not
_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


@cache
def _declared() -> Any:
    """A library that declares operators lives as long as what holds it."""
    library = import_module("torch").library.Library("torchvision", "DEF")
    for schema in _SCHEMAS:
        library.define(schema)
    return library


@cache
def torchvision() -> Any:
    """The package; builds for CUDA import beside a torch without it, short of their own operators."""
    try:
        return import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _declared()
        return import_module("torchvision")


def _model(name: str, **options: Any) -> Any:
    torchvision()
    return import_module("torchvision.models").get_model(name, weights=None, num_classes=21, **options)


def _net(name: str, family: str, size: int, **options: Any) -> ForeignNetwork:
    return ForeignNetwork(name, family, "torchvision", partial(_model, name, **options), image(size))


NETWORKS = (
    _net("shufflenet_v2_x0_5", "ShuffleNetV2", 128),
    _net("lraspp_mobilenet_v3_large", "segmentation (LR-ASPP)", 128, weights_backbone=None),
    _net("deeplabv3_mobilenet_v3_large", "segmentation (DeepLabV3)", 128, weights_backbone=None),
    ForeignNetwork(
        "mc3_18",
        "video (3-D convolutions)",
        "torchvision",
        partial(_model, "mc3_18"),
        (Feed((3, 8, 56, 56)),),
    ),
)
