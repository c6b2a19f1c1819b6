"""What the brokers say of a topic that was made a moment ago."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

DESCRIBED_S: Final = 30.0
_ASK_S: Final = 30.0
_AGAIN_S: Final = 0.1


def topic_id_of(admin: AdminClient, topic: str) -> str:
    """Return the id that Kafka gave a topic, also right after it was made.

    A topic can be made and not yet be in the metadata of the broker that is asked, so the question
    is repeated, up to ``DESCRIBED_S``; then the broker's last answer is raised.
    """
    retrying = Retrying(
        retry=retry_if_exception_type(KafkaException),
        stop=stop_after_delay(DESCRIBED_S),
        wait=wait_fixed(_AGAIN_S),
        reraise=True,
    )
    return retrying(_ask, admin, topic)


def _ask(admin: AdminClient, topic: str) -> str:
    described = admin.describe_topics(TopicCollection([topic]))
    return str(described[topic].result(_ASK_S).topic_id)
