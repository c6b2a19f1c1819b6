"""Makes ledger rows of source records in Python, and those of requeued records and envelopes as
outputs, as these settle other records.

``native`` makes the rows of usual records; this module reads all others as the service does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from connectors.spark.common.decode import (
    NO_KEY,
    ShardReader,
    envelope_of,
    key_hash,
    rows_of,
    runs,
    waiting,
    without_collector,
)
from connectors.spark.common.topics import Place
from connectors.spark.ledger.facts import SOURCE, WAITING, SourceFacts
from connectors.spark.ledger.outputs import said_by
from connectors.spark.ledger.rows import (
    NO_TOPIC,
    Ledger,
    LedgerRow,
    batch_of,
    content_hash,
    group_hash,
    id_hash,
    pack,
)
from delayservice.contract.codec import Payload, packed_recurrence
from delayservice.contract.entry import (
    CANCEL,
    COPY,
    FIRE,
    HOMEBOUND,
    INVALID,
    SCHEDULE,
    Entry,
    PolledRecord,
    scheduled,
)
from delayservice.contract.home import Group, homebound
from delayservice.contract.names import DELAY_COPY, DELAY_HOME
from delayservice.contract.recurrence import recurrence_of

# Number of parts of the refusal of an invalid record. For a record that came to its home there is a
# further part, the last: the place where it was written.
_CODE_AND_DETAIL: Final = 2


@dataclass(frozen=True, slots=True)
class SourceRows:
    ledger: Ledger

    def of(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        reader = SourceReader(self.ledger)
        with without_collector():
            for batch in batches:
                for place, run in runs(batch):
                    yield batch_of(reader.rows(place, rows_of(run)))


class SourceReader:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._readers = {
            place: ShardReader(*place, contracts, ledger.secrets)
            for place, contracts in ledger.contracts.items()
        }

    def rows(self, place: Place, rows: Sequence[PolledRecord]) -> Iterator[LedgerRow]:
        """Yield the ledger rows of some records of one partition."""
        reader = self._readers.get(place)
        if reader is None:
            return
        shard = self._ledger.shards.get(place)
        if shard is None:
            rows = [row for row in rows if _is_claimed(row)]
        for row, (entry, is_verified) in zip(rows, reader.read(rows), strict=True):
            if shard is not None:
                yield self._source(shard, place[0], row, entry, is_verified=is_verified)
            if entry[1] == COPY or envelope_of(row) is not None:
                yield from said_by(self._ledger, place, row, is_verified=is_verified)

    def _source(
        self, shard: int, topic: str, row: PolledRecord, entry: Entry, *, is_verified: bool
    ) -> LedgerRow:
        offset, kind, key_ms, record_id, _, _ = entry
        target, partition, key, value, own, due_ms, _ = _described(entry, topic)
        number = self._ledger.topics.get(target, NO_TOPIC)
        facts = None
        if not is_verified or not _is_simple(entry, number):
            facts = pack(self._facts(shard, topic, entry, is_verified=is_verified))
        return LedgerRow(
            shard,
            offset,
            SOURCE,
            kind=kind,
            key_ms=key_ms,
            due_ms=due_ms,
            at_ms=row[1],
            content=content_hash(key, value, own),
            topic=number,
            partition=partition,
            key_hash=NO_KEY if kind in (CANCEL, FIRE) else key_hash(key),
            id_hash=id_hash(record_id),
            id=record_id,
            more=facts,
        )

    def _facts(self, shard: int, topic: str, entry: Entry, *, is_verified: bool) -> SourceFacts:
        _, kind, _, record_id, _, extra = entry
        if kind == INVALID:
            origin = b"" if len(extra) == _CODE_AND_DETAIL else extra[-1]
            return SourceFacts(kind, code=extra[0], origin=_text(origin), is_verified=is_verified)
        if kind == HOMEBOUND:
            acts, first_ms, _ = extra
            return SourceFacts(kind, record_id, acts=acts, first_ms=first_ms)
        payload = _to_deliver(entry)
        if payload is None:
            return SourceFacts(kind, record_id, origin=_text(extra or b""), is_verified=is_verified)
        group = _waiting(entry, topic)
        if group is not None:
            return _waiting_facts(entry, group, is_verified=is_verified)
        _, source, attempt, expires_ms, *_ = payload[6] or (None, None, 1, None)
        recurrence = recurrence_of(payload[6])
        origin = (source or b"").decode()
        return SourceFacts(
            kind,
            record_id,
            origin=origin,
            base=self._base(shard, origin, extra) if kind == COPY else 0,
            expires_ms=expires_ms,
            attempt=attempt,
            is_armed=recurrence is None or bool(recurrence.number),
            target="" if payload[0] in self._ledger.topics else payload[0],
            recur=packed_recurrence(payload[6]) or b"",
            is_verified=is_verified,
        )

    def _base(self, shard: int, origin: str, told: int) -> int:
        # A base at or below its own user's record is a finding about the requeued record; it does
        # not make that record its canceller.
        held, offset = self._ledger.shard_of(origin)
        return max(told, offset + 1) if held == shard else told


def _is_simple(entry: Entry, topic: int) -> bool:
    # A schedule of an unknown target needs the target's name as a fact.
    _, kind, _, record_id, payload, extra = entry
    if kind == SCHEDULE:
        return topic != NO_TOPIC and payload[6] in (None, (record_id, None, 1, None))
    return kind in (CANCEL, FIRE) and not extra


def _waiting_facts(entry: Entry, group: Group, *, is_verified: bool) -> SourceFacts:
    last = group[-1]
    return SourceFacts(
        WAITING,
        entry[3],
        origin=_text(last.source),
        base=entry[5],
        is_verified=is_verified,
        acts=last.kind,
        first_ms=last.written_ms,
        group=group_hash(group),
    )


def _is_claimed(row: PolledRecord) -> bool:
    return any(name in (DELAY_COPY, DELAY_HOME) for name, _ in row[4] or ())


def _text(source: bytes) -> str:
    return source.decode("utf-8", "replace")


def _waiting(entry: Entry, topic: str) -> Group | None:
    # Records that wait for their home have the delay topic itself as target.
    _, kind, _, _, payload, _ = entry
    return waiting(payload) if kind == COPY and payload[0] == topic else None


def _to_deliver(entry: Entry) -> Payload | None:
    payload: Payload | None = entry[4] if entry[1] == COPY else scheduled(entry)
    return payload


def _described(entry: Entry, topic: str) -> Payload:
    # A record that asks for no delivery has key, value and headers only.
    _, kind, _, record_id, payload, extra = entry
    if kind == HOMEBOUND:
        acts, first_ms, home = extra
        sent = homebound(acts, record_id or b"", b"", first_ms, payload)
        return (topic, home, *sent.original, 0, None)
    group = _waiting(entry, topic)
    if group is not None:
        return (topic, payload[1], *group[-1].original, 0, None)
    asked = _to_deliver(entry)
    if asked is not None:
        return asked
    key, value, headers = entry[4]
    return ("", -1, key, value, headers, 0, None)
