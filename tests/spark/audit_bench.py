"""How fast the audit is: ``python -m tests.spark.audit_bench --records 5000000``.

Writes so many records and their deliveries into a cluster of its own, four partitions each, audits
them on two cores and prints one line of JSON. Reading Kafka is part of the time, writing is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time

from connectors.spark.audit import AuditOptions, audit
from connectors.spark.common.session import open_session
from delayservice.dev.cluster import EmbeddedCluster
from tests.spark.made_history import MadeHistory

PARTITIONS = 4


def main() -> int:
    """Measure, and say so; 1 if the audit was not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=1, help="the first one warms Java up")
    parser.add_argument("--master", default="local[2]")
    chosen = parser.parse_args()
    clean = True
    with EmbeddedCluster() as cluster, MadeHistory(cluster.bootstrap, PARTITIONS) as history:
        began_s = time.monotonic()
        history.plain(chosen.records)
        history.settled(history.now_ms)
        sys.stderr.write(f"written in {time.monotonic() - began_s:.0f} s\n")
        with tempfile.TemporaryDirectory() as out:
            options = AuditOptions(
                history.client,
                out,
                checkpoint=history.checkpoint,
                dead_letter=history.dead_letter,
                outcomes=history.outcomes,
            )
            spark = open_session("audit bench", master=chosen.master)
            for _ in range(chosen.runs):
                found = audit(spark, options)
                clean = clean and found.is_clean and found.records == chosen.records
                figures = {"records": found.records, "outputs": found.outputs}
                figures |= {"seconds": round(found.seconds), "rows_per_s": round(found.rows_per_s)}
                sys.stdout.write(json.dumps(figures | {"clean": found.is_clean}) + "\n")
                sys.stdout.flush()
            spark.stop()
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
