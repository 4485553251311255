"""Networks of timm: convolutional, attentional and mixed ones, small sizes of each family."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tilewright.tools.foreign.entry import ForeignNetwork, image
from tilewright.tools.foreign.torchvision_networks import torchvision


def _build(name: str, **options: Any) -> Any:
    torchvision()  # timm imports it
    return import_module("timm").create_model(name, pretrained=False, num_classes=100, **options)


def _net(name: str, family: str, size: int, **options: Any) -> ForeignNetwork:
    return ForeignNetwork(name, family, "timm", partial(_build, name, **options), image(size))


NETWORKS = (
    _net("convnext_atto", "ConvNeXt", 128),
    _net("convnextv2_atto", "ConvNeXt V2", 128),
    _net("regnety_002", "RegNet", 128),
    _net("tf_efficientnetv2_b0", "EfficientNetV2", 128),
    _net("mobilenetv3_small_100", "MobileNetV3", 160),
    _net("mobilevit_xxs", "MobileViT", 128),
    _net("ghostnet_100", "GhostNet", 128),
    _net("mnasnet_small", "MnasNet", 160),
    _net("resnext26ts", "ResNeXt", 128),
    _net("res2net50_14w_8s", "Res2Net", 96),
    _net("legacy_seresnet18", "SENet", 128),
    _net("cspresnet50", "CSPNet", 128),
    _net("dla46_c", "DLA", 128),
    _net("hrnet_w18_small", "HRNet", 128),
    _net("mixer_s32_224", "MLP-Mixer", 224),
    _net("gmlp_ti16_224", "gMLP", 224),
    _net("poolformer_s12", "PoolFormer", 128),
    _net("efficientformer_l1", "EfficientFormer", 224),
    _net("maxvit_pico_rw_256", "MaxViT", 256),
    _net("coatnet_pico_rw_224", "CoAtNet", 224),
    _net("levit_128s", "LeViT", 224),
    _net("beit_base_patch16_224", "BEiT", 224, depth=4, embed_dim=192, num_heads=3),
    _net("cait_xxs24_224", "CaiT", 224, depth=4),
    _net("xcit_nano_12_p16_224", "XCiT", 160, depth=4),
    _net("focalnet_tiny_srf", "FocalNet", 128),
    _net("vit_tiny_patch16_224", "ViT", 160, depth=4, img_size=160),
    _net("deit_tiny_distilled_patch16_224", "DeiT", 160, depth=4, img_size=160),
    _net("swin_tiny_patch4_window7_224", "Swin", 224, depths=(1, 1, 2, 1), embed_dim=48),
    _net("pvt_v2_b0", "PVT v2", 128),
    _net("resnest14d", "ResNeSt", 128),
    _net("repvgg_a0", "RepVGG", 96),
    _net("fastvit_t8", "FastViT", 128),
    _net("crossvit_tiny_240", "CrossViT", 240, depth=[[1, 2, 0], [1, 2, 0]]),
    _net("edgenext_xx_small", "EdgeNeXt", 128),
    _net("nf_regnet_b0", "NF-RegNet", 128),
    _net("sequencer2d_s", "Sequencer2D", 224, layers=(1, 1, 2, 1)),
    _net("halonet26t", "HaloNet", 256),
    _net("eva02_tiny_patch14_224", "EVA-02", 224, depth=4),
)
