"""Decisions on kernels that tests read and force."""

from collections.abc import Mapping

from tilewright.ir import Attr, AttrRecord, Func, Pairs
from tilewright.passes.kernels.decision import DECISION, KernelCost, KernelDecision, decision_of
from tilewright.passes.kernels.registry import templates


def template(kernel: Func) -> str | None:
    """The name of a kernel's template; None where none is chosen."""
    found = decision_of(kernel)
    return None if found is None else found.template


def parameters(kernel: Func) -> AttrRecord | None:
    """The parameters of a kernel; None where none are chosen."""
    found = decision_of(kernel)
    return None if found is None else found.parameters


def with_template(
    kernel: Func,
    name: str,
    params: AttrRecord | Pairs | Mapping[str, Attr] | None = None,
    cost: KernelCost | None = None,
) -> Func:
    """The kernel with a template and, if given, with parameters, which are read as text would be."""
    if params is not None and not isinstance(params, AttrRecord):
        (kind,) = (t.parameters for t in templates() if t.name == name)
        pairs = params if isinstance(params, Pairs) else Pairs.of(params)
        params = kind.read(pairs, f"params of template '{name}'")
    return kernel.with_attrs(**{DECISION: KernelDecision(name, params, cost)})
