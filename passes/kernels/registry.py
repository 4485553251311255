"""All kernel templates by name: the module `template` of every folder beside this file registers its own."""

from __future__ import annotations

import importlib.util
import pkgutil

from tilewright.ir import Func, InputError
from tilewright.passes import kernels
from tilewright.passes.kernels.template import Choices, KernelTemplate

#: the attribute of a kernel that names its template
TEMPLATE = "skeleton"
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
    """How families choose, in the order in which they are asked."""
    _load()
    return tuple(_CHOICES[precedence] for precedence in sorted(_CHOICES))


def templates() -> tuple[KernelTemplate, ...]:
    """All templates by name."""
    _load()
    return tuple(_TEMPLATES[name] for name in sorted(_TEMPLATES))


def template_of(kernel: Func) -> KernelTemplate | None:
    """The template of a kernel, at the tensor or the thread level; None where none is chosen yet.

    Raises InputError, which names the kernel, where no template has such a name.
    """
    return None if kernel.get(TEMPLATE) is None else chosen_template(kernel)


def chosen_template(kernel: Func) -> KernelTemplate:
    """The template of a kernel; raises InputError, which names the kernel, where it has none."""
    _load()
    name = kernel.get(TEMPLATE)
    if not isinstance(name, str) or name not in _TEMPLATES:
        expected = ", ".join(sorted(_TEMPLATES))
        raise InputError(f"expected a {TEMPLATE} among {expected}, got {name!r}", where=f"@{kernel.name}")
    return _TEMPLATES[name]


def is_generated(func: Func) -> bool:
    """Whether this compiler writes a function; False for kernels that a library computes."""
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
