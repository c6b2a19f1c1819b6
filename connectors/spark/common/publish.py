"""Results of a job written to a topic: JSON, findings first and then the summary, each once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from xxhash import xxh3_64_hexdigest

from connectors.spark.common.sink import TopicSink, sink_client

NAMES: Final = "delayservice-spark-"
"""How transactional ids and groups of what is published begin."""
_RECORD_BYTES_MAX: Final = 1_048_576


def name_for(kind: str, place: str) -> str:
    """Return the name by which a job publishes that writes its results to ``place``: two runs with
    the same one do not publish at the same time.
    """
    return f"{NAMES}{kind}-{xxh3_64_hexdigest(place.encode())}"


def publish(
    client: Mapping[str, str],
    topic: str,
    sender: tuple[str, int | None],
    findings: tuple[str, DataFrame],
    summary: Mapping[str, object],
) -> None:
    """Write findings, and the summary behind them, by one task in transactions.

    Args:
        client: options of librdkafka.
        topic: where to.
        sender: a name, and the number of what it publishes: what it has published of that number
            is left out, so the same findings have to come whenever it does that. Without a number
            all is written.
        findings: ``kind`` of their records, and the findings; their own kind becomes ``finding``.
        summary: with ``v``, which findings bear, too.

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
