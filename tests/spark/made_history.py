"""A history written straight into real topics, without a service: every defect is ours."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Self

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only
from tenacity import Retrying, stop_after_delay, wait_fixed

from connectors.kafka.log_ends import LATEST, offsets_of
from delayservice.contract.contracts import Contract, Contracts
from delayservice.engine.checkpoint import Checkpoint, ShardCheckpoint, encode_checkpoint
from delayservice.engine.claims import Tenure
from delayservice.engine.cursor import Cursor
from tests.described import topic_id_of
from tests.history import Header, History
from tests.integration.bench import await_true

FLUSH_S: Final = 120.0
MARKER_S: Final = 60.0
DAY_MS: Final = 86_400_000


@contextmanager
def aborted(client: Mapping[str, str]) -> Iterator[Producer]:
    """Producer with a transaction, which is aborted in the end."""
    name = {"transactional.id": f"tx-{uuid.uuid4().hex}", "transaction.timeout.ms": 600_000}
    producer = Producer({**client, **name, "log_level": 0})
    producer.init_transactions(FLUSH_S)
    producer.begin_transaction()
    try:
        yield producer
    finally:
        producer.flush(FLUSH_S)
        producer.abort_transaction(FLUSH_S)


class MadeHistory(History):
    """Topics with source records, outputs and checkpoints, as a test asks for them.

    Offsets are counted here, for a record's offset is needed before the broker has the record. Each
    is compared with the one that the broker gave it, and ``flush`` fails if one differs.

    Args:
        bootstrap: the brokers.
        partitions: of the delay topic and of every target.
        checkpoint_partitions: of the checkpoint topic, which slices share. None: one for each
            slice.
        timestamps: type of those in the delay topic.
    """

    contracts = Contracts([(0, Contract(roll_window_ms=10 * DAY_MS, max_delay_ms=100 * DAY_MS))])

    def __init__(
        self,
        bootstrap: str,
        partitions: int = 1,
        checkpoint_partitions: int | None = None,
        timestamps: str = "LogAppendTime",
    ) -> None:
        run = uuid.uuid4().hex[:8]
        self.run = run
        self.bootstrap = bootstrap
        self.client = {"bootstrap.servers": bootstrap}
        self.partitions = partitions
        self.config = {"message.timestamp.type": timestamps}
        self.checkpoint_partitions = checkpoint_partitions or partitions
        self.delay = f"delay_topic_{run}"
        self.target = self.target_name("a")
        self.other = self.target_name("b")
        self.checkpoint = f"delay_checkpoint_{run}"
        self.dead_letter = f"delay_dead_letter_{run}"
        self.outcomes = f"delay_outcomes_{run}"
        self.audit = f"delay_audit_{run}"
        self.now_ms = time.time_ns() // 1_000_000
        self.admin = AdminClient({**self.client, "log_level": 0})
        self._wrong: list[str] = []
        self._producer = self._new_producer()
        self._next: dict[tuple[str, int], int] = {}
        counts = {self.delay: partitions, self.target: partitions, self.other: 1}
        counts |= {self.checkpoint: self.checkpoint_partitions, self.dead_letter: 1}
        counts |= {self.outcomes: 1, self.audit: 1}
        new = [
            NewTopic(name, count, 1, config=self.config if name == self.delay else {})
            for name, count in counts.items()
        ]
        for future in self.admin.create_topics(new, operation_timeout=30).values():
            future.result(30)
        self.topic_id = topic_id_of(self.admin, self.delay)

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
        return self

    def target_name(self, name: str) -> str:
        return f"to_{self.run}_{name}"

    def settings(self) -> list[str]:
        """Words by which a command audits this history."""
        topics = {"checkpoint": self.checkpoint, "dead_letter": self.dead_letter}
        sets = [f"topics.{name}={topic}" for name, topic in topics.items()]
        sets += [
            f"topics.outcomes={self.outcomes}",
            f"targets.default.allow={self.target_name('*')}",
        ]
        sets.append(f"kafka.bootstrap={self.bootstrap}")
        return [word for setting in sets for word in ("--set", setting)]

    def delete(self, topic: str) -> None:
        self.flush()
        self.admin.delete_topics([topic], operation_timeout=30)[topic].result(30)

    def make_anew(self) -> None:
        """Delete the delay topic and make it again."""
        former = self.topic_id
        self.delete(self.delay)
        new = NewTopic(self.delay, self.partitions, 1, config=self.config)
        for attempt in Retrying(stop=stop_after_delay(FLUSH_S), wait=wait_fixed(0.1)):
            with attempt:  # the broker forgets a deleted topic after a while
                self.admin.create_topics([new], operation_timeout=30)[self.delay].result(30)
        await_true(lambda: topic_id_of(self.admin, self.delay) != former, "it is another topic")
        self.topic_id = topic_id_of(self.admin, self.delay)
        self._next = {p: n for p, n in self._next.items() if p[0] != self.delay}
        self._producer = self._new_producer()  # the other one remembers the topic

    def __exit__(self, *_: object) -> None:
        """Leave the topics to the cluster's end."""
        self.flush()

    def flush(self) -> None:
        """Wait until the broker has all, each record at the offset that was counted."""
        left = self._producer.flush(FLUSH_S)
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
        at_ms: int,
        headers: Sequence[Header],
        value: bytes | None = b"value",
        key: bytes | None = None,
        partition: int = 0,
    ) -> int:
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
                    timestamp=at_ms,
                    on_delivery=partial(self._compare, offset),
                )
                break
            except BufferError:
                self._producer.poll(0.5)
        self._next[place] = offset + 1
        return offset

    def record(self, due_ms: int, *more: Header, **how: Any) -> int:
        """Append a source record now."""
        return self.source(self.now_ms, due_ms, *more, **how)

    def delivered(self, offset: int, due_ms: int, *more: Header, **how: Any) -> int:
        """Append a delivery at its due time."""
        return self.delivery(due_ms, offset, due_ms, *more, **how)

    def _await_end(self, place: tuple[str, int], end: int) -> None:
        """Wait until a log ends at ``end``.

        A commit or an abort returns when the coordinator has decided it. The marker is appended
        afterwards, and records that are written meanwhile would take its offset.
        """

        def found() -> int:
            return offsets_of(self.admin, [place], LATEST)[place]

        await_true(lambda: found() >= end, f"{place} ends at {end}, after the marker", MARKER_S)
        assert found() == end

    def settled(self, key_ms: int, h: Sequence[int] | None = None, key_offset: int = 0) -> None:
        """Write the checkpoints: K is ``(key_ms, key_offset)``, H the end of each log, or ``h``."""
        for number in range(self.partitions):
            self.commit(number, key_ms, None if h is None else h[number], key_offset)
        self.flush()

    def commit(self, number: int, key_ms: int, h: int | None = None, key_offset: int = 0) -> int:
        """Append a checkpoint of one slice; as ``settled`` does for all."""
        place = (self.checkpoint, number % self.checkpoint_partitions)
        value = self.checkpoint_of(number, key_ms, h, key_offset)
        return self.write(place[0], self.now_ms, [], value, b"%d" % number, place[1])

    def commit_in_vain(self, number: int, key_ms: int, count: int = 1) -> None:
        """Write checkpoints of one slice in a transaction that is aborted."""
        place = (self.checkpoint, number % self.checkpoint_partitions)
        value = self.checkpoint_of(number, key_ms)
        self.flush()
        with aborted(self.client) as producer:
            for _ in range(count):
                producer.produce(place[0], value, b"%d" % number, place[1])
        end = self._next.get(place, 0) + count + 1
        self._await_end(place, end)
        self._next[place] = end

    def checkpoint_of(
        self, number: int, key_ms: int, h: int | None = None, key_offset: int = 0
    ) -> bytes:
        end = self._next.get((self.delay, number), 0) if h is None else h
        shard = ShardCheckpoint(self.topic_id, Cursor((key_ms, key_offset), end), self.contracts)
        said = Checkpoint(number, "n1", 1, "0", {self.delay: shard}, 1, Tenure("w", number))
        return encode_checkpoint(said)

    def plain(self, count: int, value: bytes = b"v" * 100) -> None:
        """So many records that were due a while ago, and their deliveries, over all partitions."""
        due_ms = self.now_ms - 300_000
        own = ("trace", b"0123456789abcdef")
        for number in range(count):
            partition = number % self.partitions
            offset = self.record(due_ms, own, value=value, partition=partition)
            self.delivered(offset, due_ms, own, value=value, partition=partition, to=partition)
