from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from connectors.kafka.client.producer import DelayProducer
from connectors.spark.schedule.check import ROW_UNREADABLE
from connectors.spark.schedule.mapping import Fields, drafts
from connectors.spark.schedule.run import (
    ID_DUPLICATE,
    read_rows,
)
from delayservice.base.errors import DelayServiceError, InvalidRequestError
from delayservice.contract.contracts import Contract
from delayservice.contract.partitioner import partition_for
from tests.conftest import MakeTopic
from tests.integration.bench import Reader
from tests.spark.schedule_desk import CONTRACT, DUE_MS, PARTITIONS, Desk

pytestmark = pytest.mark.cluster


def test_every_row_becomes_the_record_that_a_delay_producer_would_write_and_where(
    desk: Desk, make_topic: MakeTopic
) -> None:
    rows = desk.reminders(60)
    other = make_topic("delay_topic", partitions=PARTITIONS)
    with DelayProducer({"bootstrap.servers": desk.bootstrap}, other) as producer:
        for row in rows:
            producer.send(
                desk.target,
                str(row["text"]),
                key=str(row["name"]),
                id=str(row["name"]),
                target_key=str(row["user"]),
                at=int(str(row["due"])),
            )
    report = desk.run(desk.rows(rows))
    assert (report.rows, report.written, report.rejected) == (60, 60, {})
    with Reader(desk.bootstrap, [other]) as reader:
        expected = {seen.key: seen for seen in reader.to_end()}
    found = {seen.key: seen for seen in desk.written()}
    assert len(found) == 60
    assert len({seen.partition for seen in found.values()}) == PARTITIONS
    for key, seen in found.items():
        assert seen.partition == expected[key].partition == partition_for(key or b"", PARTITIONS)
        assert seen.value == expected[key].value
        assert sorted(seen.headers) == sorted(expected[key].headers)


def test_nothing_is_written_while_any_row_is_bad_and_each_is_reported_with_its_code(
    desk: Desk,
) -> None:
    good = desk.reminders(3)
    spoiled: dict[str, dict[str, object]] = {
        "time-invalid": {"due": "tomorrow"},
        "target-denied": {"where": "elsewhere"},
        "target-unknown": {"where": "to_nobody"},
        "target-invalid": {"where": "no topic!"},
        "delay-too-long": {"due": str(2**52)},
        "too-large": {"text": "x" * 1_100_000},
        "header-too-large": {"name": "n" * 600},
    }
    rows = [{**row, "due": str(row["due"]), "where": desk.target} for row in good]
    for code, change in spoiled.items():
        rows.append({**rows[0], "name": code, **change})
    rows += [{**rows[0], "name": "twice"}, {**rows[0], "name": "twice", "text": "other"}]
    report = desk.run(desk.rows(rows), desk.fields(target="where"))
    assert report.rejected == {**dict.fromkeys(spoiled, 1), ID_DUPLICATE: 2}
    assert (report.written, report.fresh) == (0, 3)
    assert desk.written() == []
    rejected = {name: code for name, code in desk.rejected().items() if name[0] != "n"}
    expected = {code: code for code in spoiled if code != "header-too-large"}
    assert rejected == {**expected, "twice": ID_DUPLICATE}

    report = desk.run(desk.rows(rows), desk.fields(target="where"), skip_rejected=True)
    assert (report.written, sum(report.rejected.values())) == (3, 9)
    assert {seen.key for seen in desk.written()} == {str(r["name"]).encode() for r in good}


def test_a_folder_that_holds_something_else_is_not_for_rejected_rows(desk: Desk) -> None:
    folder = Path(desk.rejected_path)
    folder.mkdir()
    (folder / "letter.txt").write_text("mine", "utf-8")
    with pytest.raises(InvalidRequestError, match=r"name another folder"):
        desk.run(desk.rows(desk.reminders(1)))
    assert (folder / "letter.txt").read_text("utf-8") == "mine"


