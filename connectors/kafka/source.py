"""Reads a worker's partitions of the delay topics, read committed.

A partition's position moves past transaction markers and aborted records only with the
end-of-partition event. So those events are enabled, and a ``PolledBatch`` states the offset where
it stops, which may lie beyond its last record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any, Final

import confluent_kafka
import structlog
from confluent_kafka import (
    Consumer,
    KafkaError,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import KAFKA, NO_GROUP, Clients
from connectors.kafka.errors import UNKNOWN_TARGETS
from connectors.kafka.headers import NAMES_ARE_CHECKED
from connectors.kafka.log_ends import log_bounds
from connectors.kafka.scan import (
    DAMAGED,
    MOVED,
    READ_HINT,
    and_more,
    close_aside,
    consumer_config,
    row_of,
    scan_partition,
    take,
    why_damaged,
)
from connectors.kafka.topic_facts import topic_ids
from delayservice.engine.checkpoint import NOTHING_READ, LastRead
from delayservice.engine.ports import Bounds, PartitionError, Place, PolledBatch

MANY_PLACES: Final = 32
# Options of the consumer that reads new records, if it reads more than ``MANY_PLACES`` logs. The
# client has no fetch sessions, so each fetch lists all logs; with 1,000 that takes 1 to 2 ms of a
# core on both sides. So a fetch waits for some records, and a record waits 50 ms at most.
# Measured: docs/internals/measurements.md.
MANY: Final[dict[str, Any]] = {"fetch.wait.max.ms": 50, "fetch.min.bytes": 8_192}
# Options of the consumer for partitions that catch up. The wait is short, since the client reports
# the end of a log only after it.
BEHIND: Final[dict[str, Any]] = {"fetch.wait.max.ms": 50}
# Largest number of records that one ``poll`` returns from partitions that catch up.
BEHIND_RECORDS: Final = 2_000
# Longest time until ``wake`` ends a wait for records, in s. Each check takes some 60 µs of a core,
# so 0.02 would be a third of an idle worker's cost.
WAKE_S: Final = 0.1
# Longest wait for records of other partitions while some partitions catch up, in s.
BEHIND_WAIT_S: Final = 0.01
# Time after which a damaged partition is read again, in s: another broker may lead it by then.
DAMAGED_AGAIN_S: Final = 5.0


# Part of the client's message about a position that a new leader's log no longer holds (KIP-320);
# the error code is that of every lost position.
_TRUNCATED: Final = KafkaError(KafkaError._LOG_TRUNCATION).str()  # noqa: SLF001


_log = structlog.get_logger(__name__)


class KafkaSource:
    """Reader of a worker's partitions of the delay topics. Only the worker's loop may call it,
    except for ``wake``.

    It has two consumers. Each partition *catches up* in the first one, until the end of its log is
    reached; then it moves to the second. So records that are read again, after a restart or for a
    rebuild, do not delay new ones.
    """

    def __init__(
        self,
        client: Mapping[str, str],
        admin: AdminClient,
        name: str,
        places: int = 0,
        clients: Clients = KAFKA,
    ) -> None:
        self._config = consumer_config(client, f"source-{name}")
        self._admin = admin
        fetching = MANY if places > MANY_PLACES else {}
        self._head_config = self._config | fetching | dict(client)
        self._clients = clients
        self._head, self._behind = self._make_consumers()
        self._topic_ids: dict[str, str] = {}
        self._positions: dict[Place, int] = {}
        # Offset at which each partition was last assigned.
        self._begun: dict[Place, int] = {}
        self._last_read: dict[Place, LastRead] = {}
        self._held: set[Place] = set()
        self._catching_up: set[Place] = set()
        # When each partition that was found damaged is read again, monotonic s. Until then it is
        # not assigned.
        self._damaged: dict[Place, float] = {}
        self._troubles: list[PartitionError] = []
        self._is_woken = False
        if not NAMES_ARE_CHECKED:
            _log.warning("header_names_not_checked", client=confluent_kafka.version())

    def _make_consumers(self) -> tuple[Consumer, Consumer]:
        return (
            self._clients.consumer(self._head_config),
            self._clients.consumer(self._config | BEHIND),
        )

    def serve(self, topic: str, topic_id: str) -> None:
        """Note the id of a topic before its partitions are read. If the topic was created again,
        make new consumers for all partitions: those before keep its former leaders, since the
        leader epochs of the new topic are lower than the ones they know.
        """
        known, self._topic_ids[topic] = self._topic_ids.get(topic, topic_id), topic_id
        if known == topic_id:
            return
        _log.warning("consumers_renewed", why=f"{topic} was deleted and created again")
        before = self._head, self._behind
        self._head, self._behind = self._make_consumers()
        for place, position in self._positions.items():
            if place not in self._damaged:
                self._assign(place, position)
        for consumer in before:
            close_aside(consumer)

    def seek(self, place: Place, offset: int, last_read: LastRead = NOTHING_READ) -> None:
        if place in self._positions:
            self._unassign(place)
        self._catching_up.add(place)
        self._last_read[place] = last_read
        self._assign(place, offset)

    def _consumer_of(self, place: Place) -> Consumer:
        return self._behind if place in self._catching_up else self._head

    def _assign(self, place: Place, offset: int) -> None:
        """Assign a partition from ``offset`` on. If the leader epoch of the last record read is
        known, begin right behind that record: then the client asks the broker whether the log still
        holds it. No record lies between it and ``offset``.
        """
        consumer = self._consumer_of(place)
        epoch, last = self._last_read[place]
        begin = TopicPartition(*place, offset)
        if epoch >= 0 and last < offset:
            begin = TopicPartition(*place, last + 1, leader_epoch=epoch)
        consumer.incremental_assign([begin])
        self._begun[place] = begin.offset
        self._positions[place] = offset
        if place in self._held:
            consumer.pause([TopicPartition(*place)])

    def _unassign(self, place: Place) -> None:
        if self._damaged.pop(place, None) is not None:
            return
        consumer, partition = self._consumer_of(place), TopicPartition(*place)
        if place in self._held:  # the client keeps a pause of what it no longer reads
            consumer.resume([partition])
        consumer.incremental_unassign([partition])

    def _is_assigned(self, place: Place) -> bool:
        return place in self._positions and place not in self._damaged

    def drop(self, place: Place) -> None:
        if place in self._positions:
            self._unassign(place)
            del self._positions[place], self._last_read[place], self._begun[place]
        self._held.discard(place)
        self._catching_up.discard(place)

    def pause(self, place: Place) -> None:
        self._held.add(place)
        if self._is_assigned(place):
            self._consumer_of(place).pause([TopicPartition(*place)])

    def resume(self, place: Place) -> None:
        self._held.discard(place)
        if self._is_assigned(place):
            self._consumer_of(place).resume([TopicPartition(*place)])

    def poll(self, timeout_s: float, limit: int, gather_s: float = 0.0) -> list[PolledBatch]:
        if self._damaged:
            self._read_damaged_again()
        messages: list[Any] = []
        if self._catching_up:
            messages = take(self._behind, 0, min(limit, BEHIND_RECORDS))
            timeout_s = 0 if messages else min(timeout_s, BEHIND_WAIT_S)
        runs = list(self._runs(messages)) if messages else []
        messages = and_more(self._head, self._await_first(timeout_s), limit, gather_s)
        return runs + list(self._runs(messages))

    def _read_damaged_again(self) -> None:
        now_s = self._clients.monotonic_s()
        for place in [place for place, again_s in self._damaged.items() if again_s <= now_s]:
            del self._damaged[place]
            self._assign(place, self._positions[place])

    def wake(self) -> None:
        self._is_woken = True

    def _await_first(self, timeout_s: float) -> Any:  # noqa: ANN401  # as in ``row_of``
        # In steps, since the client's own wait can't be interrupted.
        first, left_s = None, timeout_s
        while first is None and not self._is_woken and left_s > WAKE_S:
            first = self._head.poll(WAKE_S)
            left_s -= WAKE_S
        if first is None:
            first = self._head.poll(0 if self._is_woken else left_s)
        self._is_woken = False
        return first

    def _runs(self, messages: list[Any]) -> Iterator[PolledBatch]:
        records: dict[Place, list[Any]] = {}
        stops: dict[Place, int] = {}
        ended: list[Place] = []
        before = None
        for message in messages:
            place = (message.topic(), message.partition())
            error = message.error()
            if error is not None or (self._damaged and place in self._damaged):
                self._take_event(place, message, error, stops, ended)
                continue
            if place != before:  # seldom, and comparing costs less than looking it up
                before, add = place, records.setdefault(place, []).append
            add(message)
        for place, taken in records.items():
            stops[place] = max(stops.get(place, 0), taken[-1].offset() + 1)
        for place, stop in stops.items():
            start = self._positions.get(place)
            # An end at the position says that the client has checked the position.
            is_checked = stop == start and place in ended
            if start is not None and (stop > start or is_checked):
                self._positions[place] = stop
                yield from self._by_epoch(place, start, stop, records.get(place, []))
        for place in ended:
            self._go_to_head(place)

    def _by_epoch(
        self, place: Place, start: int, stop: int, messages: list[Any]
    ) -> Iterator[PolledBatch]:
        if not messages:
            yield PolledBatch(place, start, [], stop)
            return
        # Asking each message for its epoch costs too much; epochs ascend, so if the first and the
        # last one are equal, all are.
        last = messages[-1]
        self._last_read[place] = LastRead(_epoch_of(last), last.offset())
        parts = [messages]
        if _epoch_of(messages[0]) != _epoch_of(last):
            parts = [list(part) for _, part in groupby(messages, _epoch_of)]
        for part, after in zip_longest(parts, parts[1:]):
            end = stop if after is None else after[0].offset()
            yield PolledBatch(place, start, list(map(row_of, part)), end, _epoch_of(part[0]))
            start = end

    def _go_to_head(self, place: Place) -> None:
        if place in self._catching_up and self._is_assigned(place):
            self._unassign(place)
            self._catching_up.remove(place)
            self._assign(place, self._positions[place])

    def _take_event(
        self,
        place: Place,
        message: Any,  # noqa: ANN401  # as in ``row_of``
        error: KafkaError | None,
        stops: dict[Place, int],
        ended: list[Place],
    ) -> None:
        if error is None or place in self._damaged:  # a record behind the damage: see ``DAMAGED``
            return
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            stops[place] = message.offset()
            if place in self._catching_up:
                ended.append(place)
        elif error.code() in MOVED:
            if self._is_of_before(place, message.offset()):
                return
            why = str(error)
            is_truncated = _TRUNCATED in why
            self._troubles.append(
                PartitionError(place, why, has_moved=True, is_truncated=is_truncated)
            )
        elif error.code() in DAMAGED:
            if place in self._positions:
                self._unassign(place)
                self._damaged[place] = self._clients.monotonic_s() + DAMAGED_AGAIN_S
                at, why = message.offset() or 0, why_damaged(place, message)
                self._troubles.append(PartitionError(place, why, has_moved=False, damaged_at=at))
        elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:  # the other topics go on
            _log.error("topic_not_readable", topic=place[0], partition=place[1], hint=READ_HINT)
        elif (
            error.retriable()
            or error.code() < 0
            or error.code() == NO_GROUP
            or error.code() in UNKNOWN_TARGETS  # deleted: the next look at the topics drops it
        ):
            _log.debug("fetch_error", place=place, why=str(error))
        else:
            why = f"{place[0]}:{place[1]} can't be read: {error}"
            self._troubles.append(PartitionError(place, why, has_moved=False))

    def _is_of_before(self, place: Place, offset: int | None) -> bool:
        """Return whether an error at ``offset`` belongs to an earlier assignment of the partition,
        as the client keeps errors when it drops fetched records; true also if the partition is no
        longer read. ``offset`` is None where the client does not know it.
        """
        begun = self._begun.get(place)
        return begun is None or (offset is not None and offset < begun)

    def take_errors(self) -> Sequence[PartitionError]:
        taken, self._troubles = self._troubles, []
        return taken

    def bounds(self, place: Place) -> Bounds:
        return log_bounds(self._admin, *place)

    def topic_id(self, topic: str) -> str | None:
        return topic_ids(self._admin, [topic]).get(topic)

    def scan(self, place: Place, start: int, stop: int) -> Iterator[PolledBatch]:
        return scan_partition(self._config, *place, start, stop, self._clients, close_aside)

    def close(self) -> None:
        self._head.close()
        self._behind.close()


def _epoch_of(message: Any) -> int:  # noqa: ANN401  # as in ``row_of``
    epoch = message.leader_epoch()
    return -1 if epoch is None else int(epoch)
