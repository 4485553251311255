"""What an importer met and cannot take: by name, how often and where first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class _Seen:
    count: int
    first: str


@dataclass
class Occurrences:
    """Names with their places; false where nothing was added."""

    by_name: dict[str, _Seen] = field(default_factory=dict)

    def add(self, name: str, place: str) -> None:
        """Count `name`, met at `place`."""
        self.by_name.setdefault(name, _Seen(0, place)).count += 1

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def listed(self, remark: Callable[[str], str] = lambda _: "") -> str:
        """All names in order: `name (2 times, first at PLACE)`, with a remark behind the place."""
        return ", ".join(
            f"{name} ({s.count} time{'s' if s.count > 1 else ''}, first at {s.first}{remark(name)})"
            for name, s in sorted(self.by_name.items())
        )
