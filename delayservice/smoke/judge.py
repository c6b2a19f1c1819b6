"""The one judge of ``smoke``, demo and benches: it reads target topics as any consumer does,
without code of the service.

It compares what it receives with the load: each record exactly once, never early, byte for byte,
and no record that was cancelled or replaced. It reads to the end of the log, beyond the expected
number, so that a later double is seen.
"""

from __future__ import annotations

import struct
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection
from typing import Any, Final, NamedTuple, Protocol, Self

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs don't re-export
    AdminClient,
    OffsetSpec,
)

from delayservice.base.errors import ClusterError
from delayservice.base.tokens import with_tokens
from delayservice.smoke.helper import READY, Counter
from delayservice.smoke.load import (
    ADMIN_OPTIONS,
    AFTER,
    HEAD,
    QUIET,
    WINDOW_MS,
    WITHDRAWN,
    Batch,
    Headers,
    Kind,
    Loaded,
)

_END_S_MAX: Final = 120.0
_ANSWER_S: Final = 30.0
_LOOK_S: Final = 0.1
_BATCH: Final = 10_000
_EXAMPLES: Final = 5
_SEEN_MAX: Final = 255


class Arrival(NamedTuple):
    """One received record. Times are epoch milliseconds.

    Attributes:
        number: its number in the load; ``time_ms`` as in its head.
        place: its place in the target topic.
        slice_no, offset: its place in the delay topic.
        produced_ms: its timestamp when the service wrote it.
    """

    number: int
    time_ms: int
    place: str
    is_altered: bool
    slice_no: int
    offset: int
    due_ms: int
    produced_ms: int
    seen_ms: int


@dataclass(slots=True)
class Verdict:
    """Difference between what was sent and what arrived.

    Attributes:
        n: number of records that were sent.
        withdrawn: number of those that were cancelled or replaced, so that none may arrive;
            ``unwanted`` arrived all the same, though the service had read further before they
            were due. In an outage a record may be due before the service reads its cancel.
        delivered: number of the others that arrived; ``lost`` did not.
        altered: came with another key, value, header or due time, or in another topic.
        strangers: records that this load did not send.
        last_seen_s: time of the last new record, epoch seconds.
        lateness_ms: number of arrivals by time of receipt minus due time.
        arrivals: all of them, if they were asked for or the load is mixed; else those that are
            not as they should be.
        examples: some records for each kind of fault.
    """

    n: int = 0
    withdrawn: int = 0
    delivered: int = 0
    lost: int = 0
    duplicated: int = 0
    early: int = 0
    altered: int = 0
    unwanted: int = 0
    strangers: int = 0
    last_seen_s: float = 0.0
    lateness_ms: Counts[int] = field(default_factory=Counts)
    arrivals: list[Arrival] = field(default_factory=list)
    examples: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        # Others may write to the target as well.
        return not (self.lost or self.duplicated or self.early or self.altered or self.unwanted)


def quantile(histogram: Mapping[int, int], fraction: float) -> int | None:
    """Return the smallest value up to which at least ``fraction`` of all counts lie."""
    total = sum(histogram.values())
    below = 0
    for value in sorted(histogram):
        below += histogram[value]
        if below >= fraction * total:
            return value
    return None


def counts(verdict: Verdict) -> dict[str, int]:
    names = ("delivered", "withdrawn", "lost", "duplicated", "early", "altered", "unwanted")
    return {"sent": verdict.n} | {name: getattr(verdict, name) for name in (*names, "strangers")}


def lateness(histogram: Mapping[int, int], name: str = "lateness_ms") -> dict[str, int | None]:
    parts = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return {f"{name}_{part}": quantile(histogram, size) for part, size in parts.items()}


