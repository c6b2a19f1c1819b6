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
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, Producer

from tests.faults.facts import UID, Acked, Header, Step

DELAY_MS_MAX: Final = 10_000
_TICKS_PER_S: Final = 20
_FLUSH_S: Final = 120.0
_BYTES_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class Plan:
    """What is written.

    Args:
        seed: of everything that is left to chance.
        topic: the delay topic, and how many ``partitions`` of it.
        targets: where records go.
        per_s: records a second.
        victim_delay_ms: delay of records that are cancelled or replaced half a second later: long,
            so that a cancel is in good time even when the owner is down for a while.
        named: share of records that have an id and are cancelled or replaced.
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
    waiting: deque[tuple[int, Step]] = deque()
    gap = max(plan.per_s // 2, 1)
    for number in itertools.count():
        if waiting and waiting[0][0] <= number:
            yield _canceller(plan, rng, number, waiting.popleft()[1])
        elif rng.random() < plan.named:
            victim = _victim(plan, rng, number)
            waiting.append((number + gap, victim))
            yield victim
        else:
            yield _record(plan, rng, number, _delay_ms(rng))


def _record(plan: Plan, rng: random.Random, number: int, delay_ms: int) -> Step:
    uid = b"%d-%d" % (plan.seed, number)
    key = rng.choice((None, b"", b"customer-%d" % rng.randrange(500), rng.randbytes(12)))
    value = rng.choice((b'{"order": %d}' % number, rng.randbytes(rng.randrange(_BYTES_MAX)), None))
    own: list[Header] = [(UID, uid)]
    if rng.random() < 1 / 3:
        own += [("trace", rng.randbytes(8)), ("trace", b"twice"), ("empty", b""), ("null", None)]
    partition, target = rng.randrange(plan.partitions), rng.choice(plan.targets)
    return Step(uid, partition, key, value, tuple(own), delay_ms, target)


def _victim(plan: Plan, rng: random.Random, number: int) -> Step:
    one = _record(plan, rng, number, plan.victim_delay_ms)
    return Step(
        one.uid,
        one.partition,
        one.key,
        one.value,
        one.own,
        one.delay_ms,
        one.target,
        name=b"name-" + one.uid,
    )


def _canceller(plan: Plan, rng: random.Random, number: int, victim: Step) -> Step:
    delay_ms = rng.choice((None, _delay_ms(rng)))
    one = _record(plan, rng, number, 0)
    return Step(
        one.uid,
        victim.partition,
        one.key,
        b"" if delay_ms is None else one.value,
        one.own,
        delay_ms,
        one.target,
        name=victim.name,
        against=victim.uid,
    )


def _delay_ms(rng: random.Random) -> int:
    return rng.choice((0, rng.randrange(100), rng.randrange(DELAY_MS_MAX + 1)))


class History:
    """Writes a plan on a thread of its own until it is told to finish.

    ``acked`` grows meanwhile; after ``finish`` it is what the checker expects.
    """

    def __init__(self, bootstrap: str, plan: Plan) -> None:
        self.acked: list[Acked] = []
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
        if error is None:
            self.acked.append(Acked(step, message.offset(), message.timestamp()[1]))
        else:
            self._refused.append(f"{step.uid!r}: {error}")
