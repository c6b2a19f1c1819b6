"""Writes the findings of an audit, and then its summary, to a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.kafka.clients import flush, producer_client
from connectors.spark.audit.result import VERSION, AuditResult
from connectors.spark.common.topics import java_options, native_options
from delayservice.errors import KafkaEdgeError

_FLUSH_TIMEOUT_S: Final = 30.0


def publish(client: Mapping[str, str], topic: str, found: DataFrame, result: AuditResult) -> None:
    """Write findings by the executors, then the summary: all findings are there before it.

    Raises:
        KafkaEdgeError: the summary can't be written.
    """
    columns = [sf.lit(VERSION).alias("v"), sf.lit("finding").alias("kind")]
    columns.append(sf.col("kind").alias("finding"))
    columns += [sf.col(name) for name in found.columns if name != "kind"]
    found.select(sf.to_json(sf.struct(*columns)).alias("value")).write.format("kafka").options(
        **java_options(client), topic=topic
    ).save()
    producer = producer_client(native_options(client))
    producer.produce(topic, json.dumps(result.to_json()).encode())
    if flush(producer, _FLUSH_TIMEOUT_S):
        raise KafkaEdgeError(
            f"the summary can't be written to {topic} within {_FLUSH_TIMEOUT_S:.0f} s; it is in "
            f"{result.summary_path}"
        )
