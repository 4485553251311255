"""For tests of plans: the official pipeline without chains, so that small networks keep several kernels."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright.passes import pipelines


@contextmanager
def without_chains() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "TENSOR", pipelines.TENSOR.without("chain-kernels"))
        yield
