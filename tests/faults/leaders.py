"""Moves the leaders of a topic's partitions to other brokers, with all brokers up.

The order of a partition's replicas is changed, so that another broker is the preferred leader, and
that one is elected. librdkafka can't ask for the first step, so its request is spelt out here:
AlterPartitionReassignments (key 45) version 0 of the Kafka protocol, in the flexible encoding.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.bench import await_true

_KEY: Final = 45
_VERSION: Final = 0
_TIMEOUT_MS: Final = 30_000
_NO_TAGS: Final = b"\x00"
_CLIENT: Final = b"faults"
_HEADER: Final = struct.Struct(">hhih")
"""API key, version, correlation id, length of the client id."""
_ANSWER: Final = struct.Struct(">ixih")
"""Correlation id, no tags, throttle time, error code."""


def move_leaders(bootstrap: str, admin: AdminClient, topic: str) -> None:
    """Make the next replica of every partition of ``topic`` its leader, and await that it is."""
    replicas = {number: _turned(found) for number, found in _replicas(admin, topic).items()}
    _reassign(bootstrap, topic, replicas)
    await_true(lambda: _replicas(admin, topic) == replicas, "the replicas have their new order")
    elect_preferred(admin, topic, [TopicPartition(topic, number) for number in replicas])


def elect_preferred(
    admin: AdminClient, topic: str, places: list[TopicPartition] | None = None
) -> None:
    """Make the first replica of each of the places, or of all of the cluster, its leader, and await
    that it is for ``topic``.
    """
    wanted = {number: order[0] for number, order in _replicas(admin, topic).items()}

    def lead() -> bool:
        # A broker that leads already is an error of its partition only, and no harm; so is one
        # whose copy is not in sync yet, which is why it is asked for again.
        admin.elect_leaders(ElectionType.PREFERRED, places).result(30)
        return leaders(admin, topic) == wanted

    await_true(lead, "the preferred leaders lead")


def leaders(admin: AdminClient, topic: str) -> dict[int, int]:
    """Return the broker id of the leader of each partition."""
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: one.leader for number, one in found.items()}


def _replicas(admin: AdminClient, topic: str) -> dict[int, list[int]]:
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions
    return {number: list(one.replicas) for number, one in found.items()}


def _turned(order: Sequence[int]) -> list[int]:
    return [*order[1:], order[0]]


def _reassign(bootstrap: str, topic: str, replicas: Mapping[int, Sequence[int]]) -> None:
    """Send the request to a broker, which passes it on to the controller."""
    request = _header() + _body(topic, replicas)
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        answer = connection.makefile("rb")
        (size,) = struct.unpack(">i", answer.read(4))
        *_, error = _ANSWER.unpack_from(answer.read(size))
    assert error == 0, f"the brokers refused to reassign {topic}: error {error}"


def _header() -> bytes:
    return _HEADER.pack(_KEY, _VERSION, 1, len(_CLIENT)) + _CLIENT + _NO_TAGS


def _body(topic: str, replicas: Mapping[int, Sequence[int]]) -> bytes:
    partitions = [
        struct.pack(">i", number)
        + _array([struct.pack(">i", broker) for broker in order])
        + _NO_TAGS
        for number, order in replicas.items()
    ]
    name = topic.encode()
    one = _length(len(name)) + name + _array(partitions) + _NO_TAGS
    return struct.pack(">i", _TIMEOUT_MS) + _array([one]) + _NO_TAGS


def _array(items: Sequence[bytes]) -> bytes:
    return _length(len(items)) + b"".join(items)


def _length(count: int) -> bytes:
    """Return a compact length of the protocol: the count plus one, as a varint."""
    left, text = count + 1, bytearray()
    while left > 0x7F:
        text.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*text, left])
