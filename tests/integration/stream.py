"""A load that is sent and read all the time, for tests of how late records are beside a fault."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Final, Self

from tests.integration.bench import Bench, await_true, now_ms

PARTITIONS: Final = 4
DELAY_MS: Final = 2_000
PER_S: Final = 50


@dataclass
class Stream:
    """Records sent evenly, nine in ten to a sound target, and how late each was seen there."""

    bench: Bench
    sound: str
    bad: str
    partitions: range = range(PARTITIONS)
    sent: int = 0
    late_ms: dict[int, list[int]] = field(default_factory=dict)
    """By due second."""
    sources: list[str | None] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _stop_sending: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        """Begin to send and to read."""
        self._threads = [threading.Thread(target=run) for run in (self._send, self._read)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End both."""
        self._stop_sending.set()
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _send(self) -> None:
        number = 0
        while not self._stop_sending.wait(1 / PER_S):
            number += 1
            target = self.bad if number % 10 == 0 else self.sound
            self.sent += target == self.sound
            headers = self.bench.to(target, DELAY_MS)
            self.bench.send_later(headers, partition=self.partitions[number % len(self.partitions)])
        self.bench.producer.flush()

    def _read(self) -> None:
        with self.bench.reader(self.sound) as reader:
            while not self._stop.is_set():
                reader.take(0.05)
                at_ms = now_ms()
                for seen in reader.seen[len(self.sources) :]:
                    due_ms = int(seen.header("delay-due-at") or 0)
                    self.late_ms.setdefault(due_ms // 1_000, []).append(at_ms - due_ms)
                    self.sources.append(seen.header("delay-source"))

    def finish(self) -> None:
        """Send no more, and await what was sent to the sound target."""
        self._stop_sending.set()
        self.await_seen(self.sent)

    def await_seen(self, count: int) -> None:
        await_true(lambda: len(set(self.sources)) >= count, f"{count} are seen", 60)

    def late_between(self, first_s: int, stop_s: int) -> list[int]:
        """Lateness of what was due then, ascending, milliseconds."""
        return sorted(
            ms for s, late in self.late_ms.items() if first_s <= s < stop_s for ms in late
        )


def figures(late_ms: list[int]) -> str:
    count = len(late_ms)
    p50, p99 = late_ms[count // 2], late_ms[count * 99 // 100]
    return f"p50 {p50} ms, p99 {p99} ms, max {late_ms[-1]} ms ({count} records)"
