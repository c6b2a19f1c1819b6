"""Writing of records whose offsets are known, as defects need them.

No other process writes to the topics of a drill, so offsets are counted, not queried: a record
takes one, and the end of a transaction takes one (its marker) in each partition that it wrote to.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

from connectors.kafka.clients import produce_patiently
from connectors.kafka.log_ends import LATEST, offsets_of
from delay_devtools.drill.wire import Header, Place
from delayservice.base.errors import KafkaEdgeError

TIMEOUT_S: Final = 120.0
_QUIET: Final[Mapping[str, str | int | float]] = {"log_level": 0}
_POLL_EVERY: Final = 1_000
_TICK_S: Final = 0.01
_KNOWN_S: Final = 30.0
"""Time limit in which every broker knows a new topic, in s."""


@dataclass(slots=True)
class Ends:
    """Next offsets of partitions, and offsets without a committed record.

    Attributes:
        next: next offset of each partition that was written to; others are at 0.
        holes: offsets of transaction markers and of records of aborted transactions, by topic and
            partition.
    """

    next: dict[Place, int] = field(default_factory=dict)
    holes: dict[Place, list[int]] = field(default_factory=dict)

    def take(self, place: Place) -> int:
        """Return the next offset of a partition, for a record that is written now, and advance it
        by one.
        """
        offset = self.next.get(place, 0)
        self.next[place] = offset + 1
        return offset

    def skip(self, place: Place) -> None:
        """Advance a partition's next offset past the marker that ends a transaction, and add that
        offset to ``holes``.
        """
        self.holes.setdefault(place, []).append(self.take(place))


class CountedWriter:
    """Producer that counts offsets. Its records are in the log for certain only after ``flush``, or
    after the transaction.

    Args:
        bootstrap: brokers.
        ends: next offsets, shared by all writers to the same topics; only one of them may write at
            a time.
        transactional: whether all records are written in transactions.
    """

    def __init__(self, bootstrap: str, ends: Ends, *, transactional: bool) -> None:
        self._ends = ends
        self._failed: list[KafkaError] = []
        self._taken: dict[Place, list[int]] = {}
        self._written = 0
        options: dict[str, Any] = {
            **_QUIET,
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 20,
            "compression.type": "lz4",
            "queue.buffering.max.messages": 500_000,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: self._failed.append(error),
        }
        if transactional:
            options["transactional.id"] = f"drill-{uuid.uuid4().hex}"
            options["transaction.timeout.ms"] = 300_000
        self._producer = Producer(options)
        self._admin = AdminClient({**_QUIET, "bootstrap.servers": bootstrap})
        if transactional:
            self._producer.init_transactions(TIMEOUT_S)

    def write(
        self,
        place: Place,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[Header] = (),
        at_ms: int = 0,
    ) -> int:
        """Queue a record for writing, with the timestamp ``at_ms`` (epoch milliseconds; 0: now);
        return the offset that it gets.
        """
        topic, partition = place
        produce_patiently(
            self._producer, topic, value, key, partition, headers=list(headers), timestamp=at_ms
        )
        self._written += 1
        if self._written % _POLL_EVERY == 0:
            self._producer.poll(0)
        offset = self._ends.take(place)
        self._taken.setdefault(place, []).append(offset)
        return offset

    def flush(self) -> None:
        """Wait until the brokers have acknowledged all records.

        Raises:
            KafkaEdgeError: the brokers refuse a record, or do not answer.
        """
        left = self._producer.flush(TIMEOUT_S)
        if left or self._failed:
            why = self._failed[0] if self._failed else f"{left} records wait"
            raise KafkaEdgeError(f"the drill's records can't be written: {why}; look at the broker")
        self._taken.clear()

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
        """Write the records of the context in a transaction; at its end commit it, or abort it if
        ``commit`` is False, and wait for its markers. Note its offsets without a committed record
        in ``Ends.holes``.

        Raises:
            KafkaEdgeError: the brokers refuse the transaction, or do not answer.
        """
        self._taken.clear()
        try:
            self._producer.begin_transaction()
            yield
            self._producer.flush(TIMEOUT_S)
            if commit:
                self._producer.commit_transaction(TIMEOUT_S)
            else:
                self._producer.abort_transaction(TIMEOUT_S)
        except KafkaException as exc:
            raise KafkaEdgeError(
                f"the drill's transaction failed: {exc.args[0]}; look at the broker"
            ) from exc
        for place, offsets in self._taken.items():
            if not commit:
                self._ends.holes.setdefault(place, []).extend(offsets)
            self._ends.skip(place)
        self._await_markers()
        self._taken.clear()

    def _await_markers(self) -> None:
        """Wait until the markers of the ended transaction are in the log, so that other writers may
        write.

        Raises:
            KafkaEdgeError: a marker is missing after ``TIMEOUT_S`` seconds.
        """
        awaited = {place: self._ends.next[place] for place in self._taken}
        deadline_s = time.monotonic() + TIMEOUT_S
        tick = threading.Event()
        while awaited:
            found = offsets_of(self._admin, awaited, LATEST)
            awaited = {place: end for place, end in awaited.items() if found[place] < end}
            if awaited and time.monotonic() > deadline_s:
                topic, partition = min(awaited)
                raise KafkaEdgeError(
                    f"{topic}:{partition} got no marker within {TIMEOUT_S:.0f} s of a commit; look "
                    "at the broker"
                )
            if awaited:
                tick.wait(_TICK_S)


class TopicAdmin:
    """Admin client that creates, checks and deletes a drill's topics."""

    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({**_QUIET, "bootstrap.servers": bootstrap})
        self._made: list[str] = []

    def make(self, counts: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]) -> None:
        """Create topics. ``counts`` has the number of partitions, ``configs`` the configuration, by
        topic name; a topic without an entry in ``configs`` gets the broker's defaults.

        Raises:
            KafkaEdgeError: a topic can't be created.
        """
        new = [NewTopic(n, c, config=dict(configs.get(n, {}))) for n, c in counts.items()]
        try:
            for future in self._admin.create_topics(new, operation_timeout=TIMEOUT_S).values():
                future.result(TIMEOUT_S)
        except KafkaException as exc:
            raise KafkaEdgeError(
                f"the drill's topics can't be made: {exc.args[0]}; give this user Create on the "
                "cluster, or leave --bootstrap out"
            ) from exc
        self._made += counts

    def id_of(self, topic: str) -> str:
        """Return Kafka's id of a topic, waiting until the broker knows a new topic.

        Raises:
            KafkaEdgeError: no broker knows the topic in time.
        """
        deadline_s = time.monotonic() + _KNOWN_S
        tick = threading.Event()
        while True:
            described = self._admin.describe_topics(TopicCollection([topic]))
            try:
                return str(described[topic].result(TIMEOUT_S).topic_id)
            except KafkaException as exc:
                is_new = exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not is_new or time.monotonic() > deadline_s:
                    raise KafkaEdgeError(f"{topic} can't be described: {exc.args[0]}") from exc
            tick.wait(_TICK_S)

    def check(self, ends: Ends) -> None:
        """Check that the partitions in ``ends`` end at the counted offsets.

        Raises:
            KafkaEdgeError: a log has another end, so another process writes to it.
        """
        found = offsets_of(self._admin, ends.next, LATEST)
        for (topic, partition), counted in ends.next.items():
            if found[topic, partition] != counted:
                raise KafkaEdgeError(
                    f"{topic}:{partition} ends at {found[topic, partition]}, and the drill wrote "
                    f"up to {counted}: something else writes to its topics; use another cluster"
                )

    def forget(self, place: Place, stop: int) -> None:
        """Delete the records of a partition below the offset ``stop``, as retention does.

        Raises:
            KafkaEdgeError: the brokers refuse it.
        """
        asked = [TopicPartition(*place, stop)]
        try:
            for future in self._admin.delete_records(asked, operation_timeout=TIMEOUT_S).values():
                future.result(TIMEOUT_S)
        except KafkaException as exc:
            raise KafkaEdgeError(
                f"the first records of {place[0]} can't be deleted: {exc.args[0]}; give this user "
                "Delete on it"
            ) from exc

    def delete(self) -> None:
        """Delete all topics that ``make`` has created.

        Raises:
            KafkaException: the brokers refuse it.
        """
        for future in self._admin.delete_topics(self._made, operation_timeout=TIMEOUT_S).values():
            future.result(TIMEOUT_S)
