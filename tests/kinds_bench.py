"""What ids, cancels and recurring schedules cost: JSON lines.

``python -m tests.kinds_bench CASE [--kind wheel] [--n 1000000]``, CASE one of ids, cancel, foreign,
again, through, recurring and plain.

``ids`` fills the id index, and says what it takes of disk and memory on the way. ``cancel`` reads,
stores and settles that many cancels of pending records: all that the service does for one, but for
the client library; ``foreign`` does it where the cancels lie in another partition than the home of
their ids: ``forwarded`` is what that partition does, ``arrived`` what the home does, and a cancel
takes both; ``again`` schedules and cancels that often on 1,000 ids. ``through`` has a
service do what ``cancel`` does with a broker of its own, where the cancels were
written before it may begin. ``recurring`` stores schedules that recur, ``plain`` as many that
don't. On a machine that others use, compare CPU time, not rates.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import quantiles

import psutil

from delay_devtools.bench.sampling import cpu_s
from delay_devtools.cluster import EmbeddedCluster
from delay_devtools.service import ServiceProcess
from delayservice.contract.contracts import Contract, Contracts
from delayservice.contract.entry import Headers, Row
from delayservice.contract.partitioner import partition_for
from delayservice.contract.record import RecordReader
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import Output
from delayservice.engine.routes import Routes
from delayservice.engine.settle import Settler
from delayservice.engine.shard import Shard
from delayservice.engine.verdicts import Verdicts
from delayservice.process.cron import cron_time
from delayservice.store.base import Store
from delayservice.store.memory import MemoryStore
from tests.integration.asked import metrics_of
from tests.integration.bench import Bench, await_true, now_ms
from tests.rocks import LoneRocks
from tests.unit.known_targets import KnownTargets, any_target
from tests.wheels import LoneStore

CASES = ("ids", "cancel", "foreign", "again", "through", "recurring", "plain")
START_MS = 1_800_000_000_000
SPREAD_MS = 14 * 86_400_000
RUN = 4_000
TOPIC = "delay_topic_any"
TARGET = ("delay-target-topic", b"orders")
SECRET = b"only-for-benches"
MAKERS: dict[str, type[LoneStore | LoneRocks]] = {
    "wheel": LoneStore,
    "rocksdb": LoneRocks,
}


def record_id(number: int) -> bytes:
    """As long as most are: 20 bytes that compress badly."""
    return b"o-%018x" % (number * 0x9E3779B97F4A7C15 % 2**72)


def due_ms(number: int) -> int:
    """Due within two weeks, in no order."""
    return START_MS + number * 2_654_435_761 % SPREAD_MS


class Meter:
    """Time, memory and disk since it was made."""

    def __init__(self, folder: Path) -> None:
        gc.collect()
        self._folder = folder
        self._process = psutil.Process()
        self._rss = self._process.memory_info().rss
        self._cpu_s, self._wall_s = time.process_time(), time.perf_counter()

    def report(self, records: int) -> dict[str, object]:
        """What so many records came to."""
        wall_s = time.perf_counter() - self._wall_s
        used_s = time.process_time() - self._cpu_s
        disk = sum(p.stat().st_blocks * 512 for p in self._folder.rglob("*") if p.is_file())
        return {
            "records": records,
            "records_per_s": int(records / wall_s),
            "records_per_cpu_s": int(records / used_s),
            "cpu_us_per_record": round(1e6 * used_s / records, 2),
            "rss_mib": self._process.memory_info().rss >> 20,
            "rss_mib_grown": (self._process.memory_info().rss - self._rss) >> 20,
            "disk_bytes_per_record": round(disk / records, 1),
        }


def fill_ids(store: Store, folder: Path, count: int) -> Iterator[dict[str, object]]:
    """Name so many records, and look one in a thousand up again."""
    meter = Meter(folder)
    for start in range(0, count, RUN):
        numbers = range(start, min(start + RUN, count))
        named = [(record_id(number), due_ms(number), number) for number in numbers]
        store.append([], named, [], numbers.stop)
        if numbers.stop * 10 // count > start * 10 // count:
            yield meter.report(numbers.stop)
    store.sync()
    yield {"phase": "synced"} | meter.report(count)
    meter = Meter(folder)
    for number in range(0, count, 1_000):
        assert store.latest_unmarked(record_id(number), count) == (due_ms(number), number)
    yield {"phase": "looked up"} | meter.report(count // 1_000)


class Owner:
    """A shard with its store, as its owner runs it."""

    def __init__(self, store: Store, partition: int = 0, homes: int = 0) -> None:
        routes = Routes(
            "dead", "outcomes", SECRET, 3 * SPREAD_MS, 0, (), cron_time, allowlist=any_target
        )
        contract = Contract(roll_window_ms=3 * SPREAD_MS, id_partitions=homes)
        contracts = Contracts([(0, contract)])
        self.reader = RecordReader(TOPIC, partition, contracts, (SECRET,))
        self.store = store
        settler = Settler(TOPIC, partition, routes, Verdicts(), KnownTargets(fit=[("orders", -1)]))
        settler.requeuer.contracts = contracts
        self.shard = Shard(settler, store.open())
        self.shard.take_over(Cursor((START_MS - 1, 0), 0), [], 0)
        self.outputs = 0

    def take(self, rows: list[Row]) -> list[Output]:
        """Read, store, settle and commit one run of the log; return what that put out."""
        shard, store = self.shard, self.store
        start, stop = rows[0][0], rows[-1][0] + 1
        added = shard.ingest(start, self.reader.read_batch(rows), stop, {}, store.latest_unmarked)
        store.append(added.frames, added.named, added.marks, stop)
        outputs: list[Output] = []
        while shard.staged.offset < stop:
            outputs += shard.advance_offset(START_MS, RUN, lambda _: None)  # type: ignore[arg-type, return-value]
            shard.commit()
        store.prune(shard.committed)
        self.outputs += len(outputs)
        return outputs

    def write(self, numbers: range, headers: Headers | None = None) -> None:
        """Records of these offsets; without headers, ones with an id."""
        for start in range(numbers.start, numbers.stop, RUN):
            run = range(start, min(start + RUN, numbers.stop))
            self.take([(o, START_MS, b"key", b"x" * 100, headers or _named(o)) for o in run])


def _named(number: int) -> Headers:
    return _due_of(number, record_id(number))


def cancel_all(store: Store, folder: Path, count: int) -> Iterator[dict[str, object]]:
    """Schedule so many, then cancel each."""
    owner = Owner(store)
    meter = Meter(folder)
    owner.write(range(count))
    yield {"phase": "scheduled"} | meter.report(count)
    meter = Meter(folder)
    for start in range(0, count, RUN):
        numbers = range(start, min(start + RUN, count))
        owner.take([(count + n, START_MS, None, None, _cancel_of(record_id(n))) for n in numbers])
    assert owner.outputs == 2 * count, "each cancel has an outcome, and so has what it cancelled"
    yield {"phase": "cancelled"} | meter.report(count)


def cancel_from_afar(store: Store, folder: Path, count: int) -> Iterator[dict[str, object]]:
    """Schedule so many at home, then cancel each from another partition."""
    ids = [one for one in map(record_id, range(3 * count)) if partition_for(one, 2) == 0][:count]
    away, home = Owner(MemoryStore(), 1, homes=2), Owner(store, 0, homes=2)
    for start in range(0, count, RUN):
        run = enumerate(ids[start : start + RUN], start)
        home.take([(n, START_MS, b"key", b"x" * 100, _due_of(n, one)) for n, one in run])
    meter = Meter(folder)
    sent: list[Output] = []
    for start in range(0, count, RUN):
        run = enumerate(ids[start : start + RUN], start)
        sent += away.take([(n, START_MS, None, None, _cancel_of(one)) for n, one in run])
    yield {"phase": "forwarded"} | meter.report(count)
    meter = Meter(folder)
    for start in range(0, count, RUN):
        arriving = enumerate(sent[start : start + RUN], start)
        home.take([(count + n, START_MS, one[3], one[4], one[5]) for n, one in arriving])
    assert home.outputs == 2 * count, "each cancel has an outcome, and so has what it cancelled"
    yield {"phase": "arrived"} | meter.report(count)


def _due_of(number: int, name: bytes) -> Headers:
    return [("delay-at", b"%d" % due_ms(number)), TARGET, ("delay-id", name)]


def _cancel_of(name: bytes) -> Headers:
    return [("delay-id", name), ("delay-op", b"cancel")]


def restart_timers(store: Store, count: int, ids: int = 1_000) -> Iterator[dict[str, object]]:
    """Schedule and cancel ``count`` times on few ids, as timers do that are restarted for ever."""
    owner = Owner(store)
    pair_us: list[float] = []
    for start in range(0, count, RUN // 2):
        rows: list[Row] = []
        for number in range(start, min(start + RUN // 2, count)):
            name = ("delay-id", record_id(number % ids))
            at = ("delay-at", b"%d" % due_ms(number))
            rows.append((2 * number, START_MS, b"key", b"x" * 100, [at, TARGET, name]))
            rows.append((2 * number + 1, START_MS, None, None, [name, ("delay-op", b"cancel")]))
        began_s = time.perf_counter()
        owner.take(rows)
        pair_us.append(2e6 * (time.perf_counter() - began_s) / len(rows))
        done = rows[-1][0] // 2 + 1
        if done * 10 // count > start * 10 // count:
            centiles = quantiles(pair_us, n=100)
            yield {"pairs": done} | {
                "p50_us_per_pair": round(centiles[49], 1),
                "p99_us_per_pair": round(centiles[98], 1),
            }
            pair_us = []
    assert owner.outputs == 2 * count


def cancel_through_kafka(kind: str, folder: Path, count: int) -> Iterator[dict[str, object]]:
    """The same on a cluster, from the moment that the service goes on until the last outcome."""
    sets = (f"node.store={kind}", "wheel.slots=2016", "wheel.slot_ms=10m")
    with (
        EmbeddedCluster() as cluster,
        Bench(cluster.bootstrap, folder, partitions=4, sets=sets) as bench,
    ):
        service = bench.serve()
        due = ("delay-at", str(now_ms() + SPREAD_MS // 2))
        target = ("delay-target-topic", bench.target("cancelled"))
        for number in range(count):
            name = ("delay-id", record_id(number))
            bench.send_later([due, target, name], partition=number % 4)
        bench.producer.flush()
        await_true(lambda: _metric(service, "delay_pending") >= count, "all wait", 300)
        before = cpu_s(service.workers())
        service.freeze()
        for number in range(count):
            op = ("delay-op", b"cancel")
            bench.send_later([("delay-id", record_id(number)), op], partition=number % 4)
        bench.producer.flush()
        began_ms = now_ms()
        service.thaw()
        await_true(lambda: _settled(service) >= 2 * count, "all are cancelled", 300)
        used_s = cpu_s(service.workers()) - before
        outcomes = bench.read_all(bench.outcomes)
        assert [one.header("delay-outcome") for one in outcomes] == ["cancelled"] * 2 * count
        took_ms = max(one.timestamp_ms for one in outcomes) - began_ms
        yield {"records": count, "records_per_s": count * 1_000 // took_ms} | {
            "cpu_us_per_record": round(1e6 * used_s / count, 1)
        }


def _metric(service: ServiceProcess, name: str, label: str = "") -> int:
    """The sum of a metric over its slices, of those with a label."""
    lines = metrics_of(service, name + "{")
    return sum(int(float(line.split()[-1])) for line in lines if label in line)


def _settled(service: ServiceProcess) -> int:
    return _metric(service, "delay_settled_total", 'outcome="cancelled"')


def store_all(
    store: Store, folder: Path, count: int, headers: Headers
) -> Iterator[dict[str, object]]:
    """Store so many with these headers beside the target."""
    owner = Owner(store)
    meter = Meter(folder)
    for part in range(4):
        owner.write(range(part * count // 4, (part + 1) * count // 4), [TARGET, *headers])
        yield meter.report((part + 1) * count // 4)
    store.sync()
    yield {"phase": "synced"} | meter.report(count)


def main() -> None:
    """Run one case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--kind", choices=MAKERS, default="wheel")
    parser.add_argument("--n", type=int, default=1_000_000)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kinds-bench-"))
    try:
        for line in lines_of(given.case, given.kind, folder, given.n):
            sys.stdout.write(json.dumps({"case": given.case, "kind": given.kind} | line) + "\n")
            sys.stdout.flush()
    finally:
        shutil.rmtree(folder)


def lines_of(case: str, kind: str, folder: Path, count: int) -> Iterator[dict[str, object]]:
    """The report of one case."""
    if case == "through":
        yield from cancel_through_kafka(kind, folder, count)
        return
    store: Store = MAKERS[kind](folder / "store")
    if case == "ids":
        store.open()
        yield from fill_ids(store, folder, count)
    elif case == "cancel":
        yield from cancel_all(store, folder, count)
    elif case == "foreign":
        yield from cancel_from_afar(store, folder, count)
    elif case == "again":
        yield from restart_timers(store, count)
    else:
        header = ("delay-every" if case == "recurring" else "delay-after", b"P30D")
        yield from store_all(store, folder, count, [header])
    store.close()


if __name__ == "__main__":
    main()
