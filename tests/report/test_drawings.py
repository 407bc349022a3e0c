"""The task's window on a time line: what is drawn, and where."""

import re

import pytest

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
