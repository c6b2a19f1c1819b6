"""The demo's load: records at a steady rate, by a producer that is not ours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from functools import partial
from typing import Final

from confluent_kafka import Producer

from delayservice.dev.judge import QUIET
from delayservice.dev.load import Planned
from delayservice.dev.progress import Bar
from delayservice.errors import ClusterError

_TOLD_EVERY: Final = 100


class Sending:
    """Sends on a thread of its own.

    Args:
        bootstrap: brokers.
        topic: delay topic.
        planned: the records.
        per_s: their rate.
        bar: shows how many are acknowledged.
    """

    def __init__(
        self, bootstrap: str, topic: str, planned: Iterable[Planned], per_s: float, bar: Bar
    ) -> None:
        self.sent: list[tuple[Planned, int]] = []
        """Each acknowledged record with its append time, epoch milliseconds."""
        self._failed: list[str] = []
        self._topic = topic
        self._planned = planned
        self._per_s = per_s
        self._bar = bar
        config = {"bootstrap.servers": bootstrap, "linger.ms": 5, "acks": "all"}
        self._producer = Producer(config, logger=QUIET)
        self._thread = threading.Thread(target=self._send, name="load")

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether everything has been sent."""
        return not self._thread.is_alive()

    def finish(self) -> None:
        """Until every record is acknowledged.

        Raises:
            ClusterError: some were not.
        """
        self._thread.join()
        if self._failed:
            raise ClusterError(f"{len(self._failed)} records were not sent: {self._failed[0]}")

    def _send(self) -> None:
        started_s = time.monotonic()
        pace = threading.Event()
        for number, planned in enumerate(self._planned):
            ahead_s = started_s + number / self._per_s - time.monotonic()
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

    def _note(self, planned: Planned, error: object, message: object) -> None:
        if error is not None:
            self._failed.append(str(error))
        else:
            self.sent.append((planned, message.timestamp()[1]))  # type: ignore[attr-defined]
