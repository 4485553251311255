"""DLRM, a model of recommendations (Naumov et al. 2019, "Deep Learning Recommendation Model ...")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.frontends.zoo.writing import NetworkWriter, check_sizes
from tilewright.ir.graph_code import Tensor
from tilewright.ir.nodes import Module


def dlrm(
    seed: int = 0,
    *,
    tables: int = 26,
    rows: int = 100_000,
    width: int = 64,
    lookups: int = 1,
    dense: int = 13,
    hidden: int = 512,
    batch: int = 128,
    name: str = "dlrm",
) -> Module:
    """Map `dense` float32 [batch, dense] and `indices` int32 [batch, tables, lookups] to logits [batch].

    The dense features pass layers of `hidden`, `hidden` / 2 and `width` units with ReLU; every table, of
    `rows` x `width`, gives the sum of the rows that its indices name; the products of all pairs of these
    vectors and the first of them pass layers of `hidden`, `hidden` / 2 and 1 units. Published sizes for
    Criteo's data set are 26 tables and 13 dense features. Train it with `bce`. Raises InputError for
    impossible sizes.
    """
    sizes = {"tables": tables, "rows": rows, "width": width, "lookups": lookups, "dense": dense}
    check_sizes(name, **sizes, hidden=hidden // 2, batch=batch)
    net = NetworkWriter(seed)
    features = net.input("dense", "f32", batch, dense)
    indices = net.input("indices", "i32", batch, tables, lookups)
    with net.scope("bottom"):
        first = _layers(net, features, (hidden, hidden // 2, width), last_is_bent=True)
    vectors = [first]
    for number in range(tables):
        with net.scope(f"table{number}"):
            vectors.append(_pooled(net, indices, number, rows, width))
    with net.scope("top"):
        joint = net.w.op("concatenate", first, _products(net, vectors), axis=1)
        logits = _layers(net, joint, (hidden, hidden // 2, 1), last_is_bent=False)
    return net.module(name, [logits.reshape(batch)])


def _layers(net: NetworkWriter, x: Tensor, units: Sequence[int], *, last_is_bent: bool) -> Tensor:
    """Dense layers with ReLU behind all, or behind all but the last."""
    for number, count in enumerate(units):
        x = net.linear(x, count, f"dense{number}")
        if last_is_bent or number < len(units) - 1:
            x = net.w.op("relu", x)
    return x


def _pooled(net: NetworkWriter, indices: Tensor, number: int, rows: int, width: int) -> Tensor:
    """The sum of the rows of table `number` that each example names: [batch, width]."""
    batch, _, lookups = indices.shape
    own = net.w.op(
        "strided_slice", indices, begin=(0, number, 0), size=(batch, 1, lookups), strides=(1, 1, 1)
    )
    shape = (batch,) if lookups == 1 else (batch, lookups)
    looked_up = net.w.op("take", net.weight("rows", rows, width), own.reshape(*shape), axis=0)
    return looked_up if lookups == 1 else looked_up.sum(1)


def _products(net: NetworkWriter, vectors: Sequence[Tensor]) -> Tensor:
    """The inner product of every pair of vectors, once: [batch, n (n - 1) / 2]."""
    stacked = net.w.op("stack", *vectors, axis=1)
    batch, count, _ = stacked.shape
    pairs = stacked.matmul(stacked, transpose_b=True).reshape(batch, count * count)
    below = np.flatnonzero(np.tri(count, k=-1)).astype(np.int32)
    return net.w.op("take", pairs, net.w.constant(below, "pairs"), axis=1)
