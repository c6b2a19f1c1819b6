"""Writing of records whose offsets are known, as defects need them.

No other process writes to the topics of a drill, so offsets are counted, not queried: a record
takes one, and the end of a transaction takes one (its marker) in each partition that it wrote to.
"""

from __future__ import annotations

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


@dataclass(slots=True)
class Ends:
    """Next offsets of partitions; ``holes``: offsets without a committed record."""

    next: dict[Place, int] = field(default_factory=dict)
    holes: dict[Place, list[int]] = field(default_factory=dict)

    def take(self, place: Place) -> int:
        offset = self.next.get(place, 0)
        self.next[place] = offset + 1
        return offset

    def skip(self, place: Place) -> None:
        self.holes.setdefault(place, []).append(self.take(place))


class CountedWriter:
    """Producer that counts offsets. Its records are in the log for certain only after ``flush``, or
    after the transaction. Only one writer may write to the same topics at a time.
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
        left = self._producer.flush(TIMEOUT_S)
        if left or self._failed:
            why = self._failed[0] if self._failed else f"{left} records wait"
            raise KafkaEdgeError(f"the drill's records can't be written: {why}; look at the broker")
        self._taken.clear()

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
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
        # Other writers may write only when the markers are in the log.
        awaited = {place: self._ends.next[place] for place in self._taken}
        deadline_s = time.monotonic() + TIMEOUT_S
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
                time.sleep(_TICK_S)


class TopicAdmin:
    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({**_QUIET, "bootstrap.servers": bootstrap})
        self._made: list[str] = []

    def make(self, counts: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]) -> None:
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
        deadline_s = time.monotonic() + _KNOWN_S
        while True:
            described = self._admin.describe_topics(TopicCollection([topic]))
            try:
                return str(described[topic].result(TIMEOUT_S).topic_id)
            except KafkaException as exc:
                is_new = exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not is_new or time.monotonic() > deadline_s:
                    raise KafkaEdgeError(f"{topic} can't be described: {exc.args[0]}") from exc
            time.sleep(_TICK_S)

    def check(self, ends: Ends) -> None:
        # Another end of a log means that another process writes to it.
        found = offsets_of(self._admin, ends.next, LATEST)
        for (topic, partition), counted in ends.next.items():
            if found[topic, partition] != counted:
                raise KafkaEdgeError(
                    f"{topic}:{partition} ends at {found[topic, partition]}, and the drill wrote "
                    f"up to {counted}: something else writes to its topics; use another cluster"
                )

    def forget(self, place: Place, stop: int) -> None:
        # As retention does.
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
        for future in self._admin.delete_topics(self._made, operation_timeout=TIMEOUT_S).values():
            future.result(TIMEOUT_S)
