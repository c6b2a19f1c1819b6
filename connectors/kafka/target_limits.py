"""Limits of topics on records and batches, against which records are checked before they are sent,
since a refusal by a broker would abort the transaction with all other records too.

Sizes are those of record batches of version 2, which ``max.message.bytes`` limits: KIP-98 and
``org.apache.kafka.common.record.DefaultRecord``. Lengths are zigzag varints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
# Number of records in a transaction for a topic whose records are sent one by one: the loop waits
# for each, and for all together no longer than ``sink.UNACKNOWLEDGED_S``.
ALONE_MAX: Final = 20
# Number of records after which a bad one is not searched for any more.
SEARCHED_MAX: Final = 1_000
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


# Limits of a topic while they are unknown.
_UNLIMITED: Final = Terms(RECORD_BYTES_MAX, needs_key=False)


class TargetLimits:
    """Limits of topics, and what the open transaction has for topics that take small batches.

    librdkafka never splits a batch that is larger than its topic allows. So a transaction contains
    about one batch for such a topic, over all its partitions; its other records go into later
    transactions. Outputs that settle one record together may exceed that, and are sent as several
    batches (``begins_batch``).

    A topic that refused a record which the broker did not name is a *suspect*: its records are sent
    one by one, ``ALONE_MAX`` in a transaction, until the bad one is found, or a transaction is
    committed that had room for all, or ``SEARCHED_MAX`` were good.
    """

    def __init__(self, *, compresses: bool) -> None:
        self._compresses = compresses
        self._terms: dict[str, Terms] = {}
        # Number of records to send one by one, by topic.
        self.suspects: dict[str, int] = {}
        # Size of the largest batch of each topic that takes less than ``BATCH_BYTES``; 0: each
        # record is one.
        self.small: dict[str, int] = {}
        # Bytes and number of records in the open transaction, by topic in ``small``.
        self._reserved: dict[str, tuple[int, int]] = {}
        # Bytes that may share a batch with the next record, by topic in ``small``.
        self._batched: dict[str, int] = {}

    def learn(self, topic: str, config: Mapping[str, str]) -> bool:
        """Store the settings of a topic; return whether its limits have changed."""
        limit = int(config.get("max.message.bytes", BATCH_BYTES))
        terms = Terms(limit, "compact" in config.get("cleanup.policy", ""))
        before = self._terms.get(topic)
        self._terms[topic] = terms
        self._note_small(topic)
        return before != terms and not (before is None and terms.is_usual)

    def forget(self, topic: str) -> None:
        self._terms.pop(topic, None)
        self._note_small(topic)

    def _note_small(self, topic: str) -> None:
        limit = self._terms.get(topic, _UNLIMITED).batch_bytes_max
        if topic in self.suspects:
            self.small[topic] = 0
        elif limit < BATCH_BYTES:
            self.small[topic] = limit
        else:
            self.small.pop(topic, None)

    def __contains__(self, topic: str) -> bool:
        return topic in self._terms

    def are_usual(self, topic: str) -> bool:
        """Return whether a topic takes batches of ``BATCH_BYTES``, and records without a key; true
        also while its limits are unknown.
        """
        return topic not in self.suspects and self._terms.get(topic, _UNLIMITED).is_usual

    def is_full(self, topic: str) -> bool:
        """Return whether the open transaction takes no further record of a suspect."""
        return topic in self.suspects and self._reserved.get(topic, (0, 0))[1] >= ALONE_MAX

    def refusal(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Headers
    ) -> tuple[str, str] | None:
        """Return why a topic does not take this record now, as code and detail; None: it does, or
        its limits are unknown.
        """
        size = batch_bytes(key, value, headers)
        if size > RECORD_BYTES_MAX:
            return TOO_LARGE, f"{size} bytes, and the service takes at most {RECORD_BYTES_MAX}"
        limit, needs_key = self._terms.get(topic, _UNLIMITED)
        if needs_key and key is None:
            return TARGET_REFUSED, f"topic {topic} is compacted and takes no record without a key"
        if size > limit and not self._compresses:
            return TOO_LARGE, f"{size} bytes, and max.message.bytes of {topic} is {limit}"
        reserved, _ = self._reserved.get(topic, (0, 0))
        if reserved and reserved + size > limit and topic not in self.suspects:
            return TARGET_LATER, f"the transaction has as much for {topic} as it takes at once"
        return None

    def reserve(self, outputs: Iterable[Output]) -> None:
        """Count ``outputs`` as part of the open transaction, which they will be sent in."""
        for output in outputs:
            topic = output[1]
            if topic in self.small:
                size, count = self._reserved.get(topic, (0, 0))
                self._reserved[topic] = size + _bytes_of(output), count + 1

    def begins_batch(self, output: Output) -> bool:
        """Note that an output is sent; return whether those before it must be flushed first, as
        its topic does not take them in one batch.
        """
        topic, size = output[1], _bytes_of(output)
        batched = self._batched.get(topic, 0)
        is_over = bool(batched) and batched + size > self.small.get(topic, BATCH_BYTES)
        self._batched[topic] = size if is_over else batched + size
        return is_over

    def suspect(self, topic: str, *, is_found: bool) -> None:
        """Note that a topic refused a record. ``is_found``: it is known which; those before the
        next commit are sent one by one all the same, as another may be bad.
        """
        self.suspects[topic] = 0 if is_found else SEARCHED_MAX
        self._note_small(topic)

    def committed(self, topics: Iterable[str]) -> None:
        """Note that a transaction with records of ``topics`` was committed."""
        for topic in self.suspects.keys() & topics:
            self.suspects[topic] -= ALONE_MAX
            if not self.is_full(topic) or self.suspects[topic] <= 0:
                del self.suspects[topic]
                self._note_small(topic)

    def end_transaction(self) -> None:
        self._reserved.clear()
        self._batched.clear()


def _bytes_of(output: Output) -> int:
    _, _, _, key, value, headers, _, _ = output
    return batch_bytes(key, value, headers)
