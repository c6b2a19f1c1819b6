"""The type of a header, the names of all headers that the service reads or writes, and the rules of
topic names.

``OUTPUT``, ``COPY_NAMES`` and ``HOME_NAMES`` are never taken from a user's record, so provenance
can't be forged. The names of other systems are in ``input_headers``.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

# The value may be null.
Header: TypeAlias = tuple[str, bytes | None]

DELAY_AT = "delay-at"
DELAY_AFTER = "delay-after"
DELAY_TARGET_TOPIC = "delay-target-topic"
DELAY_TARGET_PARTITION = "delay-target-partition"
DELAY_TARGET_KEY = "delay-target-key"
DELAY_ID = "delay-id"
DELAY_OP = "delay-op"
DELAY_EXPIRES_AT = "delay-expires-at"
DELAY_WINDOW_MS = "delay-window-ms"
DELAY_CRON = "delay-cron"
DELAY_EVERY = "delay-every"
DELAY_TIMES = "delay-times"
DELAY_TIMEZONE = "delay-timezone"
DELAY_BACKOFF = "delay-backoff"
DELAY_RETRIES = "delay-retries"
DELAY_IF = "delay-if"

DELAY_DUE_AT = "delay-due-at"
DELAY_SOURCE = "delay-source"
DELAY_SETTLES = "delay-settles"
DELAY_SHARD = "delay-shard"
DELAY_OUTCOME = "delay-outcome"
DELAY_SETTLED_BY = "delay-settled-by"
DELAY_SETTLED_BY_SOURCE = "delay-settled-by-source"
DELAY_ATTEMPT = "delay-attempt"
DELAY_FIRED_BY = "delay-fired-by"
DELAY_ERROR = "delay-error"
DELAY_ERROR_DETAIL = "delay-error-detail"
# Who asked the admin API for the change that a record makes. For people: it proves nothing.
DELAY_BY = "delay-by"

DELAY_REPLAYED_FROM = "delay-replayed-from"
DELAY_REPLAYS = "delay-replays"
# Marks dead letters as replayed (``replays``).
DELAY_REPLAYED = "delay-replayed"

DELAY_COPY = "delay-copy"
DELAY_COPY_MAC = "delay-copy-mac"

DELAY_HOME = "delay-home"
DELAY_HOME_MAC = "delay-home-mac"

# Dropped from a user's record.
OUTPUT = frozenset(
    {
        DELAY_DUE_AT,
        DELAY_SOURCE,
        DELAY_SETTLES,
        DELAY_SHARD,
        DELAY_ATTEMPT,
        DELAY_FIRED_BY,
        DELAY_ERROR,
        DELAY_ERROR_DETAIL,
    }
)

# A record with one of them is dead-lettered unless the service signed it.
COPY_NAMES = frozenset({DELAY_COPY, DELAY_COPY_MAC})

# Of envelopes (``contract.home``); the same holds.
HOME_NAMES = frozenset({DELAY_HOME, DELAY_HOME_MAC})

TOPIC_NAME: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}")


def is_legal_topic(topic: str) -> bool:
    """Return whether Kafka allows a topic name (``org.apache.kafka.common.internals.Topic``)."""
    legal = TOPIC_NAME.fullmatch(topic.encode("utf-8", "replace"))
    return legal is not None and topic not in (".", "..")


def is_reserved(topic: str) -> bool:
    """Return whether a topic belongs to Kafka (``__*``) or to a delay service (``delay_*``)."""
    return topic.startswith(("__", "delay_"))
