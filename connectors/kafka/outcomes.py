"""Reads the outcomes of cancels, fires and replacements from the outcomes topic."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Self

from confluent_kafka import KafkaException, Message, TopicPartition

from connectors.kafka.clients import NO_RECORDS, consumer_client, partitions_of
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import RecordPlace
from delayservice.contract.names import (
    DELAY_OUTCOME,
    DELAY_SETTLED_BY,
    DELAY_SETTLED_BY_SOURCE,
    DELAY_SETTLES,
    DELAY_SHARD,
    DELAY_SOURCE,
    Header,
)

# Longest wait for the cluster's answer to each question, in s.
ANSWER_S: Final = 15.0
_POLL_S: Final = 0.2
_NOT_PENDING: Final = "not_pending"


class Outcomes:
    """Reader of outcomes that are written from now on; a context that closes its consumer."""

    def __init__(self, config: Mapping[str, Any], topic: str, stopping: threading.Event) -> None:
        self._consumer = consumer = consumer_client(config)
        self._topic = topic
        self._stopping = stopping
        try:
            count = partitions_of(consumer, topic, ANSWER_S)
            places = [TopicPartition(topic, number) for number in range(count)]
            for place in places:
                _, place.offset = consumer.get_watermark_offsets(place, timeout=ANSWER_S)
        except (KafkaException, KafkaEdgeError) as exc:
            consumer.close()
            raise KafkaEdgeError(f"{topic} can't be read: {exc}") from exc
        consumer.assign(places)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def of(
        self, controls: Collection[RecordPlace], timeout_s: float, *, replaces: bool
    ) -> dict[RecordPlace, str]:
        """Read until the outcome of every control record is known, ``timeout_s`` is over, or
        ``stopping`` is set; return the names of the known outcomes. ``replaces``: the control
        records replace a pending record, and the outcome is that of the replaced record.
        """
        wanted = {str(one).encode(): one for one in controls}
        told_by = DELAY_SETTLED_BY if replaces else DELAY_SETTLES
        sent_by = DELAY_SETTLED_BY_SOURCE if replaces else DELAY_SOURCE
        found: dict[RecordPlace, str] = {}
        deadline_s = time.monotonic() + timeout_s
        while (
            len(found) < len(wanted)
            and time.monotonic() < deadline_s
            and not self._stopping.is_set()
        ):
            for headers in self._headers():
                named = dict(headers)
                here = b"%b:%b" % (named.get(DELAY_SHARD) or b"", named.get(told_by) or b"")
                # The outcome of a control that was sent home names the place where it was written.
                control = wanted.get(here) or wanted.get(named.get(sent_by) or b"")
                if control is not None:
                    found[control] = (named.get(DELAY_OUTCOME) or b"").decode(errors="replace")
        return found

    def _headers(self) -> Iterator[list[Header]]:
        message = self._consumer.poll(_POLL_S)
        if message is None:
            return
        error = message.error()
        if error is None:
            yield list(message.headers() or [])  # type: ignore[arg-type]  # its stubs allow dicts
        elif error.code() not in NO_RECORDS:
            raise KafkaEdgeError(f"{self._topic} can't be read: {error.str()}")


def place_of(message: Message) -> RecordPlace:
    """Return where an acknowledged record was written. ``KafkaEdgeError``: its acknowledgement
    names no offset.
    """
    topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset()
    # The answer to a first attempt was lost with its connection, and the answer to the second one
    # says only that the record is there (``DUPLICATE_SEQUENCE_NUMBER``).
    if offset is None:
        raise KafkaEdgeError(
            f"it is written to {topic}:{partition} and takes effect, but its outcome can't be "
            "found, as a broker's answer with its offset was lost: look at the record"
        )
    return RecordPlace(topic, partition, offset)


def together(written: Sequence[RecordPlace], told: Mapping[RecordPlace, str]) -> str | None:
    """Return one outcome for the control records ``written`` for one ``delay-id``. ``told``: known
    outcomes, by place. The result is an outcome other than ``not_pending`` if any is known, or
    ``not_pending`` if all records have that; None: not known yet.
    """
    done = next((one for one in told.values() if one != _NOT_PENDING), None)
    if done is not None or not written or len(told) < len(written):
        return done
    return _NOT_PENDING
