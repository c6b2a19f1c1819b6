"""A small world of topics in memory, judged by the audit's own functions without Spark.

A test writes source records and outputs with the times that it wants, moves the cursor, and asks
for the verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pyarrow as pa

from connectors.spark.audit.local import counts_of, judge_all, told_by
from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.audit.verdicts import FOUND, UNJUDGED
from connectors.spark.common.session import exit_status
from connectors.spark.ledger.facts import LETTER, NEVER_MS, OUTCOME
from connectors.spark.ledger.outputs import OutputRows
from connectors.spark.ledger.rows import (
    Ledger,
    LedgerRow,
    name_hash,
)
from connectors.spark.ledger.sources import SourceRows
from delayservice.contract.codec import Payload
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import SCHEDULE, Headers
from delayservice.contract.home import (
    SETTLES_NOTHING,
    Sent,
    homebound,
    waiting_payload,
    write_envelope,
)
from delayservice.contract.requeue import write_copy
from delayservice.engine.cursor import Cursor

DELAY = "delay_topic_any"
HOME = "delay_topic_any, partition 1"
"""A second partition, where some ids are at home; its offsets are found as so many more."""
AT_HOME = 1_000
TARGET = "to_a"
OTHER = "to_b"
LETTERS = "delay_dead_letter"
OUTCOMES = "delay_outcomes"
TOPICS = (LETTERS, OUTCOMES, DELAY, TARGET, OTHER)
HASHES = {name: name_hash(name) for name in TOPICS}
SHARDS = {(DELAY, number): name_hash(f"{DELAY}:{number}") for number in (0, 1)}
SECRET = b"the cluster's secret"
CONTRACT = Contract(roll_window_ms=10**9)
HOMES = replace(CONTRACT, id_partitions=2)

Header = tuple[str, bytes | None]


class Found(NamedTuple):
    """What a verdict says: findings and unjudged records by kind and offset, and the status."""

    findings: list[tuple[str, int]]
    unjudged: Counter[str]
    counts: dict[str, int]
    status: int


class World:
    """One shard and its outputs, and another one in which ids may be at home."""

    def __init__(self) -> None:
        self.logs: dict[str, list[tuple[int, bytes | None, bytes | None, Headers]]] = {
            name: [] for name in (*TOPICS, HOME)
        }
        self.contract = CONTRACT
        self.contract_at_home: Contract | None = None
        self.markers = 0
        """Offsets without records at the end of the first partition."""
        self.turned_on: int | None = None
        """Where the first partition's contract becomes ``HOMES``."""
        self.secrets: tuple[bytes, ...] = (SECRET,)
        self.start = 0
        self.judged_from: int | None = None
        self.lost: tuple[tuple[int, int], ...] = ()
        self.rules: dict[str, Any] = {}
        self.cursor = self.cursor_at_home = Cursor()

    def write(
        self,
        topic: str,
        at_ms: int,
        headers: Sequence[Header],
        value: bytes | None = b"value",
        key: bytes | None = None,
    ) -> int:
        """Append a record; its offset."""
        self.logs[topic].append((at_ms, key, value, list(headers)))
        return len(self.logs[topic]) - 1

    def source(self, at_ms: int, due_ms: int, *more: Header, value: bytes | None = b"value") -> int:
        headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", TARGET.encode()), *more]
        return self.write(DELAY, at_ms, headers, value)

    def control(self, at_ms: int, name: bytes, op: bytes) -> int:
        return self.write(DELAY, at_ms, [("delay-id", name), ("delay-op", op)], None)

    def delivery(
        self,
        at_ms: int,
        offset: int,
        due_ms: int,
        *more: Header,
        topic: str = TARGET,
        origin: str = "",
        value: bytes | None = b"value",
    ) -> int:
        told = [
            ("delay-due-at", b"%d" % due_ms),
            ("delay-source", (origin or f"{DELAY}:0:{offset}").encode()),
            ("delay-settles", b"%d" % offset),
        ]
        return self.write(topic, at_ms, [*told, *more], value)

    def outcome(
        self,
        at_ms: int,
        name: str,
        offset: int,
        by: int | None = None,
        *more: Header,
        partition: int = 0,
    ) -> int:
        told = [
            ("delay-outcome", name.encode()),
            ("delay-shard", f"{DELAY}:{partition}".encode()),
            ("delay-settles", b"%d" % offset),
            *more,
        ]
        told += [] if by is None else [("delay-settled-by", b"%d" % by)]
        return self.write(OUTCOMES, at_ms, told, None)

    def letter(
        self,
        at_ms: int,
        offset: int,
        code: str,
        headers: Sequence[Header] = (),
        value: bytes | None = b"value",
        detail: bytes = b"why",
        *more: Header,
        origin: str = "",
    ) -> int:
        told = [
            *headers,
            ("delay-error", code.encode()),
            ("delay-error-detail", detail),
            ("delay-source", (origin or f"{DELAY}:0:{offset}").encode()),
            ("delay-settles", b"%d" % offset),
            *more,
        ]
        return self.write(LETTERS, at_ms, told, value)

    def requeue(
        self,
        at_ms: int,
        settles: int,
        due_ms: int,
        *,
        base: int,
        name: bytes | None = None,
        origin: str = "",
        key_ms: int = 0,
        expires_ms: int | None = None,
        recur: bytes | None = None,
        secret: bytes = SECRET,
        value: bytes | None = b"value",
        topic: str = DELAY,
    ) -> int:
        """Append a copy, as the service signs it."""
        source = (origin or f"{DELAY}:0:{settles}").encode()
        meta = (name, source, 1, expires_ms)
        payload: Payload = (
            *(TARGET, -1, None, value, [], due_ms),
            meta if recur is None else (*meta, recur),
        )
        key, content, headers = write_copy(
            *(*_place_of(topic), secret),
            settles=settles,
            source=source,
            base=base,
            at_ms=key_ms or due_ms,
            payload=payload,
        )
        return self.write(topic, at_ms, headers, content, key)

    def sent(self, offset: int, record_id: bytes, kind: int = SCHEDULE) -> Sent:
        """The record at an offset of the first partition, as it goes home."""
        at_ms, key, value, headers = self.logs[DELAY][offset]
        source = f"{DELAY}:0:{offset}".encode()
        return homebound(kind, record_id, source, at_ms, (key, value, headers))

    def envelope(
        self,
        at_ms: int,
        sent: Sent,
        settles: int = SETTLES_NOTHING,
        topic: str = HOME,
        secret: bytes = SECRET,
    ) -> int:
        """Append a record at its home."""
        home = _place_of(topic)[1]
        shard = f"{DELAY}:0"
        key, value, headers = write_envelope(DELAY, home, secret, sent, settles, shard)
        return self.write(topic, at_ms, headers, value, key)

    def wait(
        self, at_ms: int, settles: int, record_id: bytes, *group: Sent, base: int, took: int = -1
    ) -> int:
        """Append what waits for its home."""
        key, value, headers = write_copy(
            *(DELAY, 0, SECRET),
            settles=settles,
            source=group[-1].source,
            base=base,
            at_ms=at_ms + 1_000,
            payload=waiting_payload((DELAY, 1), record_id, group, at_ms, 2, took),
        )
        return self.write(DELAY, at_ms, headers, value, key)

    def settled(self, key_ms: int, h: int | None = None) -> None:
        """Move the cursors; H to the end of the log."""
        self.cursor = Cursor((key_ms, 0), len(self.logs[DELAY]) if h is None else h)
        self.cursor_at_home = Cursor((key_ms, 0), len(self.logs[HOME]))

    # --- judge ---------------------------------------------------------------------------------

    def audit(self) -> Found:
        turned = [] if self.turned_on is None else [(self.turned_on, HOMES)]
        contracts = Contracts([(0, self.contract), *turned])
        at_home = Contracts([(0, self.contract_at_home or self.contract)])
        here, there = len(self.logs[DELAY]) + self.markers, len(self.logs[HOME])
        first = ShardRules(
            *(f"{DELAY}:0", self.cursor, self.cursor, self.start, here, contracts),
            judged_from=self.start if self.judged_from is None else self.judged_from,
            lost=self.lost,
        )
        second = ShardRules(f"{DELAY}:1", *(self.cursor_at_home,) * 2, 0, there, at_home)
        rules = Rules(
            shards={SHARDS[DELAY, 0]: first, SHARDS[DELAY, 1]: second},
            topics={number: name for name, number in HASHES.items()},
            partitions={number: 2 if name == DELAY else 1 for name, number in HASHES.items()},
            read=frozenset(HASHES[name] for name in (LETTERS, OUTCOMES, TARGET, OTHER)),
            dead_letter=HASHES[LETTERS],
            outcomes=HASHES[OUTCOMES],
            delay_topics=frozenset({HASHES[DELAY]}),
            complete_since_ms={},
            seen_ms={},
            lag_ms=30_000,
        )
        rules = replace(rules, **self.rules)
        told, counts = verdicts(self._rows(contracts, at_home), rules)
        findings = sorted(
            (r["kind"], r["target_offset"] if r["offset"] is None else _number(r))
            for r in told
            if r["verdict"] == FOUND
        )
        unjudged = Counter(r["kind"] for r in told if r["verdict"] == UNJUDGED)
        return Found(findings, unjudged, counts, exit_status(len(findings), len(unjudged)))

    def _rows(self, contracts: Contracts, at_home: Contracts) -> list[pa.RecordBatch]:
        """The ledger."""
        ledger = Ledger(
            SHARDS,
            HASHES,
            {(DELAY, 0): contracts, (DELAY, 1): at_home},
            {DELAY: 2},
            {LETTERS: LETTER, OUTCOMES: OUTCOME},
            self.secrets,
        )
        made = list(SourceRows(ledger).of(self._batches([DELAY, HOME])))
        return made + list(OutputRows(ledger).of(self._batches([LETTERS, OUTCOMES, TARGET, OTHER])))

    def _batches(self, topics: Iterable[str]) -> Iterable[pa.RecordBatch]:
        for topic in topics:
            log = self.logs[topic]
            first = self.start if topic == DELAY else 0
            if len(log) <= first:
                continue
            kept = log[first:]
            yield batch_of_records(
                _place_of(topic), [(first + n, *record) for n, record in enumerate(kept)]
            )


