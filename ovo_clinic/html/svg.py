"""matplotlib figures as inline SVG that takes its text and grid colours from the page, light or dark."""

import io
import re
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SETTINGS = {
    "svg.fonttype": "none",  # text stays text: found, read aloud, scaled
    "svg.hashsalt": "ovo_clinic",  # the same figure gives the same bytes
    "savefig.transparent": True,
}
_OF_THE_PAGE = {
    "#000000": "currentColor",
    "#262626": "currentColor",
    "#ebebeb": "var(--grid)",  # of figures.tidy
    "#cccccc": "var(--grid)",
    "#ffffff": "var(--background)",
}
"""Colours of figures -> those of the page."""
_LEAST_WIDTH = 420
"""Points: on a narrow screen a figure is scrolled rather than shrunk until nobody can read it."""


def _rounded(tag: "re.Match[str]") -> str:
    """A tag with its coordinates to hundredths of a point; what stands between tags is read by people."""
    return re.sub(r"(\d+\.\d\d)\d+", r"\1", tag.group())


def inline(figure: "Figure", name: str, description: str) -> Markup:
    """The figure as an `svg` element.

    Args:
        figure: any.
        name: unique on the page; it makes the ids inside unique.
        description: what it shows, for those who do not see it.
    """
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):  # type: ignore[arg-type]
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('xlink:href="#', f'xlink:href="#{name}-')
    for colour, of_page in _OF_THE_PAGE.items():
        text = text.replace(colour, of_page)
    # Text without a fill would be black on any page.
    text = re.sub(r'<text style="(?![^"]*fill:)', '<text style="fill: currentColor; ', text)
    text = text.replace("<text>", '<text style="fill: currentColor">')  # of formulas, such as powers of ten
    text = re.sub(r"<[^>]*>", _rounded, text)
    opening = text[: text.index(">")]
    width = float(re.search(r'viewBox="0 0 ([\d.]+)', opening).group(1))  # type: ignore[union-attr]
    box = re.search(r'viewBox="[^"]*"', opening).group()  # type: ignore[union-attr]
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f"width: {width:.0f}pt; min-width: {min(width, _LEAST_WIDTH):.0f}pt"
    head = f'<svg {spaces} {box} role="img" aria-label="{escape(description)}" id="{name}" style="{size}"'
    return Markup(head + text[len(opening) :])
