from __future__ import annotations

import html
from dataclasses import replace

import pytest

from connectors.spark.common.cut import Cut
from connectors.spark.common.page import HEIGHT, Bars, number
from connectors.spark.report.page import (
    NOTHING_LATE,
    Count,
    Lateness,
    LoadStep,
    PendingTotals,
    ReportFacts,
    page,
)

HOUR_MS = 3_600_000
NOW_MS = 1_795_000_000_000 // HOUR_MS * HOUR_MS
HOSTILE = "<script>alert(1)</script>&\"'"
ROLE = 'role="img" aria-label="'
LATE = Lateness("orders", 4_321_000, 100, 0, 0, 1, 2, 3, 4)
NOTHING = ReportFacts(
    since_ms=None,
    until_ms=None,
    whole=NOTHING_LATE,
    targets=(),
    targets_total=0,
    hours=(),
    waiting=PendingTotals(0, 0, 0, 0, None),
    horizon_ms=24 * HOUR_MS,
    step_ms=60_000,
    forecast=(),
    pending_targets=(),
    outcomes=(),
    letters=(),
    seconds=12.3,
    cut=Cut(NOW_MS, (), {}, {}),
)
FACTS = replace(
    NOTHING,
    whole=LATE,
    targets=(LATE, replace(LATE, name=HOSTILE)),
    hours=(replace(LATE, name=NOW_MS),),
    forecast=(LoadStep(NOW_MS, 70, 10, 9),),
    letters=(Count("target-unknown", 4),),
)


def test_a_page_needs_nothing_from_elsewhere_and_a_name_is_only_text() -> None:
    text = page(FACTS)
    for part in ("http", "<script", "<link", "<img", "<iframe", " src=", "url("):
        assert part not in text
    assert HOSTILE in html.unescape(text)


def test_the_two_charts_have_a_label_and_their_numbers_stand_in_tables() -> None:
    text = page(FACTS)
    assert text.count("<svg") == text.count(ROLE) == 2
    assert text.count("<table>") == 6
    assert "4,321,000" in text


def test_bars_stand_at_their_time_and_the_highest_fills_the_chart() -> None:
    bars = Bars("any", [0, 10, 30], 10, {"a": [2.0, 0.0, 4.0], "b": [1, 1, 1]})
    assert (bars.top, bars.width) == (4.0, 200.0)
    half, whole = -HEIGHT / 2, -HEIGHT
    assert bars.path("a") == f"M100.0 {HEIGHT}v{half:.1f} M700.0 {HEIGHT}v{whole:.1f}"


def test_a_cluster_that_has_done_nothing_yet_has_a_page_too() -> None:
    empty = page(NOTHING)
    assert "0 records with 0 bytes are pending" in empty
    assert empty.count(">nothing</td>") == 6
    assert "<svg" not in empty


def test_early_records_are_said_aloud() -> None:
    warning = "3 records were delivered before their due time"
    assert warning in page(replace(FACTS, whole=replace(LATE, early=3)))
    assert "before their due time." not in page(FACTS)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "\N{EN DASH}"),
        (1234567, "1,234,567"),
        (0.123456, "0.123"),
        (12345.6, "12,346"),
        (True, "yes"),
        ("a", "a"),
    ],
)
def test_a_cell_is_written_for_people(value: object, text: str) -> None:
    assert number(value) == text
