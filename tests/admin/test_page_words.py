"""Texts of the page, without a browser: words, times, the chart, findings."""

from __future__ import annotations

import pytest
from jinja2 import Environment

from delayservice.admin import models
from delayservice.admin.page_health import findings_of
from delayservice.admin.words import (
    content,
    environment,
    is_plain,
    lateness,
    size,
    span,
    utc,
    visible,
)
from delayservice.config.settings import load
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_snapshot
from delayservice.metrics.status import NodeState, Pause, TargetState
from ha.members import Member
from tests.alert_rules import alerts

NOW_MS = 1_763_750_262_123


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "0 s"),
        (999, "0 s"),
        (61_000, "1 min 1 s"),
        (3_600_000, "1 h"),
        (86_403_000, "1 d"),
        (90_061_000, "1 d 1 h"),
        (-5_000, "5 s"),
    ],
)
def test_a_span_is_told_in_its_two_largest_units(ms: int, words: str) -> None:
    assert span(ms) == words


def test_every_figure_has_its_unit() -> None:
    assert [lateness(ms) for ms in (None, 0, 999, 1_500, 61_000)] == [
        "\N{EN DASH}",
        "0 ms",
        "999 ms",
        "1.5 s",
        "1 min 1 s",
    ]
    assert [size(n) for n in (None, 0, 1_023, 1_536, 5 << 20)] == [
        "null",
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "5.0 MiB",
    ]
    assert utc(NOW_MS) == "2025-11-21 18:37:42.123"
    assert utc(2**53) == "9,007,199,254,740,992 ms"


def test_a_time_without_a_zone_is_utc_and_a_wrong_one_says_how_to_write_one() -> None:
    asked = {"from": " 2025-11-21 18:37:42.123", "to": "+10m"}
    assert models.Matching.model_validate(asked).from_ == NOW_MS
    for text in ("tomorrow", "+", "+10", "2025-13-01T00:00Z", "18:00"):
        with pytest.raises(ValueError, match=r"now\+10m|has no unit"):
            models.Matching.model_validate({"from": text})


@pytest.mark.parametrize(
    "char",
    ["\x00", "\x1b", "\r", "\u202e", "\u2066", "\u200b", "\u200f", "\ufeff", "\u2028", "\x85"],
)
def test_invisible_characters_are_shown_as_code_points(char: str) -> None:
    assert char not in str(visible(f"a{char}b"))
    assert f"U+{ord(char):04X}" in str(visible(f"a{char}b"))
    assert not is_plain(char)


def test_text_of_strangers_is_escaped_cut_and_not_piled_up() -> None:
    assert "&lt;script&gt;" in str(visible("<script>"))
    assert "… 9,900 more characters" in str(visible("x" * 10_000, 100))
    assert str(visible("e" + "\u0301" * 500)).count("\u0301") == 3
    assert "base64" in str(content(b"\xff"))
    assert "null" in str(content(None))


def status(*problems: str) -> NodeState:
    hub = MetricsHub(load(None, ["node.workers=1", "node.node_id=n1"], {}))
    hub.update(0, encode_snapshot(Snapshot(1, problems=list(problems))))
    return hub.status()


def cluster(owner: str, *, caught_up: bool = True) -> models.Cluster:
    copy = models.Copy(node="n2", stored=5, behind=7, caught_up=caught_up)
    held = models.Slice(
        slice=3, shards=["t:3"], owner=owner, epoch=2, heir="", copies=[copy], here=None
    )
    node = Member(node_id="n1", broker_id=1, rack="", address="h", workers=1, alive=[0])
    return models.Cluster(
        node_id="n1",
        standalone=False,
        nodes=[node],
        slices=[held],
        ownerless=[] if owner else [3],
        topics=[],
    )


def test_nothing_is_found_when_all_is_well() -> None:
    assert findings_of(status(), cluster("n1"), [], NOW_MS) == []


def test_problems_are_listed_before_warnings() -> None:
    pause = Pause("target", "orders", 0, "audit")
    found = findings_of(status("disk full"), cluster("", caught_up=False), [pause], NOW_MS)
    assert [(one.level, one.text) for one in found] == [
        ("problem", "disk full"),
        ("problem", "No node owns slice 3: stored, not delivered."),
        ("warning", "Deliveries to orders are paused: audit."),
        ("warning", "n2 may not take over slice 3."),
    ]
    books = ["delaytopicnotserved", "delaysliceownerless", "delaypausedlong", "delaybehind"]
    assert [one.run_book for one in found] == books
    assert set(books) <= {name.lower() for name in alerts()}


def test_a_slice_without_owner_is_shouted() -> None:
    part = {"value": cluster("", caught_up=False), "problem": ""}
    shown = drawn(environment(), part)
    assert "<strong>No node owns slice 3.</strong>" in shown
    assert "<strong>no owner</strong>" in shown
    assert "7 behind" in shown


def drawn(templates: Environment, part: dict[str, object]) -> str:
    page = templates.get_template("slices.html")
    return page.render(here="slices", node_id="n1", by="", now_ms=NOW_MS, cluster=part, findings=[])


def test_parked_records_are_told_by_target_and_all_is_not_well() -> None:
    seen = status()
    seen.targets = [
        TargetState(
            topic="delay_topic_any",
            target=f"missing-{n}",
            pending=9,
            parked=9 - n,
            delivered=0,
            lateness_ms_p99=None,
        )
        for n in range(5)
    ]
    found = findings_of(seen, None, [], NOW_MS)
    assert [one.level for one in found] == ["warning"] * 4
    assert "9 records of delay_topic_any for target missing-0 are parked" in found[0].text
    assert "11 records for other targets" in found[3].text
