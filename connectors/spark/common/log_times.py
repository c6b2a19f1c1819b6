"""Asks the cluster for the times of the first records of logs, and for how topics keep records."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from confluent_kafka import KafkaException, Message, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    ConfigResource,
    ResourceType,
)

from connectors.kafka.clients import admin_client, consumer_client
from connectors.kafka.errors import answer_of
from connectors.kafka.log_ends import ASK_TIMEOUT_S, offsets_since
from connectors.kafka.scan import SCAN_STALL_S, consumer_config
from connectors.spark.common.cut import TICK_S, headers_of
from connectors.spark.common.topics import Place, Span, native_options
from delayservice.base.errors import KafkaEdgeError

_FIRST_BATCH: Final = 1_000

_LOOK_AHEAD: Final = 1_000


def first_times(
    client: Mapping[str, str], spans: Mapping[Place, Span], header: str | None = None
) -> dict[Place, int]:
    """Return the timestamp of the first record of each log, epoch ms; empty logs are left out.

    With ``header``, it is that of the first record with a header of this name, as other producers
    may write any timestamp. If none of the first ``_LOOK_AHEAD`` records has it, it is the latest
    of their timestamps.
    """
    waiting = {place: span for place, span in spans.items() if span.start < span.end}
    if not waiting:
        return {}
    # One small fetch of each partition is all that is wanted.
    config = consumer_config(native_options(client), "spark-first")
    consumer = consumer_client(config | {"fetch.message.max.bytes": 1_024})
    found: dict[Place, int] = {}
    looked = Counter[Place]()
    try:
        consumer.assign([TopicPartition(*place, span.start) for place, span in waiting.items()])
        heard_s = time.monotonic()
        while waiting:
            for message in consumer.consume(_FIRST_BATCH, TICK_S):
                place = (message.topic(), message.partition())
                if place not in waiting:
                    continue
                heard_s = time.monotonic()
                looked[place] += 1
                is_last = looked[place] == _LOOK_AHEAD
                if message.error() is None:
                    at_ms, is_it = message.timestamp()[1], _bears(message, header)
                    found[place] = at_ms if is_it else max(at_ms, found.get(place, 0))
                    is_last |= is_it or (message.offset() or 0) + 1 >= waiting[place].end
                if is_last or message.error() is not None:
                    del waiting[place]
                    consumer.pause([TopicPartition(*place)])
            if time.monotonic() - heard_s > SCAN_STALL_S:
                raise KafkaEdgeError(f"{min(waiting)} gave nothing for {SCAN_STALL_S:.0f} s")
    finally:
        consumer.close()
    return found


def _bears(message: Message, header: str | None) -> bool:
    if header is None:
        return True
    try:
        return any(name == header for name, _ in headers_of(message) or ())
    except (SystemError, UnicodeDecodeError):  # a name that is not UTF-8: not the service's
        return False


def offsets_at(
    client: Mapping[str, str], places: Collection[Place], at_ms: int
) -> dict[Place, int]:
    """Return the first offset of each log with a timestamp of ``at_ms`` (epoch ms) or later, if
    any.
    """
    return offsets_since(admin_client(native_options(client)), places, at_ms)


def topic_policies(client: Mapping[str, str], topics: Collection[str]) -> dict[str, Policy]:
    admin = admin_client(native_options(client))
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
    asked = admin.describe_configs(resources) if resources else {}
    found = {}
    for resource, future in asked.items():
        try:
            held = answer_of(future, ASK_TIMEOUT_S)
        except KafkaException as exc:
            raise KafkaEdgeError(
                f"the configuration of {resource.name} can't be read: {admin.explain(exc)}; give "
                "this user DescribeConfigs on it"
            ) from exc
        said = {name: entry.value or "" for name, entry in held.items()}
        found[resource.name] = Policy(
            is_compacted="compact" in said.get("cleanup.policy", ""),
            is_by_broker=said.get("message.timestamp.type") == "LogAppendTime",
        )
    return found


class Policy(NamedTuple):
    """Settings of a topic: whether it is compacted, and whether the broker sets the timestamps."""

    is_compacted: bool
    is_by_broker: bool
