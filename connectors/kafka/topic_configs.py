"""Configurations with which topics are created, and rules for those of existing ones and brokers.

The service's promises rest on logs that keep what brokers acknowledged. A node looks once, when it
starts, at the settings by which Kafka may lose that, or leave a transaction open, and goes on:
nobody but the operator can change them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import structlog
from confluent_kafka import KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    ResourceType,
)

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.topic_facts import ask_configs, brokers_of, copies_of, list_topics
from delayservice.base.errors import KafkaEdgeError
from delayservice.config.settings import Settings

# Largest size of the headers that a dead letter adds to its record, in bytes.
LETTER_EXTRA_BYTES: Final = 8 * 1024


class Rule(NamedTuple):
    """Rule for a setting of a topic or broker."""

    setting: str
    # Whether a value is bad. The value of a missing setting is empty.
    is_bad: Callable[[str], bool]
    # What follows from a bad value, and what to do.
    text: str


_DATED: Final = Rule(
    "message.timestamp.type",
    lambda value: value != "LogAppendTime",
    "must be LogAppendTime: retention, delays and clocks go by the brokers' time of a record",
)
_COMPACTED: Final = Rule(
    "cleanup.policy",
    lambda value: "compact" in value,
    "must be delete: compaction removes what is needed, and takes no record without a key",
)
DELAY_RULES: Final = (_DATED, _COMPACTED)
# Rule for delay topics by which pending records may be lost.
SIZED: Final = Rule(
    "retention.bytes",
    lambda value: int(value or -1) >= 0,
    "must be -1: a burst could delete records that are still pending; bound the topic by time",
)
CURSOR_RULES: Final = (
    Rule(
        "cleanup.policy",
        lambda value: set(value.replace(" ", "").split(",")) != {"compact"},
        "must be compact: retention deletes cursors, and what was delivered is delivered again",
    ),
    _DATED,
)
# Rules for the topics of dead letters and outcomes.
OUTLET_RULES: Final = (
    _COMPACTED,
    Rule(
        "max.message.bytes",
        lambda value: int(value or 0) < LETTER_EXTRA_BYTES,
        f"must be {LETTER_EXTRA_BYTES} at least",
    ),
)
# Name under which the number of a topic's copies is one of its settings.
_COPIES: Final = "replication.factor"
_VERIFICATION: Final = "transaction.partition.verification.enable"
# Values of settings by which Kafka may lose what it acknowledged, what follows, and what to do.
_LOSSES: Final = (
    (_COPIES, "1", "what a lost broker held is lost; set 3"),
    ("min.insync.replicas", "1", "a record is acknowledged that only one broker holds; set 2"),
    ("unclean.leader.election.enable", "true", "a broker that lacks records may lead; set false"),
    (_VERIFICATION, "false", "a transaction may stay open, and hide all behind it; set true"),
)


def broken(rules: Iterable[Rule], config: Mapping[str, str]) -> list[str]:
    """Return a sentence for each rule that a configuration breaks."""
    return [
        f"{setting} is {value}, and {text}"
        for setting, is_bad, text in rules
        if is_bad(value := config.get(setting, ""))
    ]


# Configuration of the topics for outcomes and dead letters. Dead letters are larger than their
# records.
LETTER_CONFIG: Final = {"cleanup.policy": "delete", "max.message.bytes": str(2 * 1024 * 1024)}

# Shortest retention of a created delay topic, in ms: the default of Kafka.
RETENTION_MS: Final = 7 * 86_400_000

DELAY_CONFIG: Final = {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"}

# Configuration of the digest topic. Digests are kept for an hour or more, so that copies can be
# compared at a cut for which each of them has one.
DIGEST_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 * 1024 * 1024),
    "segment.ms": "3600000",
    "min.compaction.lag.ms": "3600000",
}

# Configuration of the repair and audit topics, whose records are kept for 30 days.
SHORT_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": str(30 * 86_400_000)}

# A node that was away for so long would not learn that a pause has ended.
_AWAY_MS_MAX: Final = 30 * 86_400_000
PAUSES_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.ms": "3600000",
    "delete.retention.ms": str(_AWAY_MS_MAX),
}

CHECKPOINT_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}

# Topic of the transaction coordinators; it does not exist before the first transaction.
TRANSACTION_STATE: Final = "__transaction_state"
_NAMED_MAX: Final = 6

_log = structlog.get_logger(__name__)


def warn_of_losses(admin: KafkaAdmin, settings: Settings) -> int:
    """Log a warning with all settings by which the cluster may lose what it acknowledged, or leave
    a transaction open; return their number. What can't be read is left out: nothing depends on it.
    """
    try:
        found = list_topics(admin)
    except KafkaEdgeError as exc:
        _log.info("settings_not_readable", resource="the cluster", why=str(exc))
        return 0
    copies = {
        name: copies_of(brokers_of(topic))
        for name, topic in sorted(found.topics.items())
        if topic.error is None
        and (name in (TRANSACTION_STATE, *settings.topics.own) or is_delay_topic(name, settings))
    }
    # What becomes of the other copies matters where there are others.
    alone = {name: {_COPIES: "1"} for name, count in copies.items() if count == 1}
    configs = alone | _configs(ask_configs(admin, [name for name in copies if name not in alone]))
    # A broker answers only for itself, so each is asked alone. Its other settings are defaults.
    for number in sorted(found.brokers):
        answers = _configs(ask_configs(admin, [str(number)], kind=ResourceType.BROKER))
        for name, config in answers.items():
            configs[f"broker {name}"] = {_VERIFICATION: config.get(_VERIFICATION, "")}
    problems = [
        f"{setting} is {value}: {text} on {_named(bad)}"
        for setting, value, text in _LOSSES
        if (bad := [name for name, config in configs.items() if config.get(setting) == value])
    ]
    if problems:
        _log.warning("acknowledged_may_be_lost", problems=problems)
    return len(problems)


def is_delay_topic(name: str, settings: Settings) -> bool:
    topics = settings.topics
    is_named = name in topics.delay or name in settings.levels.by_topic
    is_found = topics.discover and fnmatchcase(name, topics.pattern) and name not in topics.own
    return is_named or is_found


def _configs(
    answers: Iterable[tuple[str, dict[str, str] | KafkaException]],
) -> dict[str, dict[str, str]]:
    configs = {}
    for name, found in answers:
        if isinstance(found, KafkaException):
            _log.info("settings_not_readable", resource=name, why=str(found))
        else:
            configs[name] = found
    return configs


def _named(names: list[str]) -> str:
    more = len(names) - _NAMED_MAX
    return ", ".join(names[:_NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
