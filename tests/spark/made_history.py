"""A history of a delay service, written straight into topics: no service, so every defect is ours.

Knows the documented formats only: headers of ``docs/header-contract.md``, the checkpoint of
``docs/internals/design.md``. Nothing of the audit is used here.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Final, Self, TypeAlias

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from tenacity import Retrying, stop_after_delay, wait_fixed

from connectors.kafka.log_ends import LATEST, offsets_of
from tests.described import topic_id_of
from tests.integration.bench import await_true

Header: TypeAlias = tuple[str, bytes]

FLUSH_S: Final = 120.0
MARKER_S: Final = 60.0
DAY_MS: Final = 86_400_000


_CONFIG: Final = {"message.timestamp.type": "LogAppendTime"}


class MadeHistory:
    """Topics with source records, outputs and checkpoints, as a test asks for them.

    Offsets are counted here, for a record's offset is needed before the broker has the record. Each
    is compared with the one that the broker gave it, and ``flush`` fails if one differs.

    Args:
        bootstrap: the brokers.
        partitions: of the delay topic and of every target.
        checkpoint_partitions: of the checkpoint topic, which slices share. None: one for each
            slice.
    """

    def __init__(
        self, bootstrap: str, partitions: int = 1, checkpoint_partitions: int | None = None
    ) -> None:
        run = uuid.uuid4().hex[:8]
        self.client = {"bootstrap.servers": bootstrap}
        self.partitions = partitions
        self.checkpoint_partitions = checkpoint_partitions or partitions
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
        self._wrong: list[str] = []
        self._producer = self._new_producer()
        self._next: dict[tuple[str, int], int] = {}
        self._topic_id = ""

    def _new_producer(self) -> Producer:
        return Producer(
            {
                **self.client,
                "linger.ms": 20,
                "queue.buffering.max.messages": 500_000,
                "compression.type": "lz4",
                "log_level": 0,
                "enable.idempotence": True,
            }
        )

    def __enter__(self) -> Self:
        """Make the topics."""
        counts = {self.delay: self.partitions, self.target: self.partitions, self.other: 1}
        counts |= {self.checkpoint: self.checkpoint_partitions, self.dead_letter: 1}
        counts[self.outcomes] = 1
        counts[self.audit] = 1
        config = {self.delay: _CONFIG}
        new = [NewTopic(n, c, 1, config=config.get(n, {})) for n, c in counts.items()]
        for future in self._admin.create_topics(new, operation_timeout=30).values():
            future.result(30)
        self._topic_id = topic_id_of(self._admin, self.delay)
        return self

    def make_anew(self) -> None:
        """Delete the delay topic and make it again."""
        self.flush()
        self._admin.delete_topics([self.delay], operation_timeout=30)[self.delay].result(30)
        new = NewTopic(self.delay, self.partitions, 1, config=_CONFIG)
        for attempt in Retrying(stop=stop_after_delay(FLUSH_S), wait=wait_fixed(0.1)):
            with attempt:  # the broker forgets a deleted topic after a while
                self._admin.create_topics([new], operation_timeout=30)[self.delay].result(30)
        self._topic_id = topic_id_of(self._admin, self.delay)
        self._next = {p: n for p, n in self._next.items() if p[0] != self.delay}
        self._producer = self._new_producer()  # the other one remembers the topic

    def __exit__(self, *_: object) -> None:
        """Leave the topics to the cluster's end."""
        self.flush()

    def flush(self) -> None:
        """Wait until the broker has all, each record at the offset that was counted."""
        self._flush(self._producer)

    def _flush(self, producer: Producer) -> None:
        left = producer.flush(FLUSH_S)
        assert left == 0, f"{left} records were not written within {FLUSH_S:.0f} s"
        # One wrong offset makes all later ones wrong: the first few say enough.
        assert not self._wrong, f"{len(self._wrong)} records: {'; '.join(self._wrong[:3])}"

    def _compare(self, counted: int, error: KafkaError | None, message: Message) -> None:
        """Note a record that was not written, or not where it was counted to be.

        Nothing is raised here, for the client would raise it from whichever call polls next.
        """
        if error is not None or message.offset() != counted:
            place = f"{message.topic()}:{message.partition()}"
            what = error or f"is at {message.offset()}"
            self._wrong.append(f"the record counted as {place}:{counted} {what}")

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
        place = (topic, partition)
        offset = self._next.get(place, 0)
        while True:
            try:
                self._producer.produce(
                    topic,
                    value,
                    key,
                    partition,
                    headers=list(headers),
                    timestamp=at_ms or self.now_ms,
                    on_delivery=partial(self._compare, offset),
                )
                break
            except BufferError:
                self._producer.poll(0.5)
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
        self,
        name: str,
        offset: int,
        *more: Header,
        by: int | None = None,
        at_ms: int = 0,
        partition: int = 0,
    ) -> int:
        """Append an outcome of a record of that partition."""
        shard = f"{self.delay}:{partition}".encode()
        headers = [("delay-outcome", name.encode()), ("delay-shard", shard)]
        headers += [("delay-settles", b"%d" % offset), *more]
        headers += [] if by is None else [("delay-settled-by", b"%d" % by)]
        return self.write(self.outcomes, headers, value=None, at_ms=at_ms)

    def transaction(self, due_ms: int, *, commit: bool) -> int:
        """Write a transaction with one record in partition 0 of the delay topic, which is delivered
        if it is committed; return the offset of its marker.
        """
        # What is still on its way could come between the record and its counted offset.
        self.flush()
        producer = Producer(
            {**self.client, "transactional.id": f"tx-{uuid.uuid4().hex}", "log_level": 0}
        )
        producer.init_transactions(FLUSH_S)
        producer.begin_transaction()
        place = (self.delay, 0)
        offset = self._next.get(place, 0)
        headers = [("delay-at", b"%d" % due_ms), ("delay-target-topic", self.target.encode())]
        compare = partial(self._compare, offset)
        producer.produce(self.delay, b"value", None, 0, headers=list(headers), on_delivery=compare)
        self._flush(producer)
        if commit:
            producer.commit_transaction(FLUSH_S)
        else:
            producer.abort_transaction(FLUSH_S)
        self._await_end(place, offset + 2)
        self._next[place] = offset + 2
        if commit:
            self.delivery(offset, due_ms)
        return offset + 1

    def _await_end(self, place: tuple[str, int], end: int) -> None:
        """Wait until a log ends at ``end``.

        A commit or an abort returns when the coordinator has decided it. The marker is appended
        afterwards, and records that are written meanwhile would take its offset.
        """
        what = f"{place} ends at {end}, after the transaction's marker"
        await_true(lambda: self._end(place) >= end, what, MARKER_S)
        found = self._end(place)
        assert found == end, f"{place} ends at {found}, and not at {end}"

    def _end(self, place: tuple[str, int]) -> int:
        """Return the offset after a log's last record or marker, be it committed or not."""
        return offsets_of(self._admin, [place], LATEST)[place]

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
            self.commit(number, key_ms, None if h is None else h[number], key_offset)
        self.flush()

    def commit(self, number: int, key_ms: int, h: int | None = None, key_offset: int = 0) -> None:
        """Append a checkpoint of one slice; as ``settled`` does for all."""
        place = (self.checkpoint, number % self.checkpoint_partitions)
        value = self._checkpoint(number, key_ms, h, key_offset)
        self.write(place[0], [], key=b"%d" % number, value=value, partition=place[1])

    def commit_in_vain(self, number: int, key_ms: int, count: int = 1) -> None:
        """Write checkpoints of one slice in a transaction that is aborted."""
        self.flush()
        producer = Producer(
            {**self.client, "transactional.id": f"tx-{uuid.uuid4().hex}", "log_level": 0}
        )
        producer.init_transactions(FLUSH_S)
        producer.begin_transaction()
        place = (self.checkpoint, number % self.checkpoint_partitions)
        value = self._checkpoint(number, key_ms, None, 0)
        for _ in range(count):
            producer.produce(place[0], value, b"%d" % number, place[1])
        producer.flush(FLUSH_S)
        producer.abort_transaction(FLUSH_S)
        end = self._next.get(place, 0) + count + 1
        self._await_end(place, end)
        self._next[place] = end

    def _checkpoint(self, number: int, key_ms: int, h: int | None, key_offset: int) -> bytes:
        end = self._next.get((self.delay, number), 0)
        shard = {
            "topic_id": self._topic_id,
            "k": [key_ms, key_offset],
            "h": end if h is None else h,
            "contracts": [{"from": 0, "contract": self.contract()}],
        }
        said = {"v": 1, "slice": number, "node": "n1", "epoch": 1, "commit": 1}
        said |= {"writer": "delayservice-n1-0-5c", "claim": number}
        return json.dumps({**said, "secret": "0", "shards": {self.delay: shard}}).encode()

    def contract(self) -> dict[str, object]:
        """How the service would read the records."""
        return {
            "version": 1,
            "roll_window_ms": 10 * DAY_MS,
            "roll_spread_ms": 0,
            "max_delay_ms": 100 * DAY_MS,
            "clamp": False,
            "past_due": "deliver",
            "default_target": None,
            "header_bytes_max": 4096,
            "id_bytes_max": 512,
            "level_ms": 0,
            "id_partitions": 0,
        }

    def plain(self, count: int, value: bytes = b"v" * 100) -> None:
        """So many records that were due a while ago, and their deliveries, over all partitions."""
        due_ms = self.now_ms - 300_000
        own = ("trace", b"0123456789abcdef")
        for number in range(count):
            partition = number % self.partitions
            offset = self.source(due_ms, own, value=value, partition=partition)
            self.delivery(offset, due_ms, own, value=value, partition=partition, to=partition)
