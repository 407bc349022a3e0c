"""The task's window on a time line: what is drawn, and where."""

import re

import pytest

from ovo_clinic import figures
from ovo_clinic.html import drawings, svg


def bars(options: dict[str, float]) -> list[tuple[str, float, float]]:
    """(text, from, to) of every bar, in hours."""
    figure = drawings.timeline(options)
    assert figure is not None
    axes = figure.axes[0]
    spans = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    texts = [text.get_text() for text in axes.texts if text.get_position()[1] == 0 and text.get_text()]
    return [(text, *span) for text, span in zip(texts, spans, strict=True)]


def test_records_end_where_the_outcome_begins() -> None:
    found = bars({"prediction_hours": 24.0, "lookback_hours": 6.0, "gap_hours": 0.0})
    assert [text for text, *_ in found] == ["records that count", "outcome"]
    assert found[0][1:] == pytest.approx((-6, 24)) and found[1][1] == 24


def test_a_gap_stands_between_them() -> None:
    found = bars({"prediction_hours": 48.0, "gap_hours": 6.0})
    assert [text for text, *_ in found] == ["records that count", "gap", "outcome"]
    assert found[0][1:] == pytest.approx((0, 48)) and found[1][1:] == pytest.approx((48, 54)) and found[2][1] == 54


@pytest.mark.parametrize("options", [{}, {"prediction_hours": None, "window_hours": 12.0}])
def test_a_task_without_a_prediction_time_has_none(options: dict[str, float | None]) -> None:
    assert drawings.timeline(options) is None


def test_inline_svg_takes_its_colours_from_the_page_and_has_ids_of_its_own() -> None:
    options = {"prediction_hours": 24.0}
    first, second = (svg.inline(drawings.timeline(options), name, 'a "time" <line>') for name in ("one", "two"))
    ids = [set(re.findall(r'\bid="([^"]+)"', text)) for text in (first, second)]
    assert not ids[0] & ids[1] and len(ids[0]) > 3
    assert "currentColor" in first and "#000000" not in first and "prediction" in first
    assert 'aria-label="a &#34;time&#34; &lt;line&gt;"' in first
    assert set(re.findall(r"url\(#([^)]+)\)", first)) <= ids[0]


def test_numbers_and_powers_of_ten_are_written_out_and_take_the_colour_of_the_page() -> None:
    figure, axes = figures.panel(width=4.0, height=2.0)
    axes.plot([0, 0.125], [10.0, 10000.0], color="#0072B2")
    axes.set_xticks([0, 0.125], ["0", "0.125"])
    axes.set_yscale("log")
    text = svg.inline(figure, "numbers", "numbers")
    assert ">0.125</text>" in text and not re.search(r' (?:x|y|d)="[^"]*\.\d{3}', text)
    styles = re.findall(r"<text([^>]*)>", text)
    assert len(styles) > 3 and all("fill: currentColor" in style for style in styles)


def test_only_the_rows_of_a_forest_that_have_numbers_are_drawn() -> None:
    lines = [("a", "one", 1.0, 0.0, 2.0), ("b", "one", 1.5, 1.0, 2.0), ("a", "two", 3.0, 2.0, 4.0)]
    axes = drawings.forest(lines, "points", 0.0, ["a", "b"]).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    assert axes.get_ylim() == (-1.6, 0.6)
