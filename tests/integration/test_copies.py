"""A real node publishes what its copy holds, finds what a disk lost, and repairs it when asked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.copies import RepairClient
from delay_devtools.cluster import EmbeddedCluster
from delayservice.contract.codec import encode_payload
from delayservice.contract.contracts import Contracts
from delayservice.contract.record import RecordReader
from delayservice.replicas.commands import Command, Detail, DetailRow, Report, Verb, decode_message
from delayservice.replicas.digest import frame_hash
from tests.integration.bench import SECRET, Bench, await_true, now_ms

RECORDS = 300
MINUTE_MS = 60_000
SPACING_MS = 10_000
NODE = "n1"


class Copy:
    """One node with one shard of records that are due in a few hours."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.service = bench.serve(f"node.node_id={NODE}", "digests.interval_ms=1s")
        self.target = bench.target("x")
        self.due_ms = now_ms() // MINUTE_MS * MINUTE_MS + 15 * MINUTE_MS
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

    def slots(self) -> dict[int, tuple[int, str]]:
        """What the newest cut row's hours hold."""
        cut = self.cut()
        assert cut is not None
        hours: dict[int, Any] = {}
        for key, row in self.rows():
            if key.startswith("h/"):
                hours[int(key.rsplit("/", 1)[1])] = row
        return {
            row["hour_ms"] + index * row["slot_ms"]: (count, hashed)
            for row in hours.values()
            if row is not None and row["life"] == cut["life"]
            for index, count, hashed in row["slots"]
        }

    def expected(self) -> dict[int, tuple[int, str]]:
        """The same from the delay topic alone."""
        checkpoint = json.loads(self.bench.read_all(self.bench.checkpoint)[-1].value or b"")
        contracts = Contracts.from_json(checkpoint["shards"][self.bench.any]["contracts"])
        reader = RecordReader(self.bench.any, 0, contracts, [SECRET.encode()])
        seen = self.bench.read_all(self.bench.any)
        rows = [(s.offset, s.timestamp_ms, s.key, s.value, s.headers) for s in seen]
        latest: dict[bytes, int] = {}
        pending: dict[int, tuple[int, int]] = {}
        for offset, _, key_ms, record_id, payload, _ in reader.read_batch(rows):
            if record_id is not None:
                pending.pop(latest.get(record_id, -1), None)
                latest[record_id] = offset
            pending[offset] = (
                key_ms,
                frame_hash(key_ms, offset, record_id, encode_payload(payload)),
            )
        sums: dict[int, tuple[int, int]] = {}
        for key_ms, hashed in pending.values():
            slot = key_ms // 60_000 * 60_000
            count, total = sums.get(slot, (0, 0))
            sums[slot] = (count + 1, (total + hashed) % 2**64)
        return {slot: (count, f"{total:016x}") for slot, (count, total) in sums.items()}

    # --- what it is asked ------------------------------------------------------------------------

    def ask(self, verb: Verb, **facts: Any) -> list[Report]:
        command = Command(
            plan=uuid.uuid4().hex,
            step=1,
            command=verb,
            node=NODE,
            topic=self.bench.any,
            partition=0,
            expires_ms=now_ms() + 60_000,
            **facts,
        )
        desk = RepairClient({"bootstrap.servers": self.bench.bootstrap}, self.bench.repairs)
        return list(desk.ask([command], 60))

    def told(self) -> list[DetailRow]:
        """The records of all answers."""
        answers = [
            decode_message(seen.value or b"") for seen in self.bench.read_all(self.bench.repairs)
        ]
        return [row for answer in answers if isinstance(answer, Detail) for row in answer.rows]


@pytest.fixture
def copy(cluster: EmbeddedCluster, tmp_path: Path) -> Iterator[Copy]:
    with Bench(cluster.bootstrap, tmp_path) as bench:
        yield Copy(bench)


def test_a_node_publishes_what_the_log_says_is_pending_and_repairs_what_its_disk_lost(
    copy: Copy,
) -> None:
    # Kept up as records come.
    await_true(lambda: (copy.cut() or {"h": 0})["h"] == RECORDS, "a cut of all records")
    expected = copy.expected()
    assert len(expected) == RECORDS * SPACING_MS // MINUTE_MS
    assert sum(count for count, _ in expected.values()) == RECORDS - 20
    assert copy.slots() == expected
    # Read anew from the disk by another life.
    life = (copy.cut() or {})["life"]
    copy.restart()
    await_true(lambda: (copy.cut() or {})["life"] != life, "a cut of the new life")
    scan = copy.ask("scan")
    assert [type(answer) for answer in scan] == [Report]
    assert copy.slots() == expected
    # A flipped byte is found by a scan.
    copy.restart(meanwhile=copy.flip_a_byte)
    copy.ask("scan")
    cut = copy.cut()
    assert cut is not None
    (damage,) = cut["damaged"]
    assert damage["start_ms"] <= copy.due_ms + RECORDS * SPACING_MS
    # ... and repaired when asked, the damaged file put away.
    rebuilt = copy.ask(
        "rebuild",
        start_ms=damage["start_ms"],
        stop_ms=damage["stop_ms"],
        first_offset=damage["first_offset"],
        stop_offset=damage["stop_offset"],
    )
    assert [(report.status, report.frames > 0) for report in rebuilt] == [("done", True)]
    cut = copy.cut()
    assert cut is not None
    assert cut["damaged"] == []
    assert copy.slots() == expected
    assert list((copy.bench.folder / "state").rglob("quarantine/*"))
    copy.ask("detail", start_ms=copy.due_ms, stop_ms=copy.due_ms + RECORDS * SPACING_MS)
    rows = copy.told()
    assert [row[1] for row in rows] == list(range(RECORDS))
    assert sum(row[2] >= 0 for row in rows) == 20