class Tally:
    """Compares received records with one load, which may end before the end of its ``Batch``."""

    def __init__(
        self, batch: Batch, targets: Sequence[str] = (), *, has_arrivals: bool = False
    ) -> None:
        self.verdict = Verdict()
        self._batch = batch
        self._targets = targets
        self._is_plain = not (batch.is_mixed or has_arrivals)
        self._counts = bytearray(batch.n)
        self._loaded = Loaded()
        # Number of records that arrived and were to arrive.
        self.distinct = 0

    @property
    def is_complete(self) -> bool:
        return self.distinct == self._loaded.n - self._loaded.withdrawn

    def add(self, messages: Iterable[Any], seen_s: float) -> int:
        """Judge received records; return how many of them are of this load."""
        own_records = 0
        batch, n, before = self._batch, len(self._counts), self.distinct
        seen_ms, lateness_ms = int(seen_s * 1_000), self.verdict.lateness_ms
        for message in messages:
            key, value = message.key(), message.value()
            try:
                number, time_ms, tag = HEAD.unpack_from(key if value is None else value)
            except (struct.error, TypeError):  # too short, or nothing
                number, time_ms, tag = n, 0, b""
            if tag != batch.tag or number >= n:
                self._note("strangers", _place_of(message))
                continue
            own_records += 1
            expected_key, expected_value, own = batch.record(number, time_ms)
            is_altered = key != expected_key or value != expected_value
            is_new = not self._counts[number]
            made_ms = message.timestamp()[1]
            if self._is_plain and is_new and not is_altered and made_ms >= time_ms <= seen_ms:
                # As it should be: a bench's judge must not take the processor from the service.
                self._counts[number] = 1
                self.distinct += 1
                if number >= batch.warm_up:
                    lateness_ms[seen_ms - time_ms] += 1
                continue
            if batch.is_mixed:
                is_altered |= self._is_changed(number, message, own)
            place = _place_of(message)
            self._count(number, place)
            named = dict(message.headers() or ())
            source = (named.get("delay-source") or b"::-1:-1").rsplit(b":", 2)
            due_ms = time_ms if self._is_plain else int(named.get("delay-due-at") or 0)
            if message.timestamp()[0] == TIMESTAMP_NOT_AVAILABLE:
                made_ms = seen_ms
            # They are judged at the end, as append times are known when the load has ended.
            self.verdict.arrivals.append(
                Arrival(
                    *(number, time_ms, place, is_altered, int(source[1]), int(source[2])),
                    *(due_ms, made_ms, seen_ms),
                )
            )
        if self.distinct > before:
            self.verdict.last_seen_s = seen_s
        return own_records

    def _is_changed(self, number: int, message: Any, own: Headers) -> bool:  # noqa: ANN401 (the client's)
        # Headers with this prefix are the service's.
        arrived = [one for one in message.headers() or () if not one[0].startswith("delay-")]
        target = self._targets[number % len(self._targets)]
        return arrived != own or message.topic() != target

    def _count(self, number: int, place: str) -> None:
        count = self._counts[number]
        self._counts[number] = min(count + 1, _SEEN_MAX)
        if count == 1:
            self._note("duplicated", place, number)
        elif count == 0 and self._batch.kind(number) not in WITHDRAWN:
            self.distinct += 1

    def _judge(self, one: Arrival) -> None:
        kind = self._batch.kind(one.number)
        due_ms, moved_ms = one.time_ms, WINDOW_MS if kind is Kind.WINDOW else 0
        if kind in AFTER:
            appended_ms = self._loaded.appended_ms.get(one.number)
            due_ms = one.due_ms if appended_ms is None else appended_ms + one.time_ms
        if min(one.produced_ms, one.seen_ms) < due_ms:
            self._note("early", one.place, one.number)
        if one.is_altered or not due_ms <= one.due_ms <= due_ms + moved_ms:
            self._note("altered", one.place, one.number)
        if kind in WITHDRAWN and self._was_taken_back(one):
            self._note("unwanted", one.place, one.number)
        if one.number >= self._batch.warm_up:
            self.verdict.lateness_ms[one.seen_ms - one.due_ms] += 1

    def _was_taken_back(self, arrival: Arrival) -> bool:
        # The record that takes it back is the next one, so the service had read that as well.
        return any(
            one.slice_no == arrival.slice_no
            and one.offset > arrival.offset + 1
            and one.produced_ms < arrival.due_ms
            for one in self.verdict.arrivals
        )

    def _note(self, what: str, place: str, number: int | None = None) -> None:
        setattr(self.verdict, what, getattr(self.verdict, what) + 1)
        shown = self.verdict.examples.setdefault(what, [])
        if len(shown) < _EXAMPLES:
            of = "" if number is None else f"record {number}, a {self._batch.kind(number).name}, "
            shown.append(f"{of}at {place}")

    def close(self, loaded: Loaded) -> None:
        """Note how many records were sent; what came beyond them was not."""
        self._loaded = loaded
        self.verdict.n, self.verdict.withdrawn = loaded.n, loaded.withdrawn
        beyond = self._counts[loaded.n :]
        self.verdict.strangers += sum(beyond)
        self.distinct -= len(beyond) - beyond.count(0)
        del self._counts[loaded.n :]

    def judged(self) -> Verdict:
        verdict, kind = self.verdict, self._batch.kind
        verdict.delivered = self.distinct
        verdict.lost = verdict.n - verdict.withdrawn - self.distinct
        lost = (
            f"record {number}, a {kind(number).name}"
            for number, count in enumerate(self._counts)
            if not count and kind(number) not in WITHDRAWN
        )
        verdict.examples |= {"lost": list(islice(lost, _EXAMPLES))} if verdict.lost else {}
        for one in verdict.arrivals:
            self._judge(one)
        return verdict


