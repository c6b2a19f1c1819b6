"""Delayed records from a Kafka topic as they come: in micro-batches, each record written once.

    decide  which records are rejected: they lie in Parquet before any other is written
    write   the others                                          ``sink``

A batch that is not complete is the same again in the next run: Spark has kept its offsets, the
Parquet what was rejected, and the marks of the sink what was written.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from connectors.kafka.clients import admin_client
from connectors.kafka.dead_letters import partition_counts
from connectors.spark.common.failures import reason
from connectors.spark.common.files import delete_folder, is_there, read_text, write_text
from connectors.spark.common.progress import Say
from connectors.spark.common.topics import java_options, native_options
from connectors.spark.schedule.check import JUDGED, Rules, check
from connectors.spark.schedule.mapping import IS_VALID, KEY, PLACE, VALUE, drafts
from connectors.spark.schedule.run import (
    REJECTED,
    VERSION,
    ScheduleOptions,
    rules_for,
    sink_for,
    write_rejected,
)
from connectors.spark.schedule.sink import Sink
from delayservice import faults
from delayservice.core.contract import Contract
from delayservice.errors import DelayServiceError, InvalidRequestError

INFER: Final = "infer"
"""Instead of a schema: it is taken from the first records."""

_SAMPLE_RECORDS: Final = 500
_CORRUPT: Final = "kafka.corrupt"
_STOPPED: Final = "stopped before this batch began"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a schedule from a topic.

    Attributes:
        source: options of librdkafka for the cluster of the input.
        from_topic: the input.
        checkpoint: folder of the stream's state, for Spark and for this.
        schema: of JSON values, as DDL, or ``INFER``; None: values are not parsed.
        every_ms: how often records are read; None: once, what is there now.
        records_max: of one batch.
    """

    source: Mapping[str, str]
    from_topic: str
    checkpoint: str
    schema: str | None = None
    every_ms: int | None = None
    records_max: int = 100_000


@dataclass(slots=True)
class Streamed:
    """The result of a run so far.

    Attributes:
        batches: how many were completed.
        written: records that this run wrote.
        rejected: how many by code, in the completed batches.
        rejected_path: folder of the rejected records, a folder ``batch=N`` for each batch.
    """

    rejected_path: str
    batches: int = 0
    written: int = 0
    rejected: Counter[str] = field(default_factory=Counter)

    def to_json(self) -> dict[str, object]:
        """Return the result for programs."""
        return {
            "v": VERSION,
            "kind": "schedule_stream",
            "batches": self.batches,
            "written": self.written,
            "rejected": dict(self.rejected),
            "rejected_path": self.rejected_path,
        }


class Stream:
    """A running stream."""

    def __init__(self, query: StreamingQuery, batches: _Batches) -> None:
        self._query = query
        self._batches = batches
        self.done = batches.done

    @property
    def is_active(self) -> bool:
        """Return whether it goes on."""
        return bool(self._query.isActive)

    def stop(self) -> None:
        """Complete the batch that is under way, if any, and end.

        Raises:
            PySparkException: the stream has failed.
        """
        self._batches.close()
        self._query.stop()
        failure = self._query.exception()
        if failure is not None and _STOPPED not in str(failure):
            raise failure


