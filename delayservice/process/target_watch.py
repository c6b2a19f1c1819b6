"""State of target topics in a worker: writable, paused, or on brokers that do not answer."""

from __future__ import annotations

from fnmatch import fnmatchcase

from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import admin_client
from connectors.kafka.control_topics import PauseWatcher
from connectors.kafka.reach import CONNECTION, KafkaReach
from connectors.kafka.target_limits import compresses
from connectors.kafka.targets import TargetTopics
from delayservice.config.settings import Settings


class TargetWatch:
    """Watch of the target topics: combines their state in Kafka, pauses, and which brokers
    answer.
    """

    def __init__(self, settings: Settings, admin: AdminClient) -> None:
        self._names = settings.topics
        kafka = settings.kafka
        # Reader of the pauses topic.
        self.pauses = PauseWatcher(settings.topics.pauses, self._changed)
        # Check of which brokers answer.
        self.reach = KafkaReach(
            admin_client(kafka.client_config("admin") | CONNECTION), self._changed
        )
        # Check of which targets can be written to, repeated when a pause begins or ends, or a
        # broker stops or starts to answer.
        self.topics = TargetTopics(
            admin,
            why_paused=self._why_paused,
            compresses=compresses(kafka.client_config("producer")),
            own=(settings.topics.dead_letter, settings.topics.outcomes),
            silent=lambda: self.reach.silent,
            is_delay_topic=self._is_delay_topic,
        )

    def _changed(self) -> None:
        self.topics.changed()

    def _why_paused(self, topic: str) -> str | None:
        # The service's own topics, delay topics included, are never paused as targets.
        if topic in self._names.own or self._is_delay_topic(topic):
            return None
        return self.pauses.why(topic)

    def _is_delay_topic(self, topic: str) -> bool:
        return fnmatchcase(topic, self._names.pattern) or topic in self._names.delay
