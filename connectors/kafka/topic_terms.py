"""Checks records against the settings of their topics before they are sent, since a refusal by a
broker would abort the transaction with all other records too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from connectors.kafka.batch_size import batch_bytes
from delayservice.contract.codes import TARGET_LATER, TARGET_REFUSED, TOO_LARGE
from delayservice.contract.entry import Headers

BATCH_BYTES: Final = 1_000_000
"""Largest size of a batch that the client makes for a partition, in bytes."""
CONFIGS: Final = ("max.message.bytes", "cleanup.policy", "min.insync.replicas")
"""Names of the topic settings that are read."""
_COMPRESSION: Final = ("compression.type", "compression.codec")


def compresses(client: Mapping[str, str]) -> bool:
    """Return whether a client with these librdkafka options compresses what it sends."""
    return any(client.get(name, "none") != "none" for name in _COMPRESSION)


class Terms(NamedTuple):
    """The limits of a topic.

    Attributes:
        batch_bytes_max: size of the largest batch, ``max.message.bytes``.
        needs_key: whether records need a key, as the topic is compacted.
    """

    batch_bytes_max: int
    needs_key: bool

    @property
    def is_usual(self) -> bool:
        """Return whether the topic takes batches of ``BATCH_BYTES``, and records without a key."""
        return self.batch_bytes_max >= BATCH_BYTES and not self.needs_key


class TopicTerms:
    """Limits of topics, and the bytes in the open transaction for topics that take small batches.

    librdkafka never splits a batch that is larger than its topic allows. So a transaction contains
    at most one batch for such a topic, over all its partitions; its other records go into later
    transactions.

    Args:
        compresses: whether the client compresses; then record sizes are unknown before sending.
    """

    def __init__(self, *, compresses: bool) -> None:
        self._compresses = compresses
        self._terms: dict[str, Terms] = {}
        self._batched: dict[str, int] = {}
        """Bytes in the open transaction, by topic."""

    def learn(self, topic: str, config: Mapping[str, str]) -> bool:
        """Store the settings of a topic; return whether its limits have changed."""
        limit = int(config.get("max.message.bytes", BATCH_BYTES))
        terms = Terms(limit, "compact" in config.get("cleanup.policy", ""))
        before = self._terms.get(topic)
        self._terms[topic] = terms
        return before is not None and before != terms

    def forget(self, topics: Iterable[str]) -> None:
        """Forget the limits of these topics."""
        for topic in topics:
            self._terms.pop(topic, None)

    def __contains__(self, topic: str) -> bool:
        """Return whether the limits of a topic are known."""
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
        as part of the open transaction.
        """
        terms = self._terms.get(topic)
        if terms is None:
            return None
        if terms.needs_key and key is None:
            return TARGET_REFUSED, f"topic {topic} is compacted and takes no record without a key"
        size, limit = batch_bytes(key, value, headers), terms.batch_bytes_max
        if size > limit and not self._compresses:
            return TOO_LARGE, f"{size} bytes, and max.message.bytes of {topic} is {limit}"
        if limit >= BATCH_BYTES:
            return None
        batched = self._batched.get(topic, 0)
        if batched and batched + size > limit:
            return TARGET_LATER, f"the transaction has as much for {topic} as it takes at once"
        self._batched[topic] = batched + size
        return None

    def flushed(self) -> None:
        """Note that the transaction has ended: bytes for each topic are counted from 0 again."""
        self._batched.clear()
