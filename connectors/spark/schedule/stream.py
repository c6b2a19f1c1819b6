"""Schedules delayed records from a Kafka topic continuously, in batches, each record once.

The steps of a batch:

    decide  which records are rejected, and write these to Parquet
    write   the others to the delay topic                       ``sink``

If a process ends in the middle of a batch, the next one repeats the batch unchanged: Spark has
stored its offsets, Parquet has the rejected records, and the sink's stored progress says which
records were written.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery
from xxhash import xxh3_64_hexdigest

from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.topic_facts import topic_ids
from connectors.spark.common.clients import admin_of
from connectors.spark.common.files import delete, is_there, read_text, write_text
from connectors.spark.common.frames import counts_by
from connectors.spark.common.progress import Say
from connectors.spark.common.session import reason
from connectors.spark.common.sink import TopicSink
from connectors.spark.common.topics import java_options
from connectors.spark.schedule.check import JUDGED, check
from connectors.spark.schedule.mapping import KEY, PLACE, REFUSAL, VALUE, drafts
from connectors.spark.schedule.run import (
    REJECTED,
    VERSION,
    ScheduleOptions,
    rules_for,
    sink_for,
    write_rejected,
)
from delayservice.base import faults
from delayservice.base.errors import DelayServiceError, InvalidRequestError
from delayservice.contract.contracts import Contract

# Value of schema with which the schema is derived from the first records of the topic.
INFER: Final = "infer"

_SAMPLE_RECORDS: Final = 500
_CORRUPT: Final = "kafka.corrupt"
_ROW: Final = "kafka.row"
_NOW: Final = {"availableNow": True}
_STOPPED: Final = "stopped before this batch began"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOptions:
    """Options of a stream that schedules the records of a Kafka topic.

    Attributes:
        source: options of librdkafka for the cluster with the topic to read.
        from_topic: name of the topic to read.
        checkpoint: folder for the state of the stream and for Spark's checkpoint.
        schema: fields of the JSON values, as Spark DDL, or ``INFER``; None: values are not parsed.
        every_ms: time from batch to batch, in ms; None: read the records that are there, and end.
        records_max: largest number of records in a batch.
    """

    source: Mapping[str, str]
    from_topic: str
    checkpoint: str
    schema: str | None = None
    every_ms: int | None = None
    records_max: int = 100_000


def start_stream(
    spark: SparkSession,
    contracts: Callable[[], Sequence[Contract]],
    options: ScheduleOptions,
    stream: StreamOptions,
    say: Say,
) -> Stream:
    """Start to schedule the records of a topic, or continue where the last process stopped.

    ``contracts`` returns those for records that are written now. Rejected records never stop the
    stream. ``say`` is called with a line about each completed batch.

    Raises:
        InvalidRequestError: the mapping does not fit, a topic is missing or was created again since
            the stream began, or the folder is that of another stream.
        DelayServiceError: a cluster does not answer or knows no id of a topic, or the stored state
            can't be used.
    """
    if stream.from_topic not in partition_counts(admin_of(stream.source)):
        raise InvalidRequestError(f"there is no topic {stream.from_topic} to read")
    sink = sink_for(options, rules_for(contracts(), options))
    path = f"{stream.checkpoint}/schedule.json"
    state = _kept(path, stream, options)
    schema = stream.schema
    if schema == INFER:
        schema = (state and state.schema) or _inferred(spark, stream)
    value, key = options.fields.value or VALUE, options.fields.key or KEY
    fields = replace(options.fields, value=value, key=key)
    asked = drafts(_rows(_records(spark.readStream, stream), schema), fields)
    given = sorted((name, value) for name, value in asdict(fields).items() if value)
    sink = replace(sink, mapping=xxh3_64_hexdigest(repr((given, schema)).encode()))
    marks: list[int | None] = []
    if state is None:
        topics, ids = (options.topic, stream.from_topic), _ids(options, stream)
        if None in ids:
            raise DelayServiceError(f"{' or '.join(topics)} can't be described: try again")
        name = f"{options.name}-{uuid.uuid4().hex[:16]}"
        state = _State(name, topics, ids, sink.parts, schema)
        sink = replace(sink, name=state.name)
        sink.begin()
        write_text(path, msgspec.json.encode(state).decode())
    else:
        _refuse_another(state, options, stream)
        sink = replace(sink, name=state.name, parts=state.parts)
        marks = sink.fence()
    started = Stream(state, sink, contracts, options, stream, say, None in marks)
    started.start(asked)
    return started


@dataclass(slots=True)
class Stream:
    """Running stream, and what it has done; ``rejected_path`` has a folder ``batch=N`` for each
    batch.
    """

    _state: _State
    _sink: TopicSink
    _contracts: Callable[[], Sequence[Contract]]
    _options: ScheduleOptions
    _stream: StreamOptions
    _say: Say
    _is_lost: bool
    batches: int = 0
    written: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    # Folder of the last batch's rejected records, if there were none; the next batch deletes it.
    # None: there is nothing to delete.
    _spent: str | None = None
    _is_stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _query: StreamingQuery = field(init=False)

    @property
    def rejected_path(self) -> str:
        return f"{self._options.rejected_path}/{self._state.name}"

    def start(self, asked: DataFrame) -> None:
        every_ms = self._stream.every_ms
        trigger = _NOW if every_ms is None else {"processingTime": f"{every_ms} milliseconds"}
        self._query = (
            asked.writeStream.queryName("delay schedule")
            .trigger(**trigger)
            .option("checkpointLocation", f"{self._stream.checkpoint}/spark")
            .foreachBatch(self._take)
            .start()
        )

    @property
    def is_active(self) -> bool:
        return bool(self._query.isActive)

    def stop(self) -> None:
        """Complete the current batch, if there is one, and end the stream."""
        with self._lock:
            self._is_stopped = True
        self._query.stop()
        failure = self._query.exception()
        if failure is not None and _STOPPED not in str(failure):
            raise failure

    def to_json(self) -> dict[str, object]:
        return {
            "v": VERSION,
            "kind": "schedule_stream",
            "batches": self.batches,
            "written": self.written,
            "rejected": dict(self.rejected),
            "rejected_path": self.rejected_path,
        }

    def _take(self, asked: DataFrame, batch: int) -> None:
        with self._lock:
            if self._is_stopped:
                raise DelayServiceError(_STOPPED)
            self._write(asked, batch)

    def _write(self, asked: DataFrame, batch: int) -> None:
        began_s = time.monotonic()
        _refuse_another(self._state, self._options, self._stream)
        path = f"{self.rejected_path}/batch={batch}"
        bad = self._decide(asked, batch, path)
        rejected = Counter(counts_by("code", bad))
        good = asked.join(bad, "file", "left_anti") if rejected else asked
        offset = sf.substring_index("file", ":", -1).cast("long")
        written = self._sink.write(good, batch, offset, sf.col("file"))
        # A topic may have been created again while it was read.
        _refuse_another(self._state, self._options, self._stream)
        faults.point("bulk_written")
        self._spent = None if rejected else path
        self.batches += 1
        self.written += written
        self.rejected += rejected
        took = f"{time.monotonic() - began_s:.1f} s"
        self._say(f"batch {batch}: {written:,} written, {rejected.total():,} rejected, {took}")

    def _decide(self, asked: DataFrame, batch: int, path: str) -> DataFrame:
        """Write the rejected records of a batch, unless an earlier process has done so, and return
        them.

        Raises:
            DelayServiceError: an earlier process has done so, and the sink's stored progress has
                expired since.
        """
        if self._spent is not None:
            delete(self._spent)
        if not is_there(f"{path}/_SUCCESS"):
            rules = rules_for(self._contracts(), self._options)
            write_rejected(asked.mapInArrow(check(rules), JUDGED), path)
        elif self._is_lost:
            raise DelayServiceError(
                f"how far batch {batch} was written is not known any more: the stream stood still "
                "for longer than the brokers' offsets.retention.minutes. To write all of it, which "
                f"may double records, delete {path}"
            )
        return asked.sparkSession.read.schema(REJECTED).parquet(path)


class _State(msgspec.Struct):
    """Facts about a stream, the same in all its processes. ``name``: the job's name and a random
    text; ``topics``, ``ids``: the delay topic and the one that is read, and their ids; ``parts``:
    number of parts in which the sink writes.
    """

    name: str
    topics: tuple[str, str]
    ids: tuple[str | None, str | None]
    parts: int
    schema: str | None


def _ids(options: ScheduleOptions, stream: StreamOptions) -> tuple[str | None, str | None]:
    served = topic_ids(admin_of(options.client), [options.topic])
    read = topic_ids(admin_of(stream.source), [stream.from_topic])
    return served.get(options.topic), read.get(stream.from_topic)


def _refuse_another(state: _State, options: ScheduleOptions, stream: StreamOptions) -> None:
    # After a topic was created again, the stream's offsets and what it has written are of the
    # former topic. A topic that a broker does not know is passed over, as brokers learn of a topic
    # one after another.
    for topic, known, found in zip(state.topics, state.ids, _ids(options, stream), strict=True):
        if found not in (None, known):
            raise InvalidRequestError(
                f"topic {topic} was deleted and created again since this stream began, and "
                f"{stream.checkpoint} is of the former one: delete that folder to begin anew, or "
                "name another"
            )


def _kept(path: str, stream: StreamOptions, options: ScheduleOptions) -> _State | None:
    text = read_text(path)
    if text is None:
        return None
    try:
        state = msgspec.json.decode(text, type=_State)
    except msgspec.DecodeError as exc:
        raise InvalidRequestError(
            f"{path} can't be read ({exc}): delete {stream.checkpoint}"
        ) from exc
    topic, from_topic = state.topics
    if (topic, from_topic) != (options.topic, stream.from_topic):
        raise InvalidRequestError(
            f"{stream.checkpoint} is of the stream from {from_topic} to {topic}: name another "
            "folder"
        )
    return state


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
    # The fields of the JSON values become columns; columns kafka.… have the record itself.
    own = [
        *(sf.col(name).alias(f"kafka.{name}") for name in ("key", "value", "timestamp", "headers")),
        sf.concat_ws(":", "topic", "partition", "offset").alias(PLACE),
    ]
    if schema is None:
        return records.select(*own)
    named = {"columnNameOfCorruptRecord": _CORRUPT}
    text = sf.col("value").cast("string")
    try:
        row = sf.from_json(text, f"STRUCT<{schema}, `{_CORRUPT}` STRING>", named)
        rows = records.select(row.alias(_ROW), *own)
    except PySparkException as exc:
        raise InvalidRequestError(
            f"schema {schema!r} does not name columns: {reason(exc)}"
        ) from exc
    is_wrong = sf.col(f"`{_ROW}`").isNull() | sf.col(f"`{_ROW}`.`{_CORRUPT}`").isNotNull()
    why = sf.when(is_wrong, sf.lit("the value is no JSON object of the schema"))
    return rows.withColumn(REFUSAL, why).select(f"`{_ROW}`.*", "*").drop(_ROW, _CORRUPT)


def _inferred(spark: SparkSession, stream: StreamOptions) -> str:
    text = sf.col("value").cast("string").alias("text")
    first = _records(spark.read, stream).select(text).limit(_SAMPLE_RECORDS)
    found = first.where(sf.json_object_keys("text").isNotNull()).collect()
    if not found:
        raise InvalidRequestError(
            f"the first records of {stream.from_topic} hold no JSON objects: give the schema as DDL"
        )
    objects = ",".join(row["text"] for row in found)
    array = spark.range(1).select(sf.schema_of_json(sf.lit(f"[{objects}]"))).collect()[0][0]
    return str(array).removeprefix("ARRAY<STRUCT<").removesuffix(">>")
