"""Looks for a topic before it is used, without creating it."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from delayservice.base.errors import KafkaEdgeError
from delayservice.base.nearest import nearest


def partitions_of(client: Producer | Consumer | AdminClient, topic: str, timeout_s: float) -> int:
    """Return the number of partitions of a topic. All topics are asked for: brokers may create one
    that is asked for by its name, unless ``client`` has the options of ``clients.FORCED``. If there
    is no such topic, the ``KafkaEdgeError`` names one with a similar name.
    """
    topics = client.list_topics(timeout=timeout_s).topics
    found = topics.get(topic)
    if found is not None and found.error is None and found.partitions:
        return len(found.partitions)
    why = "it does not exist, or this user may not describe it"
    if found is not None and found.error is not None:
        why = found.error.str()
    near = nearest(topic, topics.keys() - {topic})
    hint = f"; did you mean {near}?" if near else ""
    raise KafkaEdgeError(f"topic {topic} can't be used: {why}{hint}")
