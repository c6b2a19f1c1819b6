"""The rights of the service on topics, as the brokers report them."""

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
    """A topic as this client may see it.

    ``partitions`` is 0 when it does not exist, or may not be described: then ``operations`` is
    empty. ``operations`` is None when the cluster does not tell. ``in_sync`` is how many copies of
    each partition are in sync, 0 where there is no leader; ``copies`` is how many there should be;
    ``leaders`` are the brokers that lead the partitions, -1 where there is none.
    ``topic_id`` tells a recreated topic from the old one; empty: it can't be described.
    """

    partitions: int
    operations: frozenset[AclOperation] | None
    in_sync: tuple[int, ...] = ()
    copies: int = 0
    topic_id: str = ""
    leaders: tuple[int, ...] = ()

    def lacks(self, *needed: AclOperation) -> list[str]:
        """Return the needed rights that are missing, by name."""
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
    """Return how this client may use each of these topics.

    Args:
        admin: asks.
        topics: their names.
        timeout_s: how long to wait for the answer, seconds.
        may_lack: leave out a topic of which the cluster says nothing, as long as it does of others.

    Raises:
        KafkaEdgeError: the cluster does not answer.
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
    """``give the service Read and Write on TOPIC`` for each that lacks a right."""
    told = []
    for name, operations in needed.items():
        lacking = access[name].lacks(*operations)
        if lacking:
            told.append(f"give the service {' and '.join(lacking)} on {name}")
    return told
