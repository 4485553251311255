"""All kernel templates by name: the module `template` of every folder beside this file registers its own."""

from __future__ import annotations

import importlib.util
import pkgutil
from collections.abc import Iterator

from tilewright.costmodel import Hardware
from tilewright.ir import Attr, AttrRecord, Func, InputError, Level, Module, Pairs
from tilewright.ir.tensor.ops import STRUCTURED
from tilewright.ir.typed_attributes import register_attribute, register_upgrade
from tilewright.passes import kernels
from tilewright.passes.framework.invariants import register_invariant
from tilewright.passes.kernels.decision import (
    DECISION,
    KernelCost,
    KernelDecision,
    MeasuredPoint,
    chosen_for,
    decision_of,
    has_parameters,
)
from tilewright.passes.kernels.template import Choices, Joined, KernelTemplate

_TEMPLATES: dict[str, KernelTemplate] = {}
_CHOICES: dict[int, Choices] = {}
_loaded: set[str] = set()


def register_template(template: KernelTemplate) -> KernelTemplate:
    """Make a template known; raises InputError where the name is taken."""
    if template.name in _TEMPLATES:
        raise InputError(f"kernel template '{template.name}' is registered twice")
    _TEMPLATES[template.name] = template
    return template


def register_choices(choices: Choices) -> Choices:
    """Make known how a family chooses; raises InputError where another one has its precedence."""
    if choices.precedence in _CHOICES:
        other = _CHOICES[choices.precedence].family
        raise InputError(
            f"families '{other}' and '{choices.family}' both have precedence {choices.precedence}"
        )
    _CHOICES[choices.precedence] = choices
    return choices


def choices_in_order() -> tuple[Choices, ...]:
    """Return how families choose, in the order in which they are asked."""
    _load()
    return tuple(_CHOICES[precedence] for precedence in sorted(_CHOICES))


def joined_templates() -> tuple[tuple[KernelTemplate, Joined], ...]:
    """The templates of kernels that join several, in the order in which they are asked."""
    found = [(t, t.joined) for t in templates() if t.joined is not None]
    return tuple(sorted(found, key=lambda f: f[1].precedence))


def templates() -> tuple[KernelTemplate, ...]:
    """All templates by name."""
    _load()
    return tuple(_TEMPLATES[name] for name in sorted(_TEMPLATES))


def template_of(kernel: Func) -> KernelTemplate | None:
    """The template of a kernel, at the tensor or the thread level; None where none is chosen yet."""
    found = decision_of(kernel)
    return None if found is None else _named(found.template)


def chosen_template(kernel: Func) -> KernelTemplate:
    """The template of a kernel; raises InputError, which names the kernel, where it has none."""
    return _named(chosen_for(kernel).template)


def _named(name: Attr) -> KernelTemplate:
    _load()
    if not isinstance(name, str) or name not in _TEMPLATES:
        raise InputError(f"expected a template among {', '.join(sorted(_TEMPLATES))}, got {name!r}")
    return _TEMPLATES[name]


def is_generated(func: Func) -> bool:
    """Return whether this compiler writes a function; False for kernels that a library computes."""
    template = template_of(func)
    return template is None or template.generated


def _load() -> None:
    """Import the module `template` of every family, once."""
    if "own" in _loaded:
        return
    for folder in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        if folder.ispkg and importlib.util.find_spec(f"{folder.name}.template") is not None:
            importlib.import_module(f"{folder.name}.template")
    _loaded.add("own")


def _parameters(template: KernelTemplate, value: Attr) -> AttrRecord:
    return template.parameters.read(value, f"parameters of template '{template.name}'")


def _decision(pairs: Pairs) -> KernelDecision:
    """The decision in `kernel<...>`; raises InputError for what does not fit its template."""
    known = ("template", "parameters", "cost", "measured_s", "candidates")
    values = pairs.as_dict()
    for key in values:
        if key not in known:
            raise InputError(f"expected {', '.join(known)} in a decision, got '{key}'")
    template = _named(values.get("template"))
    cost, seconds, candidates = (values.get(name) for name in known[2:])
    if seconds is not None and type(seconds) not in (int, float):
        raise InputError(f"expected measured_s in a decision to be a number, got {seconds!r}")
    return KernelDecision(
        template.name,
        None if "parameters" not in values else _parameters(template, values["parameters"]),
        None if cost is None else KernelCost.read(cost, "cost"),
        seconds,  # type: ignore[arg-type]
        tuple(_candidate(template, c) for c in candidates) if isinstance(candidates, tuple) else (),
    )


