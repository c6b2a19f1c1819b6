"""Limits of topics on records and batches, against which records are checked before they are sent,
since a refusal by a broker would abort the transaction with all other records too.

Sizes are those of record batches of version 2, which ``max.message.bytes`` limits: KIP-98 and
``org.apache.kafka.common.record.DefaultRecord``. Lengths are zigzag varints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from connectors.kafka.headers import varint_size
from delayservice.contract.codes import TARGET_LATER, TARGET_REFUSED, TOO_LARGE
from delayservice.contract.entry import Headers
from delayservice.engine.outcome import Output

_HEADER_BYTES: Final = 61
# Bytes of attributes, timestamp delta and offset delta of the first record of a batch.
_FIXED_BYTES: Final = 3


def batch_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Return the size of a batch that holds this record alone, uncompressed, in bytes."""
    body = _FIXED_BYTES + _field(key) + _field(value) + varint_size(len(headers))
    for name, text in headers:
        body += _field(name.encode()) + _field(text)
    return _HEADER_BYTES + varint_size(body) + body


def _field(content: bytes | None) -> int:
    return 1 if content is None else varint_size(len(content)) + len(content)


# Largest size of a batch that the client makes for a partition, in bytes.
BATCH_BYTES: Final = 1_000_000
# Size of the largest record that the client's queue has room for, in bytes.
RECORD_BYTES_MAX: Final = 60_000_000
_COMPRESSION: Final = ("compression.type", "compression.codec")


def compresses(client: Mapping[str, str]) -> bool:
    return any(client.get(name, "none") != "none" for name in _COMPRESSION)


class Terms(NamedTuple):
    """The limits of a topic."""

    # Size of the largest batch, ``max.message.bytes``.
    batch_bytes_max: int
    # Whether records need a key, as the topic is compacted.
    needs_key: bool

    @property
    def is_usual(self) -> bool:
        return self.batch_bytes_max >= BATCH_BYTES and not self.needs_key