def verdicts(
    ledger: Iterable[pa.RecordBatch], rules: Rules
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What users are told of some ledger rows, and counts."""
    rows = [LedgerRow(*one.values()) for batch in ledger for one in batch.to_pylist()]
    judge, found = judge_all(rows, rules)
    told = told_by(judge, found, rows)
    return told, counts_of(told, judge)


def batch_of_records(
    place: tuple[str, int],
    records: Sequence[tuple[int, int, bytes | None, bytes | None, Sequence[Header] | None]],
) -> pa.RecordBatch:
    """Records of one partition, ``(offset, timestamp, key, value, headers)``, as Spark has them."""
    offsets, times, keys, values, headers = zip(*records, strict=True)
    shaped = [
        None if held is None else [{"key": name, "value": value} for name, value in held]
        for held in headers
    ]
    count = len(records)
    return pa.record_batch(
        {
            "topic": pa.array([place[0]] * count),
            "partition": pa.array([place[1]] * count, pa.int32()),
            "offset": pa.array(offsets, pa.int64()),
            "timestamp_ms": pa.array(times, pa.int64()),
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(
                shaped, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
            ),
        }
    )


def _place_of(topic: str) -> tuple[str, int]:
    return (DELAY, 1) if topic == HOME else (topic, 0)


def _number(row: dict[str, Any]) -> int:
    """The offset that a finding is about, told apart by shard."""
    number: int = row["offset"] + AT_HOME * (row["shard"] == SHARDS[DELAY, 1])
    return number


def deleted(topic: str) -> dict[str, Any]:
    """Rules where all that a topic held is gone, and when is not known."""
    return {"complete_since_ms": {HASHES[topic]: (NEVER_MS,)}}
