"""Data classes for the cluster's topics: delay topics, numbers of partitions, and results of a
check.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    TopicMetadata,
)

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
class Layout:
    """Numbers of partitions that stay the same during a worker's lifetime."""

    # Partitions of the checkpoint topic.
    checkpoint_partitions: int
    # Partitions of all delay topics together, at the worker's start.
    places: int


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one check of the cluster's topics."""

    # Every delay topic, including missing ones that the settings name.
    topics: Sequence[ServedTopic]
    # Problems of the checkpoint and claims topics, one sentence each.
    own_problems: tuple[str, ...] = ()
    # Reasons why dead letters and outcomes can't be written, one sentence each.
    outlet_problems: tuple[str, ...] = ()
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