def start_stream(
    spark: SparkSession,
    client: Mapping[str, str],
    contracts: Callable[[], Sequence[Contract]],
    options: ScheduleOptions,
    stream: StreamOptions,
    say: Say,
    *,
    writer: Mapping[str, str] | None = None,
) -> Stream:
    """Begin to schedule the records of a topic, or go on where the last run stopped.

    Args:
        spark: the session.
        client: options of librdkafka for the delay topic's cluster.
        contracts: asks what holds at the end of the delay topic's partitions.
        options: of the delay topic and the mapping. What is rejected never stops the others.
        stream: of the input.
        say: told of each batch.
        writer: options of librdkafka to write with, where those are others.

    Raises:
        InvalidRequestError: the mapping does not fit, a topic is missing, or the folder is of
            another stream.
        DelayServiceError: a cluster does not answer, or the state of the stream is gone.
    """
    if stream.from_topic not in partition_counts(admin_client(native_options(stream.source))):
        raise InvalidRequestError(f"there is no topic {stream.from_topic} to read")

    def rules() -> Rules:
        return rules_for(client, contracts(), options)

    first = sink_for(options, rules(), writer or client)
    path = f"{stream.checkpoint}/schedule.json"
    state = _kept(spark, path, stream, options)
    schema = state.schema if state else _schema(spark, stream)
    fields = replace(
        options.fields, value=options.fields.value or VALUE, key=options.fields.key or KEY
    )
    asked = drafts(_rows(_records(spark.readStream, stream), schema), fields)
    if state is None:
        name = f"{options.name}-{uuid.uuid4().hex[:16]}"
        state = _State(name, options.topic, stream.from_topic, first.parts, schema)
        sink = replace(first, name=state.name)
        sink.begin()
        write_text(spark, path, msgspec.json.encode(state).decode())
        marks: list[int | None] = []
    else:
        sink = replace(first, name=state.name, parts=state.parts)
        marks = sink.fence()
    batches = _Batches(
        sink, rules, f"{options.rejected_path}/{state.name}", say, is_lost=None in marks
    )
    return Stream(_started(asked, stream, batches), batches)


def _started(asked: DataFrame, stream: StreamOptions, batches: _Batches) -> StreamingQuery:
    once = stream.every_ms is None
    trigger: dict[str, Any] = (
        {"availableNow": True} if once else {"processingTime": f"{stream.every_ms} milliseconds"}
    )
    query: StreamingQuery = (
        asked.writeStream.queryName("delay schedule")
        .trigger(**trigger)
        .option("checkpointLocation", f"{stream.checkpoint}/spark")
        .foreachBatch(batches)
        .start()
    )
    return query


# --- state ---------------------------------------------------------------------------------------


class _State(msgspec.Struct):
    """What stays the same in all runs of a stream."""

    name: str
    topic: str
    from_topic: str
    parts: int
    schema: str | None


def _kept(
    spark: SparkSession, path: str, stream: StreamOptions, options: ScheduleOptions
) -> _State | None:
    text = read_text(spark, path)
    if text is None:
        return None
    try:
        state = msgspec.json.decode(text, type=_State)
    except msgspec.DecodeError as exc:
        raise InvalidRequestError(
            f"{path} can't be read ({exc}): delete {stream.checkpoint}"
        ) from exc
    if (state.topic, state.from_topic) != (options.topic, stream.from_topic):
        raise InvalidRequestError(
            f"{stream.checkpoint} is of the stream from {state.from_topic} to {state.topic}: name "
            "another folder"
        )
    if stream.schema not in (None, INFER):
        state.schema = stream.schema
    return state


# --- input ---------------------------------------------------------------------------------------


def _records(reader: Any, stream: StreamOptions) -> DataFrame:  # noqa: ANN401  # of either kind
    options = {
        **java_options(stream.source),
        "kafka.isolation.level": "read_committed",
        "subscribe": stream.from_topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(stream.records_max),
        "includeHeaders": "true",
    }
    records: DataFrame = reader.format("kafka").options(**options).load()
    return records


def _rows(records: DataFrame, schema: str | None) -> DataFrame:
    """Return the fields of a JSON value as columns, and the record's own as ``kafka.…``."""
    own = [
        *(sf.col(name).alias(f"kafka.{name}") for name in ("key", "value", "timestamp", "headers")),
        sf.concat_ws(":", "topic", "partition", "offset").alias(PLACE),
    ]
    if schema is None:
        return records.select(*own, sf.lit(True).alias(IS_VALID))  # noqa: FBT003  # Spark's literal
    found = sf.from_json(
        sf.col("value").cast("string"),
        _parsed(schema).add(_CORRUPT, "string"),
        {"columnNameOfCorruptRecord": _CORRUPT},
    )
    is_valid = sf.col("row").isNotNull() & sf.col(f"row.`{_CORRUPT}`").isNull()
    rows = records.select(*own, found.alias("row")).withColumn(IS_VALID, is_valid)
    names = [f"`{name}`" for name in rows.columns if name != "row"]
    return rows.select("row.*", *names).drop(_CORRUPT)


