"""A stand-in for the frontend package of cuDNN: graphs that compute on host memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

TYPES = {"FLOAT": np.dtype(np.float32), "HALF": np.dtype(np.float16),
         "BFLOAT16": np.dtype(ml_dtypes.bfloat16)}  # fmt: skip
NOTES = ("TENSOR_CORE", "REDUCED_PRECISION_REDUCTION", "DOWN_CONVERT_INPUTS", "NONDETERMINISTIC")


class NotSupportedError(RuntimeError):
    """What the package raises for graphs and plans that no engine takes."""


class FakeTensor:
    def __init__(self, graph: FakeGraph, **known: Any) -> None:
        self.graph, self.known, self.made = graph, known, None

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("set_"):
            raise AttributeError(name)

        def remember(value: Any) -> FakeTensor:
            self.known[name.removeprefix("set_")] = value
            if name == "set_output":
                self.graph.result = self
                self.graph.results.append(self)
            return self

        return remember


class FakeGraph:
    """Three plans: one on tensor cores, one without, one that cannot be built."""

    plans = ("engine_tc", "engine_simt", "engine_broken")
    workspaces = (0, 1024, 0)

    def __init__(self, package: FakeCudnn, **options: Any) -> None:
        self.package, self.options = package, options
        self.result: FakeTensor | None = None
        self.results: list[FakeTensor] = []
        self.left_out: set[str] = set()
        self.kinds: list[str] = []
        self.built: set[int] = set()

    def tensor(self, **known: Any) -> FakeTensor:
        return FakeTensor(self, **known)

    def _made(self, kind: str, **inputs: Any) -> FakeTensor:
        value = FakeTensor(self)
        self.kinds.append(kind)
        value.made = (kind, inputs)
        return value

    def conv_fprop(self, **given: Any) -> FakeTensor:
        return self._made("conv", **given)

    def add(self, **given: Any) -> FakeTensor:
        return self._made("add", **given)

    def relu(self, **given: Any) -> FakeTensor:
        if not self.package.fusions:
            raise NotSupportedError("no engine takes a relu")
        return self._made("relu", **given)

    def sdpa(self, **given: Any) -> tuple[FakeTensor, FakeTensor | None]:
        stats = given.pop("generate_stats")
        assert isinstance(given["attn_scale"], float)
        return self._made("sdpa", **given), self._made("sdpa stats", **given) if stats else None

    def sdpa_backward(self, **given: Any) -> list[FakeTensor]:
        assert given["use_deterministic_algorithm"] is True
        return [self._made(f"sdpa {name}", **given) for name in ("dq", "dk", "dv")]

    def layernorm(self, **given: Any) -> list[Any]:
        return self._norm("layernorm", **given)

    def rmsnorm(self, **given: Any) -> list[Any]:
        return self._norm("rmsnorm", **given)

    def _norm(self, kind: str, **given: Any) -> list[Any]:
        assert given["norm_forward_phase"] == "INFERENCE"
        assert given["epsilon"].known["is_pass_by_value"]
        return [self._made(kind, **given), None, None]

    def validate(self) -> None:
        assert self.result is not None

    def build_operation_graph(self) -> None:
        self.package.log.append("build_operation_graph")

    def create_execution_plans(self, modes: Sequence[str]) -> None:
        assert self.result is not None
        convolves = any(kind == "conv" for kind in self.kinds)
        assert modes == (["A", "B", "FALLBACK"] if convolves else ["A", "FALLBACK"])

    def deselect_numeric_notes(self, notes: Sequence[str]) -> None:
        self.left_out = set(notes)

    def get_execution_plan_count(self) -> int:
        return len(self.plans)

    def get_plan_name_at_index(self, index: int) -> str:
        return self.plans[index]

    def build_plan_at_index(self, index: int) -> None:
        self.package.log.append(f"build {self.plans[index]}")
        if self.plans[index] == "engine_broken" or (index == 0 and "TENSOR_CORE" in self.left_out):
            raise NotSupportedError("not this plan")
        self.built.add(index)

    def get_workspace_size_plan_at_index(self, index: int) -> int:
        return self.workspaces[index]

    def execute_plan_at_index(self, pack: Mapping[int, int], workspace: int, index: int, handle: int) -> None:
        assert index in self.built
        assert handle == self.package.handle
        assert self.package.stream is not None
        assert self.result is not None
        for result in self.results:
            out = view(pack[result.known["uid"]], result.known)
            out[...] = self._value(result, pack).astype(out.dtype)

    def _value(self, t: FakeTensor, pack: Mapping[int, int]) -> np.ndarray:
        if t.made is None:
            return view(pack[t.known["uid"]], t.known).astype(np.float64)
        kind, given = t.made
        if kind == "add":
            return self._value(given["a"], pack) + self._value(given["b"], pack)
        if kind == "relu":
            return np.maximum(self._value(given["input"], pack), 0.0)
        if kind.startswith("sdpa"):
            arrays = [self._value(given[role], pack) for role in "qkv"]
            if kind in ("sdpa", "sdpa stats"):
                bias = self._value(given["bias"], pack) if "bias" in given else 0.0
                return attended(*arrays, bias, given)[kind == "sdpa stats"]
            arrays += [self._value(given[role], pack) for role in ("o", "dO", "stats")]
            return attention_gradients(*arrays, given)[kind.removeprefix("sdpa ")]
        if kind.endswith("norm"):
            arrays = [self._value(given[role], pack) for role in ("input", "scale", "epsilon")]
            bias = self._value(given["bias"], pack) if "bias" in given else 0.0
            return normalised(*arrays, bias, centred=kind == "layernorm")
        image, weight = self._value(given["image"], pack), self._value(given["weight"], pack)
        return convolved(image, weight, given)


def convolved(image: np.ndarray, weight: np.ndarray, given: Mapping[str, Any]) -> np.ndarray:
    """The definition: cross-correlation in groups with zeros around."""
    pads = list(zip(given["pre_padding"], given["post_padding"], strict=True))
    image = np.pad(image, [(0, 0), (0, 0), *pads])
    (k, c, r, s), (dy, dx), (sy, sx) = weight.shape, given["dilation"], given["stride"]
    p, q = ((n - d * (t - 1) - 1) // step + 1 for n, d, t, step in
            zip(image.shape[2:], (dy, dx), (r, s), (sy, sx), strict=True))  # fmt: skip
    groups = image.shape[1] // c
    out = np.zeros((image.shape[0], k, p, q))
    for g in range(groups):
        inside, filters = image[:, g * c : (g + 1) * c], slice(g * k // groups, (g + 1) * k // groups)
        for y in range(r):
            for x in range(s):
                part = inside[:, :, y * dy :: sy, x * dx :: sx][:, :, :p, :q]
                out[:, filters] += np.einsum("ncpq,kc->nkpq", part, weight[filters, :, y, x])
    return out


def attended(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, bias: np.ndarray | float, given: Mapping[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """The definition: softmax over keys, which heads of a group share, and the logarithms of sums."""
    heads = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, heads, 1), np.repeat(v, heads, 1)
    scores = attention_scores(q, k, given) + bias
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights / total @ v), largest + np.log(total)


def attention_scores(q: np.ndarray, k: np.ndarray, given: Mapping[str, Any]) -> np.ndarray:
    """Scaled products; a right bound of 0 from the top left hides later keys."""
    scores = given["attn_scale"] * (q @ k.swapaxes(2, 3))
    if "diagonal_band_right_bound" in given:
        assert (given["diagonal_alignment"], given["diagonal_band_right_bound"]) == ("TOP_LEFT", 0)
        scores = np.where(np.tri(*scores.shape[2:], dtype=bool), scores, -np.inf)
    return np.asarray(scores)


def attention_gradients(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, o: np.ndarray, g: np.ndarray, stats: np.ndarray,
    given: Mapping[str, Any],
) -> dict[str, np.ndarray]:  # fmt: skip
    """The definition, with weights computed again; gradients of shared keys are summed over their heads."""
    groups, heads = k.shape[1], q.shape[1] // k.shape[1]
    keys, values = np.repeat(k, heads, 1), np.repeat(v, heads, 1)
    weights = np.exp(attention_scores(q, keys, given) - stats)
    slopes = weights * (g @ values.swapaxes(2, 3) - (o * g).sum(-1, keepdims=True)) * given["attn_scale"]

    def summed(x: np.ndarray) -> np.ndarray:
        return np.asarray(x.reshape(x.shape[0], groups, heads, *x.shape[2:]).sum(2))

    return {
        "dq": slopes @ keys,
        "dk": summed(slopes.swapaxes(2, 3) @ q),
        "dv": summed(weights.swapaxes(2, 3) @ g),
    }


def normalised(
    x: np.ndarray, scale: np.ndarray, epsilon: np.ndarray, bias: np.ndarray | float, *, centred: bool
) -> np.ndarray:
    """The definition, over the second dimension."""
    x = x - x.mean(1, keepdims=True) if centred else x
    return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + epsilon) * scale + bias)


def view(address: int, known: Mapping[str, Any]) -> np.ndarray:
    """Host memory as an array of these extents and strides."""
    dtype, dims, strides = TYPES[known["data_type"]], known["dim"], known["stride"]
    span = 1 + sum((n - 1) * s for n, s in zip(dims, strides, strict=True))
    raw = (ctypes.c_uint8 * (span * dtype.itemsize)).from_address(address)
    flat = np.frombuffer(raw, np.uint8).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, dims, [s * dtype.itemsize for s in strides])


class FakeCudnn:
    """The names that `Cudnn` uses of the package. fusions: whether it takes a ReLU behind a convolution."""

    cudnnGraphNotSupportedError = NotSupportedError  # noqa: N815
    data_type = SimpleNamespace(**{name: name for name in TYPES})
    heur_mode = SimpleNamespace(A="A", B="B", FALLBACK="FALLBACK")
    diagonal_alignment = SimpleNamespace(TOP_LEFT="TOP_LEFT")
    norm_forward_phase = SimpleNamespace(INFERENCE="INFERENCE")
    numerical_note = SimpleNamespace(**{name: name for name in NOTES})

    def __init__(self, *, version: int = 91900, fusions: bool = True) -> None:
        self.version, self.fusions = version, fusions
        self.handle: int | None = None
        self.stream: int | None = None
        self.log: list[str] = []

    def backend_version(self) -> int:
        return self.version

    def create_handle(self) -> int:
        self.handle = 77
        return self.handle

    def destroy_handle(self, handle: int) -> None:
        assert handle == self.handle
        self.handle = None

    def set_stream(self, *, handle: int, stream: int) -> None:
        assert handle == self.handle
        self.stream = stream

    def pygraph(self, **options: Any) -> FakeGraph:
        assert options["handle"] == self.handle
        return FakeGraph(self, **options)
