"""Schedules delayed records from a DataFrame: all are checked before one is written, each once.

Its steps, and the modules that do them:

    map     rows to records                                    ``mapping``
    check   records with the service's own reader              ``check``
    reject  bad rows, and rows with equal ids, to Parquet; by default the job ends then
    fence   earlier processes of the job, which may still run  ``sink``
    skip    records that the delay topic already has
    write   the remaining records                              ``sink``

After an interruption, start the same job again: it recognises by id and content the records that
are already written.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, cast

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Row, SparkSession, types
from pyspark.sql import functions as sf

from connectors.kafka.dead_letters import partition_counts
from connectors.kafka.topic_facts import record_bytes_max
from connectors.spark.common.clients import admin_of
from connectors.spark.common.cut import settled_spans, take_cut
from connectors.spark.common.files import is_replaceable
from connectors.spark.common.frames import counts_by, last_header, or_false
from connectors.spark.common.progress import Say
from connectors.spark.common.session import FAILURES, reason
from connectors.spark.common.sink import PARTS_MAX, TopicSink, sink_client
from connectors.spark.common.topics import read_topic
from connectors.spark.schedule.check import JUDGED, RowRules, check
from connectors.spark.schedule.csv_rows import read_csv
from connectors.spark.schedule.mapping import REFUSAL, Fields, drafts
from delayservice.base.errors import DelayServiceError, InvalidRequestError
from delayservice.contract import names
from delayservice.contract.contracts import Contract
from delayservice.contract.targets import Allowlist

# Error code of a row whose id another row has too. Such rows are not written, so no dead letter has
# this code.
ID_DUPLICATE: Final = "id-duplicate"

VERSION: Final = 1

FORMATS: Final = ("parquet", "csv", "json", "orc", "table")

# Spark settings for scheduling: they limit the size of a transaction, and size tasks by the data
# that is kept between two steps.
CONF: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.sql.execution.arrow.maxBytesPerBatch": "8388608",
        "spark.sql.optimizer.canChangeCachedPlanOutputPartitioning": "true",
    }
)

REJECTED: Final = "file string, id string, code string, reason string, row string"
# Value for the delay topic's max.message.bytes if the broker does not give it, in bytes.
_RECORD_BYTES_DEFAULT: Final = 1_048_588
_SAMPLE_CHARS_MAX: Final = 200
_AGAIN: Final = "run the same again, which writes what is missing"
# The schemas of two files, in what Spark says when it can't merge them.
_UNMERGED: Final = re.compile(r'\[CANNOT_MERGE_SCHEMAS\].*\n.*\n"(STRUCT<.*>)"\n.*\n"(STRUCT<.*>)"')
_KEPT: Final = StorageLevel.DISK_ONLY


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Options of a bulk schedule from a DataFrame.

    Attributes:
        client, writer: options of librdkafka for reading, and for writing if they differ.
        name: name of the job, used as consumer group and prefix of its transactional ids. A second
            process with this name stops the first.
        rejected_path: folder of Parquet files for rejected rows; each process replaces it.
        allowlist: allowlist of the nodes' settings; None: unknown.
        skip_rejected: whether to write the valid rows even if other rows are rejected.
        min_partitions: smallest number of tasks that read the delay topic.
    """

    client: Mapping[str, str]
    topic: str
    name: str
    fields: Fields
    rejected_path: str
    writer: Mapping[str, str] | None = None
    allowlist: Allowlist | None = None
    skip_rejected: bool = False
    dry_run: bool = False
    min_partitions: int = 8
    sample_rows: int = 5


@dataclass(frozen=True, slots=True)
class Scheduled:
    """Result of a bulk schedule, or of its dry run.

    Attributes:
        rejected: number of rejected rows by error code.
        there, fresh: number of valid rows whose id and content the delay topic has, or lacks.
        replacing: number of ``fresh`` rows whose id the delay topic has with another content; that
            record is replaced if it is pending.
        rejected_path: folder of the rejected rows; None: no row was rejected.
        sample: id, headers and value of some ``fresh`` rows, as text.
    """

    rows: int
    rejected: dict[str, int]
    there: int
    fresh: int
    replacing: int
    written: int
    seconds: float
    rejected_path: str | None
    sample: list[dict[str, object]] = field(default_factory=list)

    def to_json(self) -> dict[str, object]:
        return {"v": VERSION, "kind": "schedule", **asdict(self)}


