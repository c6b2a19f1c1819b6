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

Brokers: TypeAlias = tuple[tuple[int | None, tuple[int, ...]], ...]
"""Ids of the leader (None: no leader now) and of the replicas of each partition, in order."""


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A delay topic as it is in the cluster now.

    Attributes:
        name: name of the topic.
        topic_id: id of the topic, which is new if the topic is recreated; empty: it is missing.
        partitions: number of partitions.
        brokers: leader and replicas of each partition.
        problems: reasons why the topic can't be served, one sentence each; empty: it can.
        risks: reasons why records may be lost, one sentence each. A node goes on serving a topic
            with risks, and raises an alarm; it does not begin to serve one.
    """

    name: str
    topic_id: str
    partitions: int
    problems: tuple[str, ...]
    brokers: Brokers = ()
    risks: tuple[str, ...] = ()

    def at_risk_refused(self) -> ServedTopic:
        """Return this topic with its risks counted as problems."""
        return replace(self, problems=self.problems + self.risks, risks=())


@dataclass(frozen=True, slots=True)
class Layout:
    """Numbers of partitions that stay the same during a worker's lifetime.

    Attributes:
        checkpoint_partitions: partitions of the checkpoint topic.
        places: partitions of all delay topics together, at the worker's start.
    """

    checkpoint_partitions: int
    places: int


@dataclass(frozen=True, slots=True)
class Look:
    """The result of one check of the cluster's topics.

    Attributes:
        topics: every delay topic, including missing ones that the settings name.
        own_problems: problems of the checkpoint and claims topics, one sentence each.
        outlet_problems: reasons why dead letters and outcomes can't be written, one sentence each.
        own_ids: ids of the service's own topics, by name; without those that can't be described.
    """

    topics: Sequence[ServedTopic]
    own_problems: tuple[str, ...] = ()
    outlet_problems: tuple[str, ...] = ()
    own_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def ids(self) -> dict[str, str]:
        """Return the id of each topic that exists, by name."""
        return {**self.own_ids, **{t.name: t.topic_id for t in self.topics if t.topic_id}}


def copies_of(brokers: Brokers) -> int:
    """Return the number of replicas of the partition that has the fewest; 0: no partitions."""
    return min((len(replicas) for _, replicas in brokers), default=0)


def brokers_of(topic: TopicMetadata) -> Brokers:
    """Return the ids of the leader and the replicas of each partition of a topic, in order."""
    partitions = [topic.partitions[number] for number in sorted(topic.partitions)]
    return tuple(
        (None if p.leader < 0 else p.leader, tuple(sorted(p.replicas))) for p in partitions
    )
