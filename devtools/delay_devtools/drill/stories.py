"""The real run of a drill: a broker, one node of the service, and users who write *stories*, each
one or a few records with one fate. Every record of a story but an outcome has the header ``story``.

``begin`` plays the stories in a short roll window, so that records are rolled; ``fill`` adds plain
records in any number; ``end`` leaves records pending in the node's store, some of them cancelled,
and others written after the node has stopped.
"""

from __future__ import annotations

import json
import random
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.cimpl import NewTopic  # its stubs export it here only

from connectors.kafka.clients import KafkaAdmin, produce_patiently
from connectors.kafka.log_ends import LATEST, offsets_of
from delay_devtools.bench.stand import Names
from delay_devtools.servers import ANY_PORTS
from delay_devtools.service import ServiceProcess
from delayservice.base.errors import ClusterError, KafkaEdgeError
from delayservice.commands.options import now_ms
from delayservice.contract.partitioner import partition_for
from delayservice.smoke.judge import KafkaSource
from delayservice.smoke.load import QUIET, Headers, producer

Header = tuple[str, bytes]

PARTITIONS: Final = 4
NAMES: Final = Names("drill")
LEVEL: Final = "drill_level_1"
TARGETS: Final = (NAMES.target("a"), NAMES.target("b"))
MISSING: Final = NAMES.target("missing")
SECRET: Final = b"only-for-drills-0123456789"
STORY: Final = "story"

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 60 * _MINUTE_MS
_WINDOW_MS: Final = 12_000
_LEVEL_MS: Final = 500
# Delay of records that are settled before they are due; in the window, so that K passes it.
_FAR_MS: Final = 10_000
_ROLLED_MS: Final = 14_000
# Longer than any story takes from its first record on.
_PLAYED_MS: Final = 16_000
_PENDING_MS: Final = (20 * _MINUTE_MS, 100 * _MINUTE_MS)
_AGED: Final = 40
_WAIT_S: Final = 300.0
# Longer than a broker needs to answer: what does not come within it is not there.
_QUIET_S: Final = 3.0
_LAST: Final = NAMES.target("last")
_TO: Final = ("delay-target-topic", TARGETS[0].encode())
_VALUE: Final = b"." * 100
_SETS: Final = (
    *(f"topics.checkpoint_partitions={PARTITIONS // 2}", f"levels.delays_ms={_LEVEL_MS}"),
    *("delivery.park_delays_ms=300", "node.workers=1", f"node.cluster_secret={SECRET.decode()}"),
)
_SHORT: Final = (f"delivery.roll_window_ms={_WINDOW_MS}", f"delivery.max_delay_ms={_HOUR_MS}")


