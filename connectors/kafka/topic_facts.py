"""Facts about topics as brokers report them: partitions, settings, and the service's rights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AclOperation,
    AdminClient,
    ClusterMetadata,
    ConfigResource,
    ResourceType,
    TopicMetadata,
)

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.errors import UNKNOWN_TARGETS, answer_of, error_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S
from delayservice.base.errors import KafkaEdgeError

# Ids of the leader (None: no leader now) and of the replicas of each partition, in order.
Brokers: TypeAlias = tuple[tuple[int | None, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A delay topic as it is in the cluster now."""

    name: str
    # Id of the topic, which is new if the topic is recreated; empty: it is missing.
    topic_id: str
    partitions: int
    # Reasons why the topic can't be served, one sentence each; empty: it can.
    problems: tuple[str, ...]
    # Leader and replicas of each partition.
    brokers: Brokers = ()
    # Reasons why records may be lost, one sentence each. A node goes on serving a topic with risks,
    # and raises an alarm; it does not begin to serve one.
    risks: tuple[str, ...] = ()

    def at_risk_refused(self) -> ServedTopic:
        return replace(self, problems=self.problems + self.risks, risks=())


@dataclass(frozen=True, slots=True)
class PartitionCounts:
    """Numbers of partitions that stay the same during a worker's lifetime."""

    # Partitions of the checkpoint topic.
    checkpoint_partitions: int
    # Partitions of all delay topics together, at the worker's start.
    places: int


class TopicProblem(NamedTuple):
    """Why the service can't use one of its own topics, in one sentence that names it."""

    topic: str
    text: str
    # Whether a node must not start.
    is_fatal: bool = False


@dataclass(frozen=True, slots=True)
class TopicsSnapshot:
    """The result of one check of the cluster's topics."""

    # Every delay topic, including missing ones that the settings name.
    topics: Sequence[ServedTopic]
    # Problems of the checkpoint and claims topics.
    own_problems: tuple[TopicProblem, ...] = ()
    # Reasons why dead letters and outcomes can't be written.
    outlet_problems: tuple[TopicProblem, ...] = ()
    # Ids of the service's own topics, by name; without those that can't be described.
    own_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> dict[str, str]:
        return {**self.own_ids, **{t.name: t.topic_id for t in self.topics if t.topic_id}}


def copies_of(brokers: Brokers) -> int:
    # 0: it has no partitions.
    return min((len(replicas) for _, replicas in brokers), default=0)


def brokers_of(topic: TopicMetadata) -> Brokers:
    partitions = [topic.partitions[number] for number in sorted(topic.partitions)]
    return tuple(
        (None if p.leader < 0 else p.leader, tuple(sorted(p.replicas))) for p in partitions
    )


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
    found: dict[str, Access] = {}
    unanswered = ""
    for name, future in asked.items():
        try:
            topic = answer_of(future, timeout_s)
        except KafkaException as exc:
            code = error_of(exc).code()
            if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = _HIDDEN
            elif code in UNKNOWN_TARGETS:
                found[name] = _GONE
            else:
                unanswered = f"topic {name} can't be described: {exc}"
            continue
        allowed = topic.authorized_operations
        partitions = sorted(topic.partitions, key=lambda one: one.id)
        found[name] = Access(
            len(partitions),
            None if allowed is None else frozenset(allowed),
            tuple(0 if one.leader is None else len(one.isr) for one in partitions),
            min((len(one.replicas) for one in partitions), default=0),
            str(topic.topic_id),
            tuple(-1 if one.leader is None else one.leader.id for one in partitions),
        )
    if unanswered and not (may_lack and found):
        raise KafkaEdgeError(unanswered)
    return found


def topic_ids(admin: AdminClient, topics: Collection[str]) -> dict[str, str]:
    """Return Kafka's ids of those of ``topics`` that exist and may be described; a recreated topic
    has a new id.
    """
    return {name: one.topic_id for name, one in ask_access(admin, topics).items() if one.topic_id}


def complaints(
    access: Mapping[str, Access], needed: Mapping[str, Iterable[AclOperation]]
) -> list[TopicProblem]:
    """Return a text like ``give the service Read and Write on TOPIC`` for each topic with missing
    rights.
    """
    return [
        TopicProblem(name, f"give the service {' and '.join(lacking)} on {name}")
        for name, operations in needed.items()
        if (lacking := access[name].lacks(*operations))
    ]


def list_topics(admin: KafkaAdmin) -> ClusterMetadata:
    """Return the cluster's brokers, and the topics that this client may describe."""
    try:
        return admin.list_topics(timeout=ASK_TIMEOUT_S)
    except KafkaException as exc:
        raise KafkaEdgeError(f"the cluster's topics can't be listed: {admin.explain(exc)}") from exc


def ask_configs(
    admin: AdminClient,
    names: Collection[str],
    timeout_s: float = ASK_TIMEOUT_S,
    kind: ResourceType = ResourceType.TOPIC,
) -> Iterator[tuple[str, dict[str, str] | KafkaException]]:
    """Yield name and configuration of each topic or broker, or the error of its request. Settings
    without a value are left out.
    """
    asked: Mapping[ConfigResource, Future[Any]] = (
        admin.describe_configs([ConfigResource(kind, name) for name in names]) if names else {}
    )
    for resource, future in asked.items():
        try:
            entries = answer_of(future, timeout_s)
        except KafkaException as exc:
            yield resource.name, exc
        else:
            values = {name: entry.value for name, entry in entries.items()}
            yield resource.name, {n: value for n, value in values.items() if value is not None}


def record_bytes_max(admin: AdminClient, topic: str) -> int | None:
    """Return the size of the largest batch that a topic takes, in bytes; None: it can't be read."""
    ((_, found),) = ask_configs(admin, [topic])
    text = None if isinstance(found, KafkaException) else found.get("max.message.bytes")
    return None if text is None else int(text)
