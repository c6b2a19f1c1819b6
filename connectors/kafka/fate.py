"""Finds what became of a settled record, in its target, the outcomes topic and the dead letters.

Each topic is read from the time on at which something about the record can be there, up to limits
of bytes and time. The target comes first, because most records are delivered.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final

from confluent_kafka import KafkaError, TopicPartition
from pydantic import BaseModel

from connectors.kafka.clients import NO_RECORDS, KafkaAdmin, consumer_client
from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.log_ends import many_bounds, offsets_since
from connectors.kafka.scan import consumer_config, row_of, take
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.contract import contract_for
from delayservice.config.settings import Settings
from delayservice.contract import names
from delayservice.contract.contracts import Contracts
from delayservice.contract.entry import CANCEL, FIRE, PolledRecord, read_place
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.contract.replays import bytes_of
from delayservice.engine.ports import Place
from delayservice.inspection.query import Pending

# Limits of one read, in bytes and seconds.
READ_BYTES_MAX: Final = 64 << 20
READ_S_MAX: Final = 2.0
# Of a copy that an outcome names, within another read.
_COPY_READ_S_MAX: Final = 1.0
# Newest offsets of each partition of the delay topics that are searched for an id.
ID_OFFSETS_MAX: Final = 20_000
# Allowed difference between the clocks of producers and brokers.
_CLOCKS_MS: Final = 10_000
_BATCH: Final = 500
_WAIT_S: Final = 0.1
_LETTER: Final = "dead_lettered"
_KEPT_MAX: Final = 256
_KEPT_S: Final = 3.0


class Fate(BaseModel):
    """Final outcome of a settled record, and where it is written."""

    outcome: str
    """As in the outcomes topic, or `delivered`, `dead_lettered`."""
    at_ms: int
    """When it was written."""
    place: str
    """Where it is written, `topic:partition:offset`."""
    by: str | None
    """The record that cancelled, replaced or fired it."""
    detail: str
    """Code and reason of a dead letter."""

    def __str__(self) -> str:
        """Return a text that says what became of the record, when, where and by what."""
        moment = datetime.fromtimestamp(self.at_ms / 1_000, UTC).isoformat(timespec="milliseconds")
        by = f" by {self.by}" if self.by else ""
        said = f"{self.outcome}{by} at {moment.replace('+00:00', 'Z')}, written as {self.place}"
        return f"{said}: {self.detail}" if self.detail else said


class _GoneError(KafkaEdgeError):
    """The log holds no such offset: retention has deleted it, or a user made it up."""


@dataclass(slots=True)
class _Sought:
    """A settled record whose fate is sought, and what could not be read for it."""

    topic: str
    partition: int
    offset: int
    # The schedule in it; None: it is a cancel or fire, or invalid.
    record: Pending | None
    problems: set[str] = field(default_factory=set)
    # When the newest fire of its id took effect, epoch ms; 0: none was read.
    fired_ms: int = 0

    @property
    def source(self) -> bytes:
        own = f"{self.topic}:{self.partition}:{self.offset}"
        return (own if self.record is None else self.record.source.partition("#")[0]).encode()

    def is_about(self, said: Mapping[str, bytes | None], at_ms: int) -> bool:
        """Return whether an output with these headers settles the record."""
        if (said.get(names.DELAY_SOURCE) or b"").partition(b"#")[0] == self.source:
            return True
        if self.record is not None and said.get(names.DELAY_OUTCOME) == b"fired":
            self.fired_ms = at_ms if said.get(names.DELAY_ID) == self.record.id else self.fired_ms
        settles = said.get(names.DELAY_SHARD), said.get(names.DELAY_SETTLES)
        return settles == (f"{self.topic}:{self.partition}".encode(), b"%d" % self.offset)

    def fate(self, place: Place, row: PolledRecord, outcome: str) -> Fate:
        """Return the fate that an output of the record tells. ``outcome`` is that of its topic;
        empty: a header names it.
        """
        said = dict(row[4] or ())
        by = said.get(names.DELAY_FIRED_BY) or said.get(names.DELAY_SETTLED_BY)
        shard = said.get(names.DELAY_SHARD) or f"{self.topic}:{self.partition}".encode()
        source = said.get(names.DELAY_SETTLED_BY_SOURCE) or (by and b"%b:%b" % (shard, by))
        code, why = (said.get(name) for name in (names.DELAY_ERROR, names.DELAY_ERROR_DETAIL))
        return Fate(
            outcome=outcome or _text(said.get(names.DELAY_OUTCOME)),
            at_ms=row[1],
            place=f"{place[0]}:{place[1]}:{row[0]}",
            by=_text(source) or None,
            detail=f"{_text(code)}: {_text(why)}" if outcome == _LETTER else "",
        )


def _text(content: bytes | None) -> str:
    return (content or b"").decode(errors="replace")


class FateFinder:
    """Reader of what became of records. One thread reads at a time, in the context ``alone``;
    answers are kept a while, because open pages ask again.
    """

    def __init__(
        self,
        settings: Settings,
        admin: KafkaAdmin,
        wall_ms: Callable[[], int],
        alone: AbstractContextManager[object],
    ) -> None:
        self._settings = settings
        self._admin = admin
        self._wall_ms = wall_ms
        self._reading = alone
        # By place of the source record: when its fate was sought, monotonic seconds, and what was
        # found and not read.
        self._kept: dict[tuple[str, int, int], tuple[float, Fate | None, set[str]]] = {}

    def fate_of(
        self, topic: str, partition: int, row: PolledRecord, record: Pending | None
    ) -> tuple[Fate | None, set[str]]:
        """Return what became of a settled record of a delay topic; None: nothing was found. The
        texts say what could not be read. ``record``: the schedule in ``row``; None: it is none.
        """
        sought = _Sought(topic, partition, row[0], record)
        key = topic, partition, row[0]
        with self._reading:
            asked_s, fate, problems = self._kept.get(key, (float("-inf"), None, set()))
            if fate is None and time.monotonic() - asked_s > _KEPT_S:
                fate, problems = self._find(sought, row[1]), sought.problems
                if len(self._kept) >= _KEPT_MAX:
                    self._kept.clear()
                self._kept[key] = time.monotonic(), fate, problems
        return fate, problems

    def newest_of_id(
        self, record_id: bytes, topics: Mapping[str, int]
    ) -> tuple[str, int, PolledRecord] | None:
        """Return place and content of the newest record with this ``delay-id`` among the last
        ``ID_OFFSETS_MAX`` offsets of each partition of ``topics``; a cancel or fire only if there
        is no other.
        """
        places = [(name, number) for name, count in topics.items() for number in range(count)]
        found: list[tuple[bool, int, str, int, PolledRecord]] = []
        with self._reading:
            bounds = many_bounds(self._admin, places)
            starts = {p: max(b.start, b.end - ID_OFFSETS_MAX) for p, b in bounds.items()}
            for (topic, partition), row in self._rows(starts, set(), READ_S_MAX):
                said = dict(row[4] or ())
                if said.get(names.DELAY_ID) == record_id:
                    is_record = not self._is_control(topic, partition, row)
                    found.append((is_record, row[1], topic, partition, row))
        newest = max(found, key=lambda one: one[:2], default=None)
        return None if newest is None else newest[2:]

    def _is_control(self, topic: str, partition: int, row: PolledRecord) -> bool:
        # Without homes: where it was written does not matter here.
        contract = replace(contract_for(self._settings, topic), id_partitions=0)
        reader = RecordReader(topic, partition, Contracts([(0, contract)]), [])
        return reader.read(*row[:4], row[4] or [])[1] in (CANCEL, FIRE)

    def _find(self, sought: _Sought, written_ms: int) -> Fate | None:
        counts, record = partition_counts(self._admin), sought.record
        topics = self._settings.topics
        fate = None
        if record is not None and record.due_ms <= self._wall_ms():
            fate = self._delivered(sought, record, record.due_ms, counts)
        for topic, outcome in ((topics.outcomes, ""), (topics.dead_letter, _LETTER)):
            if fate is None:
                numbers = range(counts.get(topic, 0))
                fate = self._read(sought, topic, numbers, written_ms, outcome)
        if fate is None and record is not None:  # it may have been fired
            fate = self._delivered(sought, record, sought.fired_ms or written_ms, counts)
        return fate

    def _delivered(
        self, sought: _Sought, record: Pending, since_ms: int, counts: Mapping[str, int]
    ) -> Fate | None:
        numbers: Iterable[int] = range(counts.get(record.target, 0))
        is_murmur2 = self._settings.delivery.partitioner.startswith("murmur2")
        if record.target_partition is not None:
            numbers = [record.target_partition]
        elif record.key is not None and numbers and is_murmur2:
            numbers = [partition_for(record.key, counts[record.target])]
        return self._read(sought, record.target, numbers, since_ms - _CLOCKS_MS, "delivered")

    def _read(
        self, sought: _Sought, topic: str, numbers: Iterable[int], since_ms: int, outcome: str
    ) -> Fate | None:
        places = [(topic, number) for number in numbers]
        if not places:
            sought.problems.add(f"{topic} does not exist, or may not be described")
            return None
        try:
            starts = offsets_since(self._admin, places, max(since_ms, 0))
            for place, row in self._rows(starts, sought.problems, READ_S_MAX):
                said = dict(row[4] or ())
                if sought.is_about(said, row[1]) or self._settles_copy(sought, said):
                    return sought.fate(place, row, outcome)
        except KafkaEdgeError as exc:
            sought.problems.add(str(exc))
        return None

    def _settles_copy(self, sought: _Sought, said: Mapping[str, bytes | None]) -> bool:
        """Return whether the outcome of another record of its id is that of the record that was
        written for it, because it was rolled, parked or sent to its home.
        """
        record_id, settled = said.get(names.DELAY_ID), said.get(names.DELAY_SETTLES)
        if sought.record is None or record_id is None or record_id != sought.record.id:
            return False
        # Users may write such headers too, with anything in them.
        place = read_place(f"{_text(said.get(names.DELAY_SHARD))}:{_text(settled)}")
        if said.get(names.DELAY_SETTLED_BY) is None or place is None:
            return False
        start = {(place.topic, place.partition): place.offset}
        try:
            _, row = next(self._rows(start, sought.problems, _COPY_READ_S_MAX), (None, None))
        except _GoneError:
            return False
        except KafkaEdgeError as exc:
            sought.problems.add(str(exc))
            return False
        written = dict(row[4] or ()) if row is not None and row[0] == place.offset else {}
        origin = (written.get(names.DELAY_COPY) or b"") + (written.get(names.DELAY_HOME) or b"")
        return b'"%b"' % b64encode(sought.source) in origin  # JSON, bytes in base64

    def _rows(
        self, starts: Mapping[Place, int], problems: set[str], read_s_max: float
    ) -> Iterator[tuple[Place, PolledRecord]]:
        """Yield the records from these offsets on, up to the ends of the logs or to a limit, which
        is noted in ``problems``.
        """
        until_s = time.monotonic() + read_s_max
        left, unread = READ_BYTES_MAX, set(starts)
        consumer = consumer_client(
            consumer_config(self._settings.kafka.client_config("consumer"), "fate")
        )
        try:
            consumer.assign([TopicPartition(*place, offset) for place, offset in starts.items()])
            while unread and left > 0 and time.monotonic() < until_s:
                for message in take(consumer, _WAIT_S, _BATCH):
                    place, error = (message.topic(), message.partition()), message.error()
                    if error is None:
                        row = row_of(message)
                        left -= bytes_of(row)
                        yield place, row
                        if time.monotonic() >= until_s:  # the caller may read for each row
                            break
                    elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                        unread.discard(place)
                    elif error.code() not in NO_RECORDS:
                        is_gone = error.code() == KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
                        kind = _GoneError if is_gone else KafkaEdgeError
                        raise kind(f"{place[0]} can't be read: {error.str()}")
            if unread:
                problems.add(f"{min(unread)[0]} holds more than was read")
        finally:
            consumer.close()