def test_csv_values_are_written_byte_for_byte(desk: Desk, tmp_path: Path) -> None:
    texts = ['back\\slash, "quote" and \\"', "line\nbreak\r\nand\rcarriage return", "\x00nul", ""]
    rows = [
        {"name": f"row-{n}", "due": str(DUE_MS), "text": text, "user": "u"}
        for n, text in enumerate(texts * 35)
    ]
    source = tmp_path / "in"
    source.mkdir()
    for file, encoding, part in (("a", "utf-8", rows[:70]), ("b", "utf-8-sig", rows[70:])):
        with (source / f"{file}.csv").open("w", encoding=encoding, newline="") as opened:
            names = sorted(rows[0], reverse=file == "b")
            writer = csv.DictWriter(opened, names)
            writer.writeheader()
            writer.writerows(part)
    (source / "c.csv").write_bytes(b'name,due,text,user\nbad,1,"a\\"b",u\n,1\n')
    read = read_rows(desk.spark, str(source), "csv")
    # So small that a quoted line break lies at each side of many splits.
    with conf_of(desk.spark, "spark.sql.files.maxPartitionBytes", "512"):
        report = desk.run(read, skip_rejected=True)
    assert (report.rows, report.written, report.rejected) == (142, 140, {ROW_UNREADABLE: 2})
    written = {(seen.key or b"").decode(): seen.value for seen in desk.written()}
    assert written == {row["name"]: row["text"].encode() for row in rows}
    refused = desk.spark.read.parquet(desk.rejected_path).orderBy("file").collect()
    assert [row["file"].rpartition("/")[2] for row in refused] == ["c.csv:2", "c.csv:3"]
    assert refused[0]["row"] == 'bad,1,"a\\"b",u'


