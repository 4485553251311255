"""Shared memory beyond what every launch may have is asked for, by what is declared and what launches add."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from runtime_samples import diamond

from tilewright.runtime.cuda.launch import SHARED_BYTES_WITHOUT_OPT_IN, prepare_launches


class Driver:
    """Answers what preparing launches asks of a driver, and keeps what it is told to set."""

    def __init__(self, declared):
        self.declared, self.set = declared, []
        attributes = SimpleNamespace(
            CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK=0,
            CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1,
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        )
        self.api = SimpleNamespace(
            CUfunction_attribute=attributes,
            CUresult=SimpleNamespace(CUDA_SUCCESS=0),
            cuFuncGetParamInfo=lambda arguments, position: (int(position >= arguments), 0, 8),
        )

    def call(self, name, *arguments, doing):
        if name == "cuFuncGetAttribute":
            return {0: 1024, 1: self.declared}[arguments[0]]
        assert name == "cuFuncSetAttribute"
        self.set.append(arguments[1:])
        return None


@pytest.mark.parametrize(
    ("declared", "added", "asked"),
    [
        (0, 0, False),
        (40_960, 0, False),
        (0, SHARED_BYTES_WITHOUT_OPT_IN, False),
        (0, SHARED_BYTES_WITHOUT_OPT_IN + 16, True),
        (40_960, 35_968, True),  # neither needs it alone
    ],
)
def test_both_parts_of_shared_memory_count(declared, added, asked):
    plan = diamond(language="cuda", arch="sm_90")
    plan = plan.replace(launches=tuple(replace(x, shared_bytes=added) for x in plan.launches))
    functions = {x.kernel: len(x.args) for x in plan.launches}
    addresses = {name: 64 * i for i, name in enumerate({n for x in plan.launches for n in x.args})}
    driver = Driver(declared)
    prepare_launches(driver, plan, functions, addresses, libraries=None)
    assert driver.set == ([(8, added)] * len(functions) if asked else [])
