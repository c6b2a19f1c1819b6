"""The one load of ``smoke``, demo and benches: records made from a seed, as any producer would make
them. Only names of headers are those of the service, and none of its code is used.

A record's number, its time and the tag of its load are in its value; a record without a value has
them in its key. So a judge needs only the ``Batch`` to know what it should have received.
"""

from __future__ import annotations

import logging
import random
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property, partial
from multiprocessing.connection import Connection
from typing import Any, Final, TypeAlias

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Producer

from delayservice.base.errors import ClusterError
from delayservice.base.tokens import with_tokens
from delayservice.smoke.helper import READY, Counter

# Drops messages of test clients, such as those about brokers stopped after a test.
QUIET: Final = logging.getLogger("delayservice.smoke.clients")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False

# Of admin clients. One whose request waits for a broker that is down would connect to it without a
# pause, as those of the service would.
ADMIN_OPTIONS: Final[Mapping[str, Any]] = {
    "allow.auto.create.topics": False,
    "enable.sparse.connections": False,
}

# Number u64; due time in epoch milliseconds u64, or the delay in ms if the due time follows from
# the append time; tag of the load. A value goes on with random bytes, up to the Batch's size.
HEAD: Final = struct.Struct(">QQ8s")
SIZE_MIN: Final = HEAD.size
assert SIZE_MIN == 24  # noqa: S101, PLR2004 (the documented layout)

KEYS: Final = [b"key-%d" % number for number in range(1_024)]
WINDOW_MS: Final = 200
_EXPIRES_MS: Final = 86_400_000
# Number of records sent between two readings of the clock, if the load has no rate limit.
_CHUNK: Final = 2_000
_PACE_S: Final = 0.002
_TOPIC_TIMEOUT_S: Final = 30.0
_FLUSH_TIMEOUT_S: Final = 120.0
_TRANSACTION_TIMEOUT_S: Final = 60.0

Headers: TypeAlias = list[tuple[str, str | bytes | None]]


class Kind(IntEnum):
    """Kinds of records of a mixed load, in the order in which they are sent, again and again."""

    NO_KEY = 0
    KEYED = 1
    NO_VALUE = 2
    HEADERS = 3
    WINDOW = 4
    CANCELLED = 5
    REPLACED = 6
    REPLACEMENT = 7


# The due time of these follows from their append time.
AFTER: Final = frozenset({Kind.NO_KEY, Kind.NO_VALUE})
# A later record takes these back, so they must never arrive.
WITHDRAWN: Final = frozenset({Kind.CANCELLED, Kind.REPLACED})


@dataclass(frozen=True)
class Batch:
    """Description of one load, whose records have the numbers 0 to n-1.

    A record with another ``tag`` (8 bytes) counts as a stranger. ``seed`` is for filler and due
    times. The lateness of the first ``warm_up`` records is not counted. Not ``is_mixed``: all
    records are ``KEYED``.
    """

    tag: bytes
    n: int
    size: int
    seed: int
    warm_up: int = 0
    is_mixed: bool = False

    @cached_property
    def filler(self) -> bytes:
        # Random, so that values are incompressible; seeded, to replay.
        return random.Random(self.seed).randbytes(self.size - SIZE_MIN)  # noqa: S311

    def kind(self, number: int) -> Kind:
        return Kind(number % len(Kind)) if self.is_mixed else Kind.KEYED

    @property
    def wanted(self) -> int:
        """Return how many records have to arrive."""
        return sum(self.kind(number) not in WITHDRAWN for number in range(self.n))

    def name(self, number: int) -> bytes:
        """Return the id of a record, which a replacement shares with the record before it."""
        return b"%s-%d" % (self.tag, number - (self.kind(number) is Kind.REPLACEMENT))

    def record(self, number: int, time_ms: int) -> tuple[bytes | None, bytes | None, Headers]:
        """Return key, value and headers with which a record arrives, without those of the
        service.
        """
        head = HEAD.pack(number, time_ms, self.tag)
        if not self.is_mixed:
            return KEYS[number % len(KEYS)], head + self.filler, []
        value = head + self.filler[: number % (self.size - SIZE_MIN + 1)]
        match self.kind(number):
            case Kind.NO_KEY:
                return None, value, []
            case Kind.NO_VALUE:
                return head, None, []
            case Kind.HEADERS:
                return b"", value, [("own", head), ("own", b"twice"), ("empty", b""), ("no", None)]
            case Kind.KEYED | Kind.WINDOW:
                return KEYS[number % len(KEYS)], value, []
            case _:
                return self.name(number), value, []


