"""A delay topic, a target, and schedules into the one for the other, of rows or of a topic."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.schedule.mapping import Fields
from connectors.spark.schedule.run import Scheduled, ScheduleOptions, schedule
from connectors.spark.schedule.stream import Stream, StreamOptions, start_stream
from delayservice.contract.contracts import Contract
from delayservice.contract.targets import Allowlist
from tests.integration.bench import Header, Reader, Seen, await_true

PARTITIONS = 5
CONTRACT = Contract()
DUE_MS = 2_000_000_000_000
SCHEMA = "name string, due long, text string, user string"
WAIT_S = 120.0


class Desk:
    """Schedules, and sees what was written."""

    def __init__(
        self, spark: SparkSession, bootstrap: str, topic: str, target: str, folder: Path
    ) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.client = {"bootstrap.servers": bootstrap}
        self.topic = topic
        self.target = target
        self.rejected_path = str(folder / "rejected")

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> DataFrame:
        return self.spark.createDataFrame([dict(row) for row in rows])

    def reminders(self, count: int, **changed: object) -> list[dict[str, object]]:
        return [
            {"name": f"reminder-{n}", "due": DUE_MS + n, "text": f"text {n}", "user": f"u{n % 7}"}
            | changed
            for n in range(count)
        ]

    def fields(self, **changed: Any) -> Fields:
        usual: dict[str, Any] = {
            "target": self.target,
            "at": "due",
            "value": "text",
            "key": "user",
            "id": "name",
        }
        return Fields(**usual | changed)

    def options(self, **changed: Any) -> ScheduleOptions:
        usual: dict[str, Any] = {
            "client": self.client,
            "topic": self.topic,
            "name": f"schedule-{self.topic}",
            "fields": self.fields(),
            "rejected_path": self.rejected_path,
            "allowlist": Allowlist(self.topic, ["to_*"]),
            "min_partitions": 2,
        }
        return ScheduleOptions(**usual | changed)

    def run(
        self,
        rows: DataFrame,
        fields: Fields | None = None,
        contract: Contract = CONTRACT,
        **options: Any,
    ) -> Scheduled:
        chosen = replace(self.options(**options), fields=fields or self.fields())
        said: list[str] = []
        return schedule(rows, [contract], chosen, said.append)

    def written(self) -> list[Seen]:
        with Reader(self.bootstrap, [self.topic]) as reader:
            return reader.to_end()

    def rejected(self) -> dict[str, str]:
        """Id to code."""
        found = self.spark.read.parquet(self.rejected_path).collect()
        return {row["id"]: row["code"] for row in found}


class Feed:
    """A topic of JSON, and streams of it to a desk's delay topic."""

    def __init__(self, desk: Desk, topic: str, folder: Path) -> None:
        self.desk = desk
        self.topic = topic
        self.folder = folder
        self.producer = Producer({"bootstrap.servers": desk.bootstrap})

    def add(self, *values: object, key: bytes | None = None, headers: list[Header] = []) -> None:  # noqa: B006  # not changed
        for value in values:
            text = value if isinstance(value, bytes | None) else json.dumps(value).encode()
            self.producer.produce(self.topic, text, key, 0, headers=headers)
        assert self.producer.flush(30) == 0

    def start(
        self, fields: Fields | None = None, every_ms: int | None = None, **changed: Any
    ) -> Stream:
        usual: dict[str, Any] = {
            "source": self.desk.client,
            "from_topic": self.topic,
            "checkpoint": str(self.folder / "state"),
            "schema": SCHEMA,
            "every_ms": every_ms,
        }
        options = self.desk.options(fields=fields or self.desk.fields())
        return start_stream(
            self.desk.spark,
            lambda: [CONTRACT],
            options,
            StreamOptions(**usual | changed),
            print,
        )

    def run(self, fields: Fields | None = None, **changed: Any) -> Stream:
        """What is there now."""
        stream = self.start(fields, **changed)
        await_true(lambda: not stream.is_active, "it has read all", WAIT_S)
        stream.stop()
        return stream

    def rejected(self) -> dict[str, str]:
        """Place to code."""
        found = self.desk.spark.read.parquet(f"{self.desk.rejected_path}/*").collect()
        return {row["file"]: row["code"] for row in found}
