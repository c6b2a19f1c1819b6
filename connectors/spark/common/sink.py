"""Spark sink for Kafka that writes each record once, even if tasks are killed or repeated.

    spread  records over a fixed number of parts, by a hash of their id, in a fixed order
    fence   earlier writers of the part, by its transactional id
    look    up the part's progress: how many records of the batch it has written
    write   the others, in short transactions that also store the new progress

The progress of a part is a number, called mark in this module: batch and number of its records that
are written (``mark_of``). It is stored as the committed offset of a consumer group: Kafka includes
this in the transaction, and returns it at once. A topic of marks would have to be read to its end
by every task, past open transactions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

import pyarrow as pa
from confluent_kafka import (
    OFFSET_INVALID,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed
from xxhash import xxh3_64_hexdigest

from connectors.kafka.clients import (
    LOGGER,
    CoordinatorLog,
    KafkaAdmin,
    connect,
    connection_failure,
    consumer_client,
    flush,
    produce_patiently,
    producer_client,
)
from connectors.kafka.errors import FENCED, answer_of, error_of
from connectors.kafka.scan import consumer_config
from connectors.spark.common.clients import admin_of
from connectors.spark.common.files import is_there, write_text
from connectors.spark.common.frames import header_lists, table
from connectors.spark.common.topics import native_options
from delayservice.base import faults
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.contract.entry import Headers

Record: TypeAlias = tuple[bytes | None, bytes | None, Headers | None]
"""Key, value and headers of a record."""
# Largest number of parts of a job, which write in parallel. A part takes 0.1 s to open.
PARTS_MAX: Final = 8
# Time after which the broker aborts the transaction of a dead job, in ms. Until then, consumers of
# the delay topic, the service included, wait.
TRANSACTION_TIMEOUT_MS: Final = 45_000

# Logger of the producers, for errors only: each retry of the client would be a warning.
_QUIET: Final = LOGGER.getChild("bulk")
_QUIET.setLevel(logging.ERROR)
_INIT_S: Final = 60.0
_ASK_S: Final = 30.0
_AGAIN_S: Final = 0.1
_ROOM_BYTES: Final = 64 * 1024
_RECORDS_BITS: Final = 32
_RIGHTS: Final = frozenset(
    {
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    }
)
_MOVING: Final = frozenset(
    {
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.UNSTABLE_OFFSET_COMMIT,
    }
)
# Options of librdkafka that name a file, each with the option that takes the file's content.
_INLINE: Final = {
    "ssl.ca.location": "ssl.ca.pem",
    "ssl.certificate.location": "ssl.certificate.pem",
    "ssl.key.location": "ssl.key.pem",
}


def mark_of(batch: int, records: int) -> int:
    # Marks ascend, and all are above 0, the mark of a new part.
    return ((batch + 1) << _RECORDS_BITS) | records


def records_written(mark: int, batch: int) -> int:
    """Return the number of a batch's records that a part has written; fail if it is later."""
    later = (mark >> _RECORDS_BITS) - 1 - batch
    if later > 0:
        raise KafkaEdgeError(
            f"batch {batch} was written before, and {later} after it: the folder of the checkpoint "
            "is older than what was written, or another run has taken over"
        )
    return mark & ((1 << _RECORDS_BITS) - 1) if later == 0 else 0


