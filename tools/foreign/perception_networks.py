"""Vision, speech and detection models of transformers in small configurations."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tilewright.tools.foreign.entry import Feed, ForeignNetwork, image, tokens
from tilewright.tools.foreign.language_networks import transformer
from tilewright.tools.foreign.torchvision_networks import torchvision

_TOWER = {"hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}


def _whisper_encoder() -> Any:
    return transformer(
        "WhisperModel", "WhisperConfig", vocab_size=500, d_model=128, encoder_layers=3, decoder_layers=1,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256, decoder_ffn_dim=256,
        max_source_positions=100, max_target_positions=32, pad_token_id=0,
    ).get_encoder()  # fmt: skip


def _detr() -> Any:
    torchvision()
    package = import_module("transformers")
    backbone = package.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    config = package.DetrConfig(
        use_timm_backbone=False, backbone=None, use_pretrained_backbone=False, backbone_config=backbone,
        d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, num_queries=20, num_labels=10,
    )  # fmt: skip
    return package.DetrForObjectDetection(config)


def _net(
    name: str, family: str, build: partial[Any], feeds: tuple[Feed, ...], argument: str = "pixel_values"
) -> ForeignNetwork:
    return ForeignNetwork(name, family, "transformers", build, feeds, (argument,))


NETWORKS = (
    _net(
        "whisper_encoder",
        "Whisper encoder",
        partial(_whisper_encoder),
        (Feed((80, 200)),),
        "input_features",
    ),
    _net(
        "wav2vec2",
        "Wav2Vec2",
        partial(
            transformer, "Wav2Vec2Model", "Wav2Vec2Config", **_TOWER, conv_dim=(64, 64, 64),
            conv_kernel=(10, 3, 3), conv_stride=(5, 2, 2), num_feat_extract_layers=3,
            num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        ),
        (Feed((4000,)),),
        "input_values",
    ),
    _net(
        "clip_text",
        "CLIP text",
        partial(
            transformer, "CLIPTextModel", "CLIPTextConfig", **_TOWER, vocab_size=500,
            max_position_embeddings=32, eos_token_id=499, bos_token_id=498,
        ),
        tokens(32, 500),
        "input_ids",
    ),
    _net(
        "clip_vision",
        "CLIP vision",
        partial(transformer, "CLIPVisionModel", "CLIPVisionConfig", **_TOWER, image_size=128, patch_size=16),
        image(128),
    ),
    _net(
        "segformer",
        "SegFormer",
        partial(
            transformer, "SegformerForSemanticSegmentation", "SegformerConfig", depths=[1, 1, 1, 1],
            hidden_sizes=[16, 32, 64, 128], decoder_hidden_size=64, num_labels=20,
        ),
        image(128),
    ),
    _net("detr", "DETR", partial(_detr), image(128)),
)  # fmt: skip
