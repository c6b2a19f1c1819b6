"""Writes the results of a job to a topic as JSON, each of them once: findings, then a summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from xxhash import xxh3_64_hexdigest

from connectors.spark.common.sink import TopicSink, sink_client

NAMES: Final = "delayservice-spark-"
_RECORD_BYTES_MAX: Final = 1_048_576


def name_for(kind: str, place: str) -> str:
    """Return the sender's name for results of a job (such as ``audit``) in the folder ``place``. Of
    two processes with the same name, the later fences the earlier.
    """
    return f"{NAMES}{kind}-{xxh3_64_hexdigest(place.encode())}"


def publish(
    client: Mapping[str, str],
    topic: str,
    sender: tuple[str, int | None],
    findings: tuple[str, DataFrame],
    summary: Mapping[str, object],
) -> None:
    """Write findings to a topic, and after them a summary, in transactions of one task.

    Args:
        client: options of librdkafka.
        topic: topic to write to.
        sender: a name from ``name_for``, and the number of the publication. Records that were
            already written under that number are left out, so its findings must be the same each
            time. Number None: all records are written.
        findings: value of the field ``kind`` of the JSON objects, and the findings, whose column
            ``kind`` becomes the field ``finding``.
        summary: the summary; its format version ``v`` is added to the findings.
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
