"""Translations of torch operators where TVM's importer has none, or one that differs from torch.

Each takes the importer and a node, and returns a Relax variable. Importing this module imports torch and TVM.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.frontends.torch.corrections_arithmetic import ARITHMETIC
from tilewright.frontends.torch.corrections_attention import ATTENTION
from tilewright.frontends.torch.corrections_indexing import INDEXING
from tilewright.frontends.torch.corrections_reduction import REDUCTION
from tilewright.frontends.torch.corrections_shape import SHAPE
from tilewright.frontends.torch.nodes import Correction

CORRECTIONS: Mapping[str, Correction] = {**ARITHMETIC, **ATTENTION, **INDEXING, **REDUCTION, **SHAPE}
