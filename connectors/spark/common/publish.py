"""Results of a job written to a topic: JSON, findings first and then the summary."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.kafka.clients import flush, producer_client
from connectors.spark.common.topics import java_options, native_options
from delayservice.errors import KafkaEdgeError

_FLUSH_TIMEOUT_S: Final = 30.0


def publish(
    client: Mapping[str, str],
    topic: str,
    findings: tuple[str, DataFrame],
    summary: Mapping[str, object],
) -> None:
    """Write findings by the executors, then the summary: all findings are there before it.

    Args:
        client: options of librdkafka.
        topic: where to.
        findings: ``kind`` of their records, and the findings; their own kind becomes ``finding``.
        summary: with ``v``, which findings bear, too.

    Raises:
        KafkaEdgeError: the summary can't be written.
    """
    kind, found = findings
    told = [sf.lit(summary["v"]).alias("v"), sf.lit(kind).alias("kind")]
    told += [sf.col(name).alias("finding" if name == "kind" else name) for name in found.columns]
    found.select(sf.to_json(sf.struct(*told)).alias("value")).write.format("kafka").options(
        **java_options(client), topic=topic
    ).save()
    producer = producer_client(native_options(client))
    producer.produce(topic, json.dumps(summary).encode())
    if flush(producer, _FLUSH_TIMEOUT_S):
        raise KafkaEdgeError(
            f"the summary can't be written to {topic} within {_FLUSH_TIMEOUT_S:.0f} s"
        )
