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


class _Audit(AuditFacts, tag_field="kind", tag="summary"):
    """Summary of an audit, as in a record of the audit topic. ``ranges``: ``[topic, partition,
    start, stop]`` of each range of source offsets to which the user limited it; ``stop`` is
    exclusive. Empty: everything was audited.
    """

    ranges: tuple[tuple[str, int, int, int], ...] = ()


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


_decode = msgspec.json.Decoder(_Audit | _Compared).decode


class AuditWatcher:
    """Handler of the audit topic's records that keeps the newest results, a
    ``node_topics.NodeTopic``.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        # Result of the newest audit of all records and of those of ranges after it, as one: time of
        # the newest, sum of findings by kind, and number of records of the audit of all records; 0:
        # no such audit was read. None: no audit was read.
        self.newest: AuditFacts | None = None
        # Result of the newest comparison of copies; None: none was read.
        self.copies: ReconcileFacts | None = None
        # Newest summaries, by the ranges that were audited; none is older than that of all records.
        self._summaries: dict[tuple[tuple[str, int, int, int], ...], _Audit] = {}

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
            if not said.ranges:
                self._summaries.clear()
            self._summaries[said.ranges] = said
            found: Counter[str] = Counter()
            for one in self._summaries.values():
                found.update(one.findings)
            whole = self._summaries.get(())
            self.newest = AuditFacts(said.at_ms, whole.records if whole else 0, dict(found))

    def at_end(self) -> None:
        """Do nothing: each summary takes effect when it is read."""

    def failed(self, why: str) -> None:
        _log.debug("audit_topic_not_read", topic=self.topic, why=why)
