"""The clients of Kafka over the model log, one set per life of a node: producers, transactional and
fenced as librdkafka's are, consumers, the admin client, and a condition to wait by.

The service's own modules run on them as they are. Calls that reach a broker pass ``node.point``:
there the schedule may crash the node, run the others and its own helpers, let users write, or move
the clock. What a client does on threads of its own, it does between two calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from zlib import crc32

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AclOperation,
    OffsetSpec,
)

from connectors.kafka.clients import Clients
from delayservice.contract.entry import Headers
from delayservice.engine.claims import decode_key
from delayservice.engine.ports import Place
from tests.simulation.history import ViolationError
from tests.simulation.sim_log import (
    CLAIMS,
    COMMITTED,
    OPEN,
    Epoch,
    Topic,
    Transaction,
    Written,
)

if TYPE_CHECKING:
    from delayservice.slices.loop import WorkerLoop
    from tests.simulation.node import Node

GONE_AFTER_MS = 15
"""How long a producer goes on hoping for a topic that is not there; see ``UNKNOWN_AFTER_MS``."""
TIMED_OUT_AFTER_MS = 400
"""``message.timeout.ms``."""
PASSING = (
    KafkaError._MSG_TIMED_OUT,
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
    KafkaError.THROTTLING_QUOTA_EXCEEDED,
)
"""Errors of single records that may be good the next time."""
APPENDED = KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND
COPIES = 3
BATCHES_REFUSED = 2
"""How often one process may learn that a topic does not take a batch of records which it takes one
by one. Each costs a writer, so what is learned has to be remembered."""

_EARLIEST = OffsetSpec.earliest()._value  # type: ignore[no-untyped-call]
_NEW, _READY, _BEGUN, _ABORTABLE, _FATAL = "new", "ready", "begun", "abortable", "fatal"

Answer = TypeVar("Answer")


def _raised(code: int, why: str, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, why, **flags))


def _call(node: Node, what: str) -> None:
    """Ask a broker, which may not answer."""
    node.point(what)
    if node.world.flip(node.world.plan.broken_call):
        node.trace(f"can't {what}")
        raise _raised(KafkaError._TIMED_OUT, "no answer", retriable=True)


class SimKafka:
    """What one life of a node has of Kafka."""

    def __init__(self, node: Node) -> None:
        self.admin: Any = SimAdmin(node)
        self.clients = Clients(
            producer=self._producer,
            consumer=self._consumer,
            monotonic_s=node.clock.monotonic_s,
            changed=self._condition,
        )
        self._node = node

    def _producer(self, options: Mapping[str, Any]) -> Any:  # stands for the client's
        kind = SimProducer if "transactional.id" in options else SimDirectProducer
        return kind(self._node, options)

    def _consumer(self, options: Mapping[str, Any]) -> Any:  # the same
        return SimConsumer(self._node, options)

    def _condition(self) -> Any:  # the same
        return SimCondition(self._node)


# --- producer ------------------------------------------------------------------------------------


class _Queued:
    """A record on its way, and whom its failure is told to."""

    __slots__ = ("headers", "key", "place", "report", "sent", "since_ms", "value")

    def __init__(
        self,
        place: Place,
        record: tuple[bytes | None, bytes | None, Headers],
        report: Callable[..., None] | None,
        since_ms: int,
        sent: tuple[int, int],
    ) -> None:
        self.place = place
        self.key, self.value, self.headers = record
        self.report = report
        self.since_ms = since_ms
        self.sent = sent

    def topic(self) -> str:
        """As a delivery report gives it."""
        return self.place[0]

    def partition(self) -> int:
        """The same."""
        return self.place[1]

    @property
    def size(self) -> int:
        """Bytes of it."""
        headers = sum(len(name) + len(value or b"") + 2 for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + headers


class SimProducer:
    """A transactional producer. As in librdkafka, once a record of a transaction has failed it
    sends no other before the abort, a higher epoch at the broker is fatal, and an id that the
    coordinator has forgotten is not: the abort takes it anew, unless another has done so.
    """

    def __init__(self, node: Node, options: Mapping[str, Any]) -> None:
        self._node = node
        self._world = node.world
        self._log = node.world.log
        self._id: str = options.get("transactional.id", "")
        self._report: Callable[..., None] | None = options.get("on_delivery")
        self._logger: Any = options.get("logger")
        self._lines: list[str] = []
        """Of the client's log, until it is polled."""
        self._epoch: Epoch = (-1, -1)
        self._state = _NEW
        self._error = KafkaError(KafkaError._STATE)
        self._is_told = False
        self._is_in_doubt = False
        self._transaction: Transaction | None = None
        self._queue: list[_Queued] = []
        self._reports: list[tuple[Callable[..., None], KafkaError, _Queued]] = []

    def list_topics(self, _topic: str, _timeout: float) -> None:
        """Connect."""
        _call(self._node, f"connect {self._id}")

    def init_transactions(self, _timeout: float) -> None:
        """Take the transactional id; whoever had it before is fenced."""
        _call(self._node, f"init {self._id}")
        is_known = self._id in self._log.epochs
        self._epoch = self._log.init_producer(self._id, doubt_commits=self._world.flip(0.5))
        self._node.trace(f"fences {self._id}" if is_known else f"is writer {self._id}")
        self._state = _READY
        _call(self._node, f"init {self._id}, done")

    # --- send ----------------------------------------------------------------------------------

    def begin_transaction(self) -> None:
        """Begin one."""
        self._check()
        self._state = _BEGUN

    def produce(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        partition: int = -1,
        headers: Headers = (),  # type: ignore[assignment]
        on_delivery: Callable[..., None] | None = None,
    ) -> None:
        """Queue a record."""
        self._check()
        if self._state != _BEGUN:
            raise _raised(KafkaError._STATE, "no transaction")
        if self._world.flip(self._world.plan.queue_full):
            raise BufferError
        if topic == CLAIMS and value is None and decode_key(key)[1] not in self._log.fenced:
            raise ViolationError(f"{key!r} is forgotten, and was not fenced")
        clock = self._node.clock
        self._queue.append(
            _Queued(
                (topic, self._partition(topic, key, partition)),
                (key, value, list(headers)),
                on_delivery or self._report,
                self._world.now_ms,
                (clock.read_ms, clock.read_skew_ms),
            )
        )

    def _partition(self, topic: str, key: bytes | None, partition: int) -> int:
        if partition >= 0:
            return partition
        count = max(self._log.topics[topic].partitions, 1)
        return self._world.rng.randrange(count) if key is None else crc32(key) % count

    def _check(self) -> None:
        """Raise what a call meets in the state that the producer is in."""
        if self._is_in_doubt:
            raise ViolationError(f"{self._id} goes on after an uncertain commit")
        if self._state == _FATAL:
            self._is_told = True
            raise KafkaException(self._error)
        if self._state == _ABORTABLE:
            raise _raised(KafkaError._STATE, "the transaction has failed")
        if self._state == _NEW:
            raise _raised(KafkaError._STATE, "not initialised")

    def poll(self, _timeout: float = 0) -> int:
        """Serve delivery reports; meanwhile some of what is queued may be sent."""
        if self._queue and not self._world.calm and self._world.rng.random() < 0.3:
            self._send([self._world.rng.choice(self._queue).place])
        return self._serve()

    def flush(self, timeout: float) -> int:
        """Send what can be sent, serve reports, and return how many records are left."""
        if timeout:
            self._node.point("flush")
        places = list(dict.fromkeys(queued.place for queued in self._queue))
        self._world.rng.shuffle(places)  # brokers write in any order what one producer sends them
        self._send(places)
        self._serve()
        if self._state == _FATAL and not self._is_told:
            self._is_told = True
            raise KafkaException(self._error)
        if self._queue and timeout:
            self._world.pass_time(timeout)
        return len(self._queue)

    def __len__(self) -> int:
        """Records that have no answer yet."""
        return len(self._queue) + len(self._reports)

    def purge(self, *, blocking: bool) -> None:
        """Forget what is queued."""
        del blocking
        self._queue.clear()

    def _serve(self) -> int:
        lines, self._lines = self._lines, []
        for line in lines:
            self._logger.log(logging.INFO, "%s [%s] %s", "FAIL", self._id, line)
        reports, self._reports = self._reports, []
        for report, error, queued in reports:
            report(error, queued)
        return len(reports)

    def _send(self, places: Iterable[Place]) -> None:
        for place in places:
            if self._state != _BEGUN:
                return
            batch = [queued for queued in self._queue if queued.place == place]
            self._send_batch(self._log.topics[place[0]], place, batch)
            if batch and not self._world.calm:
                self._node.point("batch written")

    def _send_batch(self, topic: Topic, place: Place, batch: list[_Queued]) -> None:
        if self._is_held_up(topic, place, batch) or not self._may_add(place, batch):
            return
        if topic.is_strict:
            self._fail(batch, KafkaError.INVALID_TIMESTAMP)
            return
        world = self._world
        if sum(queued.size for queued in batch) > topic.bytes_max:
            if all(queued.size <= topic.bytes_max for queued in batch):
                self._node.batches_refused[place[0]] += 1
            if self._node.batches_refused[place[0]] > BATCHES_REFUSED:
                raise ViolationError(f"{self._id} sends {place[0]} batches that it refused before")
            self._fail(batch, KafkaError.MSG_SIZE_TOO_LARGE)
            return
        failed = world.flip(world.plan.abort * 0.5) and world.rng.choice(PASSING)
        if not failed or failed == APPENDED:
            for queued in batch:
                self._append(place, queued)
                self._node.trace(f"writes {place} {queued.key!r} {(queued.value or b'-')[:90]!r}")
        if failed:
            self._fail(batch, failed)
        else:
            self._forget(batch)

    def _append(self, place: Place, queued: _Queued) -> None:
        self._transaction = self._transaction or self._log.begin(self._id)
        record = (queued.key, queued.value, queued.headers)
        self._log.append(place, self._world.now_ms, record, self._transaction, queued.sent)

    def _is_held_up(self, topic: Topic, place: Place, batch: list[_Queued]) -> bool:
        """Whether these records wait in the client, or fail there: their partition is not there, or
        not served.
        """
        waited_ms = self._world.now_ms - batch[0].since_ms
        if topic.is_forbidden:
            self._fail(batch, KafkaError.TOPIC_AUTHORIZATION_FAILED)
            return True
        if topic.partitions <= place[1]:
            if waited_ms > GONE_AFTER_MS:
                known = topic.partitions > 0
                code = KafkaError._UNKNOWN_PARTITION if known else KafkaError._UNKNOWN_TOPIC
                self._fail(batch, code)
            return True
        if place[1] in topic.leaderless | topic.lacking:
            if waited_ms > TIMED_OUT_AFTER_MS:
                self._fail(batch, KafkaError._MSG_TIMED_OUT)
            return True
        return False

    def _may_add(self, place: Place, batch: list[_Queued]) -> bool:
        """Whether the coordinator, or the broker, takes records of this producer."""
        log = self._log
        epoch = log.epochs.get(self._id)
        if epoch is None or epoch[0] != self._epoch[0]:
            self._break(_ABORTABLE, KafkaError.INVALID_PRODUCER_ID_MAPPING)
        elif epoch != self._epoch:
            is_added = self._transaction and place in self._transaction.first_offsets
            if is_added:  # the broker of the partition says it, in the report of each record
                self._fail(batch, KafkaError.INVALID_PRODUCER_EPOCH)
            self._break(_FATAL, KafkaError._FENCED)
        elif self._transaction is None and log.is_marking(self._id):  # CONCURRENT_TRANSACTIONS
            if self._world.flip(0.5):
                return False
            log.complete_markers(self._id)
        elif self._transaction is not None and self._transaction.state != OPEN:
            if place in self._transaction.first_offsets:  # it was ended by a late EndTxn
                self._fail(batch, KafkaError.INVALID_TXN_STATE)
            else:
                self._transaction = None  # the coordinator begins another
        return self._state == _BEGUN

    def _fail(self, batch: Sequence[_Queued], code: int) -> None:
        error = KafkaError(code)
        self._node.trace(f"hears {error.name()} of {batch[0].place}")
        for queued in batch:
            if queued.report is not None:
                self._reports.append((queued.report, error, queued))
        self._forget(batch)
        self._break(_ABORTABLE, code)

    def _forget(self, batch: Collection[_Queued]) -> None:
        self._queue = [queued for queued in self._queue if queued not in batch]

    def _break(self, state: str, code: int) -> None:
        fatal = state == _FATAL
        self._state = state
        self._error = KafkaError(code, "", fatal=fatal, txn_requires_abort=not fatal)

    # --- end -----------------------------------------------------------------------------------

    def commit_transaction(self, _timeout: float) -> None:
        """Commit."""
        if self._state == _ABORTABLE:
            raise KafkaException(self._error)
        self._check()
        world, transaction = self._world, self._transaction
        self._node.point("before commit")
        if transaction is not None:
            transaction.in_doubt = True
            self._node.point("commit is on its way")
            if world.flip(world.plan.uncertain):
                self._is_in_doubt = True
                self._node.trace("commits, and hears no answer")
                raise _raised(KafkaError._TIMED_OUT, "no answer", retriable=True)
            self._end(transaction, commit=True)
        self._transaction = None
        self._state = _READY
        self._node.trace("has committed")
        self._resend(commit=True)
        self._node.point("after commit")

    def _resend(self, *, commit: bool) -> None:
        """The connection may have failed, so that the end of the transaction was sent twice; the
        client tells only its log.
        """
        if self._world.flip(self._world.plan.resent):
            self._log.repeated[self._id] = commit
            self._lines.append("[thrd:TxnCoordinator]: TxnCoordinator: Disconnected")
            self._node.trace("has sent EndTxn twice")

    def _end(self, transaction: Transaction | None, *, commit: bool) -> None:
        """``EndTxn``."""
        if self._log.epochs.get(self._id) != self._epoch:
            self._break(_FATAL, KafkaError._FENCED)
            self._is_told = True
            raise KafkaException(self._error)
        if transaction is None:
            return
        if transaction.state != OPEN:
            if (transaction.state == COMMITTED) != commit:
                self._break(_FATAL, KafkaError.INVALID_TXN_STATE)
                self._is_told = True
                raise KafkaException(self._error)
        else:
            lazy = self._world.plan.lazy_markers
            self._log.decide(transaction, commit=commit, lazy_markers=lazy)

    def abort_transaction(self, _timeout: float) -> None:
        """Abort; what is queued is purged, and reported so."""
        if self._state != _ABORTABLE:
            self._check()
        self._node.point("before abort")
        error = KafkaError(KafkaError._PURGE_QUEUE)
        self._reports += [(q.report, error, q) for q in self._queue if q.report is not None]
        self._queue.clear()
        transaction, self._transaction = self._transaction, None
        is_forgotten = self._error.code() == KafkaError.INVALID_PRODUCER_ID_MAPPING
        if is_forgotten and self._id not in self._log.epochs:
            self._epoch = self._log.init_producer(self._id, doubt_commits=False)
            self._node.trace(f"is {self._id} again")
        elif transaction is not None or is_forgotten:
            self._end(transaction, commit=False)
            self._resend(commit=False)
        self._error = KafkaError(KafkaError._STATE)
        self._state = _READY
        self._node.trace("aborts")


