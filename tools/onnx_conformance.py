"""Runs the ONNX standard's node tests through our importer on one target and says why others do not run.

`python -m tilewright.tools.onnx_conformance [--target opencl] [name ...]`. The onnx package brings the cases.
Inputs on which shapes depend are bound as constants, as an exporter would have stored them.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from multiprocessing import get_context
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.frontends.onnx.emission import NotConstant
from tilewright.frontends.onnx.package import onnx_module
from tilewright.ir import InputError, Module, UnsupportedError

PASSED, FAILED, UNSUPPORTED = "passed", "failed", "unsupported"
#: relative and absolute difference allowed to results of 16-bit floats
NARROW = 1e-2


@dataclass(frozen=True)
class Result:
    """One case on one target; `reason` says what went wrong, or which inputs were bound as constants."""

    name: str
    target: str
    status: str
    reason: str = ""


def run(target: str, names: Sequence[str] | None = None, jobs: int = 1) -> list[Result]:
    """Results of the node tests called `names` (or whose name contains one of them), all by default."""
    chosen = [n for n in case_names() if not names or any(text in n for text in names)]
    if jobs <= 1:
        return [run_one(name, target) for name in chosen]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        return list(pool.map(partial(run_one, target=target), chosen, chunksize=8))


def case_names() -> tuple[str, ...]:
    """Names of all node tests of the installed onnx package."""
    return tuple(_cases())


def run_one(name: str, target: str) -> Result:
    """Run one case; every error becomes a result with its reason in one line."""
    case = _cases()[name]
    try:
        note = _run(case, target)
    except UnsupportedError as error:
        return Result(name, target, UNSUPPORTED, _line(error))
    except Exception as error:  # noqa: BLE001  (a crash is a finding of this tool, never its end)
        return Result(name, target, FAILED, f"{type(error).__name__}: {_line(error)}")
    return Result(name, target, PASSED, note)


def imported(model: Any, inputs: Mapping[str, np.ndarray]) -> tuple[Module, tuple[str, ...]]:
    """The module of a model, and the inputs bound to their arrays because shapes depend on them."""
    bound: tuple[str, ...] = ()
    while True:
        try:
            return tw.frontends.onnx.load(model, shapes=None, values={n: inputs[n] for n in bound}), bound
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


def _run(case: Any, target: str) -> str:
    """The note on a case that passes; raises what is wrong with it otherwise."""
    names = [i.name for i in case.model.graph.input]
    note = ""
    for given, wanted in case.data_sets:
        inputs = dict(zip(names, map(_array, given), strict=False))
        if any(a is None for a in inputs.values()):
            raise UnsupportedError("expected every input to be given: an optional one counts as present")
        module, bound = imported(
            case.model,
            {n: np.asarray(a) for n, a in inputs.items() if isinstance(a, np.ndarray | np.generic)},
        )
        note = f"with {', '.join(bound)} bound as constants" if bound else ""
        exe = tw.compile(module, target=target, progress=False)
        try:
            got = exe(*(inputs[n] for n in module.input_names))
        finally:
            if isinstance(exe, tw.Executable):
                exe.close()
        _compare(got, list(_leaves(wanted)), case)
    return note


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


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:400]


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print what did not pass and the counts; exit code 1 where a case failed."""
    p = argparse.ArgumentParser(prog="python -m tilewright.tools.onnx_conformance", description=__doc__)
    p.add_argument("names", nargs="*", help="only cases whose name contains one of these")
    p.add_argument("--target", default="reference", help="reference, opencl, cuda, ... (default reference)")
    p.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    p.add_argument("--all", action="store_true", help="print the cases that passed as well")
    a = p.parse_args(argv)
    results = run(a.target, a.names, a.jobs)
    for r in sorted(results, key=lambda r: (r.status, r.reason, r.name)):
        if a.all or r.status != PASSED:
            print(f"{r.status}: {r.name}: {r.reason}")
    counts = Counter(r.status for r in results)
    print(f"{a.target}: " + ", ".join(f"{counts[s]} {s}" for s in (PASSED, FAILED, UNSUPPORTED)))
    return 1 if counts[FAILED] else 0


if __name__ == "__main__":
    sys.exit(main())
