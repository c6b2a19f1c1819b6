"""What the stores cost: JSON lines of rate, longest call and memory for each case.

``python -m tests.store_bench [--kind wheel] [--case days] [--records 1000000] [--stores 1]``

Stores are the shards of one worker, and each is read when its ``next_due_ms`` says so. Every case
runs in a process of its own, so that its peak memory is its own. Compare figures of one run with
each other only, and ``cpu_s`` where the machine is shared.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

from delayservice.engine.cursor import Cursor, Key
from delayservice.store.base import NO_MARK, Frame, Store
from delayservice.store.rocksdb import RocksDatabase, RocksStore
from delayservice.store.wheel import Wheel, WheelStore
from tests.wheels import TOPIC

START_MS = 1_800_000_000_000
RUN = 4_000
SPREAD_MS = {"burst": 1_000, "instant": 1, "hour": 3_600_000, "days": 14 * 86_400_000}
KINDS = ("wheel", "rocksdb")


def make_stores(kind: str, root: Path, count: int) -> list[Store]:
    """Return the stores of the shards of one worker, not opened yet."""
    if kind == "rocksdb":
        rocks = RocksDatabase(root)
        return [RocksStore(rocks, TOPIC, number) for number in range(count)]
    wheel = Wheel(root)
    return [WheelStore(wheel, TOPIC, number) for number in range(count)]


@dataclass
class Timer:
    """Durations of the calls of one phase, seconds, and CPU time at its start."""

    calls: list[float] = field(default_factory=list)
    cpu_s: float = field(default_factory=time.process_time)

    def time(self, call: Callable[[], object]) -> object:
        """Run and take the time."""
        started = time.perf_counter()
        result = call()
        self.calls.append(time.perf_counter() - started)
        return result

    def report(self, phase: str, records: int) -> dict[str, object]:
        """A line of the report."""
        total = sum(self.calls)
        return {
            "phase": phase,
            "s": round(total, 3),
            "cpu_s": round(time.process_time() - self.cpu_s, 3),
            "records_per_s": int(records / total) if total else None,
            "call_ms_max": round(1000 * max(self.calls, default=0.0), 1),
            "rss_mib_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
        }


def runs(records: int, spread_ms: int, size: int, seed: int) -> Iterator[list[Frame]]:
    """Records in offset order, due at random within the spread."""
    rng = random.Random(seed)
    base = rng.randbytes(size)
    for start in range(0, records, RUN):
        stop = min(start + RUN, records)
        # A payload of its own for each record, as the lane makes them: one shared would cost none.
        yield [
            (START_MS + int(rng.random() * spread_ms), offset, NO_MARK, b"%08x" % offset + base[8:])
            for offset in range(start, stop)
        ]


def run_case(kind: str, case: str, records: int, stores: int, size: int) -> None:
    """Append, sync, open again, read a part in key order, prune it."""
    root = Path(tempfile.mkdtemp(prefix="store-bench-"))
    try:
        opened = make_stores(kind, root, stores)
        for report in measure(opened, kind, case, records // stores, root, size):
            line = {"kind": kind, "case": case, "records": records, "stores": stores, **report}
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()
    finally:
        shutil.rmtree(root)


def measure(
    stores: list[Store], kind: str, case: str, records: int, root: Path, size: int
) -> Iterator[dict[str, object]]:
    """One report for each phase; ``records`` is per store."""
    total = records * len(stores)
    for store in stores:
        store.open()
        # A service that runs has asked before; nothing is due yet.
        store.read_due((0, -1), START_MS - 5_000, 1)
    timer = Timer()
    sources = [runs(records, SPREAD_MS[case], size, seed) for seed in range(len(stores))]
    for batches in zip(*sources, strict=True):
        for store, frames in zip(stores, batches, strict=True):
            timer.time(lambda s=store, f=frames: s.append(f, [], [], f[-1][1] + 1))  # type: ignore[misc]
    yield timer.report("append", total)
    timer = Timer()
    for store in stores:
        timer.time(store.sync)
    yield timer.report("sync", total)
    for store in stores:
        store.close()
    stores = make_stores(kind, root, len(stores))
    timer = Timer()
    for store in stores:
        timer.time(store.open)
    yield timer.report("reopen", total)
    yield from deliver(stores, total, SPREAD_MS[case])
    timer = Timer()
    for store in stores:
        timer.time(store.close)
    yield timer.report("close", total)


def deliver(stores: list[Store], total: int, spread_ms: int) -> Iterator[dict[str, object]]:
    """Read what is due as a clock goes by, 100 ms or a thousandth at a time, and prune behind."""
    reads, prunes, found = Timer(), Timer(), 0
    after: list[Key] = [(0, -1)] * len(stores)
    dues: list[tuple[int, int]] = [(0, number) for number in range(len(stores))]

    def read(number: int, now_ms: int) -> None:
        nonlocal found
        count = RUN
        while count == RUN:
            frames = stores[number].read_due(after[number], now_ms, RUN)
            count = len(frames)
            found += count
            if frames:
                after[number] = frames[-1][:2]
        due_ms = stores[number].next_due_ms(after[number])
        if due_ms is not None:
            heappush(dues, (max(due_ms, now_ms + 1), number))

    deadline = time.perf_counter() + 60
    now_ms, step_ms = START_MS - 600_000, max(100, spread_ms // 100_000)
    while dues and time.perf_counter() < deadline:
        now_ms += step_ms
        while dues and dues[0][0] <= now_ms:
            number = heappop(dues)[1]
            before = after[number]
            reads.time(lambda n=number, at=now_ms: read(n, at))  # type: ignore[misc]
            if after[number] > before:
                cursor = Cursor(after[number], total)
                prunes.time(lambda n=number, to=cursor: stores[n].prune(to))  # type: ignore[misc]
    yield reads.report("read", found) | {"found": found}
    yield prunes.report("prune", found)


def main() -> None:
    """Run the chosen cases."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, nargs="*", default=list(KINDS))
    parser.add_argument("--case", choices=SPREAD_MS, nargs="*", default=list(SPREAD_MS))
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--stores", type=int, default=1)
    parser.add_argument("--bytes", type=int, default=100, help="payload of a record")
    parser.add_argument("--here", action="store_true", help="in this process, for a profiler")
    given = parser.parse_args()
    for kind in given.kind:
        for case in given.case:
            if given.here:
                run_case(kind, case, given.records, given.stores, given.bytes)
                continue
            command = [sys.executable, "-m", "tests.store_bench", "--here", "--kind", kind]
            command += ["--case", case, "--records", str(given.records)]
            command += ["--stores", str(given.stores), "--bytes", str(given.bytes)]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
