"""Language models of transformers in small configurations: encoders, decoders, and both."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

from tilewright.tools.foreign.entry import Feed, ForeignNetwork, tokens
from tilewright.tools.foreign.torchvision_networks import torchvision

_WORDS, _LENGTH = 500, 32
_MASKED = ("input_ids", "attention_mask")


def transformer(model: str, config: str, **options: Any) -> Any:
    """A model of transformers by the names of its class and of its configuration."""
    torchvision()  # transformers imports it where it is installed
    package = import_module("transformers")
    return getattr(package, model)(getattr(package, config)(**options))


def _bert_like(**options: Any) -> dict[str, Any]:
    """Sizes under the names that BERT's configuration and its heirs have."""
    return {
        "vocab_size": _WORDS, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
        "intermediate_size": 256, "max_position_embeddings": 64, **options,
    }  # fmt: skip


def _llama_like(**options: Any) -> dict[str, Any]:
    """Options as of `_bert_like`, with keys and values that two heads share."""
    return _bert_like(num_key_value_heads=2, use_cache=False, **options)


def _net(
    name: str, family: str, model: str, sizes: dict[str, Any], *, masked: bool = False
) -> ForeignNetwork:
    """A network whose configuration is named as its class begins; decoders also take a padding mask."""
    stem = next(model[: -len(end)] for end in _ENDS if model.endswith(end))
    feeds = tokens(_LENGTH, _WORDS)
    if masked or model.endswith(("ForCausalLM", "LMHeadModel")):
        feeds = (*feeds, Feed((_LENGTH,), 2))
    build = partial(transformer, model, f"{stem}Config", **sizes)
    return ForeignNetwork(name, family, "transformers", build, feeds, _MASKED[: len(feeds)])


_ENDS = ("ForMaskedLM", "ForCausalLM", "LMHeadModel", "EncoderModel", "Model")
_T5 = {
    "vocab_size": _WORDS, "d_model": 128, "d_kv": 32, "d_ff": 256, "num_layers": 2, "num_heads": 4,
    "use_cache": False,
}  # fmt: skip
_BART = {
    "vocab_size": _WORDS, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2, "use_cache": False,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256, "max_position_embeddings": 64,
}  # fmt: skip


def _both(name: str, family: str, stem: str, sizes: dict[str, Any]) -> ForeignNetwork:
    """An encoder with a decoder, each fed tokens of its own."""
    feeds = (*tokens(_LENGTH, _WORDS), *tokens(_LENGTH // 2, _WORDS))
    build = partial(transformer, f"{stem}Model", f"{stem}Config", **sizes)
    return ForeignNetwork(name, family, "transformers", build, feeds, ("input_ids", "decoder_input_ids"))


NETWORKS = (
    _net("bert", "BERT", "BertModel", _bert_like(), masked=True),
    _net("roberta", "RoBERTa", "RobertaForMaskedLM", _bert_like()),
    _net(
        "distilbert",
        "DistilBERT",
        "DistilBertModel",
        {"vocab_size": _WORDS, "dim": 128, "n_layers": 4, "n_heads": 4, "hidden_dim": 256},
        masked=True,
    ),
    _net("albert", "ALBERT", "AlbertModel", _bert_like(embedding_size=64)),
    _net("electra", "ELECTRA", "ElectraModel", _bert_like(embedding_size=64)),
    _net(
        "deberta_v2",
        "DeBERTa-v2",
        "DebertaV2Model",
        _bert_like(relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=16),
    ),
    _net("mpnet", "MPNet", "MPNetModel", _bert_like()),
    _net(
        "gpt2",
        "GPT-2",
        "GPT2LMHeadModel",
        {
            "vocab_size": _WORDS, "n_embd": 128, "n_layer": 4, "n_head": 4, "n_positions": 64,
            "use_cache": False,
        },
    ),
    _net("gpt_neox", "GPT-NeoX", "GPTNeoXForCausalLM", _bert_like(use_cache=False)),
    _net("llama", "Llama (grouped keys)", "LlamaForCausalLM", _llama_like()),
    _net("mistral", "Mistral (sliding window)", "MistralForCausalLM", _llama_like(sliding_window=16)),
    _net("qwen2", "Qwen2", "Qwen2ForCausalLM", _llama_like()),
    _net("gemma", "Gemma", "GemmaForCausalLM", _llama_like(head_dim=32)),
    _net("phi", "Phi", "PhiForCausalLM", _bert_like(use_cache=False)),
    _net(
        "opt",
        "OPT",
        "OPTForCausalLM",
        {
            "vocab_size": _WORDS, "hidden_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
            "ffn_dim": 256, "max_position_embeddings": 64, "word_embed_proj_dim": 128, "use_cache": False,
        },
    ),
    _net(
        "bloom",
        "BLOOM (ALiBi)",
        "BloomForCausalLM",
        {"vocab_size": _WORDS, "hidden_size": 128, "n_layer": 4, "n_head": 4, "use_cache": False},
    ),
    _net("t5_encoder", "T5 encoder", "T5EncoderModel", _T5),
    _both("t5", "T5", "T5", _T5),
    _both("bart", "BART", "Bart", _BART),
)  # fmt: skip
