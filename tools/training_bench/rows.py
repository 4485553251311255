"""The rows of `tilewright bench --train`: a network, its batch, what is learnt and by which optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.ir import Block, InputError, Module
from tilewright.ir.types import array_type
from tilewright.tools.arguments.scope import ZOO
from tilewright.tools.bench.networks import random_batch
from tilewright.tools.commands.network import read_network


@dataclass(frozen=True)
class TrainingRow:
    """One row. network: a network of the zoo with options, or of the folder of Relay networks.

    shapes: of inputs that differ from the file's. loss: `cross_entropy` with classes drawn at random, or
    `bce` with a probability of 0 or 1 for each result. optimizer: `sgd` (of this momentum), `adam`, `adamw`.
    """

    name: str
    network: str
    loss: str
    optimizer: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    momentum: float = 0.9

    def module(self, folder: Path) -> Module:
        """The network at its batch, ending in logits: a softmax at its end belongs to the loss."""
        path = self.network if self.network.startswith(ZOO) else str(folder / f"{self.network}.relay")
        module = read_network(path, params=None if self.network.startswith(ZOO) else "random")
        return without_softmax(tw.with_input_shapes(module, self.shapes) if self.shapes else module)

    def data(self, module: Module, seed: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Random inputs and labels."""
        logits = array_type(module.main.result_types[0])  # type: ignore[arg-type]
        rng = np.random.default_rng([seed, 1])
        if self.loss == "bce":
            return random_batch(module, seed), rng.integers(0, 2, logits.shape).astype(np.float32)
        labels = rng.integers(0, logits.shape[-1], logits.shape[:-1]).astype(np.int32)
        return random_batch(module, seed), labels


def without_softmax(module: Module) -> Module:
    """The module without a softmax (of the last dimension) that gives its only result."""
    main = module.main
    *ops, end = main.body.ops
    last = next((op for op in ops if end.operands == op.results), None)
    if (
        last is None
        or last.name != "graph.softmax"
        or last.integer("axis") not in (-1, last.result.tensor.rank - 1)
    ):
        return module
    logits = last.operands
    body = Block(main.params, (*(op for op in ops if op is not last), end.with_operands(logits)))
    func = replace(main, body=body, result_types=tuple(v.type for v in logits))
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs))


def _images(name: str, network: str, batch: int, size: int, given: str) -> TrainingRow:
    shapes = {given: (batch, 3, size, size)}
    return TrainingRow(name, network, "cross_entropy", "sgd", shapes)


#: the rows, by name: networks of DeepCuts (table 4), Nimble (section 5.3) and of the transformer's training
ROWS: Mapping[str, TrainingRow] = {
    row.name: row
    for row in (
        _images("resnet50_b64", "resnet50", 64, 224, "data"),
        _images("resnet50_b256", "resnet50", 256, 224, "data"),
        _images("mobilenet_v2_b64", "pt_mobilenet_v2", 64, 224, "x"),
        _images("efficientnet_b0_b64", "pt_efficientnet_b0", 64, 224, "x"),
        _images("densenet121_b64", "densenet121", 64, 224, "data"),
        _images("resnet50_32_b32", "resnet50", 32, 32, "data"),
        _images("mobilenet_v2_32_b32", "pt_mobilenet_v2", 32, 32, "x"),
        _images("efficientnet_b0_32_b32", "pt_efficientnet_b0", 32, 32, "x"),
        TrainingRow("bert_base_128_b32", "zoo:bert_base_mlm{batch=32}", "cross_entropy", "adamw"),
        TrainingRow("lstm_2x512_t64_b32", "zoo:lstm_classifier{batch=32}", "cross_entropy", "adam"),
        TrainingRow("dlrm_b256", "zoo:dlrm{batch=256}", "bce", "sgd"),
        TrainingRow("dlrm_b2048", "zoo:dlrm{batch=2048}", "bce", "sgd"),
        TrainingRow("dlrm_plain_b256", "zoo:dlrm{batch=256}", "bce", "sgd", momentum=0.0),
        TrainingRow("dlrm_plain_b2048", "zoo:dlrm{batch=2048}", "bce", "sgd", momentum=0.0),
    )
}


def rows_of(names: Sequence[str]) -> list[TrainingRow]:
    """Rows by name, all of them where none is named; raises InputError for unknown names."""
    unknown = [n for n in names if n not in ROWS]
    if unknown:
        raise InputError(f"unknown row '{unknown[0]}'; known: {', '.join(ROWS)}", where="--train")
    return [ROWS[n] for n in names] or list(ROWS.values())
