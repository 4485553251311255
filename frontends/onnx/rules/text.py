"""ONNX operators of text whose words are numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from tilewright.frontends.importing.emitter import Result, bounded
from tilewright.frontends.onnx.emission import FoldingEmitter
from tilewright.frontends.onnx.node import Node, Rules
from tilewright.ir.errors import InputError, UnsupportedError
from tilewright.ir.nodes import Value

_MODES = ("TF", "IDF", "TFIDF")


def _pools(node: Node) -> dict[int, np.ndarray]:
    """n -> all n-grams of the pool [count, n]: `ngram_counts` says where those of each length begin."""
    if node.sets("pool_strings"):
        raise UnsupportedError("expected words to be numbers, got strings")
    pool = np.array(node.integers("pool_int64s"), np.int64)
    starts = (*node.integers("ngram_counts"), len(pool))
    pools = {}
    for n, (begin, end) in enumerate(pairwise(starts), 1):
        if not 0 <= begin <= end <= len(pool) or (end - begin) % n:
            raise InputError(
                f"expected ngram_counts to cut {len(pool)} words into n-grams, got {starts[:-1]}"
            )
        pools[n] = pool[begin:end].reshape(-1, n)
    return pools


def _occurrences(emit: FoldingEmitter, x: Value, grams: np.ndarray, distances: Sequence[int]) -> Value:
    """The occurrences of each n-gram in every row of x [N, C] with words `distance` apart: [N, count]."""
    (rows, words), (count, n) = x.tensor.shape, grams.shape
    total = emit.full(0.0, "f32", (rows, count))
    for distance in distances:
        windows = words - (n - 1) * distance
        if windows < 1:
            continue
        bounded(rows, count, windows)
        hit: Value | None = None
        for k in range(n):
            part = emit.reshape(emit.cut(x, 1, k * distance, windows), (rows, 1, windows))
            same = emit.value("equal", part, emit.constant(grams[:, k].reshape(1, count, 1)))
            hit = same if hit is None else emit.value("logical_and", hit, same)
        assert hit is not None
        count_here = emit.value("sum", emit.cast(hit, "f32"), axis=(2,), keepdims=False)
        total = emit.value("add", total, count_here)
    return total


def _tf_idf(emit: FoldingEmitter, node: Node) -> Result:
    """Counts of n-grams (TF), or whether they occur (IDF), times weights; words may skip others."""
    x = emit.cast(node.tensor(0), "i64")
    shape, attrs = x.tensor.shape, node
    least, most = attrs.integer("min_gram_length"), attrs.integer("max_gram_length")
    skips, mode = attrs.integer("max_skip_count"), attrs.text("mode")
    places = np.array(attrs.integers("ngram_indexes"), np.int64)
    pools = _pools(node)
    if mode not in _MODES or len(shape) not in (1, 2) or not 0 <= skips <= 4096:
        raise InputError(f"expected mode {', '.join(_MODES)} and rows of words, got '{mode}' and {x.type}")
    if len(places) != sum(len(g) for g in pools.values()) or places.min(initial=0) < 0:
        raise InputError(f"expected one index per n-gram of the pool, got {len(places)}")
    rows = emit.reshape(x, (shape[0] if len(shape) == 2 else 1, shape[-1]))
    parts = []
    for n, grams in pools.items():
        distances = range(1, 2 if n == 1 else skips + 2) if least <= n <= most else ()
        parts.append(_occurrences(emit, rows, grams, distances))
    size = int(places.max(initial=-1)) + 1
    bounded(len(places), size)
    spread = np.zeros((len(places), size), np.float32)
    spread[np.arange(len(places)), places] = 1
    counts = emit.value("matmul", emit.join(parts, 1), emit.constant(spread))
    if mode == "IDF":
        counts = emit.cast(emit.op("greater", counts, 0.0), "f32")
    weights = attrs.reals("weights", ())
    if mode != "TF" and weights:
        if len(weights) != len(places):
            raise InputError(f"expected one weight per n-gram of the pool, got {len(weights)}")
        scale = np.zeros(size, np.float32)
        scale[places] = weights
        counts = emit.value("multiply", counts, emit.constant(scale))
    return emit.reshape(counts, (*shape[:-1], size))


RULES: Rules = {"TfIdfVectorizer": _tf_idf}
