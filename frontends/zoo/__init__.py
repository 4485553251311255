"""Networks built from their papers, with random weights, for tests and measurements."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

from tilewright.frontends.zoo.bert import BERT_NETWORKS, bert
from tilewright.frontends.zoo.digits import digits, linear_classifier
from tilewright.frontends.zoo.encoder import LAYERS, encoder_layer
from tilewright.frontends.zoo.encoder_dataflow import encoder_dataflow
from tilewright.frontends.zoo.gpt import GPT_NETWORKS, gpt
from tilewright.frontends.zoo.nasnet import nasnet_mobile
from tilewright.frontends.zoo.recommendation import dlrm
from tilewright.frontends.zoo.recurrent import lstm_classifier
from tilewright.frontends.zoo.speech import deep_speech
from tilewright.frontends.zoo.translation import attention_rnn
from tilewright.ir.errors import InputError, expect
from tilewright.ir.nodes import Module

__all__ = [
    "NETWORKS",
    "attention_rnn",
    "bert",
    "build",
    "deep_speech",
    "digits",
    "dlrm",
    "encoder_dataflow",
    "encoder_layer",
    "gpt",
    "linear_classifier",
    "lstm_classifier",
    "nasnet_mobile",
]

NETWORKS: Mapping[str, Callable[..., Module]] = {
    "nasnet_mobile": nasnet_mobile,
    "lstm_classifier": lstm_classifier,
    "digits": digits,
    "linear_classifier": linear_classifier,
    "dlrm": dlrm,
    "deep_speech": deep_speech,
    "attention_rnn": attention_rnn,
    "encoder_dataflow": encoder_dataflow,
    **BERT_NETWORKS,
    **GPT_NETWORKS,
    **LAYERS,
}

_NAME = re.compile(r"([^{}]*)(?:\{(.*)\})?")


def build(name: str, seed: int = 0) -> Module:
    """Network `name` at its published size, or with options: `gpt2_small{batch=4, sequence=256}`.

    Options are keywords of the network's builder, with numbers, true, false or words as values. Raises
    InputError naming the known networks or options.
    """
    match = _NAME.fullmatch(expect(name, str, "the name of a network"))
    plain = match[1].strip() if match else name
    if match is None or plain not in NETWORKS:
        raise InputError(f"expected a network of the zoo ({', '.join(NETWORKS)}), got '{plain}'")
    builder = NETWORKS[plain]
    known = inspect.signature(builder).parameters
    options: dict[str, int | float | bool | str] = {}
    for part in (match[2] or "").split(","):
        if not part.strip():
            continue
        key, sign, value = (piece.strip() for piece in part.partition("="))
        if not sign or key not in known or key in ("seed", "name"):
            names = ", ".join(k for k in known if k not in ("seed", "name"))
            raise InputError(f"expected options of {plain} ({names}), got '{part.strip()}'")
        options[key] = _value(value)
    return builder(seed=seed, **options)


def _value(text: str) -> int | float | bool | str:
    if text in ("true", "false"):
        return text == "true"
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    return float(text) if re.fullmatch(r"-?[0-9]{1,18}\.[0-9]{1,18}", text) else text
