"""Asks the cluster for the times of the first records of logs, and for how topics keep records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from operator import methodcaller
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaException

from connectors.kafka.log_ends import offsets_since
from connectors.kafka.topic_facts import ask_configs
from connectors.spark.common.clients import admin_of, read_logs
from connectors.spark.common.topics import Place, Span
from delayservice.base.errors import KafkaEdgeError

_LOOK_AHEAD: Final = 1_000
# Calls message.headers() from C, for the reason given in connectors.kafka.scan.
_headers_of: Final = methodcaller("headers")


def first_times(
    client: Mapping[str, str], spans: Mapping[Place, Span], header: str | None = None
) -> dict[Place, int]:
    """Return the timestamp of the first record of each log, epoch ms; empty logs are left out.

    With ``header``, it is that of the first record with a header of this name, as other producers
    may write any timestamp. If none of the first ``_LOOK_AHEAD`` records has it, it is the latest
    of their timestamps.
    """
    found: dict[Place, int] = {}
    looked = Counter[Place]()
    waiting = dict(spans)
    # One small fetch of each partition is all that is wanted. What retention has taken since the
    # spans were asked for is passed over: a log without a first record would count as empty.
    more = {"fetch.message.max.bytes": 1_024, "auto.offset.reset": "earliest"}
    for message in read_logs(client, waiting, **more):
        if message.error() is not None:
            continue
        place, at_ms = (message.topic(), message.partition()), message.timestamp()[1]
        looked[place] += 1
        is_it = header is None or _bears(message, header)
        found[place] = at_ms if is_it else max(at_ms, found.get(place, 0))
        if is_it or looked[place] == _LOOK_AHEAD:
            waiting.pop(place)
    return found


def _bears(message: Any, header: str) -> bool:  # noqa: ANN401  # the client's stubs lack it
    try:
        return any(name == header for name, _ in _headers_of(message) or ())
    except (SystemError, UnicodeDecodeError):  # a name that is not UTF-8: not the service's
        return False


def offsets_at(
    client: Mapping[str, str], places: Collection[Place], at_ms: int
) -> dict[Place, int]:
    """Return the first offset of each log with a timestamp of ``at_ms`` (epoch ms) or later, if
    any.
    """
    return offsets_since(admin_of(client), places, at_ms)


def topic_policies(client: Mapping[str, str], topics: Collection[str]) -> dict[str, Policy]:
    admin = admin_of(client)
    found = {}
    for topic, said in ask_configs(admin, sorted(topics)):
        if isinstance(said, KafkaException):
            raise KafkaEdgeError(
                f"the configuration of {topic} can't be read: {admin.explain(said)}; give this "
                "user DescribeConfigs on it"
            ) from said
        found[topic] = Policy(
            is_compacted="compact" in said.get("cleanup.policy", ""),
            is_by_broker=said.get("message.timestamp.type") == "LogAppendTime",
        )
    return found


class Policy(NamedTuple):
    """Settings of a topic: whether it is compacted, and whether the broker sets the timestamps."""

    is_compacted: bool
    is_by_broker: bool
