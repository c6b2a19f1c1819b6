"""Writes the results of a job to a topic as JSON: findings, then the summary, each once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from xxhash import xxh3_64_hexdigest

from connectors.spark.common.sink import TopicSink, sink_client

NAMES: Final = "delayservice-spark-"
"""Prefix of the transactional ids and groups of publishing jobs."""
_RECORD_BYTES_MAX: Final = 1_048_576


def name_for(kind: str, place: str) -> str:
    """Return the publishing name of a job that writes its results to ``place``. Two runs with the
    same name can't publish at the same time.
    """
    return f"{NAMES}{kind}-{xxh3_64_hexdigest(place.encode())}"


def publish(
    client: Mapping[str, str],
    topic: str,
    sender: tuple[str, int | None],
    findings: tuple[str, DataFrame],
    summary: Mapping[str, object],
) -> None:
    """Write findings, and after them the summary, by one task in transactions.

    Args:
        client: options of librdkafka.
        topic: topic to write to.
        sender: a name, and the number of the publication: what it has already written under that
            number is left out, so the findings must be the same each time. Without a number all
            is written.
        findings: ``kind`` of their records, and the findings; their own kind becomes ``finding``.
        summary: the summary; its ``v`` is also added to the findings.

    Raises:
        KafkaEdgeError: the cluster refuses it, or does not answer.
    """
    name, number = sender
    kind, found = findings
    told = [sf.lit(summary["v"]).alias("v"), sf.lit(kind).alias("kind")]
    told += [sf.col(name).alias("finding" if name == "kind" else name) for name in found.columns]
    rows = found.select(sf.to_json(sf.struct(*told)).alias("value"), sf.lit(0).alias("at"))
    last = found.sparkSession.createDataFrame([(json.dumps(summary), 1)], "value string, at int")
    records = rows.unionByName(last).select(
        sf.lit(None).cast("binary").alias("id"),
        sf.col("value").cast("binary").alias("value"),
        sf.lit(None).cast("array<struct<key: string, value: binary>>").alias("headers"),
        "at",
    )
    sink = TopicSink(
        client=sink_client(client),
        topic=topic,
        name=name,
        parts=1,
        record_bytes_max=_RECORD_BYTES_MAX,
    )
    sink.write(records, sink.claim() if number is None else number, "at", "value")
