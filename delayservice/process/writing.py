"""Configuration of a worker's transactional producer, and of its take-over's calls to Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.sink_options import SinkOptions
from connectors.kafka.succession import KafkaSuccession
from delayservice.config.settings import Settings


def sink_options(settings: Settings, name: str, checkpoints: KafkaCheckpoints) -> SinkOptions:
    """Return the options of the transactional producer of worker ``name``. ``checkpoints``: gives
    the partition of the checkpoint topic for each slice.
    """
    topics, kafka = settings.topics, settings.kafka
    return SinkOptions(
        name_prefix=f"{kafka.transactional_id_prefix}-{name}",
        checkpoint_topic=topics.checkpoint,
        claims_topic=topics.claims_topic,
        checkpoint_partition=checkpoints.partition,
        exactly_once=settings.delivery.mode == "exactly_once",
        partitioner=settings.delivery.partitioner,
        client=kafka.client_config("producer"),
    )


def succession_of(
    settings: Settings,
    checkpoints: KafkaCheckpoints,
    admin: KafkaAdmin,
    confirm: Callable[[Iterable[int]], frozenset[int]],
) -> KafkaSuccession:
    """Return the object by which a take-over queries Kafka and fences writers.

    Args:
        settings: settings of the node.
        checkpoints: reader of the checkpoint topic.
        admin: admin client.
        confirm: returns those of the given slices that ZooKeeper still assigns to this worker as
            owner.
    """
    topics, kafka = settings.topics, settings.kafka
    return KafkaSuccession(
        checkpoints,
        admin,
        consumer=kafka.client_config("consumer"),
        producer=kafka.client_config("producer"),
        checkpoint_topic=topics.checkpoint,
        claims_topic=topics.claims_topic,
        confirm=confirm,
    )
