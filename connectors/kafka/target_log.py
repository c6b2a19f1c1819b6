"""Logs events of target topics, and reads the settings of those topics."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    ConfigResource,
    ResourceType,
)

from connectors.kafka.errors import answer_of
from connectors.kafka.topic_terms import CONFIGS
from delayservice.engine.outcome import Target

# Largest number of target topics whose metadata are kept, and of topics that wait for a look-up.
# Beyond it a tenth is dropped: first those that can't be written to, then the oldest metadata.
KNOWN_MAX: Final = 10_000
_TOLD_PER_S: Final = 1.0
# Log lines about bad targets allowed at once; each second allows ``_TOLD_PER_S`` more.
_TOLD_AT_ONCE: Final = 20

_log = structlog.get_logger(__name__)


class TargetLog:
    """Logger of target problems, which logs each problem once until it is over."""

    def __init__(self, now_s: float) -> None:
        self._blocked: set[Target] = set()
        # Topics whose settings can't be read.
        self._unread: set[str] = set()
        self._unlogged = 0
        self._allowed = float(_TOLD_AT_ONCE)
        self._allowed_s = now_s

    def fits(self, target: Target) -> None:
        self._blocked.discard(target)

    def blocked(self, target: Target, why: str, now_s: float) -> None:
        # A flood of bad targets must not fill the log: lines beyond the limit are only counted.
        if target in self._blocked:
            return
        if len(self._blocked) >= KNOWN_MAX:
            self._blocked.clear()
        self._blocked.add(target)
        gained = (now_s - self._allowed_s) * _TOLD_PER_S
        self._allowed, self._allowed_s = min(self._allowed + gained, _TOLD_AT_ONCE), now_s
        if self._allowed < 1:
            self._unlogged += 1
            return
        self._allowed -= 1
        more, self._unlogged = self._unlogged, 0
        name = f"{target[0]}:{target[1]}"
        _log.warning("target_blocked", target=name, why=why, others_before=more)

    def read(self, topic: str) -> None:
        self._unread.discard(topic)

    def not_read(self, topic: str, why: str) -> None:
        if topic not in self._unread:
            if len(self._unread) >= KNOWN_MAX:
                self._unread.clear()
            self._unread.add(topic)
            _log.warning("topic_config_not_read", topic=topic, why=why)


def topic_settings(
    admin: AdminClient, topics: Collection[str], log: TargetLog, timeout_s: float
) -> dict[str, dict[str, str]]:
    """Return those settings in ``CONFIGS`` that each topic has; topics whose settings can't be read
    are left out and logged.
    """
    if not topics:
        return {}
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found = {}
    for resource, future in admin.describe_configs(resources).items():
        try:
            entries = answer_of(future, timeout_s)
        except KafkaException as exc:
            log.not_read(resource.name, str(exc))
            continue
        log.read(resource.name)
        values = {name: entries[name].value for name in CONFIGS if name in entries}
        found[resource.name] = {n: value for n, value in values.items() if value is not None}
    return found
