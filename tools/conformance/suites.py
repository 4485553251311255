"""The suites there are, by name."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.compilation.option_values import TOLERANCE, Precision
from tilewright.frontends.onnx.emission import NotConstant
from tilewright.frontends.onnx.package import onnx_module
from tilewright.frontends.weights.random_weights import random_input
from tilewright.ir import InputError, Module, UnsupportedError
from tilewright.running.checking import largest_error, relative_error
from tilewright.tools.conformance.case import Suite, compare


def network_suite(folder: Path, precision: Precision = "fp32") -> Suite:
    """All networks (NAME.relay with ref/NAME.npz) in `folder` in one precision."""
    names = tuple(
        sorted(p.stem for p in folder.glob("*.relay") if (folder / "ref" / f"{p.stem}.npz").exists())
    )
    if not names:
        raise InputError("expected networks NAME.relay with ref/NAME.npz, found none", where=str(folder))
    title = "networks" if precision == "fp32" else f"networks {precision}"
    return Suite(title, names, partial(_run_network, folder, precision))


def _run_network(folder: Path, precision: Precision, name: str, target: str) -> float:
    """Error against float64; raises InputError where it, or that against the stored results, is too large."""
    with np.load(folder / "ref" / f"{name}.npz") as stored:
        fed = {n: (tuple(shape), dtype) for n, (shape, dtype) in json.loads(str(stored["inputs"])).items()}
        module = tw.frontends.relay.load(
            str(folder / f"{name}.relay"), params="random", inputs=tuple(fed), seed=0
        )
        inputs = [random_input(n, *fed[n], 0) for n in module.input_names]
        with tw.compile(module, target=target, precision=precision, progress=False) as exe:
            got = exe(*inputs)
        limit = TOLERANCE[precision]
        for i, result in enumerate(got):
            expected = stored[f"out{i}"].reshape(-1)
            stride = f"stride_out{i}"
            flat = result.reshape(-1)[:: int(stored[stride]) if stride in stored.files else 1]
            error = relative_error(flat, expected)
            if not error <= limit:
                raise InputError(
                    f"relative error {error:.3g} against TVM is above {limit:g}", where=f"result {i}"
                )
    exact = tw.interpret(module, *inputs, precision="fp64")
    error = largest_error(got, exact)
    if not error <= limit:
        raise InputError(f"relative error {error:.3g} against float64 is above {limit:g}")
    return error


#: relative and absolute difference allowed to results of 16-bit floats
NARROW = 1e-2


def onnx_suite() -> Suite:
    """All node tests of the installed onnx package; a case that passes has no error to report."""
    return Suite("onnx", tuple(_node_tests()), run_node_test)


def run_node_test(name: str, target: str) -> float:
    """Run one case; raises what is wrong with it."""
    case = _node_tests()[name]
    names = [i.name for i in case.model.graph.input]
    for fed, expected in case.data_sets:
        inputs = dict(zip(names, map(_array, fed), strict=False))
        if empty := [n for n, x in inputs.items() if x is None]:
            raise UnsupportedError(f"empty optionals have no static type: {', '.join(empty)}")
        arrays = {n: np.asarray(a) for n, a in inputs.items() if isinstance(a, np.ndarray | np.generic)}
        module, _ = imported(case.model, arrays)
        with tw.compile(module, target=target, progress=False) as exe:
            got = exe(*(inputs[n] for n in module.input_names))
        _compare(got, list(_leaves(expected)), case)
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
def _node_tests() -> dict[str, Any]:
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


def _compare(got: Sequence[np.ndarray], expected: Sequence[Any], case: Any) -> None:
    if len(got) != len(expected):
        raise InputError(f"expected {len(expected)} results, got {len(got)}")
    for i, (a, b) in enumerate(zip(got, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise InputError(f"result {i}: expected {b.dtype}{list(b.shape)}, got {a.dtype}{list(a.shape)}")
        floating = a.dtype.kind == "f" or a.dtype.name == "bfloat16"
        narrow = floating and a.dtype.itemsize == 2
        rtol, atol = (NARROW, NARROW) if narrow else (case.rtol, max(case.atol, 1e-6))
        if floating:
            a, b = a.astype(np.float64), b.astype(np.float64)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=atol, err_msg=f"result {i}")


def recorded_suite(folder: Path) -> Suite:
    """All cases (NAME.relay with NAME.npz) in `folder`; raises InputError where there are none."""
    names = tuple(sorted(p.stem for p in folder.glob("*.relay")))
    if not names:
        raise InputError("expected recorded cases NAME.relay with NAME.npz, found none", where=str(folder))
    return Suite("operators", names, partial(_run_recorded, folder))


def _run_recorded(folder: Path, name: str, target: str) -> float:
    module = tw.frontends.relay.load(str(folder / f"{name}.relay"))
    inputs, expected = arrays(folder / f"{name}.npz")
    with tw.compile(module, target=target, progress=False) as exe:
        # TVM converts what it is fed to the declared type, and some of its tests rely on that
        fed = [x.astype(t.dtype) for x, t in zip(inputs, exe.input_types, strict=True)]
        got = exe(*fed)
    if name.startswith("unique_"):
        got, expected = (_distinct(results) for results in (got, expected))
    return compare(got, expected)


def _distinct(results: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results that `unique` defines: beyond the distinct elements TVM leaves memory as it was."""
    elements, indices, inverse, number, *counts = results
    n = int(number[0])
    return [elements[:n], indices[:n], inverse, number, *(c[:n] for c in counts)]


def arrays(path: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and outputs of a recorded case: `in0`, `in1`, ..., `out0`, ..."""
    with np.load(path) as stored:
        return _numbered(stored, "in"), _numbered(stored, "out")


def _numbered(stored: np.lib.npyio.NpzFile, prefix: str) -> list[np.ndarray]:
    count = sum(k.startswith(prefix) for k in stored.files)
    return [stored[f"{prefix}{i}"] for i in range(count)]


SUITES = ("operators", "onnx", "networks")


def open_suites(data: str, names: Sequence[str], precisions: Sequence[Precision]) -> list[Suite]:
    """The suites called `names` with the cases found in folder `data`."""
    suites: list[Suite] = []
    if "operators" in names:
        suites.append(recorded_suite(Path(data, "relay_ops")))
    if "onnx" in names:
        suites.append(onnx_suite())
    if "networks" in names:
        suites += [network_suite(Path(data, "relay"), p) for p in precisions]
    return suites
