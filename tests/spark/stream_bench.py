"""Whether the streaming audit keeps up: ``python -m tests.spark.stream_bench --seconds 600``.

Writes records and their deliveries at a steady rate into a cluster of its own while the audit
follows on two cores, and prints one line of JSON: how far it was behind, and what its state held in
the first and in the last third.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from statistics import mean
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from connectors.spark.audit import AuditOptions
from connectors.spark.audit.stream import StreamOptions, start_audit
from connectors.spark.common.session import open_session
from delayservice.dev.cluster import EmbeddedCluster
from tests.spark.made_history import MadeHistory

PARTITIONS = 4
TRIGGER_MS = 5_000
TURN_S = 1.0


def write_steadily(history: MadeHistory, query: StreamingQuery, rate: int, seconds: int) -> None:
    """Once a second what is written in a second, with the checkpoint that settles it."""
    began_s = time.monotonic()
    for turn in range(seconds):
        history.now_ms = time.time_ns() // 1_000_000
        history.plain(rate)
        history.settled(history.now_ms - 1_000)
        failed = query.exception()
        if failed is not None:
            raise failed
        time.sleep(max(0.0, began_s + (turn + 1) * TURN_S - time.monotonic()))


def await_all(query: StreamingQuery, rows: int) -> None:
    """Until every record and delivery is read. ``processAllAvailable`` never ends, for there are
    turns without data, too.
    """
    while sum(one["numInputRows"] for one in query.recentProgress) < rows:
        failed = query.exception()
        if failed is not None:
            raise failed
        time.sleep(TURN_S / 2)


def figures(progress: Sequence[dict[str, Any]], rate: int, seconds: int) -> dict[str, object]:
    """What the query told of its turns."""
    turns = [one for one in progress if one["numInputRows"]]
    third = len(turns) // 3

    def kept(some: Sequence[dict[str, Any]], name: str) -> float:
        return round(float(mean(one["stateOperators"][0][name] for one in some)), 1)

    return {
        "rate_per_s": rate,
        "seconds": seconds,
        "rows_read": sum(one["numInputRows"] for one in turns),
        "turns": len(turns),
        "turn_ms_mean": round(mean(one["durationMs"]["triggerExecution"] for one in turns)),
        "turn_ms_max": max(one["durationMs"]["triggerExecution"] for one in turns),
        "trigger_ms": TRIGGER_MS,
        "state_rows": [kept(turns[:third], "numRowsTotal"), kept(turns[-third:], "numRowsTotal")],
        "state_bytes": [
            kept(turns[:third], "memoryUsedBytes"),
            kept(turns[-third:], "memoryUsedBytes"),
        ],
    }


def main() -> int:
    """Measure, and say so."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=5_000, help="records per second")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    with EmbeddedCluster() as cluster, MadeHistory(cluster.bootstrap, PARTITIONS) as history:
        history.settled(history.now_ms)
        with tempfile.TemporaryDirectory() as out:
            audited = AuditOptions(
                history.client,
                out,
                checkpoint=history.checkpoint,
                dead_letter=history.dead_letter,
                outcomes=history.outcomes,
            )
            spark = open_session(
                "stream bench",
                master=chosen.master,
                conf={"spark.sql.streaming.numRecentProgressUpdates": "10000"},
            )
            options = StreamOptions(audited, grace_ms=10_000, trigger_ms=TRIGGER_MS)
            query = start_audit(spark, options)
            write_steadily(history, query, chosen.rate, chosen.seconds)
            ended_s = time.monotonic()
            await_all(query, 2 * chosen.rate * chosen.seconds)
            told = figures(query.recentProgress, chosen.rate, chosen.seconds)
            told["behind_s"] = round(time.monotonic() - ended_s, 1)
            query.stop()
            spark.stop()
    sys.stdout.write(json.dumps(told) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
