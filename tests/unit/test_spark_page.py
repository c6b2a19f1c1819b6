from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.page import HEIGHT, Bars, number
from connectors.spark.common.topics import Span
from connectors.spark.report.page import (
    NOTHING_LATE,
    Count,
    Lateness,
    LoadStep,
    PendingTotals,
    ReportFacts,
    page,
)
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.cursor import Cursor

HOUR_MS = 3_600_000
NOW_MS = 1_795_000_000_000 // HOUR_MS * HOUR_MS
HOSTILE = "<script>alert(1)</script>&\"'"


def group(name: str | int, records: int = 1_000, p99_ms: int = 90) -> Lateness:
    quantiles_ms = (p99_ms // 4, p99_ms // 2, p99_ms, p99_ms * 3)
    return Lateness(name, records, records * 100, 0, 0, *quantiles_ms)


def made(**changed: object) -> ReportFacts:
    shard = ShardCut(
        "delay_topic_any",
        0,
        "id",
        Cursor((NOW_MS, 5), 7),
        Cursor((NOW_MS, 5), 7),
        Contracts([(0, Contract())]),
        Span(0, 9),
    )
    facts: dict[str, object] = {
        "since_ms": None,
        "until_ms": None,
        "whole": group("all", 4_321_000),
        "targets": (group("orders"), group(HOSTILE, 500), group("a" * 249, 3)),
        "targets_total": 5,
        "hours": tuple(group(NOW_MS - n * HOUR_MS, 100, 50 + n) for n in range(24, 0, -1)),
        "waiting": PendingTotals(12_345, 1_234_500, 3, 10, NOW_MS + 9 * HOUR_MS),
        "horizon_ms": 24 * HOUR_MS,
        "step_ms": 60_000,
        "forecast": tuple(
            LoadStep(NOW_MS + n * 60_000, n % 70, n * 10, n % 9) for n in range(0, 900, 3)
        ),
        "pending_targets": (Count("orders", 12_000), Count("mails", 345)),
        "outcomes": (Count("cancelled", 30), Count("expired", 2)),
        "letters": (Count("target-unknown", 4),),
        "seconds": 12.3,
        "cut": Cut(NOW_MS, (shard,), {}, {"orders": 1}, notes=("x:1 was made anew",)),
    }
    return ReportFacts(**{**facts, **changed})  # type: ignore[arg-type]


class Tags(HTMLParser):
    """Every start tag with its attributes, and whether all of them were closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def text() -> str:
    return page(made())


@pytest.fixture(scope="module")
def found(text: str) -> Tags:
    return Tags(text)


def test_a_page_needs_nothing_from_elsewhere(text: str, found: Tags) -> None:
    assert "http" not in text
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in found.tags}
    assert not [name for _, attributes in found.tags for name in attributes if name == "src"]
    assert not re.findall(r"url\((?!#)", text)


def test_whatever_a_name_holds_it_is_only_text(found: Tags) -> None:
    assert HOSTILE in found.text


def test_the_two_charts_have_a_label_and_their_numbers_stand_in_tables(found: Tags) -> None:
    figures = [attributes for tag, attributes in found.tags if tag == "svg"]
    assert len(figures) == 2
    assert all(figure["aria-label"] and figure["role"] == "img" for figure in figures)
    assert [tag for tag, _ in found.tags].count("table") == 6
    assert "4,321,000" in found.text


def test_bars_stand_at_their_time_and_the_highest_fills_the_chart() -> None:
    bars = Bars("any", [0, 10, 30], 10, {"a": [2.0, 0.0, 4.0], "b": [1, 1, 1]})
    assert (bars.top, bars.width) == (4.0, 200.0)
    half, whole = -HEIGHT / 2, -HEIGHT
    assert bars.path("a") == f"M100.0 {HEIGHT}v{half:.1f} M700.0 {HEIGHT}v{whole:.1f}"


def test_a_cluster_that_has_done_nothing_yet_has_a_page_too() -> None:
    nothing: dict[str, object] = dict.fromkeys(
        ("targets", "hours", "forecast", "pending_targets", "outcomes", "letters"), ()
    )
    waiting = PendingTotals(0, 0, 0, 0, None)
    empty = page(made(whole=NOTHING_LATE, waiting=waiting, targets_total=0, **nothing))
    assert "0 records with 0 bytes are pending" in Tags(empty).text
    assert empty.count(">nothing</td>") == 6
    assert "<svg" not in empty


def test_early_records_are_said_aloud(found: Tags) -> None:
    early = Lateness("all", 10, 0, 3, 0, 1, 1, 1, 1)
    assert "3 records were delivered before their due time" in Tags(page(made(whole=early))).text
    assert "before their due time." not in found.text


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