def _candidate(chosen: KernelTemplate, value: Attr) -> MeasuredPoint:
    """A measured point; older text does not name its template, which need not be the chosen one."""
    values = value.as_dict() if isinstance(value, Pairs) else {}
    seconds = [values.get(name) for name in ("estimate_s", "measured_s")]
    if any(not isinstance(s, float) for s in seconds):
        raise InputError(f"expected candidates with estimate_s and measured_s, got {value!r}")
    estimate_s, measured_s = seconds
    if "template" in values:
        template = _named(values["template"])
        parameters = _parameters(template, values.get("parameters"))
    else:
        template, parameters = _fitting(chosen, values.get("params"))
    return MeasuredPoint(template.name, parameters, estimate_s, measured_s)  # type: ignore[arg-type]


def _fitting(first: KernelTemplate, value: Attr) -> tuple[KernelTemplate, AttrRecord]:
    """The template, `first` or else another one, that such parameters fit."""
    for template in (first, *templates()):
        try:
            return template, _parameters(template, value)
        except InputError:
            continue
    raise InputError(f"expected parameters of a template, got {value!r}")


#: the attributes of a kernel that older text has in the place of its decision
_OLDER = {
    "skeleton": "template",
    "params": "parameters",
    "cost": "cost",
    "measured_s": "measured_s",
    "candidates": "candidates",
}


def _upgraded(attrs: tuple[tuple[str, Attr], ...]) -> tuple[tuple[str, Attr], ...]:
    """The attributes of a function, with a decision in the place of what older text has for it."""
    older = {_OLDER[k]: v for k, v in attrs if k in _OLDER and v is not None}
    if "template" not in older:
        return attrs
    first = next(k for k, _ in attrs if k in _OLDER)
    decision = _decision(Pairs.of({name: older[name] for name in _OLDER.values() if name in older}))
    renewed = (
        (DECISION, decision) if k == first else (k, v) for k, v in attrs if k == first or k not in _OLDER
    )
    return tuple(renewed)


register_attribute(KernelDecision.attribute, _decision)
register_upgrade(_upgraded)


def least_s(kernel: Func, hardware: Hardware) -> float:
    """Seconds a kernel takes at least with any parameters: arithmetic, traffic with warm caches, launch."""
    for family in choices_in_order():
        if (seconds := family.least_s(kernel, hardware)) is not None:
            return seconds
    return hardware.launch_floor_s


def decision_faults(kernel: Func) -> Iterator[str]:
    """Say in one sentence with the kernel's name what is wrong with its decision; nothing where it fits.

    Its template must be known, and its parameters be of the class that the template states.
    """
    try:
        found, template = decision_of(kernel), template_of(kernel)
    except InputError as e:
        yield str(e) if e.where else f"@{kernel.name}: {e}"
        return
    if found is None or template is None or found.parameters is None:
        return
    if not isinstance(found.parameters, template.parameters):
        got = type(found.parameters).__name__
        yield f"@{kernel.name}: expected {template.parameters.__name__} of '{template.name}', got {got}"


def check_decisions(module: Module, where: str) -> None:
    """Raise InputError, which begins with `where`, for the first decision that does not fit its template."""
    for fault in (x for f in module.funcs if f.name != "main" for x in decision_faults(f)):
        raise InputError(fault, where=where)


@register_invariant("parameters-chosen")
def parameters_chosen(module: Module) -> list[str]:
    """Every tensor-level kernel names its template and its implementation parameters, which fit it."""
    kernels = [f for f in module.funcs if f.level is Level.TENSOR and f.name != "main"]
    missing = [
        f"@{f.name} has no parameters in an attribute '{DECISION}'"
        for f in kernels
        if any(op.name in STRUCTURED for op in f.body.ops) and not has_parameters(f)
    ]
    return [*missing, *(fault for f in kernels for fault in decision_faults(f))]
