"""What a user's consumer sees, from the first record to the proven end of every topic."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Sequence
from operator import methodcaller
from typing import Any, Final

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    OffsetSpec,
)

from tests.faults.facts import Found
from tests.integration.bench import await_true

_END_S_MAX: Final = 90.0
"""Time limit in s: an open transaction of a killed node hides the end for up to 45 s."""
_LOOK_S: Final = 0.1
_BATCH: Final = 10_000
_headers_of: Final = methodcaller("headers")
"""Called so, an error of the client appears here and not at some later line."""


class Watch:
    """Reads topics ``read_committed`` on a thread of its own, so that ``seen_ms`` is what a
    consumer would see. Brokers may come and go meanwhile.
    """

    def __init__(self, bootstrap: str, topics: Sequence[str]) -> None:
        self.found: list[Found] = []
        self.uids: set[bytes] = set()
        self._bootstrap = bootstrap
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"watch-{uuid.uuid4().hex}",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                "reconnect.backoff.max.ms": 1_000,
                "log_level": 0,
            }
        )
        known = self._consumer.list_topics(timeout=30).topics
        self._places = [(topic, number) for topic in topics for number in known[topic].partitions]
        self._next = dict.fromkeys(self._places, 0)
        self._assign()
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._read_on, name="watch", daemon=True)

    def start(self) -> None:
        """Start reading."""
        self._thread.start()

    def read_to_end(self) -> None:
        """Read on to what was the end of every partition when this was called, then stop.

        Raises:
            AssertionError: an end was not reached in time: perhaps an open transaction hides it.
        """
        self._enough.set()
        self._thread.join()
        ends = self._ends()
        # The end of a partition is told once per arrival there; it is asked for anew.
        self._assign()
        deadline_s = time.monotonic() + _END_S_MAX
        while short := {place for place, end in ends.items() if self._next[place] < end}:
            assert time.monotonic() < deadline_s, f"the ends of {sorted(short)} were not reached"
            self._take(_LOOK_S)

    def close(self) -> None:
        """Close the consumer."""
        self._enough.set()
        if self._thread.is_alive():
            self._thread.join()
        self._consumer.close()

    def _ends(self) -> dict[tuple[str, int], int]:
        """Return the high watermark of each partition, open transactions included."""
        found: dict[tuple[str, int], int] = {}

        def asked() -> bool:
            # A client anew: one that knew an earlier leader is refused as fenced, again and again.
            admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})
            places = {TopicPartition(*place): OffsetSpec.latest() for place in self._places}  # type: ignore[no-untyped-call]
            level = IsolationLevel.READ_UNCOMMITTED
            answers = admin.list_offsets(places, isolation_level=level, request_timeout=10)
            try:
                for place, answer in answers.items():
                    found[place.topic, place.partition] = answer.result(20).offset
            except KafkaException:
                return False
            return True

        await_true(asked, "the ends of the topics are known", _END_S_MAX)
        return found

    def _assign(self) -> None:
        self._consumer.assign(
            [TopicPartition(*place, offset) for place, offset in self._next.items()]
        )

    def _read_on(self) -> None:
        while not self._enough.is_set():
            self._take(_LOOK_S)

    def _take(self, timeout_s: float) -> None:
        first = self._consumer.poll(timeout_s)
        if first is None:
            return
        seen_ms = time.time_ns() // 1_000_000
        for message in [first, *self._consumer.consume(_BATCH, 0)]:
            self._note(message, seen_ms)

    def _note(self, message: Any, seen_ms: int) -> None:
        place = (message.topic(), message.partition())
        error = message.error()
        if error is None:
            self._next[place] = message.offset() + 1
            self._keep(message, seen_ms)
        elif error.code() == KafkaError._PARTITION_EOF:
            # It counts transaction markers, which no consumer is given.
            self._next[place] = max(self._next[place], message.offset())
        else:
            assert not error.fatal(), str(error)

    def _keep(self, message: Any, seen_ms: int) -> None:
        one = Found(
            message.topic(),
            message.partition(),
            message.offset(),
            message.timestamp()[1],
            seen_ms,
            message.key(),
            message.value(),
            tuple(_headers_of(message) or ()),
        )
        self.found.append(one)
        # An outcome has no own headers: it is known by where its cancel or fire was written.
        known = one.uid or one.header("delay-source")
        if known is not None:
            self.uids.add(known)
