"""A history of a delay service, written straight into topics: no service, so every defect is ours.

Knows the documented formats only: headers of ``docs/header-contract.md``, the checkpoint of
``docs/design.md``. Nothing of the audit is used here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from typing import Final, Self, TypeAlias

from confluent_kafka import Producer, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

Header: TypeAlias = tuple[str, bytes]

FLUSH_S: Final = 120.0
DAY_MS: Final = 86_400_000


class MadeHistory:
    """Topics with source records, outputs and checkpoints, as a test asks for them.

    Args:
        bootstrap: the brokers.
        partitions: of the delay topic and of every target.
    """

    def __init__(self, bootstrap: str, partitions: int = 1) -> None:
        run = uuid.uuid4().hex[:8]
        self.client = {"bootstrap.servers": bootstrap}
        self.partitions = partitions
        self.delay = f"delay_topic_{run}"
        self.target = f"to_{run}_a"
        self.other = f"to_{run}_b"
        self.checkpoint = f"delay_checkpoint_{run}"
        self.dead_letter = f"delay_dead_letter_{run}"
        self.outcomes = f"delay_outcomes_{run}"
        self.audit = f"delay_audit_{run}"
        self.allow = [f"to_{run}_*"]
        self.now_ms = time.time_ns() // 1_000_000
        self._admin = AdminClient({**self.client, "log_level": 0})
        self._failed: list[object] = []
        self._producer = Producer(
            {
                **self.client,
                "linger.ms": 20,
                "queue.buffering.max.messages": 500_000,
                "compression.type": "lz4",
                "log_level": 0,
                "delivery.report.only.error": True,
                "enable.idempotence": True,
                "on_delivery": lambda error, _: self._failed.append(error),
            }
        )
        self._next: dict[tuple[str, int], int] = {}
        self._topic_id = ""

    def __enter__(self) -> Self:
        """Make the topics."""
        counts = {self.delay: self.partitions, self.target: self.partitions, self.other: 1}
        counts |= {self.checkpoint: self.partitions, self.dead_letter: 1, self.outcomes: 1}
        counts[self.audit] = 1
        config = {self.delay: {"message.timestamp.type": "LogAppendTime"}}
        new = [NewTopic(n, c, 1, config=config.get(n, {})) for n, c in counts.items()]
        for future in self._admin.create_topics(new, operation_timeout=30).values():
            future.result(30)
        described = self._admin.describe_topics(TopicCollection([self.delay]))
        self._topic_id = str(described[self.delay].result(30).topic_id)
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the topics to the cluster's end."""
        self.flush()

    def flush(self) -> None:
        """Until the broker has all."""
        assert self._producer.flush(FLUSH_S) == 0
        assert not self._failed

    def write(
        self,
        topic: str,
        headers: Sequence[Header],
        *,
        key: bytes | None = None,
        value: bytes | None = b"value",
        partition: int = 0,
        at_ms: int = 0,
    ) -> int:
        """Append a record; its offset."""
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    headers=list(headers),
                    timestamp=at_ms or self.now_ms,
                )
                break
            except BufferError:
                self._producer.poll(0.5)
        place = (topic, partition)
        offset = self._next.get(place, 0)
        self._next[place] = offset + 1
        return offset

    def source(
        self,
        due_ms: int,
        *more: Header,
        key: bytes | None = None,
        value: bytes | None = b"value",
        partition: int = 0,
        target: str = "",
    ) -> int:
        """Append a plain record to the delay topic; its offset."""
        named = (target or self.target).encode()
        headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", named), *more]
        return self.write(self.delay, headers, key=key, value=value, partition=partition)

    def told(self, offset: int, due_ms: int, partition: int = 0) -> list[Header]:
        """The headers that say what a delivery settles."""
        source = f"{self.delay}:{partition}:{offset}"
        return [
            ("delay-due-at", b"%d" % due_ms),
            ("delay-source", source.encode()),
            ("delay-settles", b"%d" % offset),
        ]

    def delivery(
        self,
        offset: int,
        due_ms: int,
        *own: Header,
        key: bytes | None = None,
        value: bytes | None = b"value",
        partition: int = 0,
        topic: str = "",
        to: int = 0,
        at_ms: int = 0,
        more: Sequence[Header] = (),
    ) -> int:
        """Append what settles ``offset`` of ``partition``; its offset in partition ``to``."""
        return self.write(
            topic or self.target,
            [*own, *self.told(offset, due_ms, partition), *more],
            key=key,
            value=value,
            partition=to,
            at_ms=at_ms or max(due_ms, 1),
        )

    def delivery_of_copy(self, origin: int, copy: int, due_ms: int, value: bytes = b"value") -> int:
        """Append what settles a copy of the record at ``origin``, both in partition 0."""
        told = dict(self.told(copy, due_ms)) | {"delay-source": f"{self.delay}:0:{origin}".encode()}
        return self.write(self.target, list(told.items()), value=value, at_ms=due_ms)

    def outcome(
        self, name: str, offset: int, *more: Header, by: int | None = None, at_ms: int = 0
    ) -> int:
        """Append an outcome of a record in partition 0."""
        shard = f"{self.delay}:0".encode()
        headers = [("delay-outcome", name.encode()), ("delay-shard", shard)]
        headers += [("delay-settles", b"%d" % offset), *more]
        headers += [] if by is None else [("delay-settled-by", b"%d" % by)]
        return self.write(self.outcomes, headers, value=None, at_ms=at_ms)

    def transaction(self, due_ms: int, *, commit: bool) -> int:
        """A transaction with one record in partition 0 of the delay topic, which is delivered if it
        is committed; the offset of its marker.
        """
        self.flush()
        producer = Producer(
            {**self.client, "transactional.id": f"tx-{uuid.uuid4().hex}", "log_level": 0}
        )
        producer.init_transactions(FLUSH_S)
        producer.begin_transaction()
        place = (self.delay, 0)
        offset = self._next.get(place, 0)
        headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", self.target.encode())]
        producer.produce(self.delay, b"value", None, 0, headers=list(headers))
        producer.flush(FLUSH_S)
        if commit:
            producer.commit_transaction(FLUSH_S)
            self.delivery(offset, due_ms)
        else:
            producer.abort_transaction(FLUSH_S)
        self._next[place] = offset + 2
        return offset + 1

    def letter(
        self, offset: int, *headers: Header, code: str, key: bytes | None = None, partition: int = 0
    ) -> int:
        """Append a dead letter of a record that had ``headers``."""
        source = f"{self.delay}:{partition}:{offset}".encode()
        told = [("delay-error", code.encode()), ("delay-error-detail", b"why")] if code else []
        told += [("delay-source", source), ("delay-settles", b"%d" % offset)]
        return self.write(self.dead_letter, [*headers, *told], key=key)

    def settled(self, key_ms: int, h: Sequence[int] | None = None, key_offset: int = 0) -> None:
        """Write the checkpoints: K is ``(key_ms, key_offset)``, H the end of each log, or ``h``."""
        for number in range(self.partitions):
            end = self._next.get((self.delay, number), 0)
            shard = {
                "topic_id": self._topic_id,
                "k": [key_ms, key_offset],
                "h": end if h is None else h[number],
                "contracts": [{"from": 0, "contract": self.contract()}],
            }
            said = {"v": 1, "slice": number, "node": "n1", "epoch": 1, "commit": 1, "secret": "0"}
            data = json.dumps({**said, "shards": {self.delay: shard}}).encode()
            self.write(self.checkpoint, [], key=b"%d" % number, value=data, partition=number)
        self.flush()

    def contract(self) -> dict[str, object]:
        """How the service would read the records."""
        return {
            "version": 2,
            "roll_window_ms": 10 * DAY_MS,
            "roll_spread_ms": 0,
            "max_delay_ms": 100 * DAY_MS,
            "clamp": False,
            "past_due": "deliver",
            "default_target": None,
            "allow": self.allow,
            "reserved": [],
            "header_bytes_max": 4096,
            "id_bytes_max": 512,
            "level_ms": 0,
        }

    def plain(self, count: int, value: bytes = b"v" * 100) -> None:
        """So many records that were due a while ago, and their deliveries, over all partitions."""
        due_ms = self.now_ms - 300_000
        own = ("trace", b"0123456789abcdef")
        for number in range(count):
            partition = number % self.partitions
            offset = self.source(due_ms, own, value=value, partition=partition)
            self.delivery(offset, due_ms, own, value=value, partition=partition, to=partition)
