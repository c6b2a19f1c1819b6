"""The newest result of the Spark audit, for the metrics of a node."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec
import structlog
from confluent_kafka import Consumer, KafkaException, TopicPartition

from connectors.kafka.clients import consumer_client, values_of
from connectors.kafka.source import ASK_TIMEOUT_S, consumer_config

_LOOK_BACK: Final = 10_000
"""Records before the end among which the newest summary is looked for; findings come before it."""
_WAIT_S: Final = 1.0
_RETRY_S: Final = 10.0

_log = structlog.get_logger(__name__)


class AuditSummary(msgspec.Struct):
    """What an audit came to.

    Attributes:
        at_ms: when, epoch milliseconds.
        records: source records that were audited.
        findings: how many of each kind; none: all is well.
        ranges: ``[topic, partition, start, stop]`` of what was audited, because something seemed
            wrong with it; none: all was.
    """

    at_ms: int
    records: int
    findings: dict[str, int]
    ranges: tuple[tuple[str, int, int, int], ...] = ()


class AuditSummaries:
    """The newest audit of everything, and the newest of each range since."""

    def __init__(self) -> None:
        self._whole: AuditSummary | None = None
        self._ranges: dict[tuple[tuple[str, int, int, int], ...], AuditSummary] = {}

    def add(self, summary: AuditSummary) -> None:
        """A later one."""
        if summary.ranges:
            self._ranges[summary.ranges] = summary
        else:
            self._whole = summary
            self._ranges.clear()

    def together(self) -> AuditSummary:
        """All of them as one."""
        parts = [one for one in (self._whole, *self._ranges.values()) if one is not None]
        found: Counter[str] = Counter()
        for part in parts:
            found.update(part.findings)
        records = self._whole.records if self._whole is not None else 0
        return AuditSummary(max(part.at_ms for part in parts), records, dict(found))


class _Said(AuditSummary, tag_field="kind", tag="summary"):
    """As the audit topic has it; other kinds of records are no summaries."""


_decode = msgspec.json.Decoder(_Said).decode


class AuditNews:
    """Reads the audit topic; a thread of its own. Without the topic there is no news.

    Args:
        topic: the audit topic.
        client: options of the client.
        name: of the client.
    """

    def __init__(self, topic: str, client: Mapping[str, str], name: str) -> None:
        self.newest: AuditSummary | None = None
        self._summaries = AuditSummaries()
        self._topic = topic
        self._config = consumer_config(client, f"audits-{name}") | {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 1_000,
        }
        threading.Thread(target=self._run, name="audit-news", daemon=True).start()

    def _run(self) -> None:
        consumer = consumer_client(self._config)
        while True:
            try:
                self._read(consumer)
            except KafkaException as exc:
                _log.debug("audit_topic_not_read", topic=self._topic, why=str(exc))
            time.sleep(_RETRY_S)

    def _read(self, consumer: Consumer) -> None:
        place = TopicPartition(self._topic, 0)
        low, high = consumer.get_watermark_offsets(place, timeout=ASK_TIMEOUT_S)
        place.offset = max(low, high - _LOOK_BACK)
        consumer.assign([place])
        while True:
            for value in values_of(consumer.consume(1_000, _WAIT_S)):
                self._take(value)

    def _take(self, value: bytes) -> None:
        try:
            said = _decode(value)
        except (msgspec.DecodeError, ValueError):
            return  # a finding, or something newer than this version
        self._summaries.add(said)
        self.newest = self._summaries.together()
