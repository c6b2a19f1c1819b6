"""Configurations with which topics are created, and checks of existing ones, and of brokers.

The service's promises rest on logs that keep what brokers acknowledged. A node looks once, when it
starts, at the settings by which Kafka may lose that, or leave a transaction open, and goes on:
nobody but the operator can change them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final

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


def delay_topic_problems(config: Mapping[str, str]) -> Iterable[str]:
    if config.get("message.timestamp.type") != "LogAppendTime":
        yield (
            "message.timestamp.type must be LogAppendTime, for producer timestamps would "
            "decide what retention deletes; alter the topic's configuration"
        )
    if "compact" in config.get("cleanup.policy", ""):
        yield "cleanup.policy must be delete: compaction would remove pending records"


# Configuration of the topics for outcomes and dead letters. Dead letters are larger than their
# records.
LETTER_CONFIG: Final = {"cleanup.policy": "delete", "max.message.bytes": str(2 * 1024 * 1024)}


def outlet_problems(name: str, config: Mapping[str, str] | None) -> Iterable[str]:
    if config is None:
        return  # what is refused there is found out by the refusal
    if "compact" in config.get("cleanup.policy", ""):
        yield (
            f"{name}: cleanup.policy must be delete: compaction removes what was written, and "
            "records without a key are refused"
        )
    limit = int(config.get("max.message.bytes", "0"))
    if limit < LETTER_EXTRA_BYTES:
        yield f"{name}: max.message.bytes is {limit}, and must be {LETTER_EXTRA_BYTES} at least"


def cursor_problems(config: Mapping[str, str]) -> Iterable[str]:
    """Yield the problems of a configuration of the checkpoint or claims topic: it may lose the
    newest record of a key, or lacks the broker's timestamps.
    """
    policy = config.get("cleanup.policy", "")
    if set(policy.replace(" ", "").split(",")) != {"compact"}:
        yield (
            f"cleanup.policy is {policy}, and must be compact: retention would delete cursors, and "
            "what was delivered would be delivered again; alter the topic's configuration"
        )
    if config.get("message.timestamp.type") != "LogAppendTime":
        yield (
            "message.timestamp.type must be LogAppendTime: clocks are compared with the broker's "
            "time of these records; alter the topic's configuration"
        )


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

PAUSES_CONFIG: Final = {"cleanup.policy": "compact", "segment.ms": "3600000"}

CHECKPOINT_CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "segment.ms": "600000",
    "message.timestamp.type": "LogAppendTime",
}

# Number of copies with which a topic survives the loss of a broker while another is restarted.
COPIES_WANTED: Final = 3


def too_small(
    copies: Mapping[str, int], made: Collection[str], partitions: int, brokers: int
) -> Iterable[str]:
    """Yield warnings about topics with fewer copies or partitions than the brokers could keep, with
    the change to make, one sentence each. ``copies``: smallest number of copies of any partition,
    by topic; ``made``: delay topics created at this start, with ``partitions`` each.
    """
    wanted = min(COPIES_WANTED, brokers)
    by_copies: dict[int, list[str]] = {}
    for name, count in copies.items():
        if count < wanted:
            by_copies.setdefault(count, []).append(name)
    for count, names in sorted(by_copies.items()):
        yield (
            f"{', '.join(sorted(names))}: {count} of {wanted} copies that {brokers} brokers can "
            "keep; raise the replication factor with kafka-reassign-partitions.sh, and set "
            "topics.replication_factor for topics to come"
        )
    if made and partitions < brokers:
        yield (
            f"{', '.join(sorted(made))}: created with {partitions} partitions on {brokers} "
            f"brokers, so {partitions} workers deliver at most; add partitions before ids are in "
            "use, and set topics.partitions and delivery.id_partitions"
        )


# Topic of the transaction coordinators; it does not exist before the first transaction.
TRANSACTION_STATE: Final = "__transaction_state"
_VERIFICATION: Final = "transaction.partition.verification.enable"
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
    topics = _configs(ask_configs(admin, copies.keys()))
    # A broker answers only for itself, so each is asked alone.
    brokers = _configs(
        one
        for number in sorted(found.brokers)
        for one in ask_configs(admin, [str(number)], kind=ResourceType.BROKER)
    )
    problems = [*topic_problems(copies, topics), *broker_problems(brokers)]
    if problems:
        _log.warning("acknowledged_may_be_lost", problems=problems)
    return len(problems)


def topic_problems(
    copies: Mapping[str, int], configs: Mapping[str, Mapping[str, str]]
) -> Iterable[str]:
    # ``configs`` lacks topics whose configuration can't be read.
    alone = [name for name in copies if copies[name] == 1]
    if alone:
        yield f"replication factor 1: what a lost broker held is lost ({_named(alone)})"
    several = {name: config for name, config in configs.items() if copies[name] > 1}
    few = [n for n, config in several.items() if config.get("min.insync.replicas") == "1"]
    if few:
        yield (
            "min.insync.replicas is 1: a record is acknowledged that only one broker holds; set 2 "
            f"on {_named(few)}"
        )
    unclean = "unclean.leader.election.enable"
    lossy = [n for n, config in several.items() if config.get(unclean) == "true"]
    if lossy:
        yield (
            f"{unclean} is true: a broker that lacks acknowledged records may become leader; set "
            f"false on {_named(lossy)}"
        )


def broker_problems(configs: Mapping[str, Mapping[str, str]]) -> Iterable[str]:
    off = [name for name, config in configs.items() if config.get(_VERIFICATION) == "false"]
    if off:
        yield (
            f"{_VERIFICATION} is false on brokers {', '.join(off)}: a late record may leave a "
            "transaction open that nothing ends, and nothing behind it is read; set true"
        )


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
