"""What one kind of trouble costs the records beside it, on a real broker and a real node.

``python -m tests.integration.beside_load KIND [--per-s 500] [--seconds 20] [--one-shard]`` sends
200 sound records a second, alone and then beside the trouble, and prints one JSON line: how late
the sound ones were seen in both, transactions aborted, writers lost, and the worker's memory.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from delay_devtools.bench.sampling import cpu_s
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from tests.integration.bench import Bench, Header, Reader, await_true, now_ms

PARTITIONS: Final = 4
SOUND_PER_S: Final = 200
DELAY_MS: Final = 2_000
FAR_MS: Final = 3_600_000
SETTLE_IN_S: Final = 5
SMALL_BYTES: Final = 1_000
EVENTS: Final = (
    "writer_ended",
    "ownership_lost",
    "targets_given_up",
    "worker_died",
)
"""Log lines that are counted: writers that ended or were lost, targets, workers."""


@dataclass
class Stage:
    """The bench, its sound target, and how many troublesome records are to be sent."""

    bench: Bench
    sound: str
    count: int
    shards: int

    def place(self, number: int) -> int:
        """Return the partition of a troublesome record."""
        return number % self.shards

    def trouble(self, number: int, *headers: Header, key: bytes | None = b"key") -> None:
        """Send a record that nobody waits for."""
        self.bench.send_later(list(headers), key=key, partition=self.place(number))

    def schedule_far(self) -> None:
        """Store a record for each control, due in an hour and more, one second apart."""
        for number in range(self.count):
            due_ms = now_ms() + FAR_MS + number * 1_000
            self.bench.send_later(
                [
                    ("delay-at", str(due_ms)),
                    ("delay-target-topic", self.sound),
                    ("delay-id", f"far-{number}"),
                ],
                value=b"far" * 30,
                partition=self.place(number),
            )
        self.bench.producer.flush()


Send = Callable[[int], None]


def unknown_targets(stage: Stage) -> Send:
    """Each record goes to a topic of its own that does not exist."""

    def send(number: int) -> None:
        stage.trouble(number, *stage.bench.to(stage.bench.target_name(f"never_{number}"), 500))

    return send


def unknown_at_once(stage: Stage) -> Send:
    """The same without delay: nothing can be looked up before the record is due."""

    def send(number: int) -> None:
        stage.trouble(number, *stage.bench.to(stage.bench.target_name(f"never_{number}"), 0))

    return send


def controls(op: str, prefix: str) -> Callable[[Stage], Send]:
    """One control for each far record, or for an id that nothing has (``prefix``)."""

    def prepare(stage: Stage) -> Send:
        if prefix == "far":
            stage.schedule_far()

        def send(number: int) -> None:
            stage.trouble(number, ("delay-op", op), ("delay-id", f"{prefix}-{number}"))

        return send

    return prepare


def past_due(stage: Stage) -> Send:
    """Records that were due in 1970."""
    other = stage.bench.target("other")

    def send(number: int) -> None:
        stage.trouble(number, ("delay-at", "1"), ("delay-target-topic", other))

    return send


def small_target(stage: Stage) -> Send:
    """A target that takes one or two of these records in a batch, and one in ten not at all."""
    small = stage.bench.target("small", max_message_bytes=str(SMALL_BYTES))

    def send(number: int) -> None:
        value = b"x" * (SMALL_BYTES + 1 if number % 10 == 0 else 300)
        headers = stage.bench.to(small, 500)
        stage.bench.send_later(headers, value=value, partition=stage.place(number))

    return send


def keyless_to_compacted(stage: Stage) -> Send:
    """A compacted target refuses each record without a key, and its whole batch."""
    compacted = stage.bench.target("compacted", cleanup_policy="compact")

    def send(number: int) -> None:
        stage.trouble(number, *stage.bench.to(compacted, 500), key=None)

    return send


def without_letters(stage: Stage) -> Send:
    """The dead-letter topic was deleted; no record here can be understood."""
    letters = stage.bench.dead_letter

    def send(number: int) -> None:
        if number == 0:
            stage.bench.admin.delete_topics([letters])[letters].result(30)
        stage.trouble(number, ("delay-after", "no time"), ("delay-target-topic", stage.sound))

    return send


def without_outcomes(stage: Stage) -> Send:
    """The outcomes topic was deleted; all controls are of one shard."""
    outcomes = stage.bench.outcomes

    def send(number: int) -> None:
        if number == 0:
            stage.bench.admin.delete_topics([outcomes])[outcomes].result(30)
        stage.trouble(0, ("delay-op", "cancel"), ("delay-id", f"none-{number}"))

    return send


KINDS: Final[dict[str, Callable[[Stage], Send]]] = {
    "unknown-targets": unknown_targets,
    "unknown-at-once": unknown_at_once,
    "fires": controls("fire", "far"),
    "fires-of-nothing": controls("fire", "none"),
    "cancels": controls("cancel", "far"),
    "past-due": past_due,
    "small-target": small_target,
    "keyless-to-compacted": keyless_to_compacted,
    "without-letters": without_letters,
    "without-outcomes": without_outcomes,
}


class Steady:
    """Calls something at an even rate, on a thread of its own."""

    def __init__(self, per_s: float, call: Callable[[int], None]) -> None:
        self.sent = 0
        self._stop = threading.Event()
        self._per_s = per_s
        self._call = call
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        began_s = time.monotonic()
        while not self._stop.wait(0.005):
            wanted = int((time.monotonic() - began_s) * self._per_s)
            while self.sent < wanted:
                self._call(self.sent)
                self.sent += 1

    def stop(self) -> None:
        """Send no more."""
        self._stop.set()
        self._thread.join()


def measure(bench: Bench, kind: str, per_s: float, seconds: int, shards: int) -> dict[str, object]:
    """Run one kind of trouble; return the figures."""
    service = bench.serve()
    sound = bench.target("sound", PARTITIONS)
    stage = Stage(bench, sound, int(per_s * seconds) + 1, shards)
    send = KINDS[kind](stage)
    headers = bench.to(sound, DELAY_MS)
    late_ms: list[tuple[int, int]] = []
    done = threading.Event()
    reading = threading.Thread(target=_read, args=(bench.reader(sound), late_ms, done))
    reading.start()
    tick = threading.Event()
    steady = Steady(
        SOUND_PER_S, lambda n: bench.send_later(headers, key=b"s", partition=n % PARTITIONS)
    )
    tick.wait(SETTLE_IN_S + DELAY_MS / 1_000)
    calm_ms = now_ms()
    tick.wait(seconds)
    rss_before, cpu_before = _rss(service), cpu_s(service.workers())
    began_ms = now_ms()
    troubled = Steady(per_s, send)
    tick.wait(seconds)
    ended_ms = now_ms()
    cpu_used = cpu_s(service.workers()) - cpu_before
    troubled.stop()
    steady.stop()
    bench.producer.flush()
    overdue_ms = now_ms() + DELAY_MS
    await_true(
        lambda: len(late_ms) >= steady.sent or now_ms() > overdue_ms + 60_000, "all seen", 90
    )
    done.set()
    reading.join()
    return {
        "kind": kind,
        "per_s": per_s,
        "seconds": seconds,
        "shards": shards,
        "sound_missing": steady.sent - len(late_ms),
        "before": _figures(late_ms, calm_ms, began_ms),
        "beside": _figures(late_ms, began_ms + 1_000, ended_ms),
        "cpu_percent_beside": round(100 * cpu_used / seconds),
        "rss_mib": [rss_before, _rss(service)],
        "events": dict(Counter({name: len(service.events(name)) for name in EVENTS})),
        "take_overs": len(service.events("took_over")),
    }


def _read(reader: Reader, late_ms: list[tuple[int, int]], done: threading.Event) -> None:
    """Note due time and lateness of the sound records; those that were fired are left out."""
    with reader:
        while not done.is_set():
            reader.take(0.02)
            at_ms = now_ms()
            for seen in reader.seen:
                if seen.key == b"s":
                    due_ms = int(seen.header("delay-due-at") or 0)
                    late_ms.append((due_ms, at_ms - due_ms))
            reader.seen.clear()


def _figures(late_ms: list[tuple[int, int]], first_ms: int, stop_ms: int) -> dict[str, int]:
    found = sorted(late for due, late in late_ms if first_ms <= due < stop_ms)
    count = len(found)
    if not count:
        return {"n": 0}
    p50, p99 = found[count // 2], found[count * 99 // 100]
    return {"n": count, "p50_ms": p50, "p99_ms": p99, "max_ms": found[-1]}


def _rss(service: ServiceProcess) -> int:
    return sum(worker.memory_info().rss for worker in service.workers()) >> 20


def main() -> None:
    """Start a broker, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="+", choices=[*KINDS, "all"])
    parser.add_argument("--per-s", type=float, default=100)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--one-shard", action="store_true")
    parser.add_argument("--set", action="append", default=[], dest="sets")
    options = parser.parse_args()
    kinds = list(KINDS) if "all" in options.kinds else options.kinds
    sets = ["node.workers=1", *options.sets]
    shards = 1 if options.one_shard else PARTITIONS
    with EmbeddedCluster(brokers=1, zookeepers=0) as cluster:
        for kind in kinds:
            with (
                tempfile.TemporaryDirectory() as folder,
                Bench(cluster.bootstrap, Path(folder), partitions=PARTITIONS, sets=sets) as bench,
            ):
                found = measure(bench, kind, options.per_s, options.seconds, shards)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
