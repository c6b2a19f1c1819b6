from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from connectors.spark.report.page import ReportFacts
from connectors.spark.report.run import ReportOptions, report
from delay_devtools.cluster import EmbeddedCluster
from tests.integration.bench import SECRET, Bench, now_ms
from tests.spark.audits import audit_options

HOUR_MS = 3_600_000
PENDING = 90

pytestmark = pytest.mark.cluster


@dataclass(frozen=True)
class Past:
    """What a service has done, and who asks about it."""

    bench: Bench
    spark: SparkSession
    orders: str
    mails: str

    def report(self, out: Path, **more: Any) -> ReportFacts:
        said: list[str] = []
        audit = audit_options(self.bench, out, secrets=(SECRET.encode(),))
        options = ReportOptions(audit, **more)
        found = report(self.spark, options, said.append)
        assert said
        return found


@pytest.fixture(scope="module")
def past(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Past]:
    """70 delivered, 2 of them fired, 5 by a schedule; 90 pending; 6 cancelled; 3 dead letters.
    Another service delivers to the same targets, and to one of its own.
    """
    folder = tmp_path_factory.mktemp("past")
    with Bench(cluster.bootstrap, folder, partitions=2) as bench:
        orders, mails = bench.target("orders", 3), bench.target("mails")
        service = bench.serve()
        far_ms = now_ms() + 2 * HOUR_MS
        for n in range(40):
            bench.send_later(bench.to(orders, 0), partition=n % 2)
        for n in range(23):
            bench.send_later(bench.to(mails, 1_500), partition=n % 2)
        bench.send_later([("delay-every", "1000"), ("delay-times", "5"), *bench.to(mails, 0)])
        for n in range(PENDING):
            due = [("delay-at", str(far_ms + 60_000 * (n // 30))), ("delay-target-topic", mails)]
            bench.send_later([*due, ("delay-id", f"far-{n}")], partition=n % 2, value=b"x" * 10)
        for n in range(8):
            named = ("delay-id", f"gone-{n}")
            bench.send_later(bench.to(orders, HOUR_MS, named), partition=n % 2)
        for n in range(6):
            bench.send_later([("delay-id", f"gone-{n}"), ("delay-op", "cancel")], partition=n % 2)
        for n in (6, 7):
            bench.send_later([("delay-id", f"gone-{n}"), ("delay-op", "fire")], partition=n % 2)
        for _ in range(3):
            bench.send_later([("delay-target-topic", orders)])
        bench.send_later([*bench.to(orders, HOUR_MS, ("delay-id", "far-0"))])  # replaces one
        bench.producer.flush()
        with bench.reader(orders, mails) as reader:
            reader.await_count(70)
        with bench.reader(bench.dead_letter) as reader:
            reader.await_count(3)
        with bench.reader(bench.outcomes) as reader:
            reader.await_count(6 * 2 + 2 + 1)
        service.stop()
        bench.target("foreign")
        for source in ("delay_topic_foreign:0:1", f"{bench.any}:{bench.partitions}:1"):
            for target in (orders, bench.target_name("foreign")):
                bench.send_later(
                    [("delay-source", source), ("delay-due-at", str(far_ms))], topic=target
                )
        bench.producer.flush()
        yield Past(bench, spark, orders, mails)


@pytest.fixture(scope="module")
def whole(past: Past, tmp_path_factory: pytest.TempPathFactory) -> tuple[ReportFacts, Path]:
    out = tmp_path_factory.mktemp("report")
    return past.report(out), out


def test_every_delivery_is_counted_once_in_every_view(
    past: Past, whole: tuple[ReportFacts, Path]
) -> None:
    found, _ = whole
    assert found.whole.records == 70
    targets = {target.name: target.records for target in found.targets}
    assert targets == {past.orders: 42, past.mails: 28}
    assert sum(hour.records for hour in found.hours) == 70
    assert (found.whole.fired, found.whole.early) == (2, 0)


def test_lateness_is_what_a_consumer_of_the_targets_computes(
    past: Past, whole: tuple[ReportFacts, Path]
) -> None:
    found, _ = whole
    late_ms = sorted(
        seen.timestamp_ms - int(seen.header("delay-due-at") or 0)
        for seen in past.bench.read_all(past.mails)
    )
    mails = next(target for target in found.targets if target.name == past.mails)
    assert mails.max_ms == max(late_ms)
    assert mails.p50_ms == late_ms[(len(late_ms) - 1) // 2]
    assert mails.records == len(late_ms)


def test_pending_records_are_reported_by_minute(
    past: Past, whole: tuple[ReportFacts, Path]
) -> None:
    found, out = whole
    # One was replaced by a record that is due earlier.
    assert (found.waiting.records, found.waiting.overdue, found.waiting.beyond) == (90, 0, 0)
    assert found.step_ms == 60_000
    loads = [load.records for load in found.forecast]
    assert sum(loads) == 90
    assert sorted(loads) == [1, 29, 30, 30]
    assert max(load.peak_per_s for load in found.forecast) == 30
    assert {c.name: c.records for c in found.pending_targets} == {past.mails: 89, past.orders: 1}
    seconds = past.spark.read.parquet(f"{out}/forecast")
    assert sum(row["records"] for row in seconds.collect()) == 90


def test_outcomes_and_dead_letters_are_counted_by_kind(whole: tuple[ReportFacts, Path]) -> None:
    found, _ = whole
    assert {c.name: c.records for c in found.letters} == {"time-missing": 3}
    outcomes = Counter({c.name: c.records for c in found.outcomes})
    assert outcomes == {"cancelled": 12, "fired": 2, "replaced": 1}


def test_the_files_say_what_the_page_says(past: Past, whole: tuple[ReportFacts, Path]) -> None:
    found, out = whole
    told = json.loads((out / "report.json").read_text("utf-8"))
    assert told["whole"]["records"] == found.whole.records
    assert told["cut"]["shards"]
    groups = past.spark.read.parquet(f"{out}/lateness")
    assert groups.where("target IS NOT NULL").count() == found.targets_total == 2
    text = (out / "report.html").read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert past.orders in text


@pytest.mark.night
def test_a_period_and_a_horizon_leave_the_rest_out(past: Past, tmp_path: Path) -> None:
    found = past.report(tmp_path, since_ms=now_ms() + HOUR_MS, horizon_ms=30 * 60_000, top=1)
    assert (found.whole.records, found.whole.p50_ms, found.targets) == (0, None, ())
    assert found.letters == found.outcomes == ()
    assert (found.waiting.records, found.waiting.beyond, found.forecast) == (90, 90, ())
    assert len(found.pending_targets) == 1