def _place_of(message: Any) -> str:  # noqa: ANN401 (the client's)
    return f"{message.topic()}:{message.partition()}:{message.offset()}"


class Source(Protocol):
    """Log of received records."""

    def take(self, timeout_s: float) -> list[Any]: ...

    def rest(self) -> Iterator[list[Any]]:
        """Yield what the log holds up to its present end."""
        ...


class KafkaSource:
    """``read_committed`` consumer of whole topics, which joins no group."""

    def __init__(
        self, client: Mapping[str, str], topics: Sequence[str], *, from_end: bool = False
    ) -> None:
        self._admin = AdminClient({**with_tokens(client), **ADMIN_OPTIONS}, logger=QUIET)
        options: dict[str, Any] = {
            "fetch.wait.max.ms": 50,
            # Pause before a full queue is checked again: the default of a second limits every
            # consumer to 170,000 small records a second.
            "fetch.queue.backoff.ms": 10,
            **client,
            "group.id": "judge",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "check.crcs": True,
            "allow.auto.create.topics": False,
        }
        self._consumer = Consumer(with_tokens(options), logger=QUIET)
        self._places = self._places_of(topics)
        self._read_to = self._ends() if from_end else {}

    def begin(self) -> Self:
        starts = [TopicPartition(*place, self._read_to.get(place, 0)) for place in self._places]
        self._consumer.assign(starts)
        return self

    def _places_of(self, topics: Sequence[str]) -> list[tuple[str, int]]:
        # A new topic may be unknown for a moment.
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            found = self._admin.list_topics(timeout=_ANSWER_S).topics
            if all(topic in found and found[topic].partitions for topic in topics):
                return [(topic, p) for topic in topics for p in found[topic].partitions]
            if time.monotonic() > deadline_s:
                raise ClusterError(f"there is no topic {', '.join(topics)}: create it first")
            time.sleep(_LOOK_S)

    def _ends(self) -> dict[tuple[str, int], int]:
        # Those of read_uncommitted: a record behind an open transaction has to be awaited.
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = {TopicPartition(*place): latest for place in self._places}
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            answers = self._admin.list_offsets(
                asked,
                isolation_level=IsolationLevel.READ_UNCOMMITTED,
                request_timeout=_ANSWER_S,
            )
            try:
                found = {place: answer.result(_ANSWER_S) for place, answer in answers.items()}
                return {(place.topic, place.partition): end.offset for place, end in found.items()}
            except KafkaException as exc:
                if time.monotonic() > deadline_s:
                    names = ", ".join({topic for topic, _ in self._places})
                    raise ClusterError(
                        f"the end of {names} is unknown: {exc}; has every partition a leader?"
                    ) from exc
            # While leaders change, the client goes by what it knew before, until it looks again.
            self._admin.list_topics(timeout=_ANSWER_S)
            time.sleep(_LOOK_S)

    def take(self, timeout_s: float, limit: int = _BATCH) -> list[Any]:
        # Consumer.consume alone would wait for as many as it is asked for.
        first, limit = self._consumer.poll(timeout_s), min(limit, _BATCH)
        messages = [] if first is None else [first, *self._consumer.consume(limit - 1, 0)]
        return [message for message in messages if self._is_record(message)]

    def gather(self, seconds: float) -> list[Any]:
        """Return all records of this time."""
        messages = self._consumer.consume(_BATCH, seconds)
        return [message for message in messages if self._is_record(message)]

    def _is_record(self, message: Any) -> bool:  # noqa: ANN401 (the client's optional fields)
        error = message.error()
        if error is None:
            return True
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 (its public name)
            self._read_to[message.topic(), message.partition()] = message.offset()
        elif error.fatal() or error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise KafkaException(error)
        return False

    def rest(self) -> Iterator[list[Any]]:
        ends, deadline_s = self._ends(), time.monotonic() + _END_S_MAX
        while any(self._read_to.get(place, 0) < end for place, end in ends.items()):
            messages = self.take(_LOOK_S)
            # Where others write all the time, the end is never reported.
            for message in messages:
                self._read_to[message.topic(), message.partition()] = message.offset() + 1
            yield messages
            if time.monotonic() > deadline_s:
                raise ClusterError(
                    f"the end of {', '.join({topic for topic, _ in self._places})} was not reached "
                    f"within {_END_S_MAX:.0f} s: has every partition a leader, and is no "
                    "transaction left open?"
                )


