"""Hardware records, sound performance bounds, estimators and the choice of implementation parameters by
model.
"""

from tilewright.costmodel.hardware.description import CpuHardware, GpuHardware, Hardware
from tilewright.costmodel.hardware.loader import (
    compiled_for,
    fill_from_machine,
    find_hardware,
    known_hardware,
    load_hardware,
    load_hardware_file,
    nearest_hardware,
)
from tilewright.costmodel.kernels.bound import Bound, contract_bound, contract_bound_of, global_bound
from tilewright.costmodel.kernels.bound_terms import Assumptions
from tilewright.costmodel.kernels.check_measured import Violation, check_measured
from tilewright.costmodel.kernels.choose import ParameterChoice, choose_contract, likely_contract
from tilewright.costmodel.kernels.explain import Explanation, explain
from tilewright.costmodel.kernels.parameters import (
    ContractParameters,
    MapParameters,
    RowReduceParameters,
    WindowParameters,
)
from tilewright.costmodel.kernels.problem import (
    ContractProblem,
    LineProblem,
    Problem,
    RowReduceProblem,
    StreamProblem,
    WindowProblem,
)
from tilewright.costmodel.kernels.production_space import SpaceLimits
from tilewright.costmodel.kernels.streams import choose_map, choose_row_reduce, choose_window

__all__ = [
    "Assumptions",
    "Bound",
    "ContractParameters",
    "ContractProblem",
    "CpuHardware",
    "Explanation",
    "GpuHardware",
    "Hardware",
    "LineProblem",
    "MapParameters",
    "ParameterChoice",
    "Problem",
    "RowReduceParameters",
    "RowReduceProblem",
    "SpaceLimits",
    "StreamProblem",
    "Violation",
    "WindowParameters",
    "WindowProblem",
    "check_measured",
    "choose_contract",
    "choose_map",
    "choose_row_reduce",
    "choose_window",
    "compiled_for",
    "contract_bound",
    "contract_bound_of",
    "explain",
    "fill_from_machine",
    "find_hardware",
    "global_bound",
    "known_hardware",
    "likely_contract",
    "load_hardware",
    "load_hardware_file",
    "nearest_hardware",
]