@contextmanager
def conf_of(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    """A setting of the session for a while."""
    before = spark.conf.get(name)
    spark.conf.set(name, value)
    yield
    spark.conf.set(name, before or "")


def test_an_empty_cell_of_a_csv_file_is_no_key_and_an_empty_value(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "my calls%.csv").write_text("key,value\n,\n", "utf-8")
    rows = read_rows(spark, str(tmp_path / "my calls%.csv"))
    found = drafted(rows, after="1000", value="value", key="key")
    assert (found["value"], found["delay-target-key"]) == (b"", None)


def test_a_line_that_is_no_json_object_is_refused(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text('{"a": "x"}\nnothing\n', "utf-8")
    rows = read_rows(desk.spark, str(tmp_path / "rows.json"))
    report = desk.run(rows, Fields(target=f"={desk.target}", after="2h", job="j"))
    assert (report.fresh, report.rejected) == (1, {ROW_UNREADABLE: 1})


def test_a_rejected_row_can_be_read_as_it_was_with_the_reason_beside_it(
    desk: Desk, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    desk.rows([{"name": "a", "due": "never", "text": "t", "user": "u"}]).write.csv(
        str(source), header=True
    )
    desk.run(read_rows(desk.spark, str(source), "csv"))
    (row,) = desk.spark.read.parquet(desk.rejected_path).collect()
    assert json.loads(row["row"]) == {"name": "a", "due": "never", "text": "t", "user": "u"}
    assert row["file"].startswith(f"file://{source}/part-")
    assert row["code"] == "time-invalid"
    assert "never" in row["reason"]


def test_a_run_that_is_repeated_writes_only_what_is_missing_or_changed(desk: Desk) -> None:
    rows = desk.reminders(40)
    assert desk.run(desk.rows(rows[:15])).written == 15
    rows[14]["text"] = "new"
    report = desk.run(desk.rows(rows))
    assert (report.there, report.fresh, report.replacing, report.written) == (14, 26, 1, 26)
    written = Counter(seen.key for seen in desk.written())
    assert (len(written), written.most_common(1)) == (40, [(b"reminder-14", 2)])
    assert written.total() == 41


def test_a_row_without_an_id_of_its_own_has_the_same_one_in_every_run(desk: Desk) -> None:
    rows = desk.reminders(10)
    fields = desk.fields(id=None, value=None, job="spring")
    assert desk.run(desk.rows(rows), fields).written == 10
    again = desk.rows(list(reversed(rows))).select("user", "text", "name", "due")
    assert desk.run(again, fields).written == 0
    assert all((seen.key or b"").startswith(b"spring:") for seen in desk.written())


def test_a_dry_run_shows_and_writes_nothing(desk: Desk) -> None:
    report = desk.run(desk.rows(desk.reminders(9)), dry_run=True, sample_rows=2)
    assert (report.rows, report.fresh, report.written) == (9, 9, 0)
    assert len(report.sample) == 2
    assert str(report.sample[0]["id"]).startswith("reminder-")
    assert desk.written() == []


def test_whether_a_past_time_is_bad_is_the_contracts_own_policy(desk: Desk) -> None:
    rows = desk.rows(desk.reminders(1, due=1_000))
    strict = replace(CONTRACT, past_due="dead-letter")
    assert desk.run(rows, contract=strict).rejected == {"time-past": 1}


def test_an_input_that_fails_is_told_in_a_sentence(desk: Desk) -> None:
    def broken(_: Iterable[object]) -> Iterator[object]:
        raise ValueError("the disk is gone")

    rows = desk.spark.range(1).mapInArrow(
        broken, "name string, due string, text string, user string"
    )
    with pytest.raises(DelayServiceError, match=r"can't be read: ValueError: the disk is gone$"):
        desk.run(rows)
    assert desk.written() == []


def test_a_level_topic_is_refused(desk: Desk) -> None:
    with pytest.raises(InvalidRequestError, match="level topic"):
        desk.run(desk.rows(desk.reminders(1)), contract=Contract(level_ms=5_000))


def drafted(rows: DataFrame, **fields: Any) -> dict[str, Any]:
    (row,) = drafts(rows, Fields(**fields)).collect()
    headers = {header["key"]: header["value"] for header in row["headers"]}
    return {"id": row["id"], "value": row["value"], **headers}


def test_a_timestamp_is_rounded_up_to_the_millisecond(spark: SparkSession) -> None:
    due = datetime(2030, 1, 1, 0, 0, 0, 1, tzinfo=UTC)
    rows = spark.createDataFrame([(due,)], "due timestamp")
    assert drafted(rows, at="due")["delay-at"] == b"1893456000001"


def test_columns_of_columns_are_json_and_bytes_are_as_they_are(spark: SparkSession) -> None:
    rows = spark.createDataFrame(
        [(b"\xff\x00", {"a": 1}, 7, None)],
        "raw binary, map map<string,int>, `a.b` int, none string",
    )
    found = drafted(
        rows,
        after="=90s",
        value="raw",
        key="none",
        headers=[("m", "map"), ("n", "a.b"), ("fixed", "==a.b"), ("null", "none")],
    )
    assert found["value"] == b"\xff\x00"
    assert found["delay-after"] == b"90000"
    assert found["delay-target-key"] is None
    assert (found["m"], found["n"], found["fixed"]) == (b'{"a":1}', b"7", b"=a.b")
    assert found["null"] is None


def test_without_a_value_the_row_is_the_value(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("x", 1)], "a string, b int")
    assert json.loads(drafted(rows, after="1000")["value"]) == {"a": "x", "b": 1}


def test_ids_and_values_do_not_depend_on_the_order_of_nested_fields(spark: SparkSession) -> None:
    part = {"a": 1, "b.c": "x"}
    whole = {"one": part, "many": [part, None], "named": {"z": part, "y": None}}

    def asked(fields: str) -> list[Any]:
        kind = f"struct<{fields}>"
        schema = f"one {kind}, many array<{kind}>, named map<string,{kind}>"
        rows = spark.createDataFrame([(*whole.values(),), (None, None, None)], schema)
        named = (None, *whole)
        return [drafts(rows, Fields(after="1000", value=name)).collect() for name in named]

    found = asked("`b.c`: string, a: int")
    assert found == asked("a: int, `b.c`: string")
    assert json.loads(found[0][0]["value"]) == whole


def test_times_in_json_have_microseconds(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT a, b, array(a) AS c FROM"
        " VALUES (timestamp'2030-01-01 00:00:00.000001Z', timestamp_ntz'2030-01-01') AS (a, b)"
    )
    found = drafted(rows, after="1000", headers=[("c", "c")])
    assert json.loads(found["value"]) == {
        "a": "2030-01-01T00:00:00.000001Z",
        "b": "2030-01-01T00:00:00.000000",
        "c": ["2030-01-01T00:00:00.000001Z"],
    }
    assert json.loads(found["c"]) == ["2030-01-01T00:00:00.000001Z"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "one due time"),
        ({"at": "due", "after": "1s"}, "one due time"),
        ({"at": "soon"}, "no column 'soon'"),
        ({"after": "soon"}, "no column 'soon'"),
        ({"at": "local"}, "time zone"),
        ({"after": "part"}, "can't be a delay"),
        ({"after": "1s", "value": "nothing"}, "it has due, local, part"),
        ({"after": "1s", "headers": [("delay-op", "=cancel")]}, "delay-op"),
    ],
)
def test_a_mapping_that_does_not_fit_is_refused_with_what_there_is(
    spark: SparkSession, fields: dict[str, Any], words: str
) -> None:
    rows = spark.createDataFrame([], "due long, local timestamp_ntz, part double")
    with pytest.raises(InvalidRequestError, match=words):
        drafts(rows, Fields(**fields))


