"""Tails the checkpoint topic and the claims topic for a worker, with one consumer in one thread.

The checkpoints of a slice are in partition ``slice modulo partitions``, keyed by the slice; the
number of partitions never changes. The claims topic has one partition. Both are read committed: of
each partition, records below its first open transaction are seen.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import structlog
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from connectors.kafka.clients import KAFKA, NO_GROUP, Clients
from connectors.kafka.log_ends import watermarks
from connectors.kafka.scan import (
    DAMAGED,
    READ_HINT,
    consumer_config,
    scan_partition,
    why_damaged,
)
from connectors.kafka.sink import WriterOptions
from delayservice.base.clock import NodeClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.contract.entry import PolledRecord
from delayservice.engine.checkpoint import ForeignRecordError, Standing, standing_of
from delayservice.engine.claims import Claimed, ClaimLog, slice_no_of
from delayservice.engine.ports import NO_TIME, Place, ReadBack

# Number of cuts kept for a slice until they are taken; beyond, the oldest are dropped.
_CUTS_MAX: Final = 16
# Time between the cuts of neighbouring slices, in ms, which spreads the comparisons.
_SHIFT_MS: Final = 7_919
# A position moves past a transaction's markers only when the broker answers that a log has ended,
# for which it waits so long: a take-over that reads to the end waits with it.
FETCH_WAIT_MS: Final = 100
# Number of records at the end of each partition that are read first.
_FIRST_LOOK: Final = 1_000
_TAIL_WAIT_S: Final = 0.5
_RETRY_S: Final = 1.0
# Time for which checkpoints can't be read before that is reported, in s.
_COMPLAIN_S: Final = 3.0

_log = structlog.get_logger(__name__)


class KafkaCheckpoints:
    """Reader of the checkpoints and claims of all slices, which tails the two topics in a thread of
    its own after ``start``. Any thread may call its methods.
    """

    def __init__(
        self,
        options: WriterOptions,
        clock: NodeClock,
        name: str,
        # Length of the intervals in each of which one checkpoint of a slice is a cut; 0: there are
        # no cuts.
        cut_interval_ms: int = 0,
        clients: Clients = KAFKA,
    ) -> None:
        self._partition = options.checkpoint_partition
        self._topic = options.checkpoint_topic
        self._partitions = options.checkpoint_partitions
        self._claims_topic = options.claims_topic
        self._cut_interval_ms = cut_interval_ms
        # Checkpoints at which copies of each slice are to be compared, until they are taken.
        self._cuts: dict[int, deque[ReadBack]] = {}
        self._clock = clock
        self._config = consumer_config(options.consumer, f"checkpoints-{name}") | {
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }
        self._tailed: dict[int, ReadBack] = {}
        self._news: set[int] = set()
        self._wanted: set[int] = set()
        # Start of the log and first tailed offset, by partition.
        self._starts: dict[int, tuple[int, int]] = {}
        self._positions: dict[Place, int] = {}
        # End of each partition when this consumer began, and the partitions read up to it since.
        self._ends: dict[int, int] = {}
        self._reached: set[int] = set()
        self._is_searched = False
        # Standing (epoch and commit number) and description of a checkpoint that lies in another
        # partition than its slice's, by slice.
        self._misplaced: dict[int, tuple[Standing, str]] = {}
        # Offset and description of the newest record that was refused as checkpoint, by slice.
        self._foreign: dict[int, tuple[int, str]] = {}
        # Epoch and commit number of the newest checkpoint, by slice.
        self._standings: dict[int, Standing] = {}
        # Why checkpoints may have been deleted; empty: they were kept. Any thread may set it.
        self.policy_problem = ""
        # Where a log is damaged, so that reading stands still, by partition.
        self._damages: dict[Place, str] = {}
        self._failure = ""
        # Time of the first failure to read them, monotonic s; None: they can be read.
        self._failing_s: float | None = None
        # Topics, of the two, that were created again, until they are read from their start.
        self._made_again: set[str] = set()
        # Slices whose checkpoint is not in the new checkpoint topic yet, after that was created
        # again. The newest one that was read from the old topic stays valid.
        self._to_write: set[int] = set()
        self._claims = ClaimLog()
        self._clients = clients
        self._consumer: Consumer | None = None
        self._changed = clients.changed()
        self.has_failed = False
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checkpoint-tail", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def made_again(self, topic: str) -> None:
        """Note that the checkpoint topic or the claims topic was deleted and created again: it is
        read from its start, by a new consumer, because the old one keeps its former leaders. Until
        ``alarm`` ends, owners have to commit their checkpoints again. Other topics are ignored.
        """
        if topic not in (self._topic, self._claims_topic):
            return
        with self._changed:
            self._made_again.add(topic)
            if topic == self._topic:
                self._to_write |= self._tailed.keys()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()

    def follow(self, slice_no: int) -> None:
        """Request a search for a slice's newest checkpoint, in the whole topic if necessary."""
        self._wanted.add(slice_no)

    def take_updated(self) -> Collection[int]:
        if not self._news:
            return ()
        with self._changed:
            news, self._news = self._news, set()
        return news

    def read_back(self, slice_no: int) -> ReadBack | None:
        return self._tailed.get(slice_no)

    def newest_of_all(self) -> list[bytes]:
        with self._changed:
            return [read_back.data for read_back in self._tailed.values()]

    def is_newest(self, slice_no: int) -> bool:
        return self._partition(slice_no) in self._reached

    def is_unserved(self, slice_no: int) -> bool:
        is_read = self._is_searched and self.is_newest(slice_no)
        return is_read and slice_no not in self._tailed and not self.alarm(slice_no)

    def take_cuts(self, slice_no: int) -> Sequence[ReadBack]:
        if slice_no not in self._cuts:
            return ()
        with self._changed:
            return self._cuts.pop(slice_no)

    def enter(self, writer: str) -> None:
        with self._changed:
            self._claims.enter(writer)

    def await_claims(self, slices: Mapping[int, int], timeout_s: float) -> dict[int, Claimed]:
        """Wait for claims of slices by this worker's writer, with numbers above those in
        ``slices``; return those that were read back in time, by slice.
        """

        def found() -> dict[int, Claimed]:
            claims = ((n, self._claims.claimed(n, above)) for n, above in slices.items())
            return {n: claimed for n, claimed in claims if claimed is not None}

        with self._changed:
            self._changed.wait_for(lambda: len(found()) == len(slices), timeout_s)
            return found()

    def await_position(self, place: Place, offset: int, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds until a partition of the checkpoint or claims topic is
        read up to ``offset`` (exclusive); return whether it was.
        """
        with self._changed:
            return self._changed.wait_for(
                lambda: self._positions.get(place, -1) >= offset, timeout_s
            )

    def newest(self, slice_no: int, timeout_s: float) -> bytes | None:
        """Return the newest checkpoint of a slice, searched for in the whole topic if necessary;
        None: the slice was never served. Raise ``KafkaEdgeError`` if that takes too long, or if it
        is unknown which one is the newest.
        """
        self.follow(slice_no)
        with self._changed:
            if not self._changed.wait_for(
                lambda: slice_no in self._tailed or self._is_searched, timeout_s
            ):
                raise KafkaEdgeError(
                    f"the checkpoint topic {self._topic} could not be read in {timeout_s:.0f} s"
                )
        found = self._tailed.get(slice_no)
        if found is not None and not self._is_doubtful(slice_no, found.offset):
            return found.data
        why = self.alarm(slice_no) or self.policy_problem
        if found is None and not why:
            return None  # it was never served
        raise KafkaEdgeError(
            f"slice {slice_no} has no checkpoint that can be believed, so it is not known what was "
            f"delivered: {why or 'its records changed while they were read, which is tried again'}"
        )

    def _is_doubtful(self, slice_no: int, offset: int) -> bool:
        """Return whether a checkpoint newer than the one at ``offset`` may exist: in a wrong
        partition, or removed with that one by compaction as a foreign record has their key.
        """
        misplaced = self._misplaced.get(slice_no)
        if misplaced is not None and self._standings[slice_no].precedes(misplaced[0]):
            return True
        if slice_no not in self._foreign:
            return False
        place = (self._topic, self._partition(slice_no))
        runs = scan_partition(self._config, *place, offset, offset + 1, self._clients)
        return not any(row[0] == offset for run in runs for row in run.rows)

    def alarm(self, slice_no: int) -> str:
        """Return what is wrong with a slice's records in the checkpoint topic, for users; empty:
        nothing. A refused record counts until a newer checkpoint is read back, a misplaced one
        until it is deleted.
        """
        found = self._misplaced.get(slice_no) or self._foreign.get(slice_no)
        if found is None and slice_no in self._to_write:
            return f"{self._topic} was made again, and its checkpoint is not written there yet"
        return "" if found is None else found[1]

    def _run(self) -> None:
        try:
            while not self._is_closed.is_set():
                if not self.tail(_TAIL_WAIT_S):
                    self._is_closed.wait(_RETRY_S)
            self._end()
        except BaseException:  # noqa: BLE001  # whatever it is, the worker has to know
            self.has_failed = True
            _log.exception("checkpoint_tail_failed")

    def tail(self, wait_s: float) -> bool:
        """Read available checkpoints and claims, waiting up to ``wait_s`` seconds for the first;
        return whether that succeeded. After a failure the next call connects anew.
        """
        try:
            if self._made_again:
                self._start_over()
            consumer = self._consumer or self._begin()
            lacks_some = not self._wanted <= self._tailed.keys()
            if not self._is_searched and self._has_read_first and lacks_some:
                self._search_earlier()
            first = consumer.poll(wait_s)
            if first is not None:
                self._take([first, *consumer.consume(2_000, 0)])
        except (KafkaException, KafkaEdgeError) as exc:  # asked again after a moment
            _log.warning("checkpoints_not_read", topic=self._topic, why=str(exc))
            self._end()
            self._failure = f"checkpoints or claims can't be read: {exc}"
            if self._failing_s is None:
                self._failing_s = self._clients.monotonic_s()
            return False
        self._failing_s = None
        return True

    @property
    def problem(self) -> str:
        since_s = self._failing_s
        if self._damages:
            return "; ".join(self._damages.copy().values())
        is_lasting = since_s is not None and self._clients.monotonic_s() - since_s >= _COMPLAIN_S
        return self._failure if is_lasting else ""

    def _start_over(self) -> None:
        self._end()
        with self._changed:
            made_again, self._made_again = self._made_again, set()
            for place in [place for place in self._positions if place[0] in made_again]:
                self._positions[place] = 0
            if self._topic in made_again:
                self._starts.clear()  # nothing lies before the start of the new log

    def _end(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _begin(self) -> Consumer:
        consumer = self._consumer = self._clients.consumer(self._config)
        with self._changed:
            self._reached.clear()
            self._news |= self._tailed.keys()
        assigned = []
        for number in range(self._partitions):
            low, high = watermarks(consumer, (self._topic, number))
            at = self._positions.get((self._topic, number), max(low, high - _FIRST_LOOK))
            self._starts.setdefault(number, (low, at))
            self._positions.setdefault((self._topic, number), at)
            self._ends[number] = high
            assigned.append(TopicPartition(self._topic, number, at))
        low, _ = watermarks(consumer, (self._claims_topic, 0))
        at = max(self._positions.get((self._claims_topic, 0), 0), low)
        assigned.append(TopicPartition(self._claims_topic, 0, at))
        consumer.assign(assigned)
        return consumer

    @property
    def _has_read_first(self) -> bool:
        return len(self._reached) == self._partitions

    def _search_earlier(self) -> None:
        for number, (low, began) in self._starts.items():
            if low >= began:
                continue
            place = (self._topic, number)
            for run in scan_partition(self._config, *place, low, began, self._clients):
                with self._changed:
                    for row in run.rows:
                        self._note_checkpoint(place, row, is_new=False)
        with self._changed:
            self._is_searched = True
            self._changed.notify_all()

    def _take(self, messages: list[Any]) -> None:
        with self._changed:
            for message in messages:
                error, place = message.error(), (message.topic(), message.partition())
                if error is None:
                    self._take_record(message)
                    self._positions[place] = message.offset() + 1
                    self._damages.pop(place, None)
                    self._reach(place, message.offset() + 1)
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    self._positions[place] = max(self._positions.get(place, 0), message.offset())
                    self._reach(place, None)
                elif error.code() in DAMAGED:
                    self._damages[place] = why_damaged(place, message)
                    self._changed.notify_all()
                    raise KafkaEdgeError(self._damages[place])
                elif error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    _log.error("topic_not_readable", topic=place[0], hint=READ_HINT)
                elif error.code() != NO_GROUP:
                    _log.debug("fetch_error", place=place, why=str(error))
            self._changed.notify_all()

    # ``position`` None: this is the end, which lies above the last record, behind the markers of
    # transactions. Under load no end is told.
    def _reach(self, place: Place, position: int | None) -> None:
        topic, number = place
        if topic != self._topic or number in self._reached:
            return
        if position is None or position >= self._ends[number]:
            self._reached.add(number)
            self._news |= {n for n in self._tailed if self._partition(n) == number}

    def _take_record(self, message: Any) -> None:  # noqa: ANN401  # the client's stubs are vague
        if message.topic() == self._claims_topic:
            try:
                self._claims.take(message.offset(), message.key(), message.value())
            except KafkaEdgeError as exc:
                _log.error("claim_not_readable", offset=message.offset(), why=str(exc))
            return
        kind, broker_ms = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            broker_ms = NO_TIME  # a clock can't be compared with what it said itself
        row = (message.offset(), broker_ms, message.key(), message.value(), None)
        self._note_checkpoint((message.topic(), message.partition()), row)

    def _note_checkpoint(self, place: Place, row: PolledRecord, *, is_new: bool = True) -> None:
        offset, broker_ms, key, value, _ = row
        slice_no = slice_no_of(key)
        if slice_no is None:
            return
        before = self._tailed.get(slice_no)
        if not is_new and before is not None and before.offset >= offset:
            return
        is_misplaced = place[1] != self._partition(slice_no)
        if is_misplaced and value is None:  # it was removed when the record was moved to its place
            self._misplaced.pop(slice_no, None)
            return
        try:
            standing, value = self._believed(slice_no, value)
        except ForeignRecordError as exc:
            self._note_foreign(slice_no, place, offset, str(exc))
            return
        if is_misplaced:
            self._note_misplaced(slice_no, place, standing)
            return
        if slice_no in self._foreign and self._foreign[slice_no][0] < offset:
            del self._foreign[slice_no]
        self._to_write.discard(slice_no)
        self._standings[slice_no] = standing
        boot_ms = int(self._clock.boot_s() * 1000)
        read_back = ReadBack(value, broker_ms, boot_ms, offset)
        if is_new and before is not None and self._is_cut(slice_no, before, read_back):
            self._cuts.setdefault(slice_no, deque(maxlen=_CUTS_MAX)).append(read_back)
        self._tailed[slice_no] = read_back
        self._news.add(slice_no)

    def _is_cut(self, slice_no: int, before: ReadBack, read_back: ReadBack) -> bool:
        """Return whether a checkpoint is of a later interval, by the brokers' timestamps, than the
        one before it.
        """
        every_ms, shift_ms = self._cut_interval_ms, slice_no * _SHIFT_MS
        if not every_ms:
            return False
        return (read_back.broker_ms + shift_ms) // every_ms > (
            before.broker_ms + shift_ms
        ) // every_ms

    def _believed(self, slice_no: int, value: bytes | None) -> tuple[Standing, bytes]:
        if value is None:
            raise ForeignRecordError("a tombstone, which the service never writes there")
        standing, before = standing_of(slice_no, value), self._standings.get(slice_no)
        if before is not None and standing.precedes(before):
            raise ForeignRecordError(
                f"a checkpoint that is older than the one before it: take-over {standing.epoch}, "
                f"commit {standing.commit}, after {before.epoch}, {before.commit}"
            )
        return standing, value

    def _note_foreign(self, slice_no: int, place: Place, offset: int, what: str) -> None:
        # The known checkpoint stays valid; the owner commits another one, because compaction would
        # keep only the refused record.
        at = f"{place[0]}:{place[1]}:{offset}"
        why = (
            f"{at} is {what}. It is not believed; something else writes to that topic: restrict it "
            "to the delay service"
        )
        self._foreign[slice_no] = (offset, why)
        self._news.add(slice_no)
        _log.error("foreign_checkpoint", slice=slice_no, place=at, what=what)

    def _note_misplaced(self, slice_no: int, place: Place, standing: Standing) -> None:
        known = self._misplaced.get(slice_no)
        why = (
            f"a checkpoint of slice {slice_no} lies in {place[0]}:{place[1]}, and belongs in "
            f"partition {self._partition(slice_no)}: partitions were added to that topic, or "
            "something else writes to it"
        )
        self._misplaced[slice_no] = (standing, why)
        self._news.add(slice_no)
        if known is None:
            _log.error("checkpoint_misplaced", slice=slice_no, place=f"{place[0]}:{place[1]}")
