"""Judge of a smoke test: reads target topics as any consumer does, without code of the service.

It compares the sent records and their append times (from delivery reports) with what a consumer
receives: each record exactly once, never early, byte for byte.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from delayservice.base.errors import ClusterError
from delayservice.smoke.sending import QUIET, UID_HEADER, Planned

_STALL_S: Final = 60.0
_TOPICS_S_MAX: Final = 30.0
_LOOK_S: Final = 0.1
_ADDED: Final = frozenset(
    {"delay-due-at", "delay-source", "delay-settles", "delay-id", "delay-attempt"}
)


@dataclass(frozen=True, slots=True)
class Arrival:
    """Times of one received record, epoch milliseconds: due time in its header, its timestamp when
    the service wrote it, and when the consumer received it.
    """

    due_ms: int
    produced_ms: int
    seen_ms: int


@dataclass(slots=True)
class SmokeVerdict:
    """Result of a smoke test. Records are named by uid, the value of their header ``load-uid``.

    ``altered`` came changed, in another topic, or with another due time; ``strangers`` were not
    sent.
    """

    arrivals: dict[bytes, Arrival] = field(default_factory=dict)
    lost: list[bytes] = field(default_factory=list)
    duplicated: list[bytes] = field(default_factory=list)
    early: list[bytes] = field(default_factory=list)
    altered: list[bytes] = field(default_factory=list)
    strangers: list[bytes] = field(default_factory=list)

    @property
    def is_good(self) -> bool:
        wrong = (self.lost, self.duplicated, self.early, self.altered, self.strangers)
        return not any(wrong)


def quantile(ascending: Sequence[int], fraction: float) -> int:
    """Return the smallest of the values with the ``fraction`` (0 to 1) of all values at or below
    it; 0: there are no values.
    """
    if not ascending:
        return 0
    return ascending[max(int(len(ascending) * fraction + 0.999999) - 1, 0)]


class Judge:
    """Consumer that reads target topics, and compares their records with those that were sent.
    ``from_end``: skip the records that the topics hold already.
    """

    def __init__(self, bootstrap: str, targets: Sequence[str], *, from_end: bool = False) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "judge",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "check.crcs": True,
            },
            logger=QUIET,
        )
        partitions = self._partitions_of(targets)
        if from_end:
            for place in partitions:
                place.offset = self._end_of(place)
        self._starts = {(place.topic, place.partition): place.offset for place in partitions}
        self._partitions = len(partitions)
        self._consumer.assign(partitions)
        self._arrivals: dict[bytes, list[tuple[Arrival, Any]]] = {}
        self._ended: set[tuple[str, int]] = set()

    def _partitions_of(self, targets: Sequence[str]) -> list[TopicPartition]:
        deadline_s = time.monotonic() + _TOPICS_S_MAX
        tick = threading.Event()  # awaited with a bound: the condition lies in other processes
        while True:
            try:
                found = self._consumer.list_topics(timeout=_TOPICS_S_MAX).topics
            except KafkaException:
                found = {}
            missing = [name for name in targets if name not in found or found[name].error]
            if not missing:
                return [TopicPartition(t, p, 0) for t in targets for p in found[t].partitions]
            if time.monotonic() > deadline_s:
                raise ClusterError(f"there is no topic {', '.join(missing)}: create it first")
            tick.wait(_LOOK_S)

    def _end_of(self, place: TopicPartition) -> int:
        # Asks again while Kafka can't say, as without a leader.
        deadline_s = time.monotonic() + _TOPICS_S_MAX
        tick = threading.Event()  # awaited with a bound: the condition lies in other processes
        while True:
            try:
                return self._consumer.get_watermark_offsets(place, timeout=_TOPICS_S_MAX)[1]
            except KafkaException as exc:
                if time.monotonic() > deadline_s:
                    where = f"{place.topic}/{place.partition}"
                    raise ClusterError(f"{where} has no end to read from: {exc}") from exc
            tick.wait(_LOOK_S)
            # librdkafka may answer from what it learnt before the topic had leaders: naming a topic
            # makes it ask again. An error here is that of the next attempt.
            with suppress(KafkaException):
                self._consumer.list_topics(place.topic, timeout=_TOPICS_S_MAX)

    @property
    def seen(self) -> int:
        return len(self._arrivals)

    def read(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        messages = [first, *self._consumer.consume(10_000, 0)]
        # Read the clock after the poll: a record that came meanwhile would seem early otherwise.
        seen_ms = time.time_ns() // 1_000_000
        for message in messages:
            self._take(message, seen_ms)

    def _take(self, message: Any, seen_ms: int) -> None:  # noqa: ANN401  # the client's optional fields
        error = message.error()
        place = (message.topic(), message.partition())
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                self._ended.add(place)
            return
        self._ended.discard(place)
        headers = message.headers() or []
        named = dict(headers)
        arrival = Arrival(int(named["delay-due-at"]), message.timestamp()[1], seen_ms)
        self._arrivals.setdefault(named[UID_HEADER], []).append((arrival, message))

    @contextmanager
    def reading(self, progress: Callable[[int], None]) -> Iterator[None]:
        """Read on a separate thread while the ``with`` block runs. ``progress`` is called with the
        number of distinct records received so far.
        """
        done = threading.Event()

        def read_on() -> None:
            while not done.is_set():
                self.read(0.1)
                progress(self.seen)

        reader = threading.Thread(target=read_on, name="judge")
        reader.start()
        try:
            yield
        finally:
            done.set()
            reader.join()

    def read_to_end(self, expected: int, progress: Callable[[int], None]) -> None:
        """Read until ``expected`` distinct records came, or no new one for a minute; then read on
        to the end of every partition. Raises ``ClusterError`` if the ends were not reached within
        two minutes after the last new record.
        """
        heard_s = time.monotonic()
        before = self.seen
        while self.seen < expected and time.monotonic() - heard_s < _STALL_S:
            self.read(0.2)
            if self.seen != before:
                before, heard_s = self.seen, time.monotonic()
                progress(before)
        self._ended.clear()
        self._rewind_to_position()
        while len(self._ended) < self._partitions:
            self.read(0.2)
            if time.monotonic() - heard_s > 2 * _STALL_S:
                raise ClusterError(
                    "the end of the target topics was not reached within two minutes after the "
                    "last record: do all their partitions have a leader?"
                )

    def _rewind_to_position(self) -> None:
        # Assigned again, so that the ends of the partitions are reported again.
        positions = self._consumer.position(self._consumer.assignment())
        for place in positions:
            place.offset = max(place.offset, self._starts[place.topic, place.partition])
        self._consumer.assign(positions)

    def verdict(self, sent: Sequence[tuple[Planned, int]]) -> SmokeVerdict:
        """Return how the received records differ from ``sent``, pairs of a record and its append
        time, epoch ms.
        """
        verdict = SmokeVerdict()
        expected = {planned.uid for planned, _ in sent}
        verdict.strangers = [uid for uid in self._arrivals if uid not in expected]
        for planned, appended_ms in sent:
            arrivals = self._arrivals.get(planned.uid)
            if not arrivals:
                verdict.lost.append(planned.uid)
                continue
            if len(arrivals) > 1:
                verdict.duplicated.append(planned.uid)
            arrival, message = arrivals[0]
            verdict.arrivals[planned.uid] = arrival
            due_ms = appended_ms + planned.delay_ms
            if any(one.produced_ms < due_ms or one.seen_ms < due_ms for one, _ in arrivals):
                verdict.early.append(planned.uid)
            if arrival.due_ms != due_ms or _is_altered(planned, message):
                verdict.altered.append(planned.uid)
        return verdict

    def close(self) -> None:
        self._consumer.close()


def _is_altered(planned: Planned, message: Any) -> bool:  # noqa: ANN401  # the client's optional fields
    own = tuple(header for header in message.headers() if header[0] not in _ADDED)
    arrived = (message.topic(), message.key(), message.value(), own)
    return arrived != (planned.target, planned.key, planned.value, planned.headers)
