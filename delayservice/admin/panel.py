"""What the routes work with: one place that knows the node, the cluster and the log."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.controls import ControlDesk
from connectors.kafka.dead_letters import READ_COMMITTED, DeadLetterTopic
from connectors.kafka.pauses import PauseNews
from connectors.kafka.source import consumer_config, log_bounds, scan_partition
from delayservice.admin.history import History
from delayservice.admin.inquiry import Inquiry
from delayservice.admin.problems import Refusal
from delayservice.core.dead_letters import DeadLetter
from delayservice.core.entry import Row
from delayservice.metrics_hub import MetricsHub
from delayservice.settings import Settings

_TOPICS_FRESH_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Letters:
    """The end of the dead-letter topic: newest first, and which were replayed."""

    letters: list[DeadLetter]
    replayed: Collection[tuple[int, int]]
    total: int
    looked_at: int


class Panel:
    """Answers the routes.

    Args:
        settings: of the node.
        hub: what its workers report.
        inquiry: what its workers are asked.
        history: the last minutes.
        admin: asks Kafka about topics.
        desk: writes controls.
        pauses: what is paused.
        wall_ms: epoch milliseconds.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        hub: MetricsHub,
        inquiry: Inquiry,
        history: History,
        admin: KafkaAdmin,
        desk: ControlDesk,
        pauses: PauseNews,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.settings = settings
        self.hub = hub
        self.inquiry = inquiry
        self.history = history
        self.desk = desk
        self.pauses = pauses
        self.wall_ms = wall_ms
        self._admin = admin
        self._topics: tuple[float, dict[str, int]] = (float("-inf"), {})

    @property
    def delay_topics(self) -> dict[str, int]:
        """Partitions of each delay topic that exists, precise ones first.

        Raises:
            KafkaEdgeError: the cluster does not answer.
        """
        asked_s, topics = self._topics
        if time.monotonic() - asked_s > _TOPICS_FRESH_S:
            names = (*self.settings.topics.delay, *self.settings.levels.by_topic)
            counts = {name: self.desk.partitions(name) for name in names}
            topics = {name: count for name, count in counts.items() if count}
            self._topics = time.monotonic(), topics
        return topics

    def slices_elsewhere(self) -> list[int]:
        """Slices of which this node keeps no copy."""
        here = {facts.metrics.slice for facts in self.hub.facts().slices}
        return [held.slice for held in self.inquiry.members().slices if held.slice not in here]

    def read(self, topic: str, partition: int, offset: int) -> Row:
        """A record of a delay topic, as it was written.

        Raises:
            Refusal: there is none.
            KafkaEdgeError: the cluster does not answer.
        """
        if partition >= self.delay_topics.get(topic, 0):
            raise Refusal(404, f"{topic}:{partition} is no partition of a delay topic")
        start, end = log_bounds(self._admin, topic, partition, READ_COMMITTED)
        if not start <= offset < end:
            raise Refusal(
                404, f"{topic}:{partition} holds offsets from {start} to {end - 1}, not {offset}"
            )
        config = consumer_config(self.settings.kafka.client_config("consumer"), "look")
        for run in scan_partition(config, topic, partition, offset, offset + 1):
            for row in run.rows:
                return row
        raise Refusal(
            404,
            f"{topic}:{partition}:{offset} is no record: a transaction's marker, or one of an "
            "aborted transaction",
        )

    def dead_letters(self, last: int) -> Letters:
        """The newest dead letters.

        Args:
            last: offsets of each partition that are looked at, from its end.

        Raises:
            KafkaEdgeError: the cluster does not answer.
        """
        name = self.settings.topics.dead_letter
        client = self.settings.kafka.client_config("consumer")
        partitions = self.desk.partitions(name)
        topic = DeadLetterTopic(name, partitions, client, self._admin, last=last)
        letters, replayed = topic.survey()
        letters.sort(key=lambda letter: (letter.time_ms, letter.place), reverse=True)
        return Letters(letters, replayed, topic.held, topic.length)
