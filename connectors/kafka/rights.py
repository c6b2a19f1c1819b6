"""Reads the rights of the service on topics from the brokers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AclOperation,
    AdminClient,
)

from connectors.kafka.errors import UNKNOWN_TARGETS, answer_of, error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S
from delayservice.base.errors import KafkaEdgeError

READ: Final = AclOperation.READ
WRITE: Final = AclOperation.WRITE
_NAMES: Final = {READ: "Read", WRITE: "Write"}


@dataclass(frozen=True, slots=True)
class Access:
    """Facts about a topic and this client's rights on it."""

    # Number of partitions; 0: the topic does not exist or may not be described.
    partitions: int
    # Allowed operations; empty: the topic may not be described; None: the topic does not exist, or
    # the cluster does not report rights.
    operations: frozenset[AclOperation] | None
    # Number of in-sync replicas of each partition; 0: it has no leader.
    in_sync: tuple[int, ...] = ()
    # Number of assigned replicas of the partition that has the fewest.
    copies: int = 0
    # Kafka's id of the topic, which is new if the topic is recreated; empty: the topic can't be
    # described.
    topic_id: str = ""
    # Id of the broker that leads each partition; -1: it has no leader.
    leaders: tuple[int, ...] = ()

    def lacks(self, *needed: AclOperation) -> list[str]:
        # Rights that are unknown count as given.
        if self.operations is None:
            return []
        return [_NAMES[one] for one in needed if one not in self.operations]


_GONE: Final = Access(0, None)
_HIDDEN: Final = Access(0, frozenset())


def ask_access(
    admin: AdminClient,
    topics: Collection[str],
    timeout_s: float = ASK_TIMEOUT_S,
    *,
    may_lack: bool = False,
) -> dict[str, Access]:
    """Return the facts about these topics and this client's rights on them, also of topics that do
    not exist. ``may_lack``: leave out topics without an answer, if other topics have one.
    """
    if not topics:
        return {}
    asked = admin.describe_topics(
        TopicCollection(list(topics)),
        include_authorized_operations=True,
        request_timeout=timeout_s,
    )
    found = {}
    unanswered: KafkaEdgeError | None = None
    for name, future in asked.items():
        try:
            topic = answer_of(future, timeout_s)
        except KafkaException as exc:
            try:
                found[name] = _without_answer(name, error_of(exc))
            except KafkaEdgeError as none:
                unanswered = none
            continue
        allowed = topic.authorized_operations
        operations = None if allowed is None else frozenset(allowed)
        partitions = sorted(topic.partitions, key=lambda one: one.id)
        found[name] = Access(
            len(partitions),
            operations,
            tuple(0 if one.leader is None else len(one.isr) for one in partitions),
            min((len(one.replicas) for one in partitions), default=0),
            str(topic.topic_id),
            tuple(-1 if one.leader is None else one.leader.id for one in partitions),
        )
    if unanswered is not None and not (may_lack and found):
        raise unanswered
    return found


def _without_answer(name: str, error: KafkaError) -> Access:
    if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return _HIDDEN
    if error.code() in UNKNOWN_TARGETS:
        return _GONE
    raise KafkaEdgeError(f"topic {name} can't be described: {error}")


def complaints(
    access: Mapping[str, Access], needed: Mapping[str, Iterable[AclOperation]]
) -> list[str]:
    """Return a text like ``give the service Read and Write on TOPIC`` for each topic with missing
    rights.
    """
    told = []
    for name, operations in needed.items():
        lacking = access[name].lacks(*operations)
        if lacking:
            told.append(f"give the service {' and '.join(lacking)} on {name}")
    return told