@pytest.mark.parametrize("kind", ["parquet", "csv", "json", "orc"])
def test_files_are_read_by_their_name_or_by_the_given_format(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    where = tmp_path / f"rows.{kind}"
    rows = spark.createDataFrame([("1", "x")], "a string, b string")
    rows.write.format(kind).options(header="true").save(str(where))
    found = read_rows(spark, str(where)).select("a", "b").collect()
    assert [tuple(row) for row in found] == [("1", "x")]
    assert read_rows(spark, f"{where}/*", kind).columns[-2:] == ["a", "b"]


@pytest.mark.parametrize("kind", ["parquet", "json", "orc"])
def test_files_of_a_folder_may_have_different_columns(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    where = str(tmp_path / f"rows.{kind}")
    for name in ("old", "new"):
        rows = spark.createDataFrame([("1", "x")], f"a string, {name} string")
        rows.write.format(kind).mode("append").save(where)
    found = read_rows(spark, where).select("a", "old", "new").collect()
    assert {tuple(row) for row in found} == {("1", "x", None), ("1", None, "x")}


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_column_with_two_types_is_named(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    where = str(tmp_path / f"rows.{kind}")
    for amount in ("int", "bigint"):
        rows = spark.createDataFrame([(1, "x")], f"amount {amount}, a string")
        rows.write.format(kind).mode("append").save(where)
    with pytest.raises(InvalidRequestError, match=r": amount is \w+ .*: give it one type") as told:
        read_rows(spark, where)
    assert {"int", "bigint"} < set(str(told.value).split())


def test_a_table_is_read_by_its_name(spark: SparkSession) -> None:
    spark.createDataFrame([(1,)], "a int").createOrReplaceTempView("reminders")
    assert read_rows(spark, "reminders", "table").count() == 1


@pytest.mark.parametrize(
    ("where", "kind"), [("rows", None), ("/nowhere.csv", None), ("t", "table")]
)
def test_unreadable_rows_are_reported(spark: SparkSession, where: str, kind: str | None) -> None:
    with pytest.raises(InvalidRequestError, match=where):
        read_rows(spark, where, kind)
