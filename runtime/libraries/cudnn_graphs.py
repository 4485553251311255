"""Problems as graphs of cuDNN's frontend package: convolutions, attention, normalisations."""

from __future__ import annotations

import ctypes
from typing import Any

from tilewright.runtime.libraries.attention import AttentionProblem
from tilewright.runtime.libraries.convolution import Array4, ConvolutionProblem
from tilewright.runtime.libraries.norm import NormProblem
from tilewright.runtime.libraries.problem import Problem

_DATA_TYPE = {"float32": "FLOAT", "float16": "HALF", "bfloat16": "BFLOAT16"}
#: numbers that name the arrays of a graph
UIDS = {"a": 1, "b": 2, "bias": 3, "c": 4, "d": 5, "q": 6, "k": 7, "v": 8, "x": 9, "scale": 10, "epsilon": 11}


def described(package: Any, handle: Any, problem: Problem) -> Any:
    """The graph of a problem, its result being the array `d`; not validated yet.

    Raises what the package raises where it takes no such graph.
    """
    if isinstance(problem, AttentionProblem):
        return _Drawn(package, handle, problem.dtype).attention(problem)
    if isinstance(problem, NormProblem):
        return _Drawn(package, handle, problem.dtype).norm(problem)
    assert isinstance(problem, ConvolutionProblem)
    return _Drawn(package, handle, problem.dtype).convolution(problem)


def host_numbers(problem: Problem) -> dict[str, ctypes.c_float]:
    """By role the numbers that a graph takes by value, from host memory."""
    return {"epsilon": ctypes.c_float(problem.epsilon)} if isinstance(problem, NormProblem) else {}


class _Drawn:
    """A new graph that computes in float32, and what is put into it."""

    def __init__(self, package: Any, handle: Any, dtype: str) -> None:
        self.package = package
        self.compute = package.data_type.FLOAT
        self.graph = package.pygraph(
            io_data_type=self._type(dtype), intermediate_data_type=self.compute,
            compute_data_type=self.compute, handle=handle,
        )  # fmt: skip

    def _type(self, dtype: str) -> Any:
        return getattr(self.package.data_type, _DATA_TYPE[dtype])

    def _array(self, role: str, array: Array4, dtype: str, **more: Any) -> Any:
        return self.graph.tensor(
            dim=list(array.dims), stride=list(array.strides), data_type=self._type(dtype), name=role,
            uid=UIDS[role], **more,
        )  # fmt: skip

    def _vector(self, role: str, length: int, dtype: str) -> Any:
        """One element per channel."""
        return self._array(role, Array4((1, length, 1, 1), (length, 1, length, length)), dtype)

    def _result(self, value: Any, array: Array4, dtype: str) -> Any:
        value.set_output(True).set_uid(UIDS["d"]).set_dim(list(array.dims))
        value.set_stride(list(array.strides))
        value.set_data_type(self._type(dtype))
        return self.graph

    def convolution(self, p: ConvolutionProblem) -> Any:
        compute = self.compute
        value = self.graph.conv_fprop(
            image=self._array("a", p.a, p.dtype), weight=self._array("b", p.b, p.dtype),
            pre_padding=list(p.before), post_padding=list(p.after), stride=list(p.strides),
            dilation=list(p.dilations), compute_data_type=compute,
        )  # fmt: skip
        if p.c is not None:
            value = self.graph.add(a=value, b=self._array("c", p.c, p.result), compute_data_type=compute)
        if p.has_bias:
            bias = self._vector("bias", p.b.dims[0], p.result)
            value = self.graph.add(a=value, b=bias, compute_data_type=compute)
        if p.epilogue.startswith("relu"):
            value = self.graph.relu(input=value, compute_data_type=compute)
        return self._result(value, p.d, p.result)

    def attention(self, p: AttentionProblem) -> Any:
        options: dict[str, Any] = {}
        if p.bias is not None:
            options["bias"] = self._array("bias", p.bias, p.bias_dtype)
        if p.causal:
            options["diagonal_alignment"] = self.package.diagonal_alignment.TOP_LEFT
            options["diagonal_band_right_bound"] = 0
        q, k, v = (self._array(role, getattr(p, role), p.dtype) for role in ("q", "k", "v"))
        value, _ = self.graph.sdpa(
            q=q, k=k, v=v, attn_scale=p.scale, generate_stats=False, compute_data_type=self.compute,
            **options,
        )  # fmt: skip
        return self._result(value, p.d, p.dtype)

    def norm(self, p: NormProblem) -> Any:
        columns = p.x.dims[1]
        given = {
            "norm_forward_phase": self.package.norm_forward_phase.INFERENCE,
            "input": self._array("x", p.x, p.dtype),
            "scale": self._vector("scale", columns, p.vectors),
            "epsilon": self._array(
                "epsilon", Array4((1, 1, 1, 1), (1, 1, 1, 1)), "float32", is_pass_by_value=True
            ),
            "compute_data_type": self.compute,
        }
        if p.has_bias:
            given["bias"] = self._vector("bias", columns, p.vectors)
        made = self.graph.layernorm(**given) if p.kind == "layer" else self.graph.rmsnorm(**given)
        return self._result(made[0], p.d, p.result)
