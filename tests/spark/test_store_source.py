"""Stores as data frames of Spark: the columns, the options, the input partitions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from connectors.spark.reconcile.store_source import FORMAT, read_store
from connectors.spark.reconcile.stored import SCHEMA, signed
from delay_devtools.drill.copies import flip_byte
from delayservice.contract.codec import encode_payload
from delayservice.replicas.digest import frame_hash
from delayservice.store.base import NO_MARK, Frame, Store
from delayservice.store.folder import ShardFolder, shard_name
from delayservice.store.rocksdb import RocksDatabase, RocksStore
from delayservice.store.wheel import Wheel, WheelOptions, WheelStore

START_MS = 4_102_444_800_000  # an hour that is not due
HOUR_MS = 3_600_000
HOURS = 5
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
TOPICS = {TOPIC_ID: "delay_topic_any"}
OWN: list[tuple[str, bytes | None]] = [("own", b"\x00\xff"), ("empty", None)]
BOUNDS = {"from_ms": START_MS + HOUR_MS + 5, "to_ms": START_MS + 2 * HOUR_MS}


def a_frame(offset: int) -> Frame:
    meta = (b"id-%d" % offset, None, 2, START_MS + 1) if offset % 10 == 0 else None
    payload = encode_payload(("orders", offset % 4 - 1, b"k", b"v%d" % offset, OWN, 77, meta))
    return (START_MS + offset * 17_989 % (HOURS * HOUR_MS), offset, NO_MARK, payload)


def filled(store: Store) -> Store:
    given = [a_frame(offset) for offset in range(1_000)]
    store.open()
    store.append(given, [], [], 1_000)
    store.append([], [], [(b"id-20", *given[20][:2], 1_000)], 1_001)
    store.sync()
    return store


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A node's state folder with two shards, one of them in use."""
    state = tmp_path_factory.mktemp("n1")
    wheel = Wheel(state / "wheel" / "0", WheelOptions(slot_ms=HOUR_MS))
    stores = [filled(WheelStore(wheel, shard_name(TOPIC_ID), number)) for number in (0, 1)]
    stores[0].close()
    yield state
    stores[1].close()


def test_each_hour_is_an_input_partition(spark: SparkSession, node: Path) -> None:
    rows = read_store(spark, str(node))
    assert rows.rdd.getNumPartitions() == HOURS
    hours = rows.select((sf.col("key_ms") / HOUR_MS).cast("long"), sf.spark_partition_id())
    assert hours.distinct().count() == HOURS
    assert rows.count() == 2_000
    coarse = read_store(spark, str(node), hours_per_task=3)
    assert coarse.rdd.getNumPartitions() == 2
    assert coarse.count() == 2_000


def test_every_column_says_what_the_store_holds(spark: SparkSession, node: Path) -> None:
    rows = read_store(spark, str(node), topics=TOPICS, partitions=[1])
    found = {row["offset"]: row for row in rows.collect()}
    assert sorted(found) == list(range(1_000))
    for offset, row in found.items():
        frame = a_frame(offset)
        named = offset % 10 == 0
        shard = (row["shard"], row["topic"], row["partition"])
        assert shard == (shard_name(TOPIC_ID), "delay_topic_any", 1)
        assert row["slot_start_ms"] <= frame[0] == row["key_ms"] < row["slot_stop_ms"]
        assert row["mark"] == (1_000 if offset == 20 else None)
        assert row["record_id"] == (b"id-%d" % offset if named else None)
        assert (row["target"], row["key"], row["value"]) == ("orders", b"k", b"v%d" % offset)
        assert row["target_partition"] == (offset % 4 - 1 if offset % 4 else None)
        assert [tuple(header) for header in row["headers"]] == OWN
        assert (row["due_ms"], row["attempt"]) == (77, 2 if named else 1)
        assert row["expires_ms"] == (START_MS + 1 if named else None)
        assert row["source"] == f"delay_topic_any:1:{offset}"
        assert row["payload_hash"] == signed(frame_hash(frame[0], offset, None, frame[3]))
        assert row["damage"] is None


def test_a_time_range_and_shards_are_chosen_by_options(spark: SparkSession, node: Path) -> None:
    rows = read_store(spark, str(node), **BOUNDS, content=False)
    from_ms, to_ms = BOUNDS.values()
    expected = [f for f in map(a_frame, range(1_000)) if from_ms <= f[0] < to_ms]
    assert rows.rdd.getNumPartitions() == 1
    assert rows.count() == 2 * len(expected) > 0
    assert rows.where("value is not null or headers is not null").count() == 0
    assert read_store(spark, str(node), topics={"other": "delay_topic_other"}).count() == 0
    after = read_store(spark, str(node), from_ms=START_MS + 2 * HOURS * HOUR_MS)
    assert (after.rdd.getNumPartitions(), after.count()) == (1, 0)  # of no slot, or an empty wheel


