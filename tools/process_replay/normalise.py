"""Records -> text that does not depend on names: kernels, their variables and buffers are numbered.

Names are numbered by order of appearance, one number per name, so two texts are equal exactly where one
becomes the other by renaming. Only what a text declares itself is renamed: other identifiers have a meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<text>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')"""
    r"""|(?P<line>^[ \t]*\#[^\n]*)|(?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<space>\s+)|(?P<sign>->|::|.)""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
#: words before a name that do not make it a declaration
_NO_TYPES = frozenset(("return", "else", "case", "goto", "typedef", "struct", "class", "using", "namespace"))
_QUALIFIERS = frozenset(("const", "volatile", "restrict", "__restrict__"))
_AFTER_DECLARED = frozenset(("=", ";", "[", ",", ")"))
_IR_NAME = re.compile(r"""(?P<text>"(?:\\.|[^"\\])*")|(?P<name>[%@][\w.]+)""")


def kernel_text(kernel: Mapping[str, Any], *, comments: bool = True) -> str:
    """The emitted source and the facts of a kernel, with numbers for names."""
    source = renamed_source(str(kernel["source"]), str(kernel["entry"]), comments=comments)
    return "\n".join((*_kernel_facts(kernel), source))


def named_kernel_text(kernel: Mapping[str, Any]) -> str:
    """The same with the names that the commit gave."""
    return "\n".join((*_kernel_facts(kernel), str(kernel["source"])))


def _kernel_facts(kernel: Mapping[str, Any]) -> list[str]:
    facts = {k: v for k, v in kernel.items() if k not in ("name", "entry", "source")}
    return [f"{name}: {_shown(facts[name])}" for name in sorted(facts) if _says(facts[name])]


def renamed_source(source: str, entry: str, *, comments: bool = True) -> str:
    """C text whose kernel is named `kernel`, and whose variables and parameters are numbered."""
    tokens = [
        (str(m.lastgroup), m.group()) for m in _TOKEN.finditer(source) if comments or m.lastgroup != "comment"
    ]
    declared = _declared(tokens)
    numbers: dict[str, str] = {}
    out = []
    previous = ""
    for kind, text in tokens:
        if kind == "name" and text == entry:
            text = "kernel"
        elif kind == "name" and text in declared and previous not in (".", "->", "::"):
            text = numbers.setdefault(text, f"v{len(numbers)}")
        if kind not in ("space", "comment"):
            previous = text
        out.append(text)
    if comments:
        return "".join(out)
    return "\n".join(line.rstrip() for line in "".join(out).splitlines() if line.strip())


def _declared(tokens: Iterable[tuple[str, str]]) -> frozenset[str]:
    """The names of variables and parameters: a type, perhaps pointers, and a name that ends a declarator."""
    code = [(kind, text) for kind, text in tokens if kind not in ("space", "comment", "line")]
    names: set[str] = set()
    for i in range(1, len(code) - 1):
        (kind, name), (_, after) = code[i], code[i + 1]
        if kind != "name" or after not in _AFTER_DECLARED or name in _QUALIFIERS:
            continue
        at = i - 1
        while at and (code[at][1] in ("*", "&") or code[at][1] in _QUALIFIERS):
            at -= 1
        kind, token = code[at]
        pointer = at != i - 1
        # `a * b` is a product: `a` was declared before, as a type never is.
        typed = kind == "name" and token not in _NO_TYPES and not (pointer and token in names)
        if typed or (token == ")" and not pointer and _is_attribute(code, at)):
            names.add(name)
    return frozenset(names)


def _is_attribute(code: Sequence[tuple[str, str]], end: int) -> bool:
    """Return whether the parenthesis that closes at `end` is of an attribute or an alignment of a type."""
    depth = 0
    for at in range(end, -1, -1):
        depth += {")": 1, "(": -1}.get(code[at][1], 0)
        if not depth:
            return at > 0 and code[at - 1][1].startswith("__")
    return False


def renamed_ir(text: str) -> str:
    """Text of the IR whose values and functions are numbered."""
    numbers: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match["name"]
        if name is None:
            return match[0]
        return numbers.setdefault(name, f"{name[0]}{len(numbers)}")

    return _IR_NAME.sub(numbered, text)


def plan_lines(
    record: Mapping[str, Any], kernels: Mapping[str, str], left_out: Sequence[str] = ()
) -> list[str]:
    """One line for each fact, buffer and launch of a plan; `kernels` says what its kernels are called.

    Values that are empty or false are not printed, so a field that nothing uses makes no difference.
    left_out: fields of plan, buffers and launches that are not printed.
    """
    plan, constants = record["plan"], record["constants"]
    buffers = {b["name"]: b for b in plan["buffers"]}
    names = _in_order_of_use(plan, buffers)
    streams: dict[Any, int] = {}
    lines = [
        f"{key}: {_shown(value)}"
        for key, value in sorted(plan.items())
        if key not in ("buffers", "kernels", "launches", "inputs", "outputs", *left_out) and _says(value)
    ]
    lines += [f"{key}: {', '.join(names[n] for n in plan[key])}" for key in ("inputs", "outputs")]
    for name, number in names.items():
        buffer = {k: v for k, v in buffers[name].items() if k not in ("name", "label", *left_out)}
        buffer["bytes_digest"] = constants.get(name, "")
        if _says(buffer.get("base")):
            buffer["base"] = names[buffer["base"]]
        lines.append(f"buffer {number}: {_fields(buffer)}")
    for index, launch in enumerate(plan["launches"]):
        rest = {k: v for k, v in launch.items() if k not in ("kernel", "args", *left_out)}
        if "stream" in rest:
            rest["stream"] = streams.setdefault(rest["stream"], len(streams))
        args = ", ".join(names[n] for n in launch["args"])
        lines.append(f"launch {index}: {kernels[launch['kernel']]}({args}) {_fields(rest)}")
    return lines


def _in_order_of_use(plan: Mapping[str, Any], buffers: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """A number for every buffer, by its name: inputs, then as launches use them; bases after aliases."""
    names: dict[str, str] = {}

    def number(name: str) -> None:
        while name and name not in names:
            names[name] = f"b{len(names)}"
            name = buffers[name].get("base") or ""

    used: Iterator[str] = iter(
        [*plan["inputs"], *(a for x in plan["launches"] for a in x["args"]), *plan["outputs"], *buffers]
    )
    for name in used:
        number(name)
    return names


def _fields(fields: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={_shown(v)}" for k, v in sorted(fields.items()) if _says(v))


def _says(value: Any) -> bool:
    """Return whether a value is anything but empty, zero or false."""
    return bool(value)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + _fields(value) + ")"
    if isinstance(value, list):
        return "[" + ", ".join(map(_shown, value)) + "]"
    return str(value)
