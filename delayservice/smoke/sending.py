"""Test records made from a seed, as any producer would make them (only the names of headers are
those of the service, and none of its code is used), and their sender at a steady rate.

The demo sends them in parts, one for each of its actions, so that records come due during the
action on a slow machine as well.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from confluent_kafka import Producer

from delayservice.base.errors import ClusterError
from delayservice.smoke.progress import Bar

# Drops messages of test clients, such as those about brokers stopped after a test.
QUIET: Final = logging.getLogger("delayservice.smoke.clients")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False

# Name of the header that identifies each record to ``smoke.judge``.
UID_HEADER = "load-uid"


@dataclass(frozen=True, slots=True)
class Planned:
    """Record to send, with its delay in ms and target topic. ``uid`` is the value of its header
    ``UID_HEADER``.
    """

    uid: bytes
    key: bytes | None
    value: bytes | None
    # Headers that are delivered with the record, ``UID_HEADER`` first.
    headers: tuple[tuple[str, bytes | None], ...]
    delay_ms: int
    target: str

    def to_send(self) -> list[tuple[str, bytes | None]]:
        return [
            *self.headers,
            ("delay-after", b"%d" % self.delay_ms),
            ("delay-target-topic", self.target.encode()),
        ]


def plan(records: int, targets: tuple[str, ...], delay_ms_max: int, seed: int) -> Iterator[Planned]:
    """Yield ``records`` records with text, binary and null values, with and without keys, for
    random ``targets``, delayed by 0 to ``delay_ms_max`` milliseconds. Equal seeds give equal
    records.
    """
    rng = random.Random(seed)  # noqa: S311  # a load that replays from its seed
    for number in range(records):
        uid = b"%d-%d" % (seed, number)
        key = rng.choice((None, b"", b"customer-%d" % rng.randrange(500), rng.randbytes(12)))
        value = rng.choice((b'{"order": %d}' % number, rng.randbytes(rng.randrange(200)), None))
        own: list[tuple[str, bytes | None]] = [(UID_HEADER, uid)]
        if number % 3 == 0:
            own += [
                ("trace", rng.randbytes(8)),
                ("trace", b"twice"),
                ("empty", b""),
                ("null", None),
            ]
        soon_ms = rng.randrange(min(100, delay_ms_max + 1))
        delay_ms = rng.choice((0, soon_ms, rng.randrange(delay_ms_max + 1)))
        yield Planned(uid, key, value, tuple(own), delay_ms, rng.choice(targets))


_TOLD_EVERY: Final = 100


class Sending:
    """Sender of records on a thread of its own. The parts, of ``part_records`` each, are sent one
    after another, each when ``go_on`` or ``finish`` allows it, the first at once.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        planned: Iterable[Planned],
        per_s: float,
        part_records: int,
        bar: Bar,
    ) -> None:
        # Acknowledged records, each with its append time, epoch milliseconds.
        self.sent: list[tuple[Planned, int]] = []
        self._failed: list[str] = []
        self._topic = topic
        self._planned = planned
        self._per_s = per_s
        self._part_records = part_records
        self._parts = threading.Semaphore(1)
        self._is_last = threading.Event()
        self._bar = bar
        config = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 5,
            # Without it, a retry of the client would write a record twice.
            "enable.idempotence": True,
            "allow.auto.create.topics": False,
        }
        self._producer = Producer(config, logger=QUIET)
        # A daemon, so that an interrupted demo does not wait for the rest of its load.
        self._thread = threading.Thread(target=self._send, name="load", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def go_on(self) -> None:
        """Allow the thread to send one more part."""
        self._parts.release()

    def finish(self) -> None:
        """Send all remaining parts, and wait until every record is acknowledged; raises
        ``ClusterError``.
        """
        self._is_last.set()
        self._parts.release()
        self._thread.join()
        if self._failed:
            raise ClusterError(f"{len(self._failed)} records were not sent: {self._failed[0]}")

    def _send(self) -> None:
        pace = threading.Event()
        for number, planned in enumerate(self._planned):
            in_part = number % self._part_records
            if in_part == 0:
                self._await_part()
                started_s = time.monotonic()
            ahead_s = started_s + in_part / self._per_s - time.monotonic()
            if ahead_s > 0:
                self._producer.poll(0)
                pace.wait(ahead_s)
            self._producer.produce(
                self._topic,
                planned.value,
                planned.key,
                headers=list(planned.to_send()),
                on_delivery=partial(self._note, planned),
            )
            if number % _TOLD_EVERY == 0:
                self._bar.at(len(self.sent))
        self._producer.flush()
        self._bar.at(len(self.sent))

    def _await_part(self) -> None:
        # Flushed before a wait, so that ``sent`` contains all records of the earlier parts.
        if not self._is_last.is_set() and not self._parts.acquire(blocking=False):
            self._producer.flush()
            self._parts.acquire()

    def _note(self, planned: Planned, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(str(error))
        else:
            self.sent.append((planned, message.timestamp()[1]))  # type: ignore[attr-defined]
