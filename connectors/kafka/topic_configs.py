"""Configurations with which topics are created, and checks of existing ones."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

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
