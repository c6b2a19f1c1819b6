"""Delay topics and other findings of one look at the cluster's topics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    TopicMetadata,
)

Brokers: TypeAlias = tuple[tuple[int | None, tuple[int, ...]], ...]
"""Leader (None: it has none now) and replicas of each partition, in order."""


@dataclass(frozen=True, slots=True)
class ServedTopic:
    """A delay topic as the cluster has it now.

    Attributes:
        problems: why it can't be served, one sentence each; empty when it can.
        risks: why records may be lost, one sentence each: a topic that is served goes on, with an
            alarm, and another one is not begun.
    """

    name: str
    topic_id: str
    partitions: int
    problems: tuple[str, ...]
    brokers: Brokers = ()
    risks: tuple[str, ...] = ()

    def at_risk_refused(self) -> ServedTopic:
        """Return this topic, its risks counted as problems."""
        return replace(self, problems=self.problems + self.risks, risks=())


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings that stay the same while a worker lives.

    Attributes:
        checkpoint_partitions: of the checkpoint topic.
        places: partitions of all delay topics together, as of its start.
    """

    checkpoint_partitions: int
    places: int


@dataclass(frozen=True, slots=True)
class Look:
    """The findings of one look at the cluster's topics.

    Attributes:
        topics: every delay topic, judged.
        own_problems: what is wrong with the topics of checkpoints and claims, one sentence each.
        outlet_problems: what keeps dead letters and outcomes from being written, one sentence each.
    """

    topics: Sequence[ServedTopic]
    own_problems: tuple[str, ...] = ()
    outlet_problems: tuple[str, ...] = ()


def copies_of(brokers: Brokers) -> int:
    """Return how many replicas each partition has at least."""
    return min((len(replicas) for _, replicas in brokers), default=0)


def brokers_of(topic: TopicMetadata) -> Brokers:
    """Return leader and replicas of each partition of a topic."""
    partitions = [topic.partitions[number] for number in sorted(topic.partitions)]
    return tuple(
        (None if p.leader < 0 else p.leader, tuple(sorted(p.replicas))) for p in partitions
    )
