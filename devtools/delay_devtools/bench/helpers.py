"""Helper processes of a bench: load, judge and passthrough, each with its own interpreter.

They use plain Kafka clients, as users do, and none of the service's code. A helper is a function of
a plan, a pipe and a counter: it sends its ``Ready`` first and its results in order.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from operator import methodcaller
from typing import Any, Final, Protocol, Self, TypeVar, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from connectors.kafka.clients import produce_patiently
from delay_devtools import clients
from delay_devtools.bench.peers import clients as peers
from delay_devtools.bench.tally import HEAD, KEYS, Batch, BatchTally, BenchVerdict, Trace, keys
from delay_devtools.clients import Headers
from delayservice.base.errors import DelayServiceError

_SPAWN: Final = get_context("spawn")
_LOOK_S: Final = 0.2
_TIMEOUT_S: Final = 1_800.0
_STALL_S: Final = 60.0
_BATCH: Final = 10_000
# Number of records sent between two readings of the clock, if the load has no rate limit.
_CHUNK: Final = 2_000
_SLICE_S: Final = 0.002
_FLUSH_TIMEOUT_S: Final = 120.0
_TRANSACTION_TIMEOUT_S: Final = 60.0
_EXPIRES_MS: Final = 86_400_000
_SOURCE_HEADER: Final = "delay-source"
_key_of: Final = methodcaller("key")
_value_of: Final = methodcaller("value")
_error_of: Final = methodcaller("error")


class Counter(Protocol):
    """Number of records so far, in memory that both processes share."""

    value: int


_Plan = TypeVar("_Plan")
_Result = TypeVar("_Result")
_Work = Callable[[_Plan, Connection, Counter], None]


@dataclass(frozen=True, slots=True)
class Ready:
    pass


@dataclass(frozen=True, slots=True)
class _Failed:
    why: str


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Records that a load process sends, and how it sends them.

    Attributes:
        client: librdkafka options of a producer, or options of ``bench.peers.clients``.
        due_from_ms: first due time; 0: the moment of sending plus ``after_ms``. A random part of
            ``span_ms`` is added.
        rate_per_s: records per second; 0: no limit.
        is_full: whether every record has an id and an expiry.
        transactional_id: id of one transaction for all records, which stays open until ``show``, so
            that no consumer reads them before; empty: no transaction.
    """

    client: Mapping[str, str]
    topic: str
    target: str
    batch: Batch
    due_from_ms: int = 0
    after_ms: int = 0
    span_ms: int = 0
    rate_per_s: float = 0.0
    is_full: bool = False
    transactional_id: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """``n`` acknowledged records, sent in ``seconds``; ``resent``: repeated attempts of a peer."""

    n: int
    seconds: float
    resent: int | None


@dataclass(frozen=True, slots=True)
class Shown:
    """Time right before the commit of a load's transaction, epoch seconds."""

    at_s: float


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """``client`` as in ``LoadPlan``. ``quiet_s``: seconds without a record, once all have arrived,
    after which reading ends; to detect duplicates. ``has_trace``: a ``Trace`` is sent first.
    """

    client: Mapping[str, str]
    topic: str
    batch: Batch
    quiet_s: float = 1.0
    has_trace: bool = False


@dataclass(frozen=True, slots=True)
class LoadEnd:
    """Tells a judge the number of records, and the last due time: it does not give up before."""

    n: int
    last_due_ms: int


@dataclass(frozen=True, slots=True)
class PassPlan:
    """``transactional_id`` is empty for an idempotent producer without transactions; ``headers``
    replace those of the input. ``interval_s``: begin a transaction with the records of this time
    (a paced load); 0: with ``transaction_records``.
    """

    consumer: Mapping[str, str]
    producer: Mapping[str, str]
    source: str
    target: str
    n: int
    transaction_records: int
    transactional_id: str
    headers: list[tuple[str, bytes | None]]
    interval_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Passed:
    """Time from the first fetch to the last commit, and CPU time of all threads."""

    seconds: float
    cpu_s: float


