"""A real node publishes what its copy holds, finds what a disk lost, and tells single records."""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from structlog.testing import capture_logs

from connectors.kafka.copies import CopyLog, RepairClient
from delay_devtools.cluster import EmbeddedCluster
from delayservice.replicas.commands import Command, Report, Verb
from delayservice.replicas.digest import HOUR_MS
from tests.conftest import MakeTopic
from tests.integration.bench import Bench, await_true, now_ms

RECORDS = 300
SPACING_MS = 10_000
NODE = "n1"


class Copy:
    """One node with one shard of records that are due in a few hours."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.service = bench.serve(f"node.node_id={NODE}", "digests.interval_ms=1s")
        self.target = bench.target("x")
        self.due_ms = now_ms() + 30 * 60_000
        for number in range(RECORDS):
            headers = [
                ("delay-at", str(self.due_ms + number * SPACING_MS)),
                ("delay-target-topic", self.target),
            ]
            if number % 10 == 0:
                headers.append(("delay-id", f"id-{number % 100}"))
            bench.send_later(headers, value=b"value-%d" % number)
        bench.producer.flush()

    def restart(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        assert self.service.stop() == 0
        meanwhile()
        self.service = self.bench.serve(f"node.node_id={NODE}", "digests.interval_ms=1s")

    def flip_a_byte(self) -> None:
        """Damage the slot that is due last; the names of slots are in the order of time."""
        file = max((self.bench.folder / "state").rglob("slots/*"))
        damaged = bytearray(file.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        file.write_bytes(damaged)

    # --- what it publishes -----------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[str, dict[str, Any] | None]]:
        for seen in self.bench.read_all(self.bench.digests):
            assert seen.key is not None
            yield seen.key.decode(), json.loads(seen.value) if seen.value else None

    def cut(self) -> dict[str, Any] | None:
        """The newest cut row."""
        cuts = [row for key, row in self.rows() if key.startswith("c/")]
        return cuts[-1] if cuts else None

    def hours(self) -> dict[int, tuple[int, str]]:
        """What the newest cut row's hours hold."""
        cut = self.cut()
        assert cut is not None
        hours: dict[int, Any] = {}
        for key, row in self.rows():
            if key.startswith("h/"):
                hours[int(key.rsplit("/", 1)[1])] = row
        return {
            row["hour_ms"]: (row["count"], row["hash"])
            for row in hours.values()
            if row is not None and row["life"] == cut["life"]
        }

    def expected(self) -> dict[int, int]:
        """How many records of each hour are pending: of an id, the last one is."""
        pending: dict[str, int] = {}
        for number in range(RECORDS):
            name = f"id-{number % 100}" if number % 10 == 0 else f"plain-{number}"
            pending[name] = (self.due_ms + number * SPACING_MS) // HOUR_MS * HOUR_MS
        return dict(Counter(pending.values()))

    # --- what it is asked ------------------------------------------------------------------------

    def ask(self, verb: Verb, hour_ms: int = 0) -> Report:
        command = Command(
            plan=uuid.uuid4().hex,
            step=1,
            command=verb,
            node=NODE,
            topic=self.bench.any,
            partition=0,
            hour_ms=hour_ms,
        )
        desk = RepairClient({"bootstrap.servers": self.bench.bootstrap}, self.bench.repairs)
        (report,) = desk.ask([command], 60)
        return report

    def empty(self) -> None:
        for shard in (self.bench.folder / "state" / "wheel" / "0").iterdir():
            if shard.is_dir():
                shutil.rmtree(shard)


@pytest.fixture
def copy(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Copy]:
    with Bench(cluster.bootstrap, tmp_path) as bench:
        yield Copy(bench)


def test_a_node_publishes_what_the_log_says_is_pending_and_tells_its_records(copy: Copy) -> None:
    # Kept up as records come.
    await_true(lambda: (copy.cut() or {"h": 0})["h"] == RECORDS, "a cut of all records")
    published = copy.hours()
    assert {hour_ms: count for hour_ms, (count, _) in published.items()} == copy.expected()
    told = [copy.ask("records", hour_ms) for hour_ms in sorted(published)]
    rows = [row for report in told for row in report.rows]
    assert [row[1] for row in rows] == list(range(RECORDS))
    assert sum(row[2] >= 0 for row in rows) == 20
    assert not any(report.has_more for report in told)
    # Read anew from the disk by another life.
    life = (copy.cut() or {})["life"]
    copy.restart()
    await_true(lambda: (copy.cut() or {})["life"] != life, "a cut of the new life")
    assert copy.ask("scan").status == "done"
    assert copy.hours() == published
    # A flipped byte is found by a scan, and its records can't be told.
    copy.restart(meanwhile=copy.flip_a_byte)
    copy.ask("scan")
    (damage,) = (copy.cut() or {})["damaged"]
    assert damage["start_ms"] <= copy.due_ms + RECORDS * SPACING_MS
    report = copy.ask("records", damage["start_ms"] // HOUR_MS * HOUR_MS)
    assert (report.status, report.rows) == ("failed", [])
    assert "are to be read again" in report.detail
    # An owner's copy is never rebuilt while it delivers; its node says what to do.
    report = copy.ask("rebuild")
    assert report.status == "failed"
    assert "removed while it is stopped" in report.detail
    copy.restart(meanwhile=copy.empty)
    copy.ask("scan")
    cut = copy.cut()
    assert cut is not None
    assert cut["damaged"] == []
    assert copy.hours() == published, "filled anew from the log, with the same hashes"


def test_digests_of_a_topic_that_was_deleted_are_lost_and_nothing_else(
    cluster: EmbeddedCluster, make_topic: MakeTopic
) -> None:
    topic, lost = make_topic("digests"), []
    client = {"bootstrap.servers": cluster.bootstrap, "topic.metadata.propagation.max.ms": "100"}
    log = CopyLog(client, topic, topic)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics([topic])[topic].result(30)

    def are_lost() -> bool:
        log.write((b"key", b"value"), lambda: lost.append(1))
        return len(lost) > 50  # the client soon refuses them at once

    with capture_logs() as told:
        await_true(are_lost, "nothing is written", 60)
    log.flush(0)
    assert [one["event"] for one in told] == ["digest_not_written"]