def test_damage_is_a_row_or_an_error_as_the_mode_says(
    spark: SparkSession, node: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "7"
    shutil.copytree(node / "wheel" / "0", copy)
    shard = ShardFolder(str(copy), shard_name(TOPIC_ID), 0)
    min(copy.glob("slots/*")).unlink()
    flip_byte(shard, START_MS + HOUR_MS)
    rows = read_store(spark, str(copy)).cache()
    damaged = rows.where("damage is not null").orderBy("slot_start_ms", "partition").collect()
    assert [(row["partition"], row["slot_start_ms"]) for row in damaged] == [
        (0, START_MS),
        (1, START_MS),  # a file is lost for every shard, a block for one
        (0, START_MS + HOUR_MS),
    ]
    assert ["is missing" in row["damage"] for row in damaged] == [True, True, False]
    later = [f for f in map(a_frame, range(1_000)) if f[0] >= START_MS + 2 * HOUR_MS]
    assert rows.where(f"key_ms >= {START_MS + 2 * HOUR_MS}").count() == 2 * len(later)
    for row in damaged:
        lost = [
            f[1] for f in map(a_frame, range(1_000)) if 0 <= f[0] - row["slot_start_ms"] < HOUR_MS
        ]
        assert row["first_offset"] == min(lost)
        has_mark = row["slot_start_ms"] == START_MS
        assert row["stop_offset"] == (1_001 if has_mark else max(lost) + 1)
    with pytest.raises(PySparkException, match="is damaged"):
        read_store(spark, str(copy), mode="failfast").count()
    (copy / "horizon").write_bytes(b"garbage")
    (untrusted,) = read_store(spark, str(copy)).collect()
    assert "a node rebuilds the store from Kafka" in untrusted["damage"]
    assert (untrusted["first_offset"], untrusted["stop_offset"]) == (0, None)


def test_wrong_options_say_what_is_wrong(spark: SparkSession, node: Path) -> None:
    read_store(spark, str(node))
    with pytest.raises(PySparkException, match="mode permissive or failfast"):
        spark.read.format(FORMAT).option("mode", "perhaps").load(str(node)).count()
    with pytest.raises(PySparkException, match="holds no shard"):
        spark.read.format(FORMAT).load(str(node / "nothing")).count()


# --- RocksDB -------------------------------------------------------------------------------------


@pytest.fixture
def rocks(tmp_path: Path) -> Path:
    """A state folder with two shards in one database, the second one in use."""
    (tmp_path / "rocksdb").mkdir()
    database = RocksDatabase(tmp_path / "rocksdb" / "0", None)
    stores = [RocksStore(database, shard_name(TOPIC_ID), partition) for partition in (0, 1)]
    for store in [filled(store) for store in stores]:
        store.close()
    return tmp_path


def test_rocksdb_is_read_as_the_wheel_is(spark: SparkSession, node: Path, rocks: Path) -> None:
    columns = [name for name in SCHEMA.names if name not in ("slot_start_ms", "slot_stop_ms")]
    found, expected = (
        read_store(spark, str(path), **BOUNDS, topics=TOPICS)
        .select(columns)
        .orderBy("partition", "offset")
        .collect()
        for path in (rocks, node)
    )
    assert found == expected
    assert len(found) > 100
    one = read_store(spark, str(rocks), topics=TOPICS, partitions=[1], content=False)
    assert one.where("value is null").count() == 1_000


def test_a_database_that_is_damaged_is_damage_of_each_shard_or_an_error(
    spark: SparkSession, rocks: Path
) -> None:
    for table in (rocks / "rocksdb" / "0").glob("db/*.sst"):
        data = bytearray(table.read_bytes())
        data[len(data) // 3] ^= 1
        table.write_bytes(bytes(data))
    damaged = read_store(spark, str(rocks)).where("damage is not null").collect()
    assert {(row["slot_start_ms"], row["first_offset"], row["stop_offset"]) for row in damaged} == {
        (0, 0, None)
    }
    with pytest.raises(PySparkException, match="is damaged"):
        read_store(spark, str(rocks), mode="failfast").count()
