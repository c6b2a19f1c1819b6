from __future__ import annotations

import re
from typing import Final

TOPIC_NAME: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic(topic: str) -> bool:
    """Return whether Kafka allows a topic name (``org.apache.kafka.common.internals.Topic``)."""
    legal = TOPIC_NAME.fullmatch(topic.encode("utf-8", "replace"))
    return legal is not None and topic not in (".", "..")


def is_pattern(name: str) -> bool:
    """Return whether a name has ``*``, ``?`` or ``[``, which no legal topic name has."""
    return any(sign in name for sign in "*?[")


def is_reserved(topic: str) -> bool:
    """Return whether a topic belongs to Kafka (``__*``) or to a delay service (``delay_*``)."""
    return topic.startswith(("__", "delay_"))
