"""Sender of test records at a steady rate, for the smoke test and the demo.

The demo sends them in parts, one for each of its actions, so that records come due during the
action on a slow machine as well.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Final

from confluent_kafka import Producer

from delayservice.base.errors import ClusterError
from delayservice.smoke.judge import QUIET
from delayservice.smoke.load import Planned
from delayservice.smoke.progress import Bar

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