def next_batch(marks: Iterable[int]) -> int:
    """Return a batch number above those of all marks."""
    return max(marks) >> _RECORDS_BITS


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSink:
    """Writer of records to one topic, in a fixed number of parts; Spark sends it to the
    executors.

    Attributes:
        client: options of librdkafka for producers and consumers, with certificates by content.
        topic: topic to write to.
        name: name of the consumer group, and prefix of the transactional ids. A later job with the
            same name fences this one.
        parts: number of parts; the same in all attempts to write a batch, and at most the topic's
            number of partitions.
        record_bytes_max: the topic's ``max.message.bytes``, in bytes.
        mapping: hash of the options by which records are made, stored with the progress: other
            options would put records into other parts.
    """

    client: Mapping[str, str]
    topic: str
    name: str
    parts: int
    record_bytes_max: int
    mapping: str = ""

    def begin(self) -> None:
        """Store progress 0 for each part, so that progress that Kafka has deleted is
        noticed later.
        """
        marks = [self.place(number) for number in range(self.parts)]
        with _explained(self.name):
            _asked(self, KafkaAdmin.alter_consumer_group_offsets, marks)

    def fence(self) -> list[int | None]:
        """Fence earlier writers; return the mark of each part, None if there is none or Kafka has
        deleted it.
        """
        return [_Part(self, number).mark for number in range(self.parts)]

    def claim(self) -> int:
        """Fence earlier writers, store the beginning of a new batch in all parts, and return its
        number. Tasks of earlier batches can't write any more, even if they begin late.
        """
        parts = [_Part(self, number) for number in range(self.parts)]
        batch = next_batch(part.mark or 0 for part in parts)
        for part in parts:
            part.write((), mark_of(batch, 0))
        return batch

    def write(self, records: DataFrame, batch: int, *order: str | Column) -> int:
        """Write those records of a batch that were not written yet, and return their number.

        Args:
            records: columns ``id`` (binary, which becomes the key), ``value`` (binary), ``headers``
                (array of ``key`` and ``value``, or null) and those of ``order``; the same in all
                attempts to write this batch.
            batch: number of the batch, higher than that of any earlier batch.
            order: columns to sort by, which differ between any two records and keep records of one
                id in order.
        """
        for place in self.stored(range(self.parts)) if self.mapping else ():
            is_begun = records_written(_mark(place) or 0, batch) > 0
            if is_begun and place.metadata != self.mapping:
                raise KafkaEdgeError(
                    f"batch {batch} was begun with another mapping or schema: let a run with those "
                    "options complete it"
                )
        spread = records.repartition(self.parts, "id").sortWithinPartitions(*order)
        counts = spread.select("id", "value", "headers").mapInArrow(_task(self, batch), "n long")
        return sum(row["n"] for row in counts.collect())

    def place(self, part: int, mark: int = 0) -> TopicPartition:
        """Return a part's progress as a committed offset, which stores it."""
        return TopicPartition(self.topic, part, mark, self.mapping)

    def stored(self, parts: Iterable[int]) -> list[TopicPartition]:
        """Return the progress of parts as committed offsets, without fencing anyone."""
        places = [self.place(number, OFFSET_INVALID) for number in parts]
        with _explained(self.name):
            return _asked(self, _LIST_MARKS, places)


_LIST_MARKS: Final = partial(KafkaAdmin.list_consumer_group_offsets, require_stable=True)


def _is_moving(exc: BaseException) -> bool:
    return isinstance(exc, KafkaException) and error_of(exc).code() in _MOVING


# The group's coordinator may change meanwhile: this is repeated for up to 30 s.
@retry(
    retry=retry_if_exception(_is_moving),
    stop=stop_after_delay(_ASK_S),
    wait=wait_fixed(_AGAIN_S),
    reraise=True,
)
def _asked(
    sink: TopicSink, ask: Callable[..., Mapping[Any, Future[Any]]], places: list[TopicPartition]
) -> list[TopicPartition]:
    group = ConsumerGroupTopicPartitions(sink.name, places)
    (future,) = ask(admin_of(sink.client), [group]).values()
    found: list[TopicPartition] = answer_of(future, _ASK_S).topic_partitions
    for place in found:
        if place.error is not None:
            raise KafkaException(place.error)
    return found


def _mark(place: TopicPartition) -> int | None:
    return None if place.offset < 0 else place.offset


def sink_client(client: Mapping[str, str]) -> dict[str, str]:
    # Errors only: each retry of the client would be a warning.
    return {"log_level": "3", **portable(native_options(client))}


def portable(client: Mapping[str, str]) -> dict[str, str]:
    """Return options with certificates and keys by content, as executors lack the files."""
    return dict(
        (_INLINE[name], Path(value).read_text("ascii"))
        if name in _INLINE and Path(value).is_file()
        else (name, value)
        for name, value in client.items()
    )


def records_of(batch: pa.RecordBatch) -> Iterator[Record]:
    # The id is the key, so that all records of an id are written to one partition.
    keys = batch.column("id").to_pylist()
    values = batch.column("value").to_pylist()
    _, headers = header_lists(batch.column("headers"))
    return zip(keys, values, headers, strict=True)


