"""Makes what a worker's loop needs from the settings: lanes, and its Kafka clients for writing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from connectors.kafka.checkpoints import KafkaCheckpoints
from connectors.kafka.clients import KafkaAdmin
from connectors.kafka.sink import SinkOptions
from connectors.kafka.source import KafkaSource
from connectors.kafka.succession import KafkaTakeOverClient
from connectors.kafka.targets import TargetTopics
from connectors.kafka.topic_facts import ServedTopic
from delayservice.config.contract import allowlist_for
from delayservice.config.settings import Settings
from delayservice.engine.flow import FlowRules
from delayservice.engine.outcome import Routes
from delayservice.process.cron import cron_time
from delayservice.process.stores import Stores
from delayservice.slices.lane import Lane
from delayservice.slices.log_window import LogWindow
from delayservice.slices.worker_loop import WorkerLoop
from delayservice.store.base import Store


class LaneMaker:
    """Factory of lanes: with a store for a shard of a normal delay topic, else for a level
    topic.
    """

    def __init__(
        self,
        settings: Settings,
        stores: Stores,
        source: KafkaSource,
        routes: Routes,
        targets: TargetTopics,
    ) -> None:
        self._settings = settings
        self._stores = stores
        self._source = source
        self._routes = routes
        self._targets = targets

    def make(self, topic: ServedTopic, partition: int, loop: WorkerLoop) -> Lane:
        # The slice is added to ``loop`` if it is missing; the lane is not.
        slice_ = loop.slices.get(partition) or loop.add_slice(partition)
        place = (topic.name, partition, topic.topic_id)
        self._source.serve(topic.name, topic.topic_id)
        flow, lanes, levels = slice_.flow, slice_.lanes, self._settings.levels
        if topic.name in levels.by_topic:

            def park_topic() -> str | None:
                return next((name for name in self._settings.topics.delay if name in lanes), None)

            records_max, bytes_max = levels.fetch_ahead_records, int(levels.fetch_ahead_bytes)
            store: Store = LogWindow(records_max, bytes_max, park_topic)
        else:
            store = self._stores.shard(topic.topic_id, partition)
            if slice_.copies is not None:
                store = slice_.copies.digests.keep(topic.name, topic.topic_id, store)
        return Lane(*place, store, self._source, self._routes, self._targets, flow)


def flow_rules(settings: Settings, slices: int) -> FlowRules:
    """Return the limits of delivery of one slice: an even share of the cluster's rates, in records
    per s, and undivided, the largest number of records of a shard that are delivered in the second
    in which they are due.
    """
    shares = max(slices, 1)
    return FlowRules(
        tuple((pattern, rate / shares) for pattern, rate in settings.rates.per_s.items()),
        settings.delivery.slot_records_max,
        settings.delivery.slot_policy,
    )


def routes_of(settings: Settings, secrets: tuple[bytes, ...]) -> Routes:
    # The first secret signs requeued records and envelopes, all of them verify.
    return Routes(
        dead_letter=settings.topics.dead_letter,
        outcomes=settings.topics.outcomes,
        secret=secrets[0],
        roll_window_ms=settings.roll_window_ms,
        roll_spread_ms=settings.roll_spread_ms,
        park_delays_ms=settings.delivery.park_delays_ms,
        cron_time=cron_time,
        held_ms=settings.delivery.held_ms,
        accepted=secrets[1:],
        allowlist=partial(allowlist_for, settings),
        parks_missing=settings.delivery.missing_target == "park",
    )


def sink_options(settings: Settings, name: str, checkpoints: KafkaCheckpoints) -> SinkOptions:
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
) -> KafkaTakeOverClient:
    topics, kafka = settings.topics, settings.kafka
    return KafkaTakeOverClient(
        checkpoints,
        admin,
        consumer=kafka.client_config("consumer"),
        producer=kafka.client_config("producer"),
        checkpoint_topic=topics.checkpoint,
        claims_topic=topics.claims_topic,
        confirm=confirm,
    )
