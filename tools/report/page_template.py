"""Self-contained HTML pages: a template with `<!-- name -->` marks, filled from resources of this package."""

from __future__ import annotations

import json
import re
from importlib.resources import files


def resource(name: str, package: str = "tilewright.tools.report") -> str:
    """Text of a file that lies in a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def filled(template: str, **values: str) -> str:
    """The template with every mark replaced once; marks inside the values stay as they are."""
    return re.sub(r"<!-- (\w+) -->", lambda mark: values[mark[1]], template)


def json_text(data: object) -> str:
    """Compact JSON that can stand in a script element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
