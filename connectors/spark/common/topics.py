"""Reads Kafka topics with Spark: only committed records, between fixed offsets or as a stream."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from delayservice.base.errors import DelayServiceError

Place: TypeAlias = tuple[str, int]
"""Topic and partition."""
# Approximate largest number of records that one Spark task reads.
TASK_RECORDS: Final = 1_000_000

_FETCH: Final = {
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "20000",
    "kafka.fetch.max.bytes": "67108864",
    "kafka.max.partition.fetch.bytes": "16777216",
    "kafka.receive.buffer.bytes": "1048576",
}
# Options of Java's consumer that no setting changes: a batch whose bytes were altered ends the job,
# and a look-up creates no topic.
_ALWAYS: Final = {"check.crcs": "true", "allow.auto.create.topics": "false"}
_PLAIN_LOGIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_SCRAM_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
# Options of librdkafka with the same name and meaning in Java's client. Other options tune
# librdkafka, and are not passed on.
_SHARED: Final = frozenset(
    {"bootstrap.servers", "security.protocol", "sasl.mechanism", "client.id"}
)


@dataclass(frozen=True, slots=True)
class Span:
    """Offsets ``[start, end)`` of one partition."""

    start: int
    end: int


def read_topic(
    spark: SparkSession, client: Mapping[str, str], spans: Mapping[Place, Span], min_partitions: int
) -> DataFrame:
    """Return the committed records at the offsets ``spans``, in at least ``min_partitions`` tasks.
    Records that retention deletes meanwhile are left out.

    Returns:
        ``topic`` string, ``partition`` int, ``offset`` long, ``timestamp_ms`` long (epoch ms),
        ``key`` and ``value`` binary, ``headers`` array of ``{key: string, value: binary}``, null
        for a record without headers.
    """
    filled = {place: span for place, span in spans.items() if span.start < span.end}
    if not filled:
        return spark.createDataFrame([], ROW_SCHEMA)
    options = {
        **java_options(client),
        **_FETCH,
        "assign": _by_topic({place: place[1] for place in filled}, as_list=True),
        "startingOffsets": _by_topic({place: span.start for place, span in filled.items()}),
        "endingOffsets": _by_topic({place: span.end for place, span in filled.items()}),
        "minPartitions": str(min_partitions),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # retention may delete records meanwhile
    }
    return _as_rows(spark.read.format("kafka").options(**options).load())


def stream_topics(
    spark: SparkSession, client: Mapping[str, str], topics: Collection[str], records_max: int
) -> DataFrame:
    """Return a stream of the committed records, with the columns of ``read_topic``: from the start
    of the logs, or where Spark's checkpoint ends; with up to ``records_max`` in a micro-batch.
    """
    options = {
        **java_options(client),
        **_FETCH,
        "subscribe": ",".join(topics),
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(records_max),
        "includeHeaders": "true",
        "failOnDataLoss": "false",
    }
    return _as_rows(spark.readStream.format("kafka").options(**options).load())


ROW_SCHEMA: Final = (
    "topic string, partition int, offset long, timestamp_ms long, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>"
)
"""Columns of a record as ``read_topic`` and ``stream_topics`` return it; times are epoch ms."""


def _as_rows(records: DataFrame) -> DataFrame:
    return records.select(
        "topic",
        "partition",
        "offset",
        sf.unix_millis("timestamp").alias("timestamp_ms"),
        "key",
        "value",
        "headers",
    )


def java_options(client: Mapping[str, str]) -> dict[str, str]:
    """Return options of librdkafka as options of Spark's Kafka source, with the prefix ``kafka.``.

    A user name and password become a login module. PEM files are passed by content, as executors
    lack the files. An option with the prefix ``java.`` is passed on without that prefix: such
    options are for settings of Java's client that are not translated here. Others are dropped.
    Those in ``_ALWAYS`` override all.

    Raises:
        DelayServiceError: the SASL mechanism is not translated, or a PEM file can't be read.
    """
    options = {name: value for name, value in client.items() if name in _SHARED}
    options |= _sasl(client) | _tls(client)
    options |= {n.removeprefix("java."): v for n, v in client.items() if n.startswith("java.")}
    options |= _ALWAYS
    return {f"kafka.{name}": value for name, value in options.items()}


def native_options(client: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in client.items() if not name.startswith("java.")}


def _sasl(client: Mapping[str, str]) -> dict[str, str]:
    mechanism = client.get("sasl.mechanism") or client.get("sasl.mechanisms")
    if "sasl.username" not in client:
        return {"sasl.mechanism": mechanism} if mechanism else {}
    mechanism = mechanism or "PLAIN"
    modules = {"PLAIN": _PLAIN_LOGIN}
    modules |= dict.fromkeys(("SCRAM-SHA-256", "SCRAM-SHA-512"), _SCRAM_LOGIN)
    if mechanism not in modules:
        raise DelayServiceError(
            f"sasl.mechanism {mechanism} is not translated for Spark: give java.sasl.jaas.config"
        )
    user, password = (_quoted(client.get(f"sasl.{n}", "")) for n in ("username", "password"))
    login = f"{modules[mechanism]} required username={user} password={password};"
    return {"sasl.mechanism": mechanism, "sasl.jaas.config": login}


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _tls(client: Mapping[str, str]) -> dict[str, str]:
    options = {}
    if "ssl.ca.location" in client:
        options["ssl.truststore.type"] = "PEM"
        options["ssl.truststore.certificates"] = _content(client["ssl.ca.location"])
    if "ssl.certificate.location" in client and "ssl.key.location" in client:
        options["ssl.keystore.type"] = "PEM"
        options["ssl.keystore.certificate.chain"] = _content(client["ssl.certificate.location"])
        options["ssl.keystore.key"] = _content(client["ssl.key.location"])
    if "ssl.key.password" in client:
        options["ssl.key.password"] = client["ssl.key.password"]
    return options


def _content(path: str) -> str:
    try:
        return Path(path).read_text("ascii")
    except OSError as exc:
        raise DelayServiceError(f"{path} can't be read ({exc}): Spark needs what is in it") from exc


def _by_topic(numbers: Mapping[Place, int], *, as_list: bool = False) -> str:
    # Spark's Kafka source expects {topic: {partition: offset}}, or {topic: [partition, …]}.
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), number in sorted(numbers.items()):
        found.setdefault(topic, {})[str(partition)] = number
    if as_list:
        return json.dumps({topic: sorted(held.values()) for topic, held in found.items()})
    return json.dumps(found)
