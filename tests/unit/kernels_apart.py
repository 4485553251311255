"""For tests of plans: the default pipeline without chains, so that small networks keep several kernels."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tilewright import pipelines

CHAINS = "chain-kernels{when=auto, only=contract-reduce+reduce-reduce},\n"


@contextmanager
def without_chains() -> Iterator[None]:
    assert CHAINS in pipelines.TENSOR
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "TENSOR", pipelines.TENSOR.replace(CHAINS, ""))
        yield
