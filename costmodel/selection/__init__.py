"""Choice of one label for each of many variables at the least sum of costs, such as orders of dimensions of
tensors by the seconds of the kernels that touch them.
"""

from tilewright.costmodel.selection.elimination import Elimination, eliminate, plan_elimination
from tilewright.costmodel.selection.exact import exact
from tilewright.costmodel.selection.integer import integer
from tilewright.costmodel.selection.problem import Problem, Selection, Table, add_copies, settled
from tilewright.costmodel.selection.shortest_path import shortest_path

__all__ = [
    "Elimination",
    "Problem",
    "Selection",
    "Table",
    "add_copies",
    "eliminate",
    "exact",
    "integer",
    "plan_elimination",
    "settled",
    "shortest_path",
]
