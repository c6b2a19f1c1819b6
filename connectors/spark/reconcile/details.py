"""Asks nodes for single records of their copies. Spark reads their answers from the repair topic;
the driver only gets a report for each requested range.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from connectors.kafka.clients import KafkaAdmin, admin_client
from connectors.kafka.copies import RepairClient
from connectors.kafka.log_ends import LATEST, offsets_of
from connectors.spark.common.topics import Span, native_options, read_topic
from connectors.spark.reconcile.compare import COPY
from connectors.spark.reconcile.digest_rows import from_hex
from delayservice.base.errors import DelayServiceError
from delayservice.replicas.commands import Command

UNREADABLE: Final = (
    "node string, topic string, partition int, slot_start_ms bigint, slot_stop_ms bigint, "
    "first_offset bigint, stop_offset bigint, why string"
)
"""Columns of a range of key times of a copy that could not be read or that its node did not send.
Times are epoch ms; stops are exclusive; offsets are null if unknown; ``why``: reason for users."""

RANGES_MAX: Final = 10_000
ASKED_AT_ONCE: Final = 1_000
_LOOK_EVERY_S: Final = 0.5
# Number of answers of nodes that one task reads; each holds up to 2,000 records.
_TASK_ANSWERS: Final = 100
_ANSWER: Final = (
    "kind string, plan string, step int, node string, topic string, partition int, "
    "status string, detail string, rows array<array<string>>"
)


class Range(NamedTuple):
    """Keys ``[start_ms, stop_ms)``, epoch ms, of one node's copy of a shard."""

    node: str
    topic: str
    partition: int
    start_ms: int
    stop_ms: int


@dataclass
class Details:
    """Client that asks nodes for records of their copies, for up to ``ranges_max`` ranges.
    ``timeout_s``: longest wait from one node's report to the next.
    """

    spark: SparkSession
    client: Mapping[str, str]
    topic: str
    timeout_s: float
    ranges_max: int
    stop: threading.Event = field(default_factory=threading.Event)
    _admin: KafkaAdmin = field(init=False)

    def __post_init__(self) -> None:
        self._admin = admin_client(native_options(self.client))

    def of(self, ranges: DataFrame) -> tuple[DataFrame, DataFrame]:
        """Ask nodes for the records in the first ``ranges_max`` ranges (columns of ``Range``,
        sorted).

        Returns:
            Records with the columns of ``compare.HELD`` and ``mark``; and ranges without an answer,
            with the columns of ``UNREADABLE``.
        """
        asked = [Range(*row) for row in ranges.limit(self.ranges_max).collect()]
        told, untold = self.ask(asked)
        unknown = sf.lit(None).cast("bigint")
        why = sf.lit("the node was not asked for details")
        left = ranges.offset(self.ranges_max).select(
            *COPY, "start_ms", "stop_ms", unknown, unknown, why
        )
        rows = [(*one, None, None, said) for one, said in untold]
        return told, self.spark.createDataFrame(rows, UNREADABLE).union(left)

    def ask(self, ranges: Sequence[Range]) -> tuple[DataFrame, list[tuple[Range, str]]]:
        """Return the records of the ranges, and each range that was not answered, with
        the reason.
        """
        plan, start = uuid.uuid4().hex, self._end()
        untold: list[tuple[Range, str]] = []
        for first in range(0, len(ranges), ASKED_AT_ONCE):
            some = dict(enumerate(ranges[first : first + ASKED_AT_ONCE], first))
            reports = self._ask(plan, some)
            untold += [(some[step], why) for step, why in reports.items() if why]
            unheard = some.keys() - reports.keys()
            untold += [(some[step], "the node did not answer") for step in sorted(unheard)]
        return self._told(self._answers(plan, start, self._end())), untold

    def _ask(self, plan: str, ranges: Mapping[int, Range]) -> dict[int, str]:
        # Returns a text for each range that was reported: empty if it was answered, else the
        # reason.
        start = self._end()
        expires_ms = int((time.time() + self.timeout_s) * 1_000)
        RepairClient(native_options(self.client), self.topic).send(
            [
                Command(
                    plan=plan, step=step, command="detail", expires_ms=expires_ms, **one._asdict()
                )
                for step, one in ranges.items()
            ]
        )
        reports: dict[int, str] = {}
        deadline_s = time.monotonic() + self.timeout_s
        while len(reports) < len(ranges) and time.monotonic() < deadline_s:
            stop = self._end()
            told = self._answers(plan, start, stop).where("kind = 'report'")
            found = {
                step: "" if status == "done" else detail
                for step, status, detail in told.select("step", "status", "detail").collect()
            }
            if found:
                deadline_s = time.monotonic() + self.timeout_s
            reports, start = reports | found, stop
            if len(reports) < len(ranges) and self.stop.wait(_LOOK_EVERY_S):
                raise DelayServiceError("stopped while nodes were asked for their records")
        return reports

    def _answers(self, plan: str, start: int, stop: int) -> DataFrame:
        tasks = (stop - start) // _TASK_ANSWERS + 1
        spans = {(self.topic, 0): Span(start, stop)}
        records = read_topic(self.spark, self.client, spans, tasks)
        said = records.where(sf.col("key").cast("string") == plan).select(
            sf.from_json(sf.col("value").cast("string"), _ANSWER).alias("said")
        )
        return said.select("said.*")

    @staticmethod
    def _told(answers: DataFrame) -> DataFrame:
        row = sf.col("row")
        return (
            answers.where("kind = 'detail'")
            .select(*COPY, sf.explode("rows").alias("row"))
            .select(
                *COPY,
                row[0].cast("bigint").alias("key_ms"),
                row[1].cast("bigint").alias("offset"),
                row[2].cast("bigint").alias("mark"),
                from_hex(row[3]).alias("payload_hash"),
            )
        )

    def _end(self) -> int:
        place = (self.topic, 0)
        return offsets_of(self._admin, [place], LATEST)[place]
