"""Which names of topics are legal, which are patterns, and which are never targets."""

from __future__ import annotations

import re
from typing import Final

TOPIC_NAME: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic(topic: str) -> bool:
    """Kafka's rule for topic names (``org.apache.kafka.common.internals.Topic``)."""
    legal = TOPIC_NAME.fullmatch(topic.encode("utf-8", "replace"))
    return legal is not None and topic not in (".", "..")


def is_pattern(name: str) -> bool:
    """Return whether this is a shell-style pattern; no legal topic name is."""
    return any(sign in name for sign in "*?[")


def is_reserved(topic: str) -> bool:
    """Return whether a topic is Kafka's (``__*``) or a delay service's (``delay_*``)."""
    return topic.startswith(("__", "delay_"))
