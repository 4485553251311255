"""A graph-level module as the PyTorch calls of a usual model: views, calls in place, results freed when dead.

As torchvision and the transformers library write them, activations and sums overwrite an operand that nobody
needs any more, a bias belongs to the product before it, x * sigmoid(x) and the erf form of GELU are one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from tilewright.ir import Module, Op, UnsupportedError, Value
from tilewright.ir.facts import SAME_MEMORY, Elements
from tilewright.ir.opdef import facts_of, is_defined
from tilewright.passes import PassContext, Pipeline, run_pipeline
from tilewright.tools.torch_peer.rules import RULES, rank

Kind = Literal["new", "view", "in place"]

FOLD = "infer-shapes, fold-constants, cse, dce"
#: what ops do to elements that PyTorch does without copying them
VIEWS = SAME_MEMORY | {Elements.CUTS, Elements.STRIDES}
IN_PLACE: dict[str, Callable[[Any, Sequence[Any], Op], Any]] = {
    "graph.relu": lambda torch, x, op: x[0].relu_(),
    "graph.clip": lambda torch, x, op: x[0].clamp_(op["a_min"], op["a_max"]),
    "graph.add": lambda torch, x, op: x[0].add_(x[1]),
    "graph.bias_add": lambda torch, x, op: x[0].add_(
        x[1].reshape([-1 if d == op.integer("axis") % rank(op) else 1 for d in range(rank(op))])
    ),
    "silu": lambda torch, x, op: torch.nn.functional.silu(x[0], inplace=True),
}
COMBINED = {
    "silu": lambda torch, x, op: torch.nn.functional.silu(x[0]),
    "gelu": lambda torch, x, op: torch.nn.functional.gelu(x[0]),
}


@dataclass(frozen=True)
class TorchCall:
    """One call: its result takes new memory, shares that of an operand, or overwrites the first operand."""

    name: str
    op: Op
    operands: tuple[Value, ...]
    kind: Kind


class TorchProgram:
    """@main of a graph-level module with weights as a sequence of `steps`; raises UnsupportedError."""

    def __init__(self, module: Module) -> None:
        self.module = run_pipeline(module, Pipeline.parse(FOLD), PassContext())
        self.returned = self.module.main.body.ops[-1].operands
        self.weights = {op.result: op for op in self.module.main.body.ops if op.name == "graph.constant"}
        calls = combined_calls(self.module.main.body.ops[:-1])
        known = RULES.keys() | COMBINED.keys()
        unknown = sorted({name for name, op, _ in calls if name not in known or len(op.results) > 1})
        if unknown:
            raise UnsupportedError(f"no PyTorch rule for {', '.join(unknown)}", where=f"@{module.name}")
        self.steps, self.storage = _with_kinds(
            calls, [*self.module.main.params, *self.weights], self.returned
        )

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights, as the folded graph has them."""
        return sum(value.tensor.nbytes for value in self.weights)

    @cached_property
    def dying(self) -> list[list[Value]]:
        """Per step the values that no later step needs; inputs and weights belong to the caller."""
        last = _last_uses([s.operands for s in self.steps], [s.op.result for s in self.steps], self.returned)
        rows: list[list[Value]] = [[] for _ in self.steps]
        for step in self.steps:
            if last[step.op.result] < len(self.steps):
                rows[last[step.op.result]].append(step.op.result)
        return rows

    def estimated_peak(self, result_bits: int = 32, *, in_place: bool = True) -> int:
        """Most bytes held at one time beyond the weights: inputs and results of calls; no workspaces.

        Every value is freed when its last reader is done. result_bits: of results that the module has in
        float32, as when the model was cast to 16 bits; inputs keep their type. in_place: whether calls
        overwrite what nobody needs; else every call that is no view makes a new value.
        """

        def nbytes(v: Value) -> int:
            return v.tensor.nbytes * result_bits // 32 if v.tensor.dtype == "f32" else v.tensor.nbytes

        outer = {*self.module.main.params, *self.weights}
        allocated = sum(p.tensor.nbytes for p in self.module.main.params)
        storage = {v: v for v in outer}
        values: dict[Value, int] = {}  # storage -> how many live values share it
        peak = allocated
        for step, dead in zip(self.steps, self.dying, strict=True):
            result = step.op.result
            new = step.kind == "new" or (step.kind == "in place" and not in_place)
            own = storage[result] = result if new else storage[step.operands[0]]
            values[own] = values.get(own, 0) + 1
            allocated += nbytes(own) if new else 0
            peak = max(peak, allocated)
            for value in dead:
                held = storage[value]
                values[held] -= 1
                if not values[held] and held not in outer:
                    allocated -= nbytes(held)
        return peak

    def function(self, torch: Any, device: str, dtype: str = "float32") -> Callable[..., list[Any]]:
        """The network as a function of tensors on `device`, where its weights now lie.

        dtype: PyTorch's name of the type that float weights and results of calls have, as in a model that was
        cast to it. Inputs come as the network has them; their casts are freed behind their last reader.
        """
        floats = getattr(torch, dtype)

        def cast(tensor: Any) -> Any:
            return tensor.to(floats) if tensor.is_floating_point() else tensor

        constants, params = self.module.constants, self.module.main.params
        weights = {
            value: cast(torch.from_numpy(constants[str(op["name"])].copy())).to(device)
            for value, op in self.weights.items()
        }
        rules = {**RULES, **COMBINED, "graph.cast": lambda torch, x, op: _cast(torch, x, op, floats)}
        last = {v: i for i, step in enumerate(self.steps) for v in step.operands if v in params}
        ended = [[v for v in last if last[v] == i and v not in self.returned] for i in range(len(self.steps))]

        def run(*inputs: Any) -> list[Any]:
            env: dict[Value, Any] = {**weights, **dict(zip(params, map(cast, inputs), strict=True))}
            for step, dead, read in zip(self.steps, self.dying, ended, strict=True):
                known = IN_PLACE if step.kind == "in place" else rules
                env[step.op.result] = known[step.name](torch, [env[v] for v in step.operands], step.op)
                for value in (*dead, *read):
                    del env[value]
            return [env[v] for v in self.returned]

        return run


