"""The Spark jobs in their image, on the running cluster of the Compose file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.containers.cluster import Cluster
from tests.containers.images import SPARK

_BROKERS: Final = "kafka-1:9092,kafka-2:9092,kafka-3:9092"
_VOLUME: Final = "containers-spark"
_OUT: Final = "/var/lib/delayservice"
_ROWS: Final = (
    "import pyarrow as pa, pyarrow.parquet as pq, datetime as d;"
    "n=d.datetime.now(d.timezone.utc);"
    "pq.write_table(pa.table({'id':['1','2'],'body':['a','b'],'due_at':[n,n]}),"
    f"'{_OUT}/rows.parquet')"
)


def check(cluster: Cluster) -> None:
    """Run each job once, offline but for the brokers, on a read-only root without rights."""
    network = "delay_default"
    words = ["run", "--rm", "--network", network, "--read-only", "--tmpfs", "/tmp:exec"]  # noqa: S108
    words += ["--cap-drop", "ALL", "-v", f"{_VOLUME}:{_OUT}", "-e"]
    words += ["DELAYSERVICE_TARGETS__DEFAULT__ALLOW=orders*"]
    python = Path("/opt/delayservice/bin/python")
    cluster.engine.docker(*words, "--entrypoint", str(python), SPARK, "-c", _ROWS)
    columns = ["--at", "due_at", "--value", "body", "--id", "id", "--target", "orders"]
    jobs = {
        "audit": ["--from-start", f"--out={_OUT}/audit"],
        "reconcile": ["--replicas=3", f"--out={_OUT}/reconcile"],
        "report": ["--from=-1d", f"--out={_OUT}/report"],
        "schedule": [f"{_OUT}/rows.parquet", *columns],
    }
    for job, options in jobs.items():
        done = cluster.engine.docker(
            *words, SPARK, "spark", job, *options, f"--bootstrap={_BROKERS}", is_checked=False
        )
        text = done.stdout + done.stderr
        cluster.report.check(f"delayservice-spark runs {job}", done.returncode == 0, text)
    cluster.engine.docker("volume", "rm", "-f", _VOLUME)