def _parsed(schema: str) -> types.StructType:
    """Parse DDL.

    Raises:
        InvalidRequestError: it is not that of columns.
    """
    try:
        found = types.DataType.fromDDL(schema)
    except PySparkException as exc:
        raise InvalidRequestError(f"schema {schema!r}: {reason(exc)}") from exc
    if not isinstance(found, types.StructType):
        raise InvalidRequestError(f"schema {schema!r} must name columns, as: user string, n int")
    return found


def _schema(spark: SparkSession, stream: StreamOptions) -> str | None:
    """Return the schema as given, or that of the first JSON objects in the topic.

    Raises:
        InvalidRequestError: there is none.
    """
    if stream.schema != INFER:
        return stream.schema
    first = (
        _records(spark.read, stream).select(sf.col("value").cast("string")).limit(_SAMPLE_RECORDS)
    )
    found = [one for row in first.collect() if isinstance(one := _json(row["value"]), dict)]
    if not found:
        raise InvalidRequestError(
            f"the first records of {stream.from_topic} hold no JSON objects: give the schema as DDL"
        )
    array = spark.range(1).select(sf.schema_of_json(sf.lit(json.dumps(found)))).collect()[0][0]
    return str(array).removeprefix("ARRAY<").removesuffix(">")


def _json(text: str | None) -> object:
    try:
        return json.loads(text or "")
    except ValueError:
        return None


# --- batches -------------------------------------------------------------------------------------


class _Batches:
    """Writes batches, as Spark hands them over."""

    def __init__(
        self, sink: Sink, rules: Callable[[], Rules], rejected_path: str, say: Say, *, is_lost: bool
    ) -> None:
        self.done = Streamed(rejected_path)
        self._sink = sink
        self._rules = rules
        self._say = say
        self._is_lost = is_lost
        self._spent: str | None = None
        """Decisions of the last batch, if it rejected nothing."""
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        """Wait for the batch that is under way, and take no other."""
        with self._lock:
            self._is_closed = True

    def __call__(self, asked: DataFrame, batch: int) -> None:
        """Write a batch."""
        with self._lock:
            if self._is_closed:
                raise DelayServiceError(_STOPPED)
            self._write(asked, batch)

    def _write(self, asked: DataFrame, batch: int) -> None:
        began_s = time.monotonic()
        path = f"{self.done.rejected_path}/batch={batch}"
        rejected = self._decide(asked, batch, path)
        bad = asked.sparkSession.read.schema(REJECTED).parquet(path).select("file")
        good = asked.join(bad, "file", "left_anti") if rejected else asked
        offset = sf.substring_index("file", ":", -1).cast("long")
        written = self._sink.write(good, batch, offset, sf.col("file"))
        faults.point("bulk_written")
        self._spent = None if rejected else path
        self.done.batches += 1
        self.done.written += written
        self.done.rejected += rejected
        took_s = time.monotonic() - began_s
        self._say(
            f"batch {batch}: {written:,} written, {rejected.total():,} rejected, {took_s:.1f} s"
        )

    def _decide(self, asked: DataFrame, batch: int, path: str) -> Counter[str]:
        """Write what is rejected of a batch, unless a former run has; return counts by code.

        Raises:
            DelayServiceError: a former run has, and its marks are gone.
        """
        spark = asked.sparkSession
        if self._spent is not None:
            delete_folder(spark, self._spent)
        if not is_there(spark, f"{path}/_SUCCESS"):
            write_rejected(asked.mapInArrow(check(self._rules()), JUDGED), path)
        elif self._is_lost:
            raise DelayServiceError(
                f"how far batch {batch} was written is not known any more: the stream stood still "
                "for longer than the brokers' offsets.retention.minutes. To write all of it, which "
                f"may double records, delete {path}"
            )
        counted = spark.read.schema(REJECTED).parquet(path).groupBy("code").count().collect()
        return Counter({row["code"]: row["count"] for row in counted})
