"""Makes what a worker's loop needs from the settings: lanes, and its Kafka clients for writing."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from connectors.kafka.sink import WriterOptions
from connectors.kafka.source import KafkaSource
from connectors.kafka.targets import TargetTopics
from connectors.kafka.topic_facts import ServedTopic
from delayservice.config.contract import allowlist_for
from delayservice.config.settings import Settings
from delayservice.contract.cron import cron_time
from delayservice.engine.flow import FlowRules
from delayservice.engine.marking import NameShares
from delayservice.engine.outcome import Routes
from delayservice.process.stores import Stores
from delayservice.slices.lane import Lane
from delayservice.slices.log_window import LogWindow
from delayservice.slices.loop import WorkerLoop
from delayservice.store.base import Store


@dataclass(frozen=True, slots=True)
class LaneMaker:
    """Factory of lanes: with a store for a shard of a normal delay topic, else for a level
    topic.
    """

    settings: Settings
    stores: Stores
    source: KafkaSource
    routes: Routes
    targets: TargetTopics
    names: NameShares = field(default_factory=NameShares)

    def make(self, topic: ServedTopic, partition: int, loop: WorkerLoop) -> Lane:
        # The slice is added to ``loop`` if it is missing; the lane is not.
        slice_ = loop.slices.get(partition) or loop.add_slice(partition)
        place = (topic.name, partition, topic.topic_id)
        self.source.serve(topic.name, topic.topic_id)
        flow, lanes, levels = slice_.flow, slice_.lanes, self.settings.levels
        if topic.name in levels.by_topic:

            def park_topic() -> str | None:
                return next((name for name in self.settings.topics.delay if name in lanes), None)

            records_max, bytes_max = levels.fetch_ahead_records, int(levels.fetch_ahead_bytes)
            store: Store = LogWindow(records_max, bytes_max, park_topic)
        else:
            store = self.stores.shard(topic.topic_id, partition)
            if slice_.copies is not None:
                store = slice_.copies.digests.keep(topic.name, topic.topic_id, store)
        names = self.names.make()
        return Lane(*place, store, self.source, self.routes, self.targets, flow, names)


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


def writer_options(settings: Settings, name: str, checkpoint_partitions: int) -> WriterOptions:
    topics, kafka = settings.topics, settings.kafka
    return WriterOptions(
        name_prefix=f"{kafka.transactional_id_prefix}-{name}",
        checkpoint_topic=topics.checkpoint,
        checkpoint_partitions=checkpoint_partitions,
        claims_topic=topics.claims_topic,
        exactly_once=settings.delivery.mode == "exactly_once",
        partitioner=settings.delivery.partitioner,
        producer=kafka.client_config("producer"),
        consumer=kafka.client_config("consumer"),
    )