class SimDirectProducer(SimProducer):
    """An idempotent producer without transactions: a record that fails concerns no other, and what
    is at the broker is seen at once.
    """

    def __init__(self, node: Node, options: Mapping[str, Any]) -> None:
        super().__init__(node, options)
        self._state = _BEGUN
        self._loop: WorkerLoop | None = None

    def produce(self, *args: Any, **options: Any) -> None:
        self._loop = self._node.loop
        super().produce(*args, **options)

    def _append(self, place: Place, queued: _Queued) -> None:
        assert self._loop is not None
        record = (queued.key, queued.value, queued.headers)
        written = self._log.append(place, self._world.now_ms, record, None, queued.sent)
        self._world.oracle.seen_at_once(written, self._loop.state.writer.name)

    def _may_add(self, _place: Place, _batch: list[_Queued]) -> bool:
        return True

    def _break(self, _state: str, _code: int) -> None:
        """The next record is sent all the same."""


# --- consumer ------------------------------------------------------------------------------------


class SimMessage:
    """A record, or an event, as a consumer gives it."""

    __slots__ = ("_error", "_offset", "_place", "_written", "epoch")

    def __init__(
        self,
        place: Place,
        offset: int,
        written: Written | None,
        error: KafkaError | None,
        epoch: int = -1,
    ) -> None:
        """``epoch``: of the leader by which the client knows the position behind it."""
        self.epoch = epoch
        self._place = place
        self._offset = offset
        self._written = written
        self._error = error

    @property
    def place(self) -> Place:
        """Its partition."""
        return self._place

    @property
    def after(self) -> int:
        """Where to go on when it is consumed."""
        return self._offset if self._written is None else self._offset + 1

    @property
    def has_lost_position(self) -> bool:
        """Whether it says that the log does not hold the position."""
        error = self._error
        return error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET

    def error(self) -> KafkaError | None:
        """What happened; None: it is a record."""
        return self._error

    def topic(self) -> str:
        return self._place[0]

    def partition(self) -> int:
        return self._place[1]

    def offset(self) -> int:
        return self._offset

    def key(self) -> bytes | None:
        return None if self._written is None else self._written.key

    def value(self) -> bytes | None:
        return None if self._written is None else self._written.value

    def leader_epoch(self) -> int | None:
        return None if self._written is None else self._written.leader_epoch

    def headers(self) -> Headers:
        return [] if self._written is None else list(self._written.headers)

    def timestamp(self) -> tuple[int, int]:
        written = self._written
        return (TIMESTAMP_LOG_APPEND_TIME, 0 if written is None else written.timestamp_ms)


