"""The newest results of the Spark audit and of the comparison of copies, for a node's metrics."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from confluent_kafka import Consumer

from connectors.kafka.log_ends import watermarks
from delayservice.metrics.counts import ReconcileFacts

_LOOK_BACK: Final = 50_000
"""Records before the end among which the newest summaries are looked for: findings come before
each, and comparisons of copies may come every minute."""

_log = structlog.get_logger(__name__)


class AuditSummary(msgspec.Struct):
    """The result of an audit.

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
        """Return all of them as one."""
        parts = [one for one in (self._whole, *self._ranges.values()) if one is not None]
        found: Counter[str] = Counter()
        for part in parts:
            found.update(part.findings)
        records = self._whole.records if self._whole is not None else 0
        return AuditSummary(max(part.at_ms for part in parts), records, dict(found))


class _Said(AuditSummary, tag_field="kind", tag="summary"):
    """Return the summary in a record of the audit topic; other kinds of records hold none."""


class _Repairs(msgspec.Struct, frozen=True):
    made: int
    stopped: bool


class _Compared(msgspec.Struct, tag_field="kind", tag="reconcile"):
    """The summary of a comparison of copies in such a record."""

    at_ms: int
    findings: dict[str, int]
    records: int
    pending: int
    repairs: _Repairs = _Repairs(0, stopped=False)


_decode = msgspec.json.Decoder(_Said | _Compared).decode


class AuditWatcher:
    """Follows the audit topic; see ``control_topics.ControlTopic``.

    Args:
        topic: the audit topic.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.newest: AuditSummary | None = None
        self.copies: ReconcileFacts | None = None
        self._summaries = AuditSummaries()

    def begin(self, consumer: Consumer) -> tuple[int, int]:
        """Begin a little before the end; see the protocol."""
        low, high = watermarks(consumer, (self.topic, 0))
        return max(low, high - _LOOK_BACK), high

    def take(self, key: bytes | None, value: bytes | None) -> None:  # noqa: ARG002  # as the protocol
        """Take a summary; leave out findings, and what is newer than this version."""
        with suppress(msgspec.DecodeError, ValueError):
            said = _decode(value or b"")
            if isinstance(said, _Compared):
                told = said.at_ms, said.findings, said.records, said.pending
                self.copies = ReconcileFacts(*told, said.repairs.made, said.repairs.stopped)
                return
            self._summaries.add(said)
            self.newest = self._summaries.together()

    def at_end(self) -> None:
        """Nothing waits for the end."""

    def failed(self, why: str) -> None:
        """Without the topic there is no audit to tell of."""
        _log.debug("audit_topic_not_read", topic=self.topic, why=why)