def producer(
    client: Mapping[str, str], errors: list[str], transactional_id: str = "", **more: object
) -> Producer:
    """Return a producer tuned for throughput; ``errors`` collects texts of failed deliveries."""

    def note(error: object, _message: object) -> None:
        if error is not None:
            errors.append(str(error))

    options: dict[str, Any] = {
        "linger.ms": 5,
        "batch.num.messages": 10_000,
        "batch.size": 1_000_000,
        "queue.buffering.max.messages": 500_000,
        "queue.buffering.max.kbytes": 262_144,
        "message.timeout.ms": 120_000,
        "partitioner": "murmur2_random",
        **client,
        # Without it, a retry of the client would write a record twice.
        "enable.idempotence": True,
        "acks": "all",
        "allow.auto.create.topics": False,
        # A callback for each record would cost as much as the record.
        "delivery.report.only.error": True,
        "on_delivery": note,
        **more,
    }
    if transactional_id:
        options["transactional.id"] = transactional_id
        options["transaction.timeout.ms"] = 900_000  # the most that brokers allow by default
    return Producer(with_tokens(options), logger=QUIET)


def connect_kafka(plan: LoadPlan, errors: list[str]) -> Producer:
    made = producer(
        plan.client,
        errors,
        plan.transactional_id,
        # Append times are known from reports of delivery.
        **{"delivery.report.only.error": not plan.batch.is_mixed},
    )
    made.list_topics(plan.topic, timeout=_TOPIC_TIMEOUT_S)
    if plan.transactional_id:
        made.init_transactions(_TRANSACTION_TIMEOUT_S)
        made.begin_transaction()
    return made


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """Records that a load process sends, and how it sends them.

    Attributes:
        client: librdkafka options of a producer, or what else ``connect`` needs.
        targets: topics that the records are delivered to, in turn.
        due_from_ms: first due time; 0: the moment of sending plus ``after_ms``. A random part of
            ``span_ms`` is added; in a mixed load short delays are frequent.
        per_s: records per second; 0: no limit.
        part_records: size of a part, each of which waits for a word; 0: all are one part, which a
            second word ends early.
        is_full: whether every record has an id and an expiry.
        transactional_id: id of one transaction for all records, which stays open until the next
            word, so that no consumer reads them before; empty: no transaction.
    """

    client: Mapping[str, str]
    topic: str
    targets: tuple[str, ...]
    batch: Batch
    due_from_ms: int = 0
    after_ms: int = 0
    span_ms: int = 0
    per_s: float = 0.0
    part_records: int = 0
    is_full: bool = False
    transactional_id: str = ""
    connect: Callable[[LoadPlan, list[str]], Producer] = connect_kafka


@dataclass(slots=True)
class Loaded:
    """Result of a load process, which the judge needs.

    Attributes:
        n: number of acknowledged records, sent in ``seconds``.
        withdrawn: number of those that were cancelled or replaced.
        last_due_ms: last due time; a judge does not give up before.
        appended_ms: append times of records whose due time follows from it, by number, as far as
            they are known.
        resent: repeated attempts of a client that counts them.
    """

    n: int = 0
    withdrawn: int = 0
    seconds: float = 0.0
    last_due_ms: int = 0
    appended_ms: dict[int, int] = field(default_factory=dict)
    resent: int | None = None


