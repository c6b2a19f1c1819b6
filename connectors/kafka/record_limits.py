"""Keeps the largest batch size of each topic that refused a batch as too large. A topic refuses all
records of such a batch together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from connectors.kafka.batch_size import batch_bytes
from connectors.kafka.targets import TargetTopics
from delayservice.engine.outcome import Output

# Number of topics whose limits are kept; beyond, all are dropped and learned anew.
_LIMITS_MAX: Final = 1_000
_NO_LIMIT: Final = 2**31


class RecordLimits:
    """Limits of batch sizes, in bytes, for topics that refused a batch.

    librdkafka never splits a batch that is larger than its topic allows. Without a limit here,
    small records would be refused together again and again.
    """

    def __init__(self, targets: TargetTopics, *, compresses: bool) -> None:
        self._targets = targets
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
        limit = self._targets.record_bytes_max(topic)
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
