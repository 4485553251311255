"""Things that an importer met and cannot take, collected so that one error names all of it."""

from __future__ import annotations

from tilewright.ir.errors import UnsupportedError

#: What every importer calls operators without a rule.
OPERATORS = "operators this version does not import"
#: What importers of functional programs call syntax that they do not read.
CONSTRUCTS = "constructs this version does not import"
#: Places listed per name; more are counted.
MAX_PLACES = 5


class Findings:
    """Names by title, with the places they were met at."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, list[str]]] = {}

    def add(self, title: str, name: str, place: str) -> None:
        """Note that `name`, of the kind that `title` says, was met at `place`."""
        self._places.setdefault(title, {}).setdefault(name, []).append(place)

    def message(self) -> str:
        """All of it in one sentence; empty where nothing was found."""
        return "; ".join(
            f"{title}: {', '.join(f'{name} ({_listed(places)})' for name, places in sorted(names.items()))}"
            for title, names in sorted(self._places.items())
        )

    def check(self, where: str) -> None:
        """Raise UnsupportedError naming everything that was found."""
        if self._places:
            raise UnsupportedError(self.message(), where=where)


def _listed(places: list[str]) -> str:
    more = f" and {len(places) - MAX_PLACES} more" if len(places) > MAX_PLACES else ""
    return f"at {', '.join(places[:MAX_PLACES])}{more}"
