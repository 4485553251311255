"""The ONNX standard's node tests through our importer; the onnx package brings the cases.

Inputs on which shapes depend are bound as constants, as an exporter would have stored them.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.frontends.onnx.emission import NotConstant
from tilewright.frontends.onnx.package import onnx_module
from tilewright.ir import InputError, Module, UnsupportedError
from tilewright.tools.conformance.case import Suite

#: relative and absolute difference allowed to results of 16-bit floats
NARROW = 1e-2


def onnx_suite() -> Suite:
    """All node tests of the installed onnx package; a case that passes has no error to report."""
    return Suite("onnx", tuple(_cases()), run)


def run(name: str, target: str) -> float:
    """Run one case; raises what is wrong with it."""
    case = _cases()[name]
    names = [i.name for i in case.model.graph.input]
    for given, wanted in case.data_sets:
        inputs = dict(zip(names, map(_array, given), strict=False))
        if empty := [n for n, x in inputs.items() if x is None]:
            raise UnsupportedError(f"empty optionals have no static type: {', '.join(empty)}")
        arrays = {n: np.asarray(a) for n, a in inputs.items() if isinstance(a, np.ndarray | np.generic)}
        module, _ = imported(case.model, arrays)
        with tw.compile(module, target=target, progress=False) as exe:
            got = exe(*(inputs[n] for n in module.input_names))
        _compare(got, list(_leaves(wanted)), case)
    return float("nan")


def imported(model: Any, inputs: Mapping[str, np.ndarray]) -> tuple[Module, tuple[str, ...]]:
    """The module of a model, and the inputs bound to their arrays because shapes depend on them."""
    bound: tuple[str, ...] = ()
    while True:
        try:
            return tw.frontends.onnx.load(model, constants={n: inputs[n] for n in bound}), bound
        except NotConstant as error:
            more = tuple(n for n in error.inputs if n in inputs and n not in bound)
            if not more:
                raise
            bound += more


@cache
def _cases() -> dict[str, Any]:
    loader = onnx_module("backend.test.loader")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return {case.name: case for case in loader.load_model_tests(kind="node")}


def _array(value: Any) -> Any:
    """Some cases give their arrays as tensors of the file format."""
    is_tensor = isinstance(value, onnx_module().TensorProto)
    return onnx_module("numpy_helper").to_array(value) if is_tensor else value


def _leaves(values: Sequence[Any]) -> Iterator[np.ndarray]:
    """The arrays of results, those of sequences in order."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from _leaves(value)
        else:
            yield np.asarray(_array(value))


def _compare(got: Sequence[np.ndarray], wanted: Sequence[Any], case: Any) -> None:
    if len(got) != len(wanted):
        raise InputError(f"expected {len(wanted)} results, got {len(got)}")
    for i, (a, b) in enumerate(zip(got, wanted, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise InputError(f"result {i}: expected {b.dtype}{list(b.shape)}, got {a.dtype}{list(a.shape)}")
        floating = a.dtype.kind == "f" or a.dtype.name == "bfloat16"
        narrow = floating and a.dtype.itemsize == 2
        rtol, atol = (NARROW, NARROW) if narrow else (case.rtol, max(case.atol, 1e-6))
        if floating:
            a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=f"result {i}")
