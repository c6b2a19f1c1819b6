"""What counting costs each record, in microseconds: ``python -m tests.counting_bench``.

Every record is counted when it is stored and when it is delivered. The figures are the least of
several rounds over the same batch, in one thread and without a broker, in CPU time.
"""

from __future__ import annotations

import timeit
from collections.abc import Callable
from time import process_time
from typing import Final

from delayservice.contract.codec import encode_payload
from delayservice.contract.entry import SCHEDULE, Entry, Row
from delayservice.engine.census import Census
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import DELIVERED, Output, Tally
from delayservice.engine.past_due import PastDue
from delayservice.engine.pending import NO_MARK, Frame
from delayservice.inspection.counting import LaneCounts, count_lane, topic_counts
from delayservice.process.observer import MetricsObserver
from delayservice.store.digesting import DigestingStore
from delayservice.store.memory import MemoryStore
from tests.unit.loop_stage import NOW_MS, TOPIC, Stage

RECORDS: Final = 2_000
ROUNDS: Final = 7
TARGETS: Final = ("orders", "mails", "invoices")


def least_us(work: Callable[[], object], per: int = RECORDS) -> float:
    """Return the least time of several rounds for one record, microseconds."""
    return min(timeit.repeat(work, timer=process_time, number=20, repeat=ROUNDS)) / 20 / per * 1e6


def frames() -> list[Frame]:
    """Return plain records of three targets, due over ten minutes."""
    found = []
    for offset in range(RECORDS):
        key_ms = NOW_MS + offset * 300
        target = TARGETS[offset % 3]
        payload = encode_payload((target, -1, b"key", b"x" * 100, [("own", b"text")], key_ms, None))
        found.append((key_ms, offset, NO_MARK, payload))
    return found


def main() -> None:
    """Print a line for each."""
    stored = frames()
    rows: list[Row] = [(n, NOW_MS, None, b"", []) for n in range(RECORDS)]
    entries: list[Entry] = [(n, SCHEDULE, NOW_MS + n, None, None, None) for n in range(RECORDS)]
    batch: list[Output] = [
        (DELIVERED, "orders", -1, None, None, [], NOW_MS + n, n) for n in range(RECORDS)
    ]
    mixed = [(*one[:1], TARGETS[n % 3], *one[2:]) for n, one in enumerate(batch)]

    def settle(outputs: list[Output]) -> None:
        tally = Tally()
        tally.add(outputs, TOPIC, {})
        MetricsObserver().settled(0, tally, NOW_MS + 5_000)

    stage = Stage(0)
    stage.own()
    lane = stage.lane(0)
    lane.store = store = DigestingStore(MemoryStore())
    store.open()
    store.append(stored, [], [], RECORDS)
    lane.shard.follow(Cursor((NOW_MS, 0), RECORDS))
    figures = {
        "stored: by target and due time": least_us(lambda: Census().add(stored)),
        "stored: past due or not": least_us(lambda: PastDue().note(rows, entries)),
        "delivered: one target": least_us(lambda: settle(batch)),
        "delivered: three targets": least_us(lambda: settle(mixed)),
        "a lane that changed, once a second": least_us(
            lambda: topic_counts(count_lane(lane, NOW_MS, LaneCounts()), NOW_MS), 1
        ),
    }
    for name, figure in figures.items():
        print(f"{name:<40}{figure:>10.2f} us")  # noqa: T201  # a bench


if __name__ == "__main__":
    main()