class RealRun:
    def __init__(self, bootstrap: str, folder: Path, rng: random.Random) -> None:
        self.client = {"bootstrap.servers": bootstrap}
        self.state_dir = folder / "state"
        self._log_path = folder / "service.log"
        self._sets = [
            *(f"kafka.bootstrap={bootstrap}", f"node.state_dir={self.state_dir}"),
            *(*NAMES.sets(PARTITIONS), *_SETS, *ANY_PORTS),
        ]
        self._rng = rng
        self._errors: list[str] = []
        self._producer = producer(self.client, self._errors)
        self._admin = KafkaAdmin(self.client, QUIET)
        self._last = 0
        create(self._admin, (*TARGETS, _LAST), {})

    # --- phases --------------------------------------------------------------------------------

    def begin(self, stories: Counter[str], spares: int) -> None:
        with self._serving(*_SHORT):
            # Each partition of a target has a record before the stories begin: the audit excuses
            # one in another partition by those that the target did not have yet.
            for number in range(_AGED):
                place = ("delay-target-partition", b"%d" % (number % PARTITIONS))
                target = TARGETS[number // PARTITIONS % len(TARGETS)]
                self.ask(b"aged-%d" % number, 500, place, partition=0, target=target)
            self._finish(0)
            self._forget()
            names = list(stories.elements())
            self._rng.shuffle(names)
            for number, name in enumerate(names):
                STORIES[name](self, b"%s-%d" % (name.encode(), number))
            self._finish(_PLAYED_MS)
            self._abort(spares)
            for number in range(spares):
                self.ask(b"spare-%d" % number, partition=number % PARTITIONS)
            self._finish(1_000)

    def fill(self, count: int, say: Callable[[str], None]) -> None:
        with self._serving():
            for number in range(count):
                key = b"key-%d" % (number % 997) if number % 5 == 0 else None
                after = ("delay-after", b"%d" % (number * 7_919 % 2_000))
                headers = [("trace", b"%016x" % number), _TO, after]
                self.send(headers, key, _VALUE, number % PARTITIONS)
                if number % 50_000 == 0:
                    say(f"delivering records: {number:,} of {count:,}")
            self._finish(2_500)

    def end(self, pending: int, tail: int) -> None:
        with self._serving():
            for number in range(pending):
                after_ms = self._rng.randrange(*_PENDING_MS)
                self.ask(b"waiting-%d" % number, after_ms)
                self.ask(b"doomed-%d" % number, after_ms, is_named=True)
                self.control(b"doomed-%d" % number, b"cancel")
                self.forge(b"forged_later-%d" % number, after_ms)
            self._finish(1_000)
        for number in range(tail):
            self.ask(b"tail-%d" % number, _MINUTE_MS)
        flush(self._producer, self._errors)

    @contextmanager
    def _serving(self, *sets: str) -> Iterator[None]:
        with ServiceProcess([*self._sets, *sets], self._log_path) as service:
            service.wait_serving(PARTITIONS)
            yield
            if service.stop():
                raise ClusterError(f"the service failed; its log ends:\n{service.log_tail()}")

    def _finish(self, after_ms: int) -> None:
        """Wait until all that is due within ``after_ms`` is settled: a record behind it in each
        partition has arrived.
        """
        self._last += PARTITIONS
        to_last = ("delay-target-topic", _LAST.encode())
        for partition in range(PARTITIONS):
            self.send([("delay-after", b"%d" % after_ms), to_last], partition=partition)
        flush(self._producer, self._errors)
        deadline_s = time.monotonic() + _WAIT_S
        source = KafkaSource(self.client, [_LAST]).begin()
        seen = 0
        while seen < self._last:
            seen += len(source.take(0.2))
            if time.monotonic() > deadline_s:
                raise ClusterError(f"not all is delivered after {_WAIT_S:.0f} s")

    def _forget(self) -> None:
        """Delete the first records, as retention does."""
        place = (NAMES.delay, 0)
        end = offsets_of(self._admin, [place], LATEST)[place]
        asked = [TopicPartition(*place, end)]
        for future in self._admin.delete_records(asked, operation_timeout=_WAIT_S).values():
            future.result(_WAIT_S)

    def _abort(self, count: int) -> None:
        """Abort a user's transaction: offsets without records."""
        user = producer(self.client, self._errors, "drill-user")
        user.init_transactions(_WAIT_S)
        user.begin_transaction()
        for number in range(count * PARTITIONS):
            headers: Headers = [_TO, ("delay-after", b"1")]
            user.produce(NAMES.delay, b"never", None, number % PARTITIONS, headers=headers)
        user.flush(_WAIT_S)
        user.abort_transaction(_WAIT_S)

    def checkpoints(self) -> dict[bytes, bytes]:
        """Return the newest checkpoint of each slice, by its key."""
        topic = f"{NAMES.prefix}_checkpoint"
        source = KafkaSource(self.client, [topic]).begin()
        found: dict[bytes, bytes] = {}
        while (messages := source.take(_QUIET_S)) or len(found) < PARTITIONS:
            found |= {message.key(): message.value() for message in messages}
        return found

    # --- users ---------------------------------------------------------------------------------

    def send(
        self,
        headers: Sequence[Header],
        key: bytes | None = None,
        value: bytes | None = b"value",
        partition: int | None = None,
        topic: str = NAMES.delay,
    ) -> None:
        """Write a record to a partition; None: that of the key, or else any."""
        if partition is None:
            partition = self._rng.randrange(PARTITIONS) if key is None else -1
        produce_patiently(self._producer, topic, value, key, partition, headers=list(headers))
        self._producer.poll(0)

    def ask(
        self,
        story: bytes,
        after_ms: int = 500,
        *more: Header,
        key: bytes | None = None,
        value: bytes | None = b"value",
        partition: int | None = None,
        target: str = "",
        is_named: bool = False,
    ) -> None:
        to = ("delay-target-topic", (target or self._rng.choice(TARGETS)).encode())
        named = [("delay-id", story)] if is_named else []
        after = ("delay-after", b"%d" % after_ms)
        headers = [(STORY, story), to, *named, after, *more, ("own", b"\x00\xff")]
        self.send(headers, story if is_named else key, value, partition)

    def control(self, story: bytes, op: bytes) -> None:
        self.send([(STORY, story), ("delay-id", story), ("delay-op", op)], story, None)

    def forge(self, story: bytes, after_ms: int = _FAR_MS) -> None:
        """Write what looks like a requeued record of the first one, with a wrong signature."""
        partition, due_ms = self._rng.randrange(PARTITIONS), now_ms() + after_ms
        source = b64encode(f"{NAMES.delay}:{partition}:0".encode()).decode()
        claim = {"v": 1, "settles": 0, "source": source, "base": 1, "at": due_ms, "due": due_ms}
        claim |= {"target": TARGETS[0], "partition": -1, "id": None, "attempt": 1, "expires": None}
        copy = [("delay-copy", json.dumps(claim).encode()), ("delay-copy-mac", b"00")]
        self.send([(STORY, story), *copy], partition=partition)


def create(admin: KafkaAdmin, topics: Iterable[str], config: Mapping[str, str]) -> None:
    new = [NewTopic(topic, PARTITIONS, 1, config=dict(config)) for topic in topics]
    for future in admin.create_topics(new, operation_timeout=_WAIT_S).values():
        future.result(_WAIT_S)


def flush(producer: Producer, errors: Sequence[str]) -> None:
    left = producer.flush(_WAIT_S)
    if left or errors:
        why = errors[0] if errors else f"{left} records wait"
        raise KafkaEdgeError(f"the drill's records can't be written: {why}")


def _expires(after_ms: int) -> Header:
    return "delay-expires-at", b"%d" % (now_ms() + after_ms)


def _cancelled(run: RealRun, story: bytes) -> None:
    run.ask(story, _FAR_MS, is_named=True)
    run.control(story, b"cancel")


def _fired(run: RealRun, story: bytes) -> None:
    run.ask(story, _FAR_MS, _expires(2 * _FAR_MS), is_named=True)
    run.control(story, b"fire")


def _idle(run: RealRun, story: bytes) -> None:
    # In partition 0, it may have cancelled one of the records that were deleted.
    while partition_for(story, PARTITIONS) == 0:
        story += b"-"
    run.control(story, b"cancel")


def _replaced(run: RealRun, story: bytes) -> None:
    run.ask(story, _FAR_MS, is_named=True)
    run.ask(story, 300, is_named=True)


def _recurring_replaced(run: RealRun, story: bytes) -> None:
    run.ask(story, 500, ("delay-every", b"PT1S"), is_named=True)
    run.ask(story, _FAR_MS, is_named=True)


def _sent_home(run: RealRun, story: bytes) -> None:
    away = (partition_for(story, PARTITIONS) + 1) % PARTITIONS
    run.ask(story, 1_000, partition=away, is_named=True)


_INVALID: Final = (("own", b"1"), ("own", b"2"), ("delay-at", b"soon"), _TO)
_EVERY: Final = (("delay-every", b"1000"), ("delay-times", b"3"))
_CRON: Final = (("delay-cron", b"* * * * * *"), ("delay-times", b"2"))

STORIES: Final[Mapping[str, Callable[[RealRun, bytes], None]]] = {
    "plain": RealRun.ask,
    "keyed": lambda run, story: run.ask(story, key=story),
    "placed": lambda run, story: run.ask(story, 500, ("delay-target-partition", b"1"), key=story),
    "rekeyed": lambda run, story: run.ask(story, 500, ("delay-target-key", story), key=b"key"),
    "tombstone": lambda run, story: run.ask(story, key=story, value=None),
    "level": lambda run, story: run.send([(STORY, story), _TO], topic=LEVEL),
    "named": lambda run, story: run.ask(story, 500, is_named=True),
    "cancelled": _cancelled,
    "fired": _fired,
    "replaced": _replaced,
    "idle": _idle,
    "expiring": lambda run, story: run.ask(story, 1_000, _expires(_FAR_MS)),
    "expired": lambda run, story: run.ask(story, 1_000, _expires(500)),
    "invalid": lambda run, story: run.send([(STORY, story), *_INVALID], b"k", b"v", 0),
    "too_long": lambda run, story: run.ask(story, 2 * _HOUR_MS),
    "denied": lambda run, story: run.ask(story, 500, target="elsewhere", is_named=True),
    "gone": lambda run, story: run.ask(story, target=MISSING),
    "forged": RealRun.forge,
    "rolled": lambda run, story: run.ask(story, _ROLLED_MS, _expires(_HOUR_MS), is_named=True),
    "recurring": lambda run, story: run.ask(story, 500, *_EVERY),
    "recurring_replaced": _recurring_replaced,
    "cron": lambda run, story: run.send([(STORY, story), _TO, *_CRON]),
    "windowed": lambda run, story: run.ask(story, 500, ("delay-window-ms", b"400")),
    "sent_home": _sent_home,
}
