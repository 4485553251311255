"""How far a result may lie from what the reference semantics give in float64."""

from __future__ import annotations

import numpy as np

from tilewright.ir import WorkError
from tilewright.ir.types import FLOATS, dtype_name
from tilewright.tools.conformance.case import exact_fault

#: error allowed relative to the largest magnitude of a result, beside what its own dtype costs the reference
ROUNDING = {"f64": 1e-9, "f32": 1e-4, "f16": 2e-2, "bf16": 8e-2}
#: how much worse than the reference in native precision a compiled result may be: sums run in another order
SLACK = 16


def relative_error(where: str, got: np.ndarray, native: np.ndarray, wide: np.ndarray) -> float:
    """Largest error of a result relative to the largest magnitude; WorkError where it is not allowed.

    native, wide: what the reference gives in the dtypes of the module, and with every float as float64.
    """
    if fault := exact_fault(got, native):
        raise WorkError(f"{where}: {fault}")
    dtype = dtype_name(native.dtype)
    if dtype not in FLOATS:
        return 0.0
    scale = float(np.abs(wide).max(initial=0)) or 1.0
    gap = np.abs(got.astype(np.float64) - wide)
    allowed = ROUNDING[dtype] * scale + SLACK * float(np.abs(native.astype(np.float64) - wide).max(initial=0))
    if not np.all(gap <= allowed):
        at = tuple(
            int(i) for i in np.unravel_index(int(np.argmax(np.nan_to_num(gap, nan=np.inf))), gap.shape)
        )
        raise WorkError(f"{where}: {got[at]} for {wide[at]} at {list(at)}, {allowed:.3g} allowed")
    return float(gap.max(initial=0)) / scale
