"""The public interpreter: that of the IR, which finds the semantics of ops that their lowering defines."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.ir import interpret
from tilewright.ir.graph_ops.adjoint import evaluate_with
from tilewright.ir.interpreter.step import interpret_step
from tilewright.ir.opdef import Attrs

__all__ = ["interpret", "interpret_step"]


def _evaluate_adjoint(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    # Lowering rules take a moment to load, and most modules have no adjoint; they register themselves.
    from tilewright.passes.lower.rules.adjoint import evaluate

    return evaluate(inputs, attrs)


evaluate_with(_evaluate_adjoint)
