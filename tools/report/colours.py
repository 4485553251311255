"""One colour per operator class, the same in every picture; they read on light and on dark ground."""

from __future__ import annotations

from collections.abc import Sequence

CYCLE = (
    "#3b7dd8", "#e08a2e", "#3fa66a", "#c9504c", "#8b6fc9", "#2aa3a3",
    "#c56aa5", "#93853b", "#7d8896", "#5fa3e6", "#b97b4a", "#79b356",
)  # fmt: skip


def class_colours(classes: Sequence[str]) -> dict[str, str]:
    """A colour for each class, in the order given (the longest-running first)."""
    return {c: CYCLE[i % len(CYCLE)] for i, c in enumerate(classes)}
