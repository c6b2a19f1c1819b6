"""The checkpoint topic: read backwards at take-over, tailed for pruning."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from connectors.kafka.clients import consumer_client
from connectors.kafka.source import (
    ASK_TIMEOUT_S,
    READ_HINT,
    consumer_config,
    log_bounds,
    scan_partition,
)
from delayservice.clock import Clock
from delayservice.lanes.ports import ReadBack

_FIRST_LOOK: Final = 64
_TAIL_WAIT_S: Final = 0.5
_TAIL_BEHIND_S: Final = 0.1
_RECORD_AND_MARKER: Final = 2
_NOTHING: Final = (-1, None)
_CUTS_MAX: Final = 16
"""A slice that takes none for so many intervals has other worries than to be compared."""
_SHIFT_MS: Final = 7_919

_log = structlog.get_logger(__name__)


class KafkaCheckpoints:
    """Checkpoints of all slices of a worker. One thread tails them; any thread may ask."""

    def __init__(
        self,
        topic: str,
        client: Mapping[str, str],
        admin: AdminClient,
        clock: Clock,
        name: str,
        cut_interval_ms: int = 0,
    ) -> None:
        """``cut_interval_ms``: one checkpoint in so long is a cut, see ``take_cuts``; 0: none."""
        self._cut_interval_ms = cut_interval_ms
        self._cuts: dict[int, deque[ReadBack]] = {}
        self._topic = topic
        self._clock = clock
        self._config = consumer_config(client, f"checkpoint-{name}")
        self._admin = admin
        self._tailed: dict[int, tuple[int, ReadBack | None]] = {}
        self._wanted: set[int] = set()
        self._has_work = threading.Event()
        self._news = threading.Condition()
        self.has_failed = False
        """Whether the tail has ended with an error: nothing is pruned or compared any more."""
        self._thread = threading.Thread(target=self._run, name="checkpoint-tail", daemon=True)
        self._thread.start()

    def latest(self, slice_no: int) -> bytes | None:
        """The newest committed checkpoint; see the port.

        The end is asked with READ_UNCOMMITTED, after the old owner was fenced, and the content is
        read committed: a transaction marker may follow the record, so one looks back from the end,
        twice as far each time.

        Raises:
            KafkaEdgeError: the topic can't be read.
        """
        start, end = log_bounds(self._admin, self._topic, slice_no)
        tailed = self._tailed_to(slice_no, end)
        return self._look_back(slice_no, start, end) if tailed is None else tailed.data

    def _tailed_to(self, slice_no: int, end: int) -> ReadBack | None:
        """The newest checkpoint below ``end``, if the tail has it or is about to have it: what
        follows it can only be the marker of its own transaction. Ten times as fast as a consumer
        that has to connect first (``bench failover``).
        """

        def is_last() -> bool:
            return end - self._tailed.get(slice_no, _NOTHING)[0] <= _RECORD_AND_MARKER

        with self._news:
            is_there = self._news.wait_for(is_last, _TAIL_BEHIND_S)
        return self.read_back(slice_no) if is_there else None

    def peek(self, slice_no: int) -> bytes | None:
        """The newest checkpoint below any open transaction; see the port.

        Raises:
            KafkaEdgeError: the topic can't be read.
        """
        committed = IsolationLevel.READ_COMMITTED
        bounds = log_bounds(self._admin, self._topic, slice_no, committed)
        return self._look_back(slice_no, *bounds)

    def is_new(self, slice_no: int) -> bool:
        """Whether nothing was ever written for the slice.

        Raises:
            KafkaEdgeError: the topic can't be asked.
        """
        return log_bounds(self._admin, self._topic, slice_no).end == 0

    def _look_back(self, slice_no: int, start: int, end: int) -> bytes | None:
        if start == end:
            return None
        look = _FIRST_LOOK
        while True:
            since = max(start, end - look)
            newest = self._newest(slice_no, since, end)
            if newest is not None or since == start:
                return newest
            look *= 2

    def _newest(self, slice_no: int, since: int, end: int) -> bytes | None:
        newest: bytes | None = None
        for run in scan_partition(self._config, self._topic, slice_no, since, end):
            for row in run.rows:
                newest = row[3]
        return newest

    # --- tail ----------------------------------------------------------------------------------

    def follow(self, slice_no: int) -> None:
        """Tail this slice's partition from now on, starting with its newest record."""
        self._wanted.add(slice_no)
        self._has_work.set()

    def read_back(self, slice_no: int) -> ReadBack | None:
        """The newest checkpoint read back in passing; the same object until a newer one comes."""
        return self._tailed.get(slice_no, _NOTHING)[1]

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        """The first checkpoint of every interval by the broker's clock; see the port."""
        cuts = self._cuts.get(slice_no, ())
        return [cuts.popleft() for _ in range(len(cuts))] if cuts else ()

    def await_read_back(self, slice_no: int, data: bytes, timeout_s: float) -> bool:
        """Until the checkpoint ``data`` is read back; see the port."""

        def is_there() -> bool:
            newest = self.read_back(slice_no)
            return newest is not None and newest.data == data

        with self._news:
            return self._news.wait_for(is_there, timeout_s)

    def _run(self) -> None:
        try:
            self._tail()
        except BaseException:  # noqa: BLE001  # whatever it is, the worker has to know
            self.has_failed = True
            _log.exception("checkpoint_tail_failed")

    def _tail(self) -> None:
        config = self._config | {"auto.offset.reset": "earliest", "fetch.wait.max.ms": 1_000}
        consumer = consumer_client(config)
        assigned: set[int] = set()
        self._has_work.wait()
        while True:
            for slice_no in sorted(self._wanted - assigned):
                offset = TopicPartition(
                    self._topic, slice_no, _tail_from(consumer, self._topic, slice_no)
                )
                consumer.incremental_assign([offset])
                assigned.add(slice_no)
            first = consumer.poll(_TAIL_WAIT_S)
            if first is not None:
                self._take([first, *consumer.consume(1_000, 0)])

    def _take(self, messages: list[Any]) -> None:
        wall_ms, boot_ms = self._clock.wall_ms(), int(self._clock.boot_s() * 1000)
        for message in messages:
            value = message.value()
            error = message.error()
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                _log.error("topic_not_readable", topic=self._topic, hint=READ_HINT)
            if error is None and value is not None:
                broker_ms, slice_no = message.timestamp()[1], message.partition()
                read_back = ReadBack(value, broker_ms, wall_ms, boot_ms, message.offset())
                if self._begins_interval(slice_no, broker_ms):
                    self._cuts.setdefault(slice_no, deque(maxlen=_CUTS_MAX)).append(read_back)
                self._tailed[slice_no] = (message.offset(), read_back)
        with self._news:
            self._news.notify_all()

    def _begins_interval(self, slice_no: int, broker_ms: int) -> bool:
        """Not all slices at once; and never the first that is read, for nobody knows what was
        before it.
        """
        every_ms = self._cut_interval_ms
        before = self.read_back(slice_no)
        if not every_ms or before is None:
            return False
        shift_ms = slice_no * _SHIFT_MS
        return (broker_ms + shift_ms) // every_ms > (before.broker_ms + shift_ms) // every_ms


def _tail_from(consumer: Consumer, topic: str, slice_no: int) -> int:
    """A little before the end, so that an idle slice's newest checkpoint is seen as well."""
    try:
        low, high = consumer.get_watermark_offsets(
            TopicPartition(topic, slice_no), timeout=ASK_TIMEOUT_S
        )
    except KafkaException as exc:
        _log.debug("checkpoint_tail_from_start", slice=slice_no, why=str(exc))
        return 0
    return max(low, high - _FIRST_LOOK)
