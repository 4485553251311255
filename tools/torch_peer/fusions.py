"""Calls of a graph rewritten to what PyTorch's model libraries call: linear layers with bias, attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir import Op, Value
from tilewright.tools.torch_peer.program import Call

#: ops that do nothing where operand and result have one type
_IDLE = {
    f"graph.{name}"
    for name in ("reshape", "squeeze", "expand_dims", "broadcast_to", "cast", "repeat", "dropout")
}
#: products that take a bias, and the dimension it lies along
_BIASED = {"graph.conv2d": 1, "graph.dense": -1, "linear": -1}

FUSED: dict[str, Callable[[Any, Sequence[Any], Op], Any]] = {
    "linear": lambda torch, x, op: torch.nn.functional.linear(*x),
    "attention": lambda torch, x, op: torch.nn.functional.scaled_dot_product_attention(
        x[0], x[1].transpose(-1, -2), x[2], attn_mask=x[3] if len(x) > 3 else None, scale=op["scale"]
    ),
    "attention of rows": lambda torch, x, op: torch.nn.functional.scaled_dot_product_attention(
        *x, dropout_p=op.number("rate"), is_causal=op["causal"], scale=op["scale"]
    ),
}


class FusedCalls:
    """The calls after all rewrites, what is returned, and the weights of linear layers.

    constants: arrays of the constant values. attention: whether attention becomes one call. training: dropout
    is a call. `linear_weights`
    are (1, rows, columns) in the graph; the call takes them as (columns, rows).
    """

    def __init__(
        self,
        calls: Sequence[Call],
        returned: Sequence[Value],
        constants: Mapping[Value, np.ndarray],
        *,
        attention: bool,
        training: bool = False,
    ) -> None:
        self.calls, self.returned = list(calls), list(returned)
        self._idle = _IDLE - {"graph.dropout"} if training else _IDLE
        self.constants = constants
        self.linear_weights: set[Value] = set()
        self._drop_idle()
        self._make_linear()
        self._take_biases()
        self.attentions = self._make_attention() if attention else 0

    def _drop_idle(self) -> None:
        same: dict[Value, Value] = {}
        remaining: list[Call] = []
        for name, op, given in self.calls:
            operands = tuple(same.get(v, v) for v in given)
            if name in self._idle and operands[0].type == op.result.type:
                same[op.result] = operands[0]
            else:
                remaining.append((name, op, operands))
        self.calls = remaining
        self.returned = [same.get(v, v) for v in self.returned]

    def _make_linear(self) -> None:
        """A batched product with one matrix of weights for all batches is a linear layer."""
        users = self._users()
        for i, (name, op, operands) in enumerate(self.calls):
            if name != "graph.batch_matmul" or op["transpose_a"] or op["transpose_b"]:
                continue
            weight = self.constants.get(operands[1])
            if weight is not None and weight.shape[0] == 1 and users[operands[1]] == 1:
                self.calls[i] = ("linear", op, operands)
                self.linear_weights.add(operands[1])

    def _take_biases(self) -> None:
        """A bias along the columns of the product before it becomes its operand."""
        users, producer = self._users(), self._producers()
        gone = set()
        for i, (name, op, operands) in enumerate(self.calls):
            before = producer.get(operands[0]) if name == "graph.bias_add" else None
            if before is None or users[operands[0]] > 1:
                continue
            product, made, factors = self.calls[before]
            rank = op.result.tensor.rank
            if product not in _BIASED or len(factors) > 2:
                continue
            if op.integer("axis") % rank == _BIASED[product] % rank and made.result.type == op.result.type:
                self.calls[i] = (product, replace(made, results=op.results), (*factors, operands[1]))
                gone.add(before)
        self.calls = [c for i, c in enumerate(self.calls) if i not in gone]

    def _make_attention(self) -> int:
        """softmax(q k^T * scale + mask) v becomes one call; returns how often."""
        count = 0
        for name, op, operands in list(self.calls):
            if name == "graph.batch_matmul" and not op["transpose_a"] and not op["transpose_b"]:
                count += self._fuse_attention(op, operands)
            if name == "graph.matmul" and not op["transpose_a"] and not op["transpose_b"]:
                count += self._fuse_rows(op, operands)
        self._drop_dead()
        return count

    def _fuse_attention(self, second: Op, operands: Sequence[Value]) -> bool:
        """Replace what reshapes the result of the second product; q, k^T and v are (batch, heads, ., .)."""
        result = [op for name, op, given in self.calls if name == "graph.reshape" and second.result in given]
        softmax = self._through_reshape(operands[0])
        scores = self._made_by(softmax, "graph.softmax")
        v = self._through_reshape(operands[1])
        if len(result) != 1 or scores is None or scores[0]["axis"] not in (-1, 3):
            return False
        value, mask, scale = scores[1][0], None, 1.0
        if added := self._made_by(value, "graph.add"):
            value, mask = added[1]
            if value.tensor.shape != softmax.tensor.shape:
                value, mask = mask, value
        if scaled := self._made_by(value, "graph.multiply"):
            factors = [self.constants[x] for x in scaled[1] if x in self.constants]
            if len(factors) != 1 or factors[0].size != 1:
                return False
            scale = float(factors[0].item())
            (value,) = (x for x in scaled[1] if x not in self.constants)
        first = self._made_by(self._through_reshape(value), "graph.batch_matmul")
        if first is None or first[0]["transpose_a"] or first[0]["transpose_b"]:
            return False
        q, k = (self._through_reshape(x) for x in first[1])
        if any(x.tensor.rank != 4 for x in (q, k, v)):
            return False
        if mask in self.constants and mask is not None and not self.constants[mask].any():
            mask = None
        call = (
            "attention",
            replace(result[0], attrs=(("scale", scale),)),
            (q, k, v, *([mask] if mask else [])),
        )
        self.calls[self._producers()[result[0].result]] = call
        return True

    def _fuse_rows(self, second: Op, operands: Sequence[Value]) -> bool:
        """Replace dropout(softmax(mask(q k^T * scale))) v where q, k and v are (batch, heads, rows, size)."""
        weights, rate = operands[0], 0.0
        if dropped := self._made_by(weights, "graph.dropout"):
            weights, rate = dropped[1][0], float(dropped[0].number("rate"))
        softmax = self._made_by(weights, "graph.softmax")
        if softmax is None or softmax[0]["axis"] not in (-1, 3):
            return False
        scores, causal, scale = softmax[1][0], False, 1.0
        if chosen := self._made_by(scores, "graph.where"):
            mask = self.constants.get(chosen[1][0])
            if mask is None or not np.array_equal(mask, np.tril(np.ones(mask.shape, bool))):
                return False
            scores, causal = chosen[1][1], True
        if scaled := self._made_by(scores, "graph.multiply"):
            factor = self.constants.get(scaled[1][1])
            if factor is None or factor.size != 1:
                return False
            scores, scale = scaled[1][0], float(factor.item())
        first = self._made_by(scores, "graph.matmul")
        if first is None or first[0]["transpose_a"] or not first[0]["transpose_b"]:
            return False
        attrs = (("scale", scale), ("rate", rate), ("causal", causal))
        call = ("attention of rows", replace(second, attrs=attrs), (*first[1], operands[1]))
        self.calls[self._producers()[second.result]] = call
        return True

    def _through_reshape(self, value: Value) -> Value:
        made = self._made_by(value, "graph.reshape")
        return made[1][0] if made else value

    def _made_by(self, value: Value, name: str) -> tuple[Op, tuple[Value, ...]] | None:
        at = self._producers().get(value)
        return None if at is None or self.calls[at][0] != name else self.calls[at][1:]

    def _drop_dead(self) -> None:
        needed = set(self.returned)
        remaining = []
        for call in reversed(self.calls):
            if needed.intersection(call[1].results):
                needed.update(call[2])
                remaining.append(call)
        self.calls = remaining[::-1]

    def _users(self) -> dict[Value, int]:
        users: dict[Value, int] = dict.fromkeys(self.returned, 1)
        for _, _, operands in self.calls:
            for v in operands:
                users[v] = users.get(v, 0) + 1
        return users

    def _producers(self) -> dict[Value, int]:
        return {r: i for i, (_, op, _) in enumerate(self.calls) for r in op.results}
