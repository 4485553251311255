"""What cannot be imported, collected so that one error names all of it."""

from __future__ import annotations

from tilewright.ir.errors import UnsupportedError

#: places listed per finding; more are counted
MAX_PLACES = 5


class Findings:
    """Findings by title and name, with the places they were met at."""

    def __init__(self) -> None:
        self._places: dict[str, dict[str, list[str]]] = {}

    def add(self, title: str, name: str, place: str) -> None:
        """Note that `name`, of the kind `title` tells, was met at `place`."""
        self._places.setdefault(title, {}).setdefault(name, []).append(place)

    def check(self, where: str) -> None:
        """Raise UnsupportedError naming everything that was found."""
        if self._places:
            raise UnsupportedError(
                "; ".join(f"{title}: {_listed(self._places[title])}" for title in sorted(self._places)),
                where=where,
            )


def _listed(places: dict[str, list[str]]) -> str:
    return ", ".join(f"{name} ({_at(found)})" for name, found in sorted(places.items()))


def _at(found: list[str]) -> str:
    more = f" and {len(found) - MAX_PLACES} more" if len(found) > MAX_PLACES else ""
    return f"at {', '.join(found[:MAX_PLACES])}{more}"