class SimConsumer:
    """A consumer that is in no group. It fetches ahead; what it has of a partition is dropped when
    that is paused or assigned no longer, except the error of a position that the log has lost. A
    pause holds until it is ended, also for a partition that is assigned anew.
    """

    def __init__(self, node: Node, options: Mapping[str, Any]) -> None:
        self._node = node
        self._world = node.world
        self._log = node.world.log
        self._is_committed = options["isolation.level"] == "read_committed"
        self._resets = options["auto.offset.reset"] == "earliest"
        self._kind = options["group.id"].split("-")[1]
        self._fetched: dict[Place, int] = {}
        """Next offset to fetch."""
        self._given: dict[Place, int] = {}
        """Next offset to give."""
        self._lives: dict[Place, int] = {}
        self._fetched_epochs: dict[Place, int] = {}
        """Leader epoch of what lies right below the next offset to fetch; -1: it is not known."""
        self._given_epochs: dict[Place, int] = {}
        self._ended: dict[Place, int] = {}
        """Where the end was last told."""
        self._paused: set[Place] = set()
        self._queue: list[SimMessage] = []
        self._is_aside = False

    # --- assignment ----------------------------------------------------------------------------

    def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these, and wait for them."""
        self._is_aside = self._kind != "checkpoints"
        if self._is_aside:
            self._node.point("read aside")
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these too."""
        for partition in partitions:
            place = (partition.topic, partition.partition)
            if place in self._given:
                raise _raised(KafkaError._CONFLICT, f"{place} is assigned")
            self._fetched[place] = self._given[place] = partition.offset
            epoch: int | None = partition.leader_epoch
            known = -1 if epoch is None else epoch
            self._fetched_epochs[place] = self._given_epochs[place] = known
            self._lives[place] = self._life(place)
            self._ended.pop(place, None)
            if self._kind == "source":
                self._node.trace(f"reads {place} from {partition.offset} on")

    def _life(self, place: Place) -> int:
        return self._log.topics[place[0]].life

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these no longer."""
        for partition in partitions:
            place = (partition.topic, partition.partition)
            if self._given.pop(place, None) is None:
                raise _raised(KafkaError._STATE, f"{place} is not assigned")
            self._fetched.pop(place, None)
            self._drop(place)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch no more of these."""
        for partition in partitions:
            place = (partition.topic, partition.partition)
            self._paused.add(place)
            self._drop(place)
            if place in self._fetched:
                self._fetched[place] = self._given[place]
                self._fetched_epochs[place] = self._given_epochs[place]

    def _drop(self, place: Place) -> None:
        self._queue = [m for m in self._queue if m.place != place or m.has_lost_position]

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        """Fetch again."""
        for partition in partitions:
            self._paused.discard((partition.topic, partition.partition))

    def close(self) -> None:
        """End."""
        self._fetched.clear()
        self._queue.clear()

    # --- read ----------------------------------------------------------------------------------

    def poll(self, timeout: float) -> SimMessage | None:
        """Return the next message."""
        if self._kind == "source" and not self._is_aside:
            self._node.point(f"poll for {timeout:.4f} s")
        if not self._queue or self._world.flip(0.5):
            self._fetch()
        taken = self._take(1)
        if not taken and timeout and self._is_aside:
            self._node.wait(timeout)
        return taken[0] if taken else None

    def consume(self, num_messages: int, _timeout: float) -> list[SimMessage]:
        """Return what was fetched."""
        return self._take(num_messages)

    def _take(self, count: int) -> list[SimMessage]:
        taken, self._queue = self._queue[:count], self._queue[count:]
        for message in taken:
            if message.place in self._given and not message.has_lost_position:
                self._given[message.place] = message.after
                self._given_epochs[message.place] = message.epoch
        return taken

    def _fetch(self) -> None:
        world = self._world
        for place, position in list(self._fetched.items()):
            if place in self._paused:
                continue
            partition = self._log.partition(place)
            epoch = self._fetched_epochs[place]
            if self._is_lost(place) or not partition.start <= position <= partition.end:
                self._lose(place, position, partition.start)
            elif epoch >= 0 and self._log.end_of_epoch(place, epoch) < position:
                self._lose(place, position, partition.start, _TRUNCATION)
            elif world.flip(world.plan.broken_call * 0.3):
                self._tell(place, position, KafkaError.UNKNOWN_TOPIC_OR_PART)
            else:
                few = 1_000 if world.calm else world.rng.choice((1, 2, 5, 1_000))
                self._fetch_some(place, position, few)

    def _is_lost(self, place: Place) -> bool:
        """Whether this is another log than the one that was assigned."""
        return self._life(place) != self._lives[place]

    def _lose(self, place: Place, position: int, start: int, why: str = "") -> None:
        """The log does not hold the position."""
        if self._resets:
            self._fetched[place], self._lives[place] = start, self._life(place)
        else:
            del self._fetched[place]
            self._tell(place, position, KafkaError._AUTO_OFFSET_RESET, why)

    def _tell(self, place: Place, position: int, code: int, why: str = "") -> None:
        error = KafkaError(code, why) if why else KafkaError(code)
        epoch = self._fetched_epochs[place]
        self._queue.append(SimMessage(place, position, None, error, epoch))
        if code != KafkaError._PARTITION_EOF:
            self._node.trace(f"hears {error.name()} of {place} at {position}")

    def _fetch_some(self, place: Place, position: int, few: int) -> None:
        partition = self._log.partition(place)
        end = partition.last_stable if self._is_committed else partition.end
        for written in self._log.visible(place, position, committed=self._is_committed):
            if few == 0:
                return
            few -= 1
            epoch = written.leader_epoch
            self._queue.append(SimMessage(place, written.offset, written, None, epoch))
            self._fetched[place] = written.offset + 1
            self._fetched_epochs[place] = epoch
        if end > self._fetched[place]:
            self._fetched[place] = end
            self._fetched_epochs[place] = partition.written[end - 1].leader_epoch
        if self._ended.get(place) != end:
            self._ended[place] = end
            self._tell(place, end, KafkaError._PARTITION_EOF)

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return start and end of a log, as far as this consumer sees it."""
        del timeout
        if self._world.flip(self._world.plan.broken_call):
            raise _raised(KafkaError._TIMED_OUT, "no answer")
        log = self._log.partition((partition.topic, partition.partition))
        return log.start, log.last_stable if self._is_committed else log.end


# --- admin client --------------------------------------------------------------------------------


def _answered(answer: Answer | KafkaError) -> Future[Answer]:
    future: Future[Answer] = Future()
    if isinstance(answer, KafkaError):
        future.set_exception(KafkaException(answer))
    else:
        future.set_result(answer)
    return future


_TRUNCATION = KafkaError(KafkaError._LOG_TRUNCATION).str()
_NO_ANSWER = KafkaError(KafkaError._TIMED_OUT, "no answer")


class SimAdmin:
    """What the service asks the cluster."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._world = node.world
        self._log = node.world.log
        self._right: dict[Place, int] = {}
        """How many answers about a log's end will be right after one that was wrong."""

    def _is_broken(self, what: str) -> bool:
        self._node.point(what)
        return self._world.flip(self._world.plan.broken_call)

    def list_offsets(
        self,
        wanted: Mapping[TopicPartition, OffsetSpec],
        isolation_level: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        request_timeout: float = 0,
    ) -> dict[TopicPartition, Future[Any]]:
        """Starts or ends of logs."""
        del request_timeout
        return {
            place: _answered(
                _NO_ANSWER
                if self._is_broken(f"bounds of {place.topic}")
                else self._bound(place, spec, isolation_level)
            )
            for place, spec in wanted.items()
        }

    def _bound(
        self, place: TopicPartition, spec: OffsetSpec, isolation: IsolationLevel
    ) -> SimpleNamespace:
        partition = self._log.partition((place.topic, place.partition))
        epoch = partition.leader_epoch
        if spec._value == _EARLIEST:
            return SimpleNamespace(offset=partition.start, leader_epoch=epoch)
        is_committed = isolation is IsolationLevel.READ_COMMITTED
        end = partition.last_stable if is_committed else partition.end
        log = (place.topic, place.partition)
        h = self._world.oracle.h_of(log)
        if self._right.get(log, 0):
            self._right[log] -= 1
        elif h > partition.start and self._world.flip(self._world.plan.short_ends):
            self._right[log] = 8  # others may ask between the two answers that somebody compares
            end = self._world.rng.randrange(partition.start, h)
        return SimpleNamespace(offset=end, leader_epoch=epoch)

    def describe_topics(self, topics: Any, **_: object) -> dict[str, Future[Any]]:
        """What topics are there, and who may use them."""
        asked: list[str] = topics.topic_names
        if self._is_broken(f"describe {asked}") or self._world.flip(self._world.plan.asked):
            return {name: _answered(_NO_ANSWER) for name in asked}
        return {name: _answered(self._describe(name)) for name in asked}

    def _describe(self, name: str) -> SimpleNamespace | KafkaError:
        topic = self._log.topics[name]
        if not topic.partitions:
            return KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        if name in self._world.unelected:
            return KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        rights = [AclOperation.READ] + [AclOperation.WRITE] * (not topic.is_forbidden)
        partitions = [
            SimpleNamespace(
                id=number,
                leader=None if number in topic.leaderless else SimpleNamespace(id=1),
                isr=[0] * (1 if number in topic.lacking else COPIES),
                replicas=[0] * COPIES,
            )
            for number in range(topic.partitions)
        ]
        return SimpleNamespace(
            topic_id=topic.topic_id, authorized_operations=rights, partitions=partitions
        )

    def describe_configs(self, resources: Sequence[Any]) -> dict[Any, Future[Any]]:
        """Settings of topics."""
        return {
            one: _answered(_NO_ANSWER if self._is_broken("config") else self._config(one.name))
            for one in resources
        }

    def _config(self, name: str) -> dict[str, SimpleNamespace]:
        limit = str(self._log.topics[name].bytes_max)
        return {
            "min.insync.replicas": SimpleNamespace(value="2"),
            "max.message.bytes": SimpleNamespace(value=limit),
        }


# --- threads -------------------------------------------------------------------------------------


class SimCondition:
    """Whoever waits by it lets the world go on until what is waited for has come."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def __enter__(self) -> None:
        """Lock nothing."""

    def __exit__(self, *_: object) -> None:
        """Unlock nothing."""

    def notify_all(self) -> None:
        """Whoever waits looks by itself."""

    def wait_for(self, is_so: Callable[[], bool], timeout: float) -> bool:
        """Wait until it is so, or the time is over."""
        clock = self._node.clock
        until_s = clock.monotonic_s() + timeout
        while not is_so():
            if clock.monotonic_s() >= until_s:
                return False
            self._node.wait(until_s - clock.monotonic_s())
        return True


class InOrder(Executor):
    """Does at once what it is given, one after the other."""

    def map(  # type: ignore[override]  # what is needed of it
        self, work: Callable[[Any], Answer], items: Iterable[Any]
    ) -> Iterator[Answer]:
        return map(work, items)