class Helper:
    def __init__(
        self,
        work: _Work[_Plan],
        plan: _Plan,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._name = work.__name__
        self._progress = progress
        self._counter: Counter = _SPAWN.Value("q", 0, lock=False)
        self._process = _SPAWN.Process(
            target=_serve, args=(work, plan, theirs, self._counter), daemon=True
        )
        self._process.start()
        theirs.close()
        self.expect(Ready)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def tell(self, word: LoadEnd | None = None) -> None:
        """Send the next word: to begin, then (load) to end early, or to commit and show."""
        try:
            self._pipe.send(word)
        except OSError as exc:
            raise DelayServiceError(f"the process {self._name} ended before it was done") from exc

    def expect(self, kind: type[_Result], timeout_s: float = _TIMEOUT_S) -> _Result:
        deadline_s = time.monotonic() + timeout_s
        while not self._pipe.poll(_LOOK_S):
            self._progress(self._counter.value)
            if time.monotonic() > deadline_s:
                raise DelayServiceError(
                    f"the process {self._name} had no {kind.__name__} within {timeout_s:.0f} s"
                )
        try:
            found = self._pipe.recv()
        except (EOFError, OSError) as exc:
            raise DelayServiceError(f"the process {self._name} ended before it was done") from exc
        if isinstance(found, _Failed):
            raise DelayServiceError(f"{self._name}: {found.why}")
        if not isinstance(found, kind):
            raise TypeError(f"{self._name} sent {found!r}, not {kind.__name__}")
        self._progress(self._counter.value)
        return found


def _serve(work: _Work[_Plan], plan: _Plan, pipe: Connection, counter: Counter) -> None:
    # Ctrl-C goes to all processes of a terminal; the bench ends its helpers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(plan, pipe, counter)
    except (KafkaException, DelayServiceError) as exc:
        pipe.send(_Failed(str(exc)))


def _end_with_parent() -> None:
    # A bench that was killed can't end its helpers.
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


# --- load ----------------------------------------------------------------------------------------


def load(plan: LoadPlan, pipe: Connection, counter: Counter) -> None:
    errors: list[str] = []
    if "bootstrap.servers" in plan.client:
        peer = None
        producer = clients.producer(plan.client, plan.transactional_id, errors)
    else:
        peer = peers.producer(plan.client, plan.topic)
        producer = cast("Producer", peer)
    if plan.transactional_id:
        producer.init_transactions(_TRANSACTION_TIMEOUT_S)
        producer.begin_transaction()
    else:
        producer.list_topics(plan.topic, timeout=30)
    pipe.send(Ready())
    pipe.recv()
    started_s = time.monotonic()
    sent = _send_all(plan, producer, pipe, counter)
    left = producer.flush(_FLUSH_TIMEOUT_S)
    if left:
        errors.append(peer.last_error if peer is not None else "not acknowledged in time")
    if errors:
        raise DelayServiceError(f"{max(left, len(errors))} records were not sent: {errors[0]}")
    resent = None if peer is None else peer.resent
    pipe.send(Loaded(sent, time.monotonic() - started_s, resent))
    if plan.transactional_id:
        pipe.recv()
        at_s = time.time()
        producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
        pipe.send(Shown(at_s))


def _send_all(plan: LoadPlan, producer: Producer, pipe: Connection, counter: Counter) -> int:
    n, rate = plan.batch.n, plan.rate_per_s
    random_ = random.Random(plan.batch.seed).random  # noqa: S311 (replays from its seed)
    filler = plan.batch.filler()
    started_s = time.monotonic()
    sent = 0
    while sent < n and not pipe.poll():
        elapsed_s = time.monotonic() - started_s
        stop = min(int(elapsed_s * rate) + 1 if rate else sent + _CHUNK, n)
        if stop > sent:
            _send(plan, producer, range(sent, stop), filler, random_)
            sent = stop
        producer.poll(0)
        counter.value = sent
        if rate:
            time.sleep(_SLICE_S)
    return sent


def _send(
    plan: LoadPlan,
    producer: Producer,
    numbers: range,
    filler: bytes,
    random_: Callable[[], float],
) -> None:
    produce, pack, topic, span_ms = producer.produce, HEAD.pack, plan.topic, plan.span_ms
    from_ms = plan.due_from_ms or int(time.time() * 1_000) + plan.after_ms
    target = ("delay-target-topic", plan.target.encode())
    tag, known_keys = plan.batch.tag_bytes(), keys()
    for number in numbers:
        due_ms = from_ms + int(random_() * span_ms)
        value = pack(number, due_ms, tag) + filler
        key = known_keys[number % KEYS]
        headers: Headers = [("delay-at", b"%d" % due_ms), target]
        if plan.is_full:
            headers.append(("delay-id", b"record-%d" % number))
            headers.append(("delay-expires-at", b"%d" % (due_ms + _EXPIRES_MS)))
        try:
            produce(topic, value, key, headers=headers)
        except BufferError:
            produce_patiently(producer, topic, value, key, headers=headers)


# --- judge ---------------------------------------------------------------------------------------


def judge(plan: JudgePlan, pipe: Connection, counter: Counter) -> None:
    """Read a target topic as a consumer would, and compare every record with the load."""
    if "bootstrap.servers" in plan.client:
        consumer = clients.consumer(plan.client, f"judge-{plan.batch.tag}")
        consumer.assign(clients.partitions(consumer, plan.topic))
    else:
        consumer = cast("Consumer", peers.consumer(plan.client, plan.topic))
    pipe.send(Ready())
    tally, trace = BatchTally(plan.batch), Trace()
    heard_s, last_due_s, is_told = time.time(), 0.0, False
    while not is_told or time.time() - max(heard_s, last_due_s) < (
        plan.quiet_s if tally.is_complete else _STALL_S
    ):
        messages = clients.take(consumer, 0.1, _BATCH)
        seen_s = time.time()
        if any(map(_error_of, messages)):
            messages = [message for message in messages if not _is_event(message)]
        if messages:
            heard_s = seen_s
            tally.add(list(map(_key_of, messages)), list(map(_value_of, messages)), seen_s)
            counter.value = tally.distinct
        if plan.has_trace:
            trace.add(map(_place_of, messages), int(seen_s * 1_000))
        if pipe.poll() and not is_told:
            end: LoadEnd = pipe.recv()
            tally.close(end.n)
            last_due_s, is_told = end.last_due_ms / 1_000, True
    if plan.has_trace:
        pipe.send(trace)
    pipe.send(tally.verdict())
    consumer.close()


def _place_of(message: Any) -> tuple[int, int]:  # noqa: ANN401 (as _is_event)
    _, slice_no, _ = dict(message.headers())[_SOURCE_HEADER].rsplit(b":", 2)
    return int(slice_no), message.timestamp()[1]


def _is_event(message: Any) -> bool:  # noqa: ANN401 (the client's stubs make every field optional)
    error = message.error()
    if error is None:
        return False
    if error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
        raise KafkaException(error)
    return True


# --- passthrough ---------------------------------------------------------------------------------


def passthrough(plan: PassPlan, pipe: Connection, counter: Counter) -> None:
    """Copy a topic with a plain consumer and producer, as a reference for the service: outputs have
    as many headers and as large transactions as the service's. One process, like a worker.
    """
    errors: list[str] = []
    consumer = clients.consumer(plan.consumer, "passthrough")
    partitions = clients.partitions(consumer, plan.source)
    producer = clients.producer(plan.producer, plan.transactional_id, errors)
    producer.list_topics(plan.target, timeout=30)
    if plan.transactional_id:
        producer.init_transactions(_TRANSACTION_TIMEOUT_S)
    pipe.send(Ready())
    pipe.recv()
    started_s, started_cpu_s = time.monotonic(), time.process_time()
    consumer.assign(partitions)
    while counter.value < plan.n:
        stop = min(counter.value + plan.transaction_records, plan.n)
        messages = consumer.consume(_BATCH, plan.interval_s) if plan.interval_s else []
        if plan.interval_s and not messages:
            continue
        if plan.transactional_id:
            producer.begin_transaction()
        counter.value += _copy(producer, plan, messages)
        while counter.value < stop and not plan.interval_s:
            messages = clients.take(consumer, 1.0, min(stop - counter.value, _BATCH))
            counter.value += _copy(producer, plan, messages)
        if plan.transactional_id:
            producer.commit_transaction(_TRANSACTION_TIMEOUT_S)
    producer.flush(_TRANSACTION_TIMEOUT_S)
    passed = Passed(time.monotonic() - started_s, time.process_time() - started_cpu_s)
    if errors:
        raise DelayServiceError(f"{len(errors)} records were not passed on: {errors[0]}")
    pipe.send(passed)
    consumer.close()


def _copy(producer: Producer, plan: PassPlan, messages: list[Any]) -> int:
    produce, target, headers = producer.produce, plan.target, cast("Headers", plan.headers)
    passed = 0
    for message in messages:
        if message.error() is not None:
            continue
        # As the service has to.
        message.offset()
        message.headers()
        key, value = message.key(), message.value()
        try:
            produce(target, value, key, headers=headers)
        except BufferError:
            produce_patiently(producer, target, value, key, headers=headers)
        passed += 1
    producer.poll(0)
    return passed


def verdict_of(judge_process: Helper, end: LoadEnd) -> BenchVerdict:
    judge_process.tell(end)
    return judge_process.expect(BenchVerdict)
