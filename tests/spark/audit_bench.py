"""How fast the audit is: ``python -m tests.spark.audit_bench --records 5000000``.

Writes so many records and what settles them into a cluster of its own, has Spark read them and do
nothing else, audits them on two cores, and prints a line of JSON for each. Reading Kafka is part of
the time, writing is not.

``--kind keyed``: records with keys; ``--kind mixed``: the same with delays of all lengths.
``--kind ids``: of ten records one is cancelled and one rescheduled. ``--kind reschedules``: records
of one id, each replacing the one before; ``--kind apart``: the same with an id of its own for each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from connectors.kafka.clients import admin_client
from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.log_ends import EARLIEST, LATEST, offsets_of
from connectors.spark.audit import audit
from connectors.spark.common.session import open_session
from connectors.spark.common.topics import Span, read_topic
from delay_devtools.cluster import EmbeddedCluster
from tests.spark.audits import audit_options
from tests.spark.made_history import MadeHistory

PARTITIONS = 4
KINDS: Final[Mapping[str, Callable[[MadeHistory, int], None]]] = {
    "plain": lambda history, count: history.plain(count),
    "keyed": lambda history, count: history.keyed(count),
    "mixed": lambda history, count: history.keyed(count, is_mixed=True),
    "ids": lambda history, count: history.identified(count),
    "reschedules": lambda history, count: history.rescheduled(count, 1),
    "apart": lambda history, count: history.rescheduled(count, count),
}


def raw_seconds(spark: SparkSession, history: MadeHistory) -> float:
    """Seconds in which Spark reads the topics, and does nothing with the records."""
    topics = {history.delay, history.target, history.outcomes}
    admin = admin_client(history.client)
    counts = partition_counts(admin)
    places = [(topic, number) for topic in topics for number in range(counts[topic])]
    starts = offsets_of(admin, places, EARLIEST)
    ends = offsets_of(admin, places, LATEST)
    spans = {place: Span(starts[place], ends[place]) for place in places}
    began_s = time.monotonic()
    read = read_topic(spark, history.client, spans)
    read.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began_s


def main() -> int:
    """Measure, and say so; 1 if the audit was not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=KINDS, default="plain")
    parser.add_argument("--runs", type=int, default=1, help="the first one warms Java up")
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    clean = True
    with (
        EmbeddedCluster(for_bench=True) as cluster,
        MadeHistory(cluster.bootstrap, PARTITIONS) as history,
    ):
        began_s = time.monotonic()
        KINDS[chosen.kind](history, chosen.records)
        history.settled(history.now_ms + 3_600_001)
        sys.stderr.write(f"written in {time.monotonic() - began_s:.0f} s\n")
        with tempfile.TemporaryDirectory() as out:
            options = audit_options(history, Path(out))
            spark = open_session("audit bench", master=chosen.master)
            for _ in range(chosen.runs):
                raw_s = raw_seconds(spark, history)
                found = audit(spark, options)
                clean = clean and found.is_clean and found.records >= chosen.records
                figures: dict[str, object] = {"kind": chosen.kind, "records": found.records}
                figures |= {"outputs": found.outputs, "raw_seconds": round(raw_s, 1)}
                figures |= {"of_raw": round(raw_s / found.seconds, 2)}
                figures |= {
                    "seconds": round(found.seconds, 1),
                    "rows_per_s": round(found.rows_per_s),
                }
                sys.stdout.write(json.dumps(figures | {"clean": found.is_clean}) + "\n")
                sys.stdout.flush()
            spark.stop()
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
