"""How an audit follows: ``python -m tests.spark.follow_bench --rate 5000 --seconds 600``.

Writes pending records into a cluster of its own, and then each second records that are due and
their deliveries, while an audit follows. Prints one line of JSON: how long the intervals took, how
much memory Java and Python had, and whether all was found sound.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from statistics import median

import psutil

from connectors.spark.audit import AuditResult, Following
from connectors.spark.common.session import open_session
from delay_devtools.cluster import EmbeddedCluster
from tests.spark.audits import audit_options
from tests.spark.made_history import DAY_MS, MadeHistory

PARTITIONS = 4
PENDING_FROM_MS = DAY_MS // 12
SPREAD_MS = DAY_MS
FIRST_OF = 0.34
MIB = 1 << 20


def write_pending(history: MadeHistory, count: int) -> None:
    """Records that are due from two hours on, over a day."""
    start_ms = history.now_ms + PENDING_FROM_MS
    for number in range(count):
        due_ms = start_ms + number * 7_919 % SPREAD_MS
        history.source(due_ms, value=b"v" * 100, partition=number % PARTITIONS)
    history.settled(history.now_ms)


def write_steadily(history: MadeHistory, rate: int, seconds: int, stop: threading.Event) -> None:
    """Write once a second the records of a second and the checkpoint that settles them."""
    began_s = time.monotonic()
    for turn in range(seconds):
        history.now_ms = time.time_ns() // 1_000_000
        history.plain(rate)
        history.settled(history.now_ms - 1_000)
        if stop.wait(max(0.0, began_s + turn + 1 - time.monotonic())):
            return


def follow_steps(
    following: Following, writing: Future[None], interval_s: float
) -> tuple[list[AuditResult], list[int]]:
    """Audit at this interval until all is written, and once more; the memory after each step."""
    steps: list[AuditResult] = []
    memory: list[int] = []
    while not writing.done():
        next_s = time.monotonic() + interval_s
        steps.append(following.step())
        memory.append(memory_mib())
        wait([writing], max(0.0, next_s - time.monotonic()))
    writing.result()
    return [*steps, following.step()], memory


def memory_mib() -> int:
    """Return the memory of this process and of those that it started, except brokers."""
    own = psutil.Process(os.getpid())
    return sum(map(_rss_bytes, (own, *own.children(recursive=True)))) // MIB


def _rss_bytes(process: psutil.Process) -> int:
    try:
        is_broker = "kafka.Kafka" in " ".join(process.cmdline())
        return 0 if is_broker else int(process.memory_info().rss)
    except psutil.NoSuchProcess:  # a helper of Spark that ended meanwhile
        return 0


def main() -> int:
    """Measure, and say so; 1 if something was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=5_000, help="records per second")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--pending", type=int, default=10_000_000)
    parser.add_argument("--interval", type=float, default=30.0, help="seconds from cut to cut")
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    with (
        EmbeddedCluster(for_bench=True) as cluster,
        MadeHistory(cluster.bootstrap, PARTITIONS) as history,
        tempfile.TemporaryDirectory() as out,
    ):
        write_pending(history, chosen.pending)
        options = audit_options(history, Path(out))
        spark = open_session("follow bench", master=chosen.master)
        following = Following(spark, options)
        first = following.step()
        sys.stderr.write(f"{first.counts['pending']:,} pending in {first.seconds:.0f} s\n")
        # The writer ends before the topics do; its error, or the audit's, ends the bench.
        with ThreadPoolExecutor(1, "writer") as pool:
            stop = threading.Event()
            writing = pool.submit(write_steadily, history, chosen.rate, chosen.seconds, stop)
            try:
                steps, memory = follow_steps(following, writing, chosen.interval)
            finally:
                stop.set()
        spark.stop()
    third = max(1, round(len(memory) * FIRST_OF))
    seconds = [one.seconds for one in steps]
    told = {
        "rate_per_s": chosen.rate,
        "pending": first.counts["pending"],
        "first_s": round(first.seconds, 1),
        "intervals": len(steps),
        "records": sum(one.counts["delivered"] for one in steps),
        "interval_s_median": round(median(seconds), 1),
        "interval_s_max": round(max(seconds), 1),
        "memory_mib": [round(median(memory[:third])), round(median(memory[-third:]))],
        "clean": all(one.is_clean for one in steps),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    return 0 if told["clean"] else 1


if __name__ == "__main__":
    sys.exit(main())