def connect_kafka(plan: JudgePlan) -> Source:
    return KafkaSource(plan.client, plan.topics, from_end=plan.from_end).begin()


@dataclass(frozen=True, slots=True)
class JudgePlan:
    """Topics that a judge process reads, and how long it waits.

    Attributes:
        client: librdkafka options of a consumer, or what else ``connect`` needs.
        from_end: skip records that the topics hold already.
        has_arrivals: the verdict has all arrivals.
        quiet_s: seconds without a record after which it reads to the end, once all have arrived.
        stall_s: the same if some have not.
    """

    client: Mapping[str, str]
    topics: tuple[str, ...]
    batch: Batch
    from_end: bool = False
    has_arrivals: bool = False
    quiet_s: float = 1.0
    stall_s: float = 60.0
    connect: Callable[[JudgePlan], Source] = connect_kafka


def judge(plan: JudgePlan, pipe: Connection, counter: Counter) -> None:
    """Read until all records of the load arrived, or none has for a while; then report the
    ``Verdict``. The word that it waits for is ``Loaded``.
    """
    source = plan.connect(plan)
    pipe.send(READY)
    tally = Tally(plan.batch, plan.topics, has_arrivals=plan.has_arrivals)
    heard_s, loaded = time.time(), None
    while loaded is None or time.time() - max(heard_s, loaded.last_due_ms / 1_000) < (
        plan.quiet_s if tally.is_complete else plan.stall_s
    ):
        messages = source.take(_LOOK_S)
        # Read the clock after the poll: a record that came meanwhile would seem early otherwise.
        seen_s = time.time()
        # Other producers may never be quiet.
        if tally.add(messages, seen_s):
            heard_s = seen_s
            counter.value = tally.distinct
        if loaded is None and pipe.poll():
            loaded = pipe.recv()
            tally.close(loaded)
    for messages in source.rest():
        tally.add(messages, time.time())
    pipe.send(tally.judged())
