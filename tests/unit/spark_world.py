"""Histories in memory, judged by the audit from cut to cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
from confluent_kafka import Message
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.audit.carried_state import CarriedState
from connectors.spark.audit.engine import Engine, FoundRows, StepResult
from connectors.spark.audit.evidence import (
    NO_PAST,
    EarlierCut,
    Evidence,
    Strictness,
    rules_of,
)
from connectors.spark.audit.local import judged_here
from connectors.spark.audit.rules import OPEN, Rules
from connectors.spark.audit.state import AuditManifest, State, StoredRun
from connectors.spark.common.cut import Cut, ShardCut
from connectors.spark.common.frames import arrow_schema, batch_of
from connectors.spark.common.log_times import Policy
from connectors.spark.common.session import exit_status
from connectors.spark.common.topics import ROW_SCHEMA, Place, Span
from connectors.spark.ledger.facts import NEVER_MS
from connectors.spark.ledger.rows import Ledger, name_hash
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import SCHEDULE, Headers, PolledRecord
from delayservice.contract.home import (
    SETTLES_NOTHING,
    Sent,
    homebound,
    waiting_payload,
    write_envelope,
)
from delayservice.contract.requeue import write_copy
from delayservice.engine.checkpoint import Lost
from delayservice.engine.cursor import Cursor
from tests.history import SECRET, Header, History

MEMORY = "/dev/shm"  # noqa: S108  # a disk takes longer to forget a folder than a step takes
AT_HOME = 1_000
"""Offsets of the second partition, where some ids are at home, are found as so many more."""
DELAY = "delay_topic_any"
TARGET, OTHER = History.target, History.other
LETTERS, OUTCOMES = History.dead_letter, History.outcomes
OUTPUTS = (LETTERS, OUTCOMES, TARGET, OTHER)
HASHES = {name: name_hash(name) for name in (*OUTPUTS, DELAY)}
CONTRACT = Contract(roll_window_ms=10**9)
HOMES = replace(CONTRACT, id_partitions=2)

USUAL = Strictness(overdue_ms=None)
HERE, SPARK, SPARK_AT_ONCE = "here", "Spark", "Spark at once"
"""Who judges a step of an audit."""

Record = tuple[str, int, int, int, bytes | None, bytes | None, Headers]
"""As ``topics.ROW_SCHEMA``."""


class Found(NamedTuple):
    """What a verdict says: findings and unjudged records by kind and offset, and the status."""

    findings: list[tuple[str, int]]
    unjudged: Counter[str]
    status: int


class Snapshot(NamedTuple):
    """What a cut sees of a world."""

    ends: Mapping[str, int]
    cursor: Cursor = Cursor()
    at_home: Cursor = Cursor()
    taken_ms: int = 0


class World(History):
    """A delay topic of two partitions, in which ids are at home, and the service's outputs."""

    def __init__(self, name: str = "any", number: int = 0) -> None:
        self.delay = f"delay_topic_{name}"
        self.home = f"{self.delay}, partition 1"
        self.number = number
        """Partition of all other topics, which worlds that are judged together share."""
        self.logs: dict[str, list[tuple[int, bytes | None, bytes | None, Headers]]] = {
            name: [] for name in (self.delay, self.home, *OUTPUTS)
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
        self.lost: tuple[Lost, ...] = ()
        self.rules: dict[str, Any] = {}
        self.strictness = USUAL
        self.cursor = self.cursor_at_home = Cursor()
        self.earlier: Cursor | None = None
        """Cursor of the first partition before the ends were read, if it was another."""
        self.born_ms = 0
        """When the first record of the first partition was written."""
        self.cuts: list[Snapshot] = []
        self.here = f"{self.delay}:0:0"
        self.there = ("delay-shard", f"{self.delay}:1".encode())

    def by(self, offset: int) -> Header:
        return "delay-settled-by-source", f"{self.delay}:0:{offset}".encode()

    def write(
        self,
        topic: str,
        at_ms: int,
        headers: Sequence[Header],
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int = 0,
    ) -> int:
        log = self.logs[self.home if partition and topic == self.delay else topic]
        log.append((at_ms, key, value, list(headers)))
        return len(log) - 1

    def sent(self, offset: int, record_id: bytes, kind: int = SCHEDULE) -> Sent:
        """The record at an offset of the first partition, as it goes home."""
        at_ms, key, value, headers = self.logs[self.delay][offset]
        source = f"{self.delay}:0:{offset}".encode()
        return homebound(kind, record_id, source, at_ms, (key, value, headers))

    def envelope(
        self,
        at_ms: int,
        sent: Sent,
        settles: int = SETTLES_NOTHING,
        partition: int = 1,
        secret: bytes = SECRET,
    ) -> int:
        """Append a record at its home."""
        shard = f"{self.delay}:0"
        key, value, headers = write_envelope(self.delay, partition, secret, sent, settles, shard)
        return self.write(self.delay, at_ms, headers, value, key, partition)

    def wait(
        self, at_ms: int, settles: int, record_id: bytes, *group: Sent, base: int, took: int = -1
    ) -> int:
        """Append what waits for its home."""
        key, value, headers = write_copy(
            *(self.delay, 0, SECRET),
            settles=settles,
            source=group[-1].source,
            base=base,
            at_ms=at_ms + 1_000,
            payload=waiting_payload((self.delay, 1), record_id, group, at_ms, 2, took),
        )
        return self.write(self.delay, at_ms, headers, value, key)

    def settled(self, key_ms: int, h: int | None = None) -> None:
        """Move the cursors; H to the end of the log."""
        self.cursor = Cursor((key_ms, 0), len(self.logs[self.delay]) if h is None else h)
        self.cursor_at_home = Cursor((key_ms, 0), len(self.logs[self.home]))

    def cut(self, taken_ms: int = 0) -> None:
        """Have the audit judge what there is by now, and go on from there."""
        ends = {name: len(log) for name, log in self.logs.items()}
        self.cuts.append(Snapshot(ends, self.cursor, self.cursor_at_home, taken_ms))

    def audit(self) -> Audit:
        """Have an audit follow from cut to cut."""
        with TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as folder:
            audit = Audit([self], folder)
            for one in self.cuts:
                audit.step([one])
        return audit

    def places(self) -> dict[Place, str]:
        """Logs by topic and partition."""
        own = {(self.delay, 0): self.delay, (self.delay, 1): self.home}
        return own | {(topic, self.number): topic for topic in OUTPUTS}

    def shards(self, at: Snapshot) -> Iterator[ShardCut]:
        turned = [] if self.turned_on is None else [(self.turned_on, HOMES)]
        here = Contracts([(0, self.contract), *turned])
        there = Contracts([(0, self.contract_at_home or self.contract)])
        span = Span(self.start, at.ends[self.delay] + self.markers)
        earlier = self.earlier or at.cursor
        yield ShardCut(self.delay, 0, "", earlier, at.cursor, here, span, self.lost)
        span = Span(0, at.ends[self.home])
        yield ShardCut(self.delay, 1, "", at.at_home, at.at_home, there, span)

    def number_of(self, row: Mapping[str, Any]) -> int:
        """The offset that a finding is about, told apart by shard."""
        is_at_home = (row["topic"], row["partition"]) == (self.delay, 1)
        return int(row["offset"]) + AT_HOME * is_at_home


@dataclass(frozen=True)
class Logs:
    """Records of worlds, as a step of the audit reads them."""

    worlds: Sequence[World]
    spark: SparkSession | None = None

    def rows(self, spans: Mapping[Place, Span]) -> Iterator[Record]:
        for world in self.worlds:
            for place, log in world.places().items():
                span = spans.get(place, Span(0, 0))
                for offset, record in enumerate(world.logs[log]):
                    if span.start <= offset < span.end:
                        yield (*place, offset, *record)

    def messages(self, spans: Mapping[Place, Span]) -> Iterator[Message]:
        for topic, partition, offset, at_ms, key, value, headers in self.rows(spans):
            yield Message(topic, partition, offset, key, value, [*headers], timestamp=(1, at_ms))

    def records(self, spans: Mapping[Place, Span]) -> DataFrame:
        assert self.spark is not None
        return self.spark.createDataFrame(list(self.rows(spans)), ROW_SCHEMA)

    def still_true(self, decided: DataFrame, rules: Rules) -> DataFrame:
        assert rules.shards
        return decided


class Audit:
    """An audit that follows worlds from cut to cut."""

    def __init__(
        self, worlds: Sequence[World], folder: str, spark: SparkSession | None = None
    ) -> None:
        self.logs = Logs(worlds, spark)
        self.counts = Counter[str]()
        self._folder = folder
        self._owners = {place: world for world in worlds for place in world.places()}
        self._past = NO_PAST
        self._before = AuditManifest()
        self._findings = [list[tuple[str, int]]() for _ in worlds]
        self._unjudged = [Counter[str]() for _ in worlds]

    @property
    def runs(self) -> Sequence[StoredRun]:
        return self._before.runs

    def found(self) -> list[Found]:
        return [
            Found(sorted(found), unjudged, exit_status(len(found), len(unjudged)))
            for found, unjudged in zip(self._findings, self._unjudged, strict=True)
        ]

    def step(self, now: Sequence[Snapshot], by: str = HERE) -> None:
        """Judge what the worlds hold at a cut, and keep what the next one needs, except by
        ``SPARK_AT_ONCE``.
        """
        cut = self._cut(now)
        evidence = self._evidence(cut)
        first = self.logs.worlds[0]
        rules = replace(rules_of(cut, evidence, first.strictness, self._past), **first.rules)
        spark, before = self.logs.spark, self._before
        work = f"{self._folder}/{before.number}"
        state = State(spark, self._folder)  # type: ignore[arg-type]  # not used without Spark
        held = CarriedState(state, before.runs, before, cut.taken_ms, rules, work)
        ledger = Ledger.of(cut, first.secrets)
        result: StepResult[Any] | None
        if by == HERE or spark is None:
            result = judged_here(self.logs.messages, evidence, rules, ledger, held)
        else:
            engine = Engine(spark, self.logs, work, cut, evidence, rules, ledger)
            result = engine.run(held if by == SPARK else None)
        assert result is not None
        self._note(result)
        ends = {place: span.end for place, span in cut.spans.items()}
        self._past = EarlierCut(ends, evidence.starts, evidence.judged)
        self._before = AuditManifest(before.number + 1, due_ms=held.due_ms, runs=result.runs)

    def _cut(self, now: Sequence[Snapshot]) -> Cut:
        worlds = self.logs.worlds
        pairs = list(zip(worlds, now, strict=True))
        shards = tuple(shard for world, at in pairs for shard in world.shards(at))
        others = {(t, w.number): Span(0, at.ends[t]) for w, at in pairs for t in OUTPUTS}
        partitions = dict.fromkeys(OUTPUTS, len(worlds)) | {shard.topic: 2 for shard in shards}
        return Cut(now[0].taken_ms, shards, others, partitions)

    def _evidence(self, cut: Cut) -> Evidence:
        ends = self._past.ends
        spans = {p: replace(s, start=max(s.start, ends.get(p, 0))) for p, s in cut.spans.items()}
        starts = {shard.place: shard.span.start for shard in cut.shards}
        chosen = {place: self._owners[place].judged_from for place in starts}
        judged = {place: starts[place] if at is None else at for place, at in chosen.items()}
        policies = dict.fromkeys(OUTPUTS, Policy(is_compacted=False, is_by_broker=False))
        owners = self._owners
        seen_ms = {p: owners[p].born_ms * (p[0] == owners[p].delay) for p in spans}
        return Evidence(spans, starts, judged, seen_ms, {}, policies)

    def _note(self, result: StepResult[Any]) -> None:
        self.counts.update(result.counts)
        for row in _rows(result.found):
            world = self._owners[row["topic"], row["partition"]]
            self._findings[world.number].append((row["kind"], world.number_of(row)))
        for unjudged in self._unjudged:
            del unjudged[OPEN]  # what was hidden is judged again
        for row in _rows(result.unjudged):
            self._unjudged[self._owners[row["topic"], row["partition"]].number][row["kind"]] += 1


def _rows(found: DataFrame | FoundRows) -> Sequence[Mapping[str, Any]]:
    return found if isinstance(found, Sequence) else [row.asDict() for row in found.collect()]


def batch_of_records(place: Place, records: Iterable[PolledRecord]) -> pa.RecordBatch:
    """Records of one partition, as Spark has them."""
    return batch_of([(*place, *record) for record in records], arrow_schema(ROW_SCHEMA))


def deleted(topic: str) -> dict[str, Any]:
    """Rules where all that a topic held is gone, and when is not known."""
    return {"complete_since_ms": {HASHES[topic]: (NEVER_MS,)}}
