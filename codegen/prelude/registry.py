"""Helper functions a kernel may need: only those it uses are emitted, in the dialect's own types.

Template language: `FN` is the function qualifiers, `NAME` the helper's own name, `$T` the type it is made for
and `$U` its unsigned twin, `$i32` the dialect's name of i32, `@floordiv:T@` another helper for the same type.
"""

from __future__ import annotations

import re

from tilewright.codegen.dialect import Dialect
from tilewright.ir.errors import UnsupportedError

_TEMPLATES: dict[str, dict[str, str]] = {}


def helper(name: str, text: str, language: str = "any", *, emulated: bool = False) -> None:
    """Define the template of a helper for one language or for all; a second definition raises ValueError.

    `emulated` helpers hold inline PTX; the emulator's header brings its own version under the same name.
    """
    per_language = _TEMPLATES.setdefault(name, {})
    if language in per_language:
        raise ValueError(f"helper '{name}' is already defined for {language}")
    body = text.strip("\n")
    per_language[language] = f"#ifndef TW_EMULATOR\n{body}\n#endif" if emulated else body


class Prelude:
    """The helpers one kernel uses, with those they use themselves."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.texts: dict[str, str] = {}

    def need(self, function: str, dtype: str = "") -> str:
        """Add a helper (for a dtype, where it is generic) and return its C name."""
        name = f"tw_{function}" + (f"_{dtype}" if dtype else "")
        if name not in self.texts:
            known = _TEMPLATES.get(function, {})
            template = known.get(self.dialect.name, known.get("any"))
            if template is None:
                raise UnsupportedError(f"{function} cannot be expressed in {self.dialect.name}")
            text = re.sub(r"@(\w+)(:T)?@", lambda m: self.need(m[1], dtype if m[2] else ""), template)
            self.texts[name] = self._fill(text, name, dtype)
        return name

    def _fill(self, text: str, name: str, dtype: str) -> str:
        def c_type(m: re.Match[str]) -> str:
            if m[1] == "U":
                return self.dialect.mem_type("u" + dtype.lstrip("iu"))
            return self.dialect.mem_type(dtype if m[1] == "T" else m[1])

        text = re.sub(r"\bNAME\b", name, re.sub(r"\bFN\b", self.dialect.function, text))
        return re.sub(r"\$([TU](?![a-z])|[a-z]+\d+)", c_type, text)

    def text(self) -> str:
        """All helpers needed, dependencies first; guarded where texts of several kernels may be joined."""
        if not self.dialect.joins_kernels:
            return "\n\n".join(self.texts.values())
        return "\n\n".join(f"#ifndef HAVE_{n}\n#define HAVE_{n}\n{t}\n#endif" for n, t in self.texts.items())