def load(plan: LoadPlan, pipe: Connection, counter: Counter) -> None:
    """Send the records when told to, and report ``Loaded``; with a transaction, commit it at the
    next word, and report ``Shown``.
    """
    errors: list[str] = []
    producer_ = plan.connect(plan, errors)
    pipe.send(READY)
    pipe.recv()
    loaded = _Sender(plan, producer_, errors).send_all(pipe, counter)
    left = producer_.flush(_FLUSH_TIMEOUT_S)
    if left:
        errors.append("not acknowledged in time")
    if errors:
        raise ClusterError(f"{max(left, len(errors))} records were not sent: {errors[-1]}")
    loaded.resent = getattr(producer_, "resent", None)
    pipe.send(loaded)
    if plan.transactional_id:
        pipe.recv()
        at_s = time.time()
        producer_.commit_transaction(_TRANSACTION_TIMEOUT_S)
        pipe.send(at_s)


class _Sender:
    def __init__(self, plan: LoadPlan, producer_: Producer, errors: list[str]) -> None:
        self._plan = plan
        self._producer = producer_
        self._errors = errors
        self._random = random.Random(plan.batch.seed).random  # noqa: S311 (replays from its seed)
        self._loaded = Loaded()

    def send_all(self, pipe: Connection, counter: Counter) -> Loaded:
        plan, sent = self._plan, 0
        part = plan.part_records or plan.batch.n
        started_s = time.monotonic()
        for first in range(0, plan.batch.n, part):
            if first:
                pipe.recv()
            sent = first
            part_s, end = time.monotonic(), min(first + part, plan.batch.n)
            while sent < end and (plan.part_records or not pipe.poll()):
                paced = first + int((time.monotonic() - part_s) * plan.per_s) + 1
                stop = min(paced if plan.per_s else sent + _CHUNK, end)
                for number in range(sent, stop):
                    self._send(number)
                counter.value = sent = stop
                self._producer.poll(_PACE_S if plan.per_s else 0)
        self._loaded.n, self._loaded.seconds = sent, time.monotonic() - started_s
        return self._loaded

    def _send(self, number: int) -> None:
        plan, batch = self._plan, self._plan.batch
        kind = batch.kind(number)
        delay_ms = plan.after_ms + int(self._part(kind) * plan.span_ms)
        due_ms = (plan.due_from_ms or time.time_ns() // 1_000_000) + delay_ms
        self._loaded.withdrawn += kind in WITHDRAWN
        self._loaded.last_due_ms = max(self._loaded.last_due_ms, due_ms)
        is_after = kind in AFTER
        key, value, headers = batch.record(number, delay_ms if is_after else due_ms)
        target = plan.targets[number % len(plan.targets)]
        headers.append(("delay-target-topic", target.encode()))
        headers.append(
            ("delay-after", b"%d" % delay_ms) if is_after else ("delay-at", b"%d" % due_ms)
        )
        if kind is Kind.WINDOW:
            headers.append(("delay-window-ms", b"%d" % WINDOW_MS))
        if plan.is_full or kind >= Kind.CANCELLED:
            headers.append(("delay-id", batch.name(number)))
            headers.append(("delay-expires-at", b"%d" % (due_ms + _EXPIRES_MS)))
        self._produce(value, key, headers, partial(self._note, number) if is_after else None)
        if kind is Kind.CANCELLED:
            cancel: Headers = [("delay-id", batch.name(number)), ("delay-op", b"cancel")]
            self._produce(None, key, cancel, None)

    def _part(self, kind: Kind) -> float:
        # A record is taken back before it is due.
        if kind >= Kind.CANCELLED:
            return 1.0
        return self._random() ** 3 if self._plan.batch.is_mixed else self._random()

    def _produce(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: Headers,
        on_delivery: Callable[..., None] | None,
    ) -> None:
        more: dict[str, Any] = {"on_delivery": on_delivery} if on_delivery else {}
        while True:
            try:
                self._producer.produce(self._plan.topic, value, key, headers=headers, **more)
            except BufferError:
                self._producer.poll(_PACE_S)
            else:
                return

    def _note(self, number: int, error: object, message: Any) -> None:  # noqa: ANN401 (the client's)
        if error is not None:
            self._errors.append(str(error))
            return
        # When a resent record was there already, the broker does not tell its append time.
        kind, time_ms = message.timestamp()
        if kind == TIMESTAMP_LOG_APPEND_TIME:
            self._loaded.appended_ms[number] = time_ms