def read_rows(spark: SparkSession, where: str, kind: str | None = None) -> DataFrame:
    """Return the rows of a file, a folder, a pattern of either, or a table; ``kind``: one of
    ``FORMATS``, None: by the ending of ``where``. All values of CSV files are text. Rows of CSV and
    JSON that can't be read have a reason in the column ``mapping.REFUSAL``.

    Raises:
        InvalidRequestError: the format is not given and unclear from the name, or the input can't
            be read.
    """
    found = kind or Path(where.rstrip("/*")).suffix.removeprefix(".")
    if found not in FORMATS:
        raise InvalidRequestError(
            f"what {where} holds can't be told from its name: give the format, one of "
            f"{', '.join(FORMATS)}"
        )
    try:
        if found == "table":
            return spark.table(where)
        if found == "csv":
            return read_csv(spark, where)
        # Without mergeSchema, Parquet and ORC have only the columns of one of their files.
        settings = {"columnNameOfCorruptRecord": REFUSAL, "mergeSchema": "true"}
        rows = spark.read.options(**settings).format(found).load(where)
    except FAILURES as exc:
        told = _types_differ(exc) or reason(exc)
        raise InvalidRequestError(f"{where} can't be read as {found}: {told}") from exc
    if REFUSAL not in rows.columns:
        return rows
    why = sf.when(sf.col(f"`{REFUSAL}`").isNotNull(), sf.lit("the line is no JSON object"))
    return rows.withColumn(REFUSAL, why)


def _types_differ(exc: Exception) -> str:
    # Which columns two files have with two types; empty: it failed for another reason.
    schemas = _UNMERGED.search(str(exc))
    if schemas is None:
        return ""
    one, other = (
        {column.name.lower(): column.dataType.simpleString() for column in _schema(text)}
        for text in schemas.groups()
    )
    found = [
        f"{name} is {one[name]} in one file and {other[name]} in another"
        for name in one.keys() & other.keys()
        if one[name] != other[name]
    ]
    return f"{'; '.join(sorted(found))}: give it one type, or schedule the files one by one"


def _schema(text: str) -> types.StructType:
    return cast("types.StructType", types.DataType.fromDDL(text))


def schedule(
    rows: DataFrame, contracts: Sequence[Contract], options: ScheduleOptions, say: Say
) -> Scheduled:
    """Write the delayed records that rows ask for, unless the delay topic already has them.

    ``rows`` are read a second time to find ids that two rows share, and must be the same then.
    Nothing is written if rows are rejected and ``skip_rejected`` is not set, or in a dry run.

    Raises:
        InvalidRequestError: the mapping does not fit the input, the delay topic takes no ids or is
            missing, or the folder for rejected rows has other files.
        DelayServiceError: the cluster does not answer, a row can't be read or a record not written.
    """
    started_s = time.monotonic()
    if not is_replaceable(options.rejected_path):
        raise InvalidRequestError(
            f"{options.rejected_path} holds what no former run wrote, and rejected rows would take "
            "its place: name another folder"
        )
    rules = rules_for(contracts, options)
    with ExitStack() as undo:
        judged = _judged(rows, options.fields, rules).persist(_KEPT)
        undo.callback(judged.unpersist)
        say("checking every row")
        with _told("the rows can't be read: {}"):
            counts = counts_by("code", judged)
        rejected = {code: n for code, n in counts.items() if code is not None}
        if rejected:
            say("writing the rejected rows")
            write_rejected(judged, options.rejected_path)
        is_written = not options.dry_run and (not rejected or options.skip_rejected)
        sink = sink_for(options, rules)
        batch = sink.claim() if is_written else 0
        say("looking what is there already")
        fresh = _missing(judged, _held(rows.sparkSession, options)).persist(_KEPT)
        undo.callback(fresh.unpersist)
        ((total, replacing),) = fresh.select(sf.count("*"), sf.count_if("is_replacing")).collect()
        sample = [_shown(row) for row in fresh.limit(options.sample_rows).collect()]
        if is_written and total:
            say(f"writing {total:,} records")
            with _told(f"not all records were written to {options.topic}: {{}}; {_AGAIN}"):
                sink.write(fresh, batch, "id")
    return Scheduled(
        rows=sum(counts.values()),
        rejected=rejected,
        there=counts.get(None, 0) - total,
        fresh=total,
        replacing=replacing,
        written=total if is_written else 0,
        seconds=round(time.monotonic() - started_s, 3),
        rejected_path=options.rejected_path if rejected else None,
        sample=sample,
    )


@contextmanager
def _told(sentence: str) -> Iterator[None]:
    try:
        yield
    except FAILURES as exc:
        raise DelayServiceError(sentence.format(reason(exc))) from exc


