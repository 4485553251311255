"""The rows of `tilewright bench --train`: a network, its batch, what is learnt and by which optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

import tilewright as tw
from tilewright.ir import Block, InputError, Module, Op
from tilewright.ir.types import array_type
from tilewright.tools.arguments.scope import ZOO
from tilewright.tools.bench.networks import random_batch
from tilewright.tools.commands.network import read_network
from tilewright.tools.training_bench.cudnn_networks import CUDNN_NETWORKS


@dataclass(frozen=True)
class TrainingRow:
    """One row. network: a network of the zoo with options, or of the folder of Relay networks.

    shapes: of inputs that differ from the file's. loss: `cross_entropy` with classes drawn at random, or
    `bce` with a probability of 0 or 1 for each result. optimizer: `sgd` (of this momentum), `adam`, `adamw`.
    eager: whether PyTorch without a graph is a peer, too, as in Nimble's comparison. clip_norm: to which norm
    gradients are clipped where losses are compared over many steps, with both; None leaves them as they are.
    """

    name: str
    network: str
    loss: str
    optimizer: str
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    momentum: float = 0.9
    eager: bool = False
    clip_norm: float | None = None

    @property
    def cudnn_network(self) -> str | None:
        """The name of the network that PyTorch builds from layers of cuDNN, where there is one."""
        name = self.network.removeprefix(ZOO).partition("{")[0]
        return name if self.network.startswith(ZOO) and name in CUDNN_NETWORKS else None

    def module(self, folder: Path) -> Module:
        """The network at its batch, ending in logits: a softmax at its end belongs to the loss."""
        path = self.network if self.network.startswith(ZOO) else str(folder / f"{self.network}.relay")
        module = read_network(path, params=None if self.network.startswith(ZOO) else "random")
        module = without_softmax(module)
        return tw.with_input_shapes(whole_pools_as_global(module), self.shapes) if self.shapes else module

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


def whole_pools_as_global(module: Module) -> Module:
    """The module with means over a whole image as such, so that it follows images of another size."""
    main = module.main
    ops = tuple(
        Op("graph.global_avg_pool2d", op.operands, (("layout", "NCHW"),), op.results, loc=op.loc)
        if _is_whole(op)
        else op
        for op in main.body.ops
    )
    func = main.with_body(main.body.with_ops(ops))
    return module.with_funcs(tuple(func if f is main else f for f in module.funcs))


def _is_whole(op: Op) -> bool:
    if op.name != "graph.avg_pool2d" or op["layout"] != "NCHW" or any(op.integers("padding")):
        return False
    return op.integers("pool_size") == op.operands[0].tensor.shape[2:]


#: The norm to which gradients of networks of images are clipped where losses are compared. Batch norms over
#: few values divide by deviations near zero, so that first gradients of deep networks of small images reach
#: 6e6 (densenet121_32_b32 in float64): unclipped steps differ by any rounding, and leave float32's range.
_CLIPPED_TO = 1.0
#: inputs of the files that are images
_INPUTS = {"resnet50": "data", "densenet121": "data", "inception_v3": "data"}


def _images(name: str, network: str, batch: int, size: int, *, eager: bool = False) -> TrainingRow:
    shapes = {_INPUTS.get(network, "x"): (batch, 3, size, size)}
    return TrainingRow(name, network, "cross_entropy", "sgd", shapes, eager=eager, clip_norm=_CLIPPED_TO)


#: networks of images by the names that their rows have, and the sizes of images
_IMAGES = {
    "resnet50": ("resnet50", 224),
    "mobilenet_v2": ("pt_mobilenet_v2", 224),
    "efficientnet_b0": ("pt_efficientnet_b0", 224),
    "densenet121": ("densenet121", 224),
    "inception_v3": ("inception_v3", 299),
    "inception_v3_224": ("inception_v3", 224),
}

#: the rows, by name: networks of DeepCuts (table 4), Nimble (section 5.3) and of the transformer's training
ROWS: Mapping[str, TrainingRow] = {
    row.name: row
    for row in (
        *(
            _images(f"{name}_b{batch}", network, batch, size)
            for name, (network, size) in _IMAGES.items()
            for batch in (64, 256)
        ),
        *(
            _images(f"{name}_32_b32", _IMAGES[name][0], 32, 32, eager=True)
            for name in ("resnet50", "mobilenet_v2", "efficientnet_b0", "densenet121")
        ),
        TrainingRow("bert_base_128_b32", "zoo:bert_base_mlm{batch=32}", "cross_entropy", "adamw"),
        TrainingRow("lstm_2x512_t64_b32", "zoo:lstm_classifier{batch=32}", "cross_entropy", "adam"),
        TrainingRow("deep_speech_t64_b32", "zoo:deep_speech{batch=32}", "cross_entropy", "adam"),
        TrainingRow("attention_rnn_t32_b32", "zoo:attention_rnn{batch=32}", "cross_entropy", "adam"),
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
