"""`tilewright bench`: networks and kernels, or with --train whole training steps, beside PyTorch."""

from __future__ import annotations

import argparse


def run_bench(a: argparse.Namespace) -> None:
    """Compare row by row; raises WorkError at the end where a result was wrong."""
    if a.train is not None:
        from tilewright.tools.training_bench.command import run_training_bench as run
    else:
        from tilewright.tools.bench.command import run_bench as run
    run(a)
