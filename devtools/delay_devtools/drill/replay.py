"""Writes spoilt rows into fresh topics, for an audit that follows.

Records of delay topics keep their offsets, as others name them: an offset without a record becomes
a transaction's marker or an aborted record. Other records get the next offset, and findings are
translated.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import Producer, TopicCollection, TopicPartition

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.log_ends import LATEST, offsets_of
from delay_devtools.drill.judge import Found
from delay_devtools.drill.rows import Place, Row, Where, is_delayed
from delay_devtools.drill.stories import NAMES, PARTITIONS, create, flush
from delayservice.base.errors import KafkaEdgeError
from delayservice.smoke.load import QUIET, Headers, producer

_CHECKPOINT: Final = f"{NAMES.prefix}_checkpoint"
_TIMEOUT_S: Final = 60.0
_TICK_S: Final = 0.005
_EVER: Final = str(2**63 - 1)


class Replay:
    def __init__(self, bootstrap: str, rows: Iterable[Row]) -> None:
        self.client = {"bootstrap.servers": bootstrap}
        self._admin = KafkaAdmin(self.client, QUIET)
        self._errors: list[str] = []
        self._plain = producer(self.client, self._errors)
        self._open = producer(self.client, self._errors, "drill-replay")
        self._open.init_transactions(_TIMEOUT_S)
        self._logs: dict[Place, list[Row]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: (row.batch, row.offset)):
            self._logs[row.place].append(row)
        # Offsets in the archive of the records that get another one.
        self._offsets = {
            (*place, number): row.offset
            for place, log in self._logs.items()
            if not is_delayed(place[0])
            for number, row in enumerate(log)
        }
        topics = {topic for topic, _ in self._logs} | {_CHECKPOINT}
        # Some records say that they are of tomorrow.
        config = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": _EVER}
        create(self._admin, topics, config)
        delayed = [topic for topic in topics if is_delayed(topic)]
        told = self._admin.describe_topics(TopicCollection(delayed))
        self._ids = {topic: str(told[topic].result(_TIMEOUT_S).topic_id) for topic in delayed}

    def write(self, batch: int, checkpoints: Mapping[bytes, bytes]) -> None:
        """Write the rows of a batch, and the checkpoints after them."""
        for place, log in self._logs.items():
            ends = [*(row.offset for row in log[1:]), log[-1].offset + 1]
            is_exact = is_delayed(place[0])
            if is_exact and log[0].batch == batch and (first := log[0].offset):
                self._transact([log[0]] * (first - 1), first, is_kept=False)
                asked = TopicPartition(*place, first)
                self._admin.delete_records([asked])[asked].result(_TIMEOUT_S)
            for row, end in zip(log, ends, strict=True):
                if row.batch == batch:
                    self._write(row, end - row.offset - 1 if is_exact else 0)
        for key, value in checkpoints.items():
            said = json.loads(value)
            for topic, shard in said["shards"].items():
                shard["topic_id"] = self._ids[topic]
            self._plain.produce(_CHECKPOINT, json.dumps(said).encode(), key, int(key) % PARTITIONS)
        flush(self._plain, self._errors)

    def archived(self, found: Found) -> Found:
        """Return a finding about these topics as one about the archive."""
        output = None if found.output is None else self._archived(found.output)
        return Found(found.kind, *self._archived(found[1:4]), output)

    def _archived(self, where: Where) -> Where:
        return (*where[:2], self._offsets.get(where, where[2]))

    def _write(self, row: Row, holes: int) -> None:
        # One offset behind a record is for the marker of a transaction of its own.
        if holes == 1:
            self._transact([row], row.offset + 2, is_kept=True)
            return
        self._produce(self._plain, row)
        if holes:
            self._transact([row] * (holes - 1), row.offset + 1 + holes, is_kept=False)

    def _transact(self, rows: Sequence[Row], end: int, *, is_kept: bool) -> None:
        flush(self._plain, self._errors)
        self._open.begin_transaction()
        for row in rows:
            self._produce(self._open, row)
        self._open.flush(_TIMEOUT_S)
        (self._open.commit_transaction if is_kept else self._open.abort_transaction)(_TIMEOUT_S)
        # A commit returns before its marker is in the log.
        place, deadline_s = rows[0].place, time.monotonic() + _TIMEOUT_S
        while (found := offsets_of(self._admin, [place], LATEST)[place]) != end:
            if found > end or time.monotonic() > deadline_s:
                raise KafkaEdgeError(f"{place} ends at {found}, and the drill wrote up to {end}")
            time.sleep(_TICK_S)

    def _produce(self, producer: Producer, row: Row) -> None:
        headers: Headers = [*row.headers]
        producer.produce(
            *(row.topic, row.value, row.key, row.partition),
            headers=headers,
            timestamp=row.timestamp_ms,
        )
        producer.poll(0)
