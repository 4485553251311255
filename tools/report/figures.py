"""Matplotlib figures as SVG for a page: text stays text, ids are unique, ink follows the page's colours."""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec

from tilewright.ir import UnsupportedError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


P = ParamSpec("P")

#: drawn for text and axes, and turned into the page's own colours
INK = "#010203"
FAINT = "#040506"


def style(ink: str, faint: str) -> Any:
    """Matplotlib's parameters of all pictures, with these colours of text and of axes."""
    return {
        "svg.fonttype": "none", "svg.hashsalt": "tilewright", "font.size": 9.5, "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"], "text.color": ink, "axes.edgecolor": faint,
        "axes.labelcolor": ink, "xtick.color": ink, "ytick.color": ink, "axes.spines.top": False,
        "axes.spines.right": False, "grid.color": faint, "grid.alpha": 0.25, "grid.linewidth": 0.6,
        "legend.frameon": False,
    }  # fmt: skip


_STYLE = style(INK, FAINT)


def require_matplotlib() -> None:
    """Raises UnsupportedError, naming what to install, where matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as e:
        raise UnsupportedError(
            f"the report draws its pictures with matplotlib: pip install 'tilewright[report]' ({e})"
        ) from e


def drawing(function: Callable[P, str]) -> Callable[P, str]:
    """Decorate what draws a `Picture`: gives it the style and a clear error without matplotlib."""

    @wraps(function)
    def draw(*args: P.args, **kwargs: P.kwargs) -> str:
        require_matplotlib()
        from matplotlib import rc_context

        with rc_context(_STYLE):
            return function(*args, **kwargs)

    return draw


class Picture:
    """One figure in the making: draw on `axes`, then take `svg()`. Sizes are inches at 72 dots.

    Marks made by `tag` get a title (what hovering shows) and may link to a place on the page.
    """

    def __init__(
        self, name: str, width: float, height: float, rows: int = 1, ratios: tuple[float, ...] = (1.0,)
    ) -> None:
        from matplotlib.figure import Figure

        self.name = name
        self.titles: dict[str, str] = {}
        self.figure: Figure = Figure(figsize=(width, height), layout="constrained")
        self.rows: list[Axes] = list(
            self.figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
        )

    @property
    def axes(self) -> Axes:
        """The first (often only) pair of axes."""
        return self.rows[0]

    def tag(self, artist: Any, key: str, title: str, link: str = "") -> None:
        """Name a mark, give it its title, and where asked a link to the id `link`."""
        artist.set_gid(f"{self.name}-{key}")
        self.titles[f"{self.name}-{key}"] = title
        if link:
            artist.set_url(f"#{link}")

    def svg(self) -> str:
        """The SVG element, ready to stand in a page."""
        out = io.StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
        return _fitted(out.getvalue(), self.name, self.titles)


def _fitted(svg: str, name: str, titles: Mapping[str, str]) -> str:
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style [^>]*>.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    marks = set(titles)

    def own(match: re.Match[str]) -> str:
        before, key, after = match.groups()
        return f"{before}{key if key in marks else f'{name}.{key}'}{after}"

    text = re.sub(r'(\bid=")([^"]+)(")', own, text)
    text = re.sub(r"(url\(#)([^)]+)(\))", own, text)
    text = re.sub(r'(<use [^>]*xlink:href="#)([^"]+)(")', own, text)
    text = text.replace("<a xlink:href=", "<a href=").replace("<use xlink:href=", "<use href=")
    text = re.sub(r' xmlns(:xlink)?="[^"]*"', "", text)
    text = text.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    for key, title in titles.items():
        text = text.replace(f'<g id="{key}">', f'<g id="{key}"><title>{html.escape(title)}</title>')
    return text.replace("<svg ", f'<svg id="{name}" role="img" ', 1).strip()


CYCLE = (
    "#3b7dd8", "#e08a2e", "#3fa66a", "#c9504c", "#8b6fc9", "#2aa3a3",
    "#c56aa5", "#93853b", "#7d8896", "#5fa3e6", "#b97b4a", "#79b356",
)  # fmt: skip


def class_colours(classes: Sequence[str]) -> dict[str, str]:
    """A colour for each class, in the order given (the longest-running first)."""
    return {c: CYCLE[i % len(CYCLE)] for i, c in enumerate(classes)}