def _cast(torch: Any, x: Sequence[Any], op: Op, floats: Any) -> Any:
    """A cast; to the floats of the model where the network has float32."""
    return x[0].to(floats) if op["dtype"] == "f32" else RULES["graph.cast"](torch, x, op)


Call = tuple[str, Op, tuple[Value, ...]]


def combined_calls(ops: Sequence[Op]) -> list[Call]:
    """The ops as calls, with x * sigmoid(x) as silu and x * (1/2 + erf(x * c) / 2) as gelu."""
    producer = {r: op for op in ops for r in op.results}
    users: dict[Value, int] = {}
    for op in ops:
        for v in op.operands:
            users[v] = users.get(v, 0) + 1
    calls: dict[Value, Call] = {}
    for op in ops:
        if op.name == "graph.constant":
            continue
        calls[op.results[0]] = (op.name, op, op.operands)
        if op.name != "graph.multiply":
            continue
        for x, factor in (op.operands, op.operands[::-1]):
            inner = _only_used_here(factor, ("graph.sigmoid",), x, producer, users)
            name = "silu" if inner else "gelu"
            inner = inner or _only_used_here(
                factor, ("graph.add", "graph.multiply", "graph.erf", "graph.multiply"), x, producer, users
            )
            if inner:
                for value in inner:
                    del calls[value]
                calls[op.result] = (name, op, (x,))
                break
    return list(calls.values())


def _only_used_here(
    value: Value, names: Sequence[str], x: Value, producer: dict[Value, Op], users: dict[Value, int]
) -> list[Value]:
    """The results of the ops `names`, outermost first, that lead from `value` back to x and nowhere else.

    Empty where they are other ops. Operands beside the chain are constants.
    """
    chain: list[Value] = []
    for name in names:
        op = producer.get(value)
        if op is None or op.name != name or users[value] != 1:
            return []
        chain.append(value)
        inner = [v for v in op.operands if v not in producer or producer[v].name != "graph.constant"]
        if len(inner) != 1:
            return []
        value = inner[0]
    return chain if value is x else []


def _last_uses(
    operands: Sequence[Sequence[Value]], results: Sequence[Value], returned: Sequence[Value]
) -> dict[Value, int]:
    last = {result: index for index, result in enumerate(results)}
    for index, own in enumerate(operands):
        for value in own:
            last[value] = index
    return last | dict.fromkeys(returned, len(results))


def _with_kinds(
    calls: Sequence[Call], outer: Sequence[Value], returned: Sequence[Value]
) -> tuple[list[TorchCall], dict[Value, Value]]:
    """Steps with their kinds, and per value the value that its memory was taken for."""
    last = _last_uses([call[2] for call in calls], [call[1].result for call in calls], returned)
    storage: dict[Value, Value] = {value: value for value in outer}
    needed: dict[Value, int] = {value: len(calls) for value in outer}  # per storage, its last use
    shared = _storage_needed(calls, last)
    steps: list[TorchCall] = []
    for index, (name, op, operands) in enumerate(calls):
        kind: Kind = "new"
        if _is_view(name) or (name in ("graph.cast", "graph.repeat") and operands[0].type == op.result.type):
            kind = "view"
        elif name in IN_PLACE:
            free = [
                v
                for v in (operands if name == "graph.add" else operands[:1])
                if v.type == op.result.type and needed.get(storage[v], 0) <= index
            ]
            if free:
                kind = "in place"
                operands = (free[0], *(v for v in operands if v is not free[0]))
        own = op.result if kind == "new" else storage[operands[0]]
        storage[op.result] = own
        if own not in outer:
            needed[own] = max(needed.get(own, 0), shared[op.result])
        steps.append(TorchCall(name, op, operands, kind))
    return steps, storage


def _storage_needed(calls: Sequence[Call], last: dict[Value, int]) -> dict[Value, int]:
    """Per value the last use of it or of a view of it."""
    needed = dict(last)
    for name, op, operands in reversed(calls):
        if _is_view(name) or name in ("graph.cast", "graph.repeat"):
            needed[operands[0]] = max(needed[operands[0]], needed[op.result])
    return needed


def _is_view(name: str) -> bool:
    """Return whether a call is a view of its operand; calls of several ops compute."""
    return is_defined(name) and facts_of(name).elements in VIEWS