def _task(
    sink: TopicSink, batch: int
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return the function of a task, which skips what its part has written already."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        if context is None:  # pragma: no cover - Spark calls this in tasks only
            raise RuntimeError("not in a task of Spark")
        part: _Part | None = None
        seen = written = 0
        for records in batches:
            part = part or _Part(sink, context.partitionId())
            left = records.slice(max(records_written(part.mark or 0, batch) - seen, 0))
            seen += records.num_rows
            if left.num_rows:
                part.write(records_of(left), mark_of(batch, seen))
                written += left.num_rows
        yield pa.RecordBatch.from_pydict({"n": [written]})

    return write


class _Part:
    """Writer of one part. It fences earlier writers of the part when it is made; ``mark`` is what
    they have stored, None as in ``TopicSink.fence``.
    """

    def __init__(self, sink: TopicSink, number: int) -> None:
        self._sink = sink
        self._number = number
        self._id = f"{sink.name}-{number}"
        group = {**consumer_config(sink.client, "schedule"), "group.id": sink.name}
        self._group = consumer_client(group)
        # Mark of the last transaction of this writer; None: it has committed none.
        self._written: int | None = None
        self.mark = self._fence()

    def _fence(self) -> int | None:
        sink = self._sink
        self._log = CoordinatorLog(_QUIET)
        self._producer = producer_client(
            {
                "linger.ms": 5,
                "queue.buffering.max.kbytes": 65_536,
                "message.max.bytes": sink.record_bytes_max + _ROOM_BYTES,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                **sink.client,
                "partitioner": "murmur2_random",  # as Java and ``DelayProducer`` choose
                "transactional.id": self._id,
                "acks": "all",
                **self._log.options,
            }
        )
        faults.point("bulk_fencing")
        connect(self._producer, sink.topic, _ASK_S)
        with _explained(self._id):
            self._producer.init_transactions(_INIT_S)
        (found,) = sink.stored([self._number])
        faults.point("bulk_fenced")
        return _mark(found)

    def _begin_anew(self) -> None:
        # After a failed connection to the coordinator, what was sent last may come late. With the
        # transactional id taken again it can end a transaction of the former producer only.
        if self._written is None or not connection_failure(self._producer, self._log):
            return
        if self._fence() != self._written:
            raise KafkaEdgeError(f"{self._id}: another run of this job has taken over")

    def write(self, records: Iterable[Record], mark: int) -> None:
        # After an error it may be unknown whether the records were written; the next writer reads
        # the mark.
        self._begin_anew()
        with _explained(self._id):
            self._producer.begin_transaction()
            with ExitStack() as undo:
                undo.callback(self._abort)
                self._fill(records, mark)
                undo.pop_all()
            self._commit()
        self._written = mark
        faults.point("bulk_committed")

    def _fill(self, records: Iterable[Record], mark: int) -> None:
        for key, value, headers in records:
            produce_patiently(self._producer, self._sink.topic, value, key, headers=headers)
        faults.point("bulk_produced")
        if left := flush(self._producer, _ASK_S):
            raise KafkaEdgeError(f"{self._id}: {left} records were not acknowledged")
        faults.point("bulk_flushed")
        moved = [self._sink.place(self._number, mark)]
        group = self._group.consumer_group_metadata()
        self._producer.send_offsets_to_transaction(moved, group, _ASK_S)
        faults.point("bulk_marked")

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction(_ASK_S)
        except KafkaException as exc:
            if error_of(exc).txn_requires_abort():  # else it may be committed
                self._abort()
            raise

    def _abort(self) -> None:
        with suppress(KafkaException):  # fenced, or ended by the broker when its time is over
            self._producer.abort_transaction(_ASK_S)


@contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except KafkaException as exc:
        error = error_of(exc)
        why = f"{error.str()} ({error.name()})"
        if error.code() in FENCED:
            why = "another run of this job has taken over"
        elif error.code() in _RIGHTS:
            why += "; docs/security.md lists the rights of jobs that write"
        raise KafkaEdgeError(f"{name}: {why}") from exc


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
    begun: str | None = None,
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
        begun: with a number, the path of a small file that says that publications under this name
            have begun.

    Raises:
        DelayServiceError: the file is there, and Kafka no longer knows how much was written.
    """
    name, number = sender
    kind, found = findings
    told = [sf.lit(summary["v"]).alias("v"), sf.lit(kind).alias("kind")]
    told += [sf.col(name).alias("finding" if name == "kind" else name) for name in found.columns]
    rows = found.select(sf.to_json(sf.struct(*told)).alias("value"), sf.lit(0).alias("at"))
    last = table(found.sparkSession, "value string, at int", [(json.dumps(summary), 1)])
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
    if number is not None and begun is not None:
        _begin_or_resume(sink, begun)
    sink.write(records, sink.claim() if number is None else number, "at", "value")


def _begin_or_resume(sink: TopicSink, begun: str) -> None:
    if not is_there(begun):
        sink.begin()
        write_text(begun, sink.name)
    elif any(_mark(place) is None for place in sink.stored(range(sink.parts))):
        raise DelayServiceError(
            f"how much was published to {sink.topic} is not known any more: nothing was for longer "
            "than the brokers' offsets.retention.minutes. To publish the last findings, which may "
            f"double them there, delete {begun}"
        )
