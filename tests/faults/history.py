"""A seeded load: what a producer writes while the nodes have their troubles.

Plain confluent-kafka, plain headers. The same seed writes the same records in the same order;
how many of them is decided by how long the scenario takes.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from tests.faults.facts import UID, Acked, Header, Op, Step
from tests.integration.bench import Reader, Seen

DELAY_MS_MAX: Final = 10_000
PERIOD_MS: Final = 1_000
TIMES: Final = 3
RECURRING: Final = 0.2
CANCELLERS: Final[tuple[Op, ...]] = ("cancel", "fire", "schedule", "absent")
_TICKS_PER_S: Final = 20
_FLUSH_S: Final = 120.0
_BYTES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """What a history writes, how often, and where.

    Args:
        seed: of everything that is left to chance.
        topic: the delay topic, and how many ``partitions`` of it.
        targets: where records go.
        per_s: records a second.
        victim_delay_ms: delay of records that are cancelled, fired, replaced or kept half a second
            later: long, so that a cancel is in good time even when the owner is down for a while.
        named: share of such records and of recurring ones.
    """

    seed: int
    topic: str
    partitions: int
    targets: tuple[str, ...]
    per_s: int
    victim_delay_ms: int = 20_000
    named: float = 0.04


def steps(plan: Plan) -> Iterator[Step]:
    """Records without end; each canceller comes half a second after its victim."""
    rng = random.Random(plan.seed)
    waiting: deque[tuple[int, Step, Op]] = deque()
    gap = max(plan.per_s // 2, 1)
    for number in itertools.count():
        if waiting and waiting[0][0] <= number:
            _, victim, op = waiting.popleft()
            yield _canceller(plan, rng, number, victim, op)
        elif rng.random() >= plan.named:
            yield _record(plan, rng, number, _delay_ms(rng))
        elif rng.random() < RECURRING:
            yield _recurring(plan, rng, number)
        else:
            op = rng.choice(CANCELLERS)
            victim = _victim(plan, rng, number, op)
            waiting.append((number + gap, victim, op))
            yield victim


def _record(plan: Plan, rng: random.Random, number: int, delay_ms: int) -> Step:
    uid = b"%d-%d" % (plan.seed, number)
    key = rng.choice((None, b"", b"customer-%d" % rng.randrange(500), rng.randbytes(12)))
    value = rng.choice((b'{"order": %d}' % number, rng.randbytes(rng.randrange(_BYTES_MAX)), None))
    own: list[Header] = [(UID, uid)]
    if rng.random() < 1 / 3:
        own += [("trace", rng.randbytes(8)), ("trace", b"twice"), ("empty", b""), ("null", None)]
    partition, target = rng.randrange(plan.partitions), rng.choice(plan.targets)
    return Step(uid, partition, key, value, tuple(own), delay_ms, target)


def _recurring(plan: Plan, rng: random.Random, number: int) -> Step:
    one = _record(plan, rng, number, PERIOD_MS)
    return replace(one, name=rng.choice((None, b"name-" + one.uid)), times=TIMES)


def _victim(plan: Plan, rng: random.Random, number: int, op: Op) -> Step:
    one = _record(plan, rng, number, plan.victim_delay_ms)
    return replace(one, name=b"name-" + one.uid, op="absent" if op == "absent" else "schedule")


def _canceller(plan: Plan, rng: random.Random, number: int, victim: Step, op: Op) -> Step:
    """Return a record of the victim's id, in its partition or any."""
    one = _record(plan, rng, number, _delay_ms(rng))
    partition = rng.choice((victim.partition, one.partition))
    one = replace(one, partition=partition, name=victim.name, against=victim.uid, op=op)
    return replace(one, value=b"", delay_ms=0) if one.is_control else one


def _delay_ms(rng: random.Random) -> int:
    return rng.choice((0, rng.randrange(100), rng.randrange(DELAY_MS_MAX + 1)))


class History:
    """It writes a plan on a thread of its own until it is told to finish.

    ``acked`` grows meanwhile; after ``finish`` it is what the checker expects.
    """

    def __init__(self, bootstrap: str, plan: Plan) -> None:
        self.acked: list[Acked] = []
        # Acknowledged by ``DUPLICATE_SEQUENCE_NUMBER`` without offset and time, because the first
        # answer was lost with its connection.
        self._unplaced: list[Step] = []
        self._bootstrap = bootstrap
        self._plan = plan
        self._refused: list[str] = []
        self._enough = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                # Brokers come and go: a retry must neither double a record nor turn two round.
                "enable.idempotence": True,
                "linger.ms": 5,
                "delivery.timeout.ms": int(_FLUSH_S * 1_000),
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._write, name="history", daemon=True)

    def start(self) -> None:
        """Start writing."""
        self._thread.start()

    def finish(self) -> None:
        """Stop writing, and wait until all records are acknowledged.

        Raises:
            AssertionError: something was not; then the checker could not say what to expect.
        """
        self._enough.set()
        self._thread.join()
        left = self._producer.flush(_FLUSH_S)
        assert not left, f"{left} records of the history were never acknowledged"
        assert not self._refused, f"the history was refused: {self._refused[:3]}"
        if self._unplaced:
            self.place()

    def place(self) -> None:
        """Look up the records that were acknowledged without an offset."""
        with Reader(self._bootstrap, [self._plan.topic], "read_uncommitted") as reader:
            for step in self._unplaced:
                # The first in its partition: copies of a record are written later.
                found = reader.await_match(partial(_is_of, step))[0]
                self.acked.append(Acked(step, found.offset, found.timestamp_ms))
        self._unplaced.clear()

    def abandon(self) -> None:
        """Stop writing at once, without waiting for acknowledgements."""
        self._enough.set()

    def _write(self) -> None:
        source = steps(self._plan)
        begun_s = time.monotonic()
        per_tick = self._plan.per_s / _TICKS_PER_S
        written = 0
        for tick in itertools.count(1):
            for _ in range(int(tick * per_tick) - written):
                self._write_one(next(source))
                written += 1
            self._producer.poll(0)
            if self._enough.wait(max(begun_s + tick / _TICKS_PER_S - time.monotonic(), 0.0)):
                return

    def _write_one(self, step: Step) -> None:
        while True:
            try:
                self._producer.produce(
                    self._plan.topic,
                    step.value,
                    step.key,
                    step.partition,
                    headers=list(step.headers()),
                    on_delivery=partial(self.note, step),
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return

    def note(self, step: Step, error: KafkaError | None, message: Any) -> None:
        """Take a delivery report."""
        if error is not None:
            self._refused.append(f"{step.uid!r}: {error}")
        elif message.offset() is None:
            self._unplaced.append(step)
        else:
            self.acked.append(Acked(step, message.offset(), message.timestamp()[1]))


def _is_of(step: Step, one: Seen) -> bool:
    return one.partition == step.partition and one.header(UID) == step.uid.decode()
