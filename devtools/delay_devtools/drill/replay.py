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
from itertools import pairwise
from typing import Final

from confluent_kafka import Producer, TopicCollection, TopicPartition
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

from connectors.kafka.log_ends import LATEST, offsets_of
from delay_devtools import clients
from delay_devtools.drill.judge import Found
from delay_devtools.drill.rows import Place, Row, Where, is_delayed
from delay_devtools.drill.stories import NAMES, PARTITIONS
from delayservice.base.errors import KafkaEdgeError

_CHECKPOINT: Final = f"{NAMES.prefix}_checkpoint"
_TIMEOUT_S: Final = 60.0
_TICK_S: Final = 0.005
_EVER: Final = str(2**63 - 1)


class Replay:
    def __init__(self, bootstrap: str, rows: Iterable[Row]) -> None:
        self.client = {"bootstrap.servers": bootstrap}
        self._admin = clients.admin(self.client)
        self._errors: list[str] = []
        self._plain = clients.producer(self.client, errors=self._errors)
        self._open = clients.producer(self.client, "drill-replay")
        self._open.init_transactions(_TIMEOUT_S)
        self._logs: dict[Place, list[Row]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: row.where):
            self._logs[row.place].append(row)
        # Offsets in the archive of the records that got another one.
        self._offsets: dict[Where, int] = {}
        topics = {topic for topic, _ in self._logs} | {_CHECKPOINT}
        # Some records say that they are of tomorrow.
        config = {"message.timestamp.type": "CreateTime", "message.timestamp.after.max.ms": _EVER}
        new = [NewTopic(topic, PARTITIONS, 1, config=config) for topic in topics]
        for future in self._admin.create_topics(new, operation_timeout=_TIMEOUT_S).values():
            future.result(_TIMEOUT_S)
        delayed = [topic for topic in topics if is_delayed(topic)]
        told = self._admin.describe_topics(TopicCollection(delayed))
        self._ids = {topic: str(told[topic].result(_TIMEOUT_S).topic_id) for topic in delayed}

    def write(self, batch: int, checkpoints: Mapping[bytes, bytes]) -> None:
        """Write the rows of a batch, and the checkpoints after them."""
        for place, log in self._logs.items():
            write = self._write_exactly if is_delayed(place[0]) else self._write
            write(place, [row for row in log if row.batch == batch], log)
        for key, value in checkpoints.items():
            said = json.loads(value)
            for topic, shard in said["shards"].items():
                shard["topic_id"] = self._ids[topic]
            self._plain.produce(_CHECKPOINT, json.dumps(said).encode(), key, int(key) % PARTITIONS)
        self._flush()

    def archived(self, found: Found) -> Found:
        """Return a finding about these topics as one about the archive."""
        output = None if found.output is None else self._archived(found.output)
        return Found(found.kind, *self._archived(found[1:4]), output)

    def _archived(self, where: Where) -> Where:
        return (*where[:2], self._offsets.get(where, where[2]))

    def _write(self, place: Place, rows: Sequence[Row], log: Sequence[Row]) -> None:
        for number, row in enumerate(sorted(log, key=lambda row: row.batch)):
            self._offsets[(*place, number)] = row.offset
        for row in rows:
            self._produce(self._plain, row)

    def _write_exactly(self, place: Place, rows: Sequence[Row], log: Sequence[Row]) -> None:
        following = {row.offset: after.offset for row, after in pairwise(log)}
        if rows and rows[0] is log[0] and rows[0].offset:
            self._fill(rows[0], rows[0].offset, rows[0].offset)
            asked = TopicPartition(*place, rows[0].offset)
            self._admin.delete_records([asked])[asked].result(_TIMEOUT_S)
        for row in rows:
            after = following.get(row.offset, row.offset + 1)
            holes = after - row.offset - 1
            if holes == 1:  # for the marker of a transaction of its own
                self._flush()
                self._open.begin_transaction()
                self._produce(self._open, row)
                self._open.commit_transaction(_TIMEOUT_S)
                self._await_end(place, after)
            else:
                self._produce(self._plain, row)
            if holes > 1:
                self._flush()
                self._fill(row, holes, after)

    def _fill(self, row: Row, holes: int, end: int) -> None:
        self._open.begin_transaction()
        for _ in range(holes - 1):
            self._produce(self._open, row)
        self._open.flush(_TIMEOUT_S)
        self._open.abort_transaction(_TIMEOUT_S)
        self._await_end(row.place, end)

    def _await_end(self, place: Place, end: int) -> None:
        # A commit returns before its marker is in the log.
        deadline_s = time.monotonic() + _TIMEOUT_S
        while (found := offsets_of(self._admin, [place], LATEST)[place]) != end:
            if found > end or time.monotonic() > deadline_s:
                raise KafkaEdgeError(f"{place} ends at {found}, and the drill wrote up to {end}")
            time.sleep(_TICK_S)

    def _flush(self) -> None:
        left = self._plain.flush(_TIMEOUT_S)
        if left or self._errors:
            why = self._errors[0] if self._errors else f"{left} records wait"
            raise KafkaEdgeError(f"the spoilt records can't be written: {why}")

    def _produce(self, producer: Producer, row: Row) -> None:
        headers: clients.Headers = [*row.headers]
        producer.produce(
            *(row.topic, row.value, row.key, row.partition),
            headers=headers,
            timestamp=row.timestamp_ms,
        )
        producer.poll(0)
