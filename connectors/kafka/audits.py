"""Reads the newest results of audits and of comparisons of copies from the audit topic, for a
node's metrics.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Final

import msgspec
import structlog
from confluent_kafka import Consumer

from connectors.kafka.log_ends import watermarks
from delayservice.metrics.counts import AuditFacts, ReconcileFacts

# Number of records before the end of the audit topic that are searched for the newest summaries.
# Findings precede each summary, and comparisons of copies may be written every minute.
_LOOK_BACK: Final = 50_000

_log = structlog.get_logger(__name__)


class AuditSummary(AuditFacts):
    """Result of one audit. ``ranges``: ``[topic, partition, start, stop]`` of each range of source
    offsets to which the user limited the audit; ``stop`` is exclusive. Empty: everything was
    audited.
    """

    ranges: tuple[tuple[str, int, int, int], ...] = ()


class AuditSummaries:
    """Newest summary of an audit of all records, and of the audits of ranges after it: the newest
    summary for each set of ranges.
    """

    def __init__(self) -> None:
        self._whole: AuditSummary | None = None
        self._ranges: dict[tuple[tuple[str, int, int, int], ...], AuditSummary] = {}

    def add(self, summary: AuditSummary) -> None:
        """Keep the summary of a later audit. One of ranges replaces the kept one of the same
        ranges; one of all records replaces all.
        """
        if summary.ranges:
            self._ranges[summary.ranges] = summary
        else:
            self._whole = summary
            self._ranges.clear()

    def together(self) -> AuditFacts:
        """Return all kept summaries as one: time of the newest, sum of findings by
        kind, and number of records of the audit of all records; 0: no such audit is kept.
        """
        parts = [one for one in (self._whole, *self._ranges.values()) if one is not None]
        found: Counter[str] = Counter()
        for part in parts:
            found.update(part.findings)
        records = self._whole.records if self._whole is not None else 0
        return AuditFacts(max(part.at_ms for part in parts), records, dict(found))


class _Said(AuditSummary, tag_field="kind", tag="summary"):
    """Summary of an audit, as in a record of the audit topic."""


class _Repairs(msgspec.Struct, frozen=True):
    made: int
    stopped: bool


class _Compared(msgspec.Struct, tag_field="kind", tag="reconcile"):
    """Summary of a comparison of copies, as a record of the audit topic contains it."""

    at_ms: int
    findings: dict[str, int]
    # Number of pending records that were compared.
    records: int
    # Number of all pending records.
    pending: int
    # Number of repairs so far, and whether their limit is reached.
    repairs: _Repairs = _Repairs(0, stopped=False)


_decode = msgspec.json.Decoder(_Said | _Compared).decode


class AuditWatcher:
    """Handler of the audit topic's records that keeps the newest results; a
    ``control_topics.ControlTopic``.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        # Result of the newest audits (``AuditSummaries.together``); None: none was read.
        self.newest: AuditFacts | None = None
        # Result of the newest comparison of copies; None: none was read.
        self.copies: ReconcileFacts | None = None
        self._summaries = AuditSummaries()

    def begin(self, consumer: Consumer) -> tuple[int, int]:
        low, high = watermarks(consumer, (self.topic, 0))
        return max(low, high - _LOOK_BACK), high

    def take(self, key: bytes | None, value: bytes | None) -> None:  # noqa: ARG002  # as the protocol
        with suppress(msgspec.DecodeError, ValueError):
            said = _decode(value or b"")
            if isinstance(said, _Compared):
                told = said.at_ms, said.findings, said.records, said.pending
                self.copies = ReconcileFacts(*told, said.repairs.made, said.repairs.stopped)
                return
            self._summaries.add(said)
            self.newest = self._summaries.together()

    def at_end(self) -> None:
        """Do nothing: each summary takes effect when it is read."""

    def failed(self, why: str) -> None:
        _log.debug("audit_topic_not_read", topic=self.topic, why=why)
