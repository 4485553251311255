"""`tilewright bench`: networks, kernels, foreign networks, training steps and their losses beside PyTorch."""

from __future__ import annotations

import argparse

from tilewright.ir import InputError


def run_bench(a: argparse.Namespace) -> None:
    """Compare row by row; raises WorkError at the end where a result was wrong."""
    if a.train is not None and a.foreign is not None:
        raise InputError("expected --train or --foreign, got both")
    if a.compiled and a.only_compile:
        raise InputError("expected one folder: it is written or taken", where="--only-compile")
    if a.foreign is not None:
        from tilewright.tools.foreign_bench.command import run_foreign_bench as run

        a.precision = a.precision or ["fp32", "tf32", "fp16"]
    elif a.train is not None:
        if a.curves is not None:
            from tilewright.tools.training_bench.curves_command import run_curves as run
        else:
            from tilewright.tools.training_bench.command import run_training_bench as run

        a.precision = a.precision or ["tf32", "bf16", "fp32"]
    else:
        from tilewright.tools.bench.command import run_bench as run

        a.precision = a.precision or ["fp32"]
    run(a)