def served_contracts(
    client: Mapping[str, str], checkpoint: str, topic: str
) -> tuple[Contract, ...]:
    """Return the contracts for records that are written now to ``topic``, from the newest
    checkpoints: one, or several while the nodes change it; none if the topic was never served.

    Raises:
        KafkaEdgeError: the cluster does not answer, or a checkpoint can't be read.
    """
    if checkpoint not in partition_counts(admin_of(client)):
        return ()
    cut = take_cut(client, checkpoint, lambda _topics: ())
    shards = [shard for shard in cut.shards if shard.topic == topic]
    return tuple({one: None for s in shards for one in s.contracts.since(s.span.end)})


def rules_for(contracts: Sequence[Contract], options: ScheduleOptions) -> RowRules:
    """Return contracts and limits by which rows for the delay topic are checked.

    Raises:
        InvalidRequestError: the delay topic does not exist, or is a level topic.
    """
    topic = options.topic
    if any(contract.level_ms for contract in contracts):
        raise InvalidRequestError(
            f"{topic} is a level topic: its records have neither ids nor times, so nothing could "
            "tell a second run from the first; schedule into a precise delay topic"
        )
    admin = admin_of(options.client)
    partitions = partition_counts(admin)
    if topic not in partitions:
        raise InvalidRequestError(
            f"there is no delay topic {topic}: start the service, which creates its topics, or "
            "name the one that it serves"
        )
    bytes_max = record_bytes_max(admin, topic) or _RECORD_BYTES_DEFAULT
    now_ms = time.time_ns() // 1_000_000
    return RowRules(topic, tuple(contracts), now_ms, partitions, bytes_max, options.allowlist)


def _judged(rows: DataFrame, fields: Fields, rules: RowRules) -> DataFrame:
    # A row whose id another row has is rejected too (ID_DUPLICATE).
    asked = drafts(rows, fields)
    checked = asked.mapInArrow(check(rules), JUDGED)
    # From what was asked, not from what was checked: that would be checked twice.
    doubled = asked.groupBy("id").count().where("count > 1").select("id", "count")
    is_doubled = sf.col("count").isNotNull() & sf.col("code").isNull()
    many = sf.format_string("%d rows have this id", "count")
    decided = {
        "code": sf.when(is_doubled, sf.lit(ID_DUPLICATE)).otherwise(sf.col("code")),
        "reason": sf.when(is_doubled, many).otherwise(sf.col("reason")),
    }
    return checked.join(doubled, "id", "left").withColumns(decided).drop("count")


def write_rejected(judged: DataFrame, path: str) -> None:
    bad = judged.where("code IS NOT NULL")
    text = sf.col("id").cast("string").alias("id")
    bad.select("file", text, "code", "reason", "row").write.mode("overwrite").parquet(path)


def _held(spark: SparkSession, options: ScheduleOptions) -> DataFrame:
    spans = settled_spans(options.client, [options.topic])
    records = read_topic(spark, options.client, spans, options.min_partitions)
    named = records.withColumn("id", last_header(names.DELAY_ID))
    return named.where("id IS NOT NULL").select("id", _digest().alias("digest"))


def _digest() -> Column:
    # 64 bits suffice, as only contents of the same id are compared.
    return sf.xxhash64("id", "value", "headers")


def _missing(judged: DataFrame, held: DataFrame) -> DataFrame:
    # is_replacing: the delay topic has the record's id with another content.
    contents = held.groupBy("id").agg(sf.collect_set("digest").alias("digests"))
    is_there = or_false(sf.array_contains("digests", _digest()))
    return (
        judged.where("code IS NULL")
        .join(contents, "id", "left")
        .where(~is_there)
        .select("id", "value", "headers", sf.col("digests").isNotNull().alias("is_replacing"))
    )


def _shown(row: Row) -> dict[str, object]:
    return {
        "id": _text(row["id"]),
        "headers": {name: _text(content) for name, content in row["headers"]},
        "value": (_text(row["value"]) or "")[:_SAMPLE_CHARS_MAX],
    }


def sink_for(options: ScheduleOptions, rules: RowRules) -> TopicSink:
    return TopicSink(
        client=sink_client(options.writer or options.client),
        topic=options.topic,
        name=options.name,
        parts=min(PARTS_MAX, rules.partitions[options.topic]),
        record_bytes_max=rules.record_bytes_max,
    )


def _text(content: bytes | None) -> str | None:
    return None if content is None else bytes(content).decode("utf-8", "replace")