class TopicTerms:
    """Limits of topics, and the bytes in the open transaction for topics that take small batches.

    librdkafka never splits a batch that is larger than its topic allows. So a transaction contains
    at most one batch for such a topic, over all its partitions; its other records go into later
    transactions.
    """

    def __init__(self, *, compresses: bool) -> None:
        self._compresses = compresses
        self._terms: dict[str, Terms] = {}
        # Bytes in the open transaction, by topic.
        self._batched: dict[str, int] = {}
        # Bytes of records that may become part of it, as ``refusal`` let them pass, by topic.
        self._reserved: dict[str, int] = {}
        # Topics to which nothing was sent although ``refusal`` had let records pass.
        self._dropped: set[str] = set()

    def learn(self, topic: str, config: Mapping[str, str]) -> bool:
        """Store the settings of a topic; return whether its limits have changed."""
        limit = int(config.get("max.message.bytes", BATCH_BYTES))
        terms = Terms(limit, "compact" in config.get("cleanup.policy", ""))
        before = self._terms.get(topic)
        self._terms[topic] = terms
        return before is not None and before != terms

    def forget(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._terms.pop(topic, None)
            self._dropped.discard(topic)

    def __contains__(self, topic: str) -> bool:
        return topic in self._terms

    def are_usual(self, topic: str) -> bool:
        """Return whether a topic takes batches of ``BATCH_BYTES``, and records without a key; true
        also while its limits are unknown.
        """
        terms = self._terms.get(topic)
        return terms is None or terms.is_usual

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return why a topic does not take this record now, as code and detail; None: it does, or
        its limits are unknown. If the topic takes only small batches, a record that it takes counts
        as part of the open transaction until ``counted`` is called.
        """
        size, terms = batch_bytes(key, value, headers), self._terms.get(topic)
        found = self._never(topic, size, terms, has_key=key is not None)
        if found is not None or terms is None or terms.batch_bytes_max >= BATCH_BYTES:
            return found
        batched = self._batched.get(topic, 0)
        # Outputs that settle one record may exceed the limit together, and are dropped together: if
        # they counted when it is tried again, it would wait for ever. The broker then refuses them
        # as one batch, and ``RecordLimits`` sends them one after the other.
        if topic not in self._dropped:
            batched += self._reserved.get(topic, 0)
        if batched and batched + size > terms.batch_bytes_max:
            return TARGET_LATER, f"the transaction has as much for {topic} as it takes at once"
        self._reserved[topic] = self._reserved.get(topic, 0) + size
        return None

    def _never(
        self, topic: str, size: int, terms: Terms | None, *, has_key: bool
    ) -> tuple[str, str] | None:
        if size > RECORD_BYTES_MAX:
            return TOO_LARGE, f"{size} bytes, and the service takes at most {RECORD_BYTES_MAX}"
        if terms is None:
            return None
        if terms.needs_key and not has_key:
            return TARGET_REFUSED, f"topic {topic} is compacted and takes no record without a key"
        limit = terms.batch_bytes_max
        if size > limit and not self._compresses:
            return TOO_LARGE, f"{size} bytes, and max.message.bytes of {topic} is {limit}"
        return None

    def counted(self, outputs: Iterable[Output]) -> None:
        """Count ``outputs`` as part of the open transaction, and no other records that ``refusal``
        has let pass since the last call: those were dropped.
        """
        if not self._reserved:
            return
        for output in outputs:
            topic = output[1]
            if topic in self._reserved:
                self._batched[topic] = self._batched.get(topic, 0) + _bytes_of(output)
        self._dropped |= self._reserved.keys() - self._batched.keys()
        self._reserved.clear()

    def flushed(self) -> None:
        self._batched.clear()
        self._reserved.clear()


# Number of topics whose limits are kept; beyond, all are dropped and learned anew.
_LIMITS_MAX: Final = 1_000
_NO_LIMIT: Final = 2**31


class RecordLimits:
    """Limits of batch sizes, in bytes, for topics that refused a batch.

    librdkafka never splits a batch that is larger than its topic allows. Without a limit here,
    small records would be refused together again and again.
    """

    def __init__(self, bytes_max: Callable[[str], int | None], *, compresses: bool) -> None:
        self._bytes_max = bytes_max
        self._compresses = compresses
        self._limits: dict[str, int] = {}
        # Bytes that were sent since the last flush and may share a batch with the next record, by
        # topic.
        self._batched: dict[str, int] = {}
        self._refused: set[str] = set()

    def __contains__(self, topic: str) -> bool:
        return topic in self._limits

    def __bool__(self) -> bool:
        return bool(self._limits)

    def note_refused(self, topic: str) -> None:
        # May be called in a delivery report.
        self._refused.add(topic)

    def learn(self) -> None:
        for topic in self._refused:
            self._learn(topic)
        self._refused.clear()

    def _learn(self, topic: str) -> None:
        limit = self._bytes_max(topic)
        if limit is not None:
            if len(self._limits) >= _LIMITS_MAX:
                self._limits.clear()
            self._limits[topic] = limit

    def outgrown(self, outputs: Sequence[Output]) -> dict[int, str]:
        """Return the topic of each output that is larger than its topic allows, by source offset.
        Limits that seem exceeded are looked up again first, as they may have been raised. If the
        client compresses, sizes are unknown and the result is empty.
        """
        if not self._limits or self._compresses:
            return {}
        suspects = [output for output in outputs if self._exceeds(output)]
        for topic in {output[1] for output in suspects}:
            self._learn(topic)
        return {output[7]: output[1] for output in suspects if self._exceeds(output)}

    def _exceeds(self, output: Output) -> bool:
        return _bytes_of(output) > self._limits.get(output[1], _NO_LIMIT)

    def must_flush(self, output: Output) -> bool:
        topic = output[1]
        return self._batched.get(topic, 0) + _bytes_of(output) > self._limits.get(topic, _NO_LIMIT)

    def sent(self, output: Output) -> None:
        topic = output[1]
        self._batched[topic] = self._batched.get(topic, 0) + _bytes_of(output)

    def flushed(self) -> None:
        self._batched.clear()


def _bytes_of(output: Output) -> int:
    _, _, _, key, value, headers, _, _ = output
    return batch_bytes(key, value, headers)
