"""What the text of a kernel may ask of a preprocessor: what our emitters write, and no file."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: ways of writing `#` or of continuing a line that no emitter uses; they would hide a directive
_DISGUISES = ("%:", "??", "\\\n", "\r", "\f", "\v", "\0")
_LINE = re.compile(r"^(?P<before>[^#\n]*)(?P<directive>#[^\n]*)$", re.MULTILINE)
_ALLOWED = re.compile(
    r"#\s*(?:define|undef|if|ifdef|ifndef|elif|else|endif|error)\b(?!.*__has_)"
    r"|#\s*pragma\s+(?:(?:no)?unroll\b|OPENCL\s+(?:EXTENSION|FP_CONTRACT)\b)"
)


def source_faults(source: str) -> Iterator[str]:
    """Directives of `source` that could read a file (`#include`, `#embed`, ...) or hide one, as clauses.

    A comment may stand before a directive, so what follows a block comment counts as one.
    """
    for disguise in _DISGUISES:
        if disguise in source:
            yield f"its source has {disguise!r}, which generated code never has"
            return
    for line in _LINE.finditer(source):
        before = line["before"].strip()
        begins = not before or "/*" in before or "*/" in before
        if begins and (before or not _ALLOWED.match(line["directive"])):
            shown = line["directive"].strip()
            yield f"its source has the directive {shown!r:.100}, which generated code never has"
            return
