"""An export of a RocksDB store holds what the store holds, and leaves its folder alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from connectors.spark.reconcile.rocks_export import export_rocks
from connectors.spark.reconcile.stored import SCHEMA, signed
from delayservice.base.errors import StoreError
from delayservice.contract.codec import encode_payload
from delayservice.replicas.digest import frame_hash
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.folder import ShardFolder, version_text
from delayservice.store.wheel.reading import ReadBounds
from tests.rocks import LoneRocks

START_MS = 1_795_226_400_000


def a_frame(offset: int) -> Frame:
    meta = (b"id-%d" % offset, b"any:1:0", 2, 5) if offset % 3 == 0 else None
    payload = encode_payload(("target", -1, b"key", b"v%d" % offset, [("h", None)], 7, meta))
    return (START_MS + offset * 7_001, offset, NO_MARK, payload)


@pytest.fixture
def shard(tmp_path: Path) -> ShardFolder:
    return ShardFolder(str(tmp_path / "rocksdb" / "0"), "00aa", 2)


@pytest.fixture
def store(shard: ShardFolder) -> Iterator[LoneRocks]:
    path = Path(shard.path)
    path.parent.mkdir(parents=True)
    found = LoneRocks(path, place=(shard.shard, shard.partition))
    found.open()
    found.append([a_frame(offset) for offset in range(3_000)], [], [], 3_000)
    found.sync()
    # Not flushed and not synced: in the write-ahead log alone.
    late = [a_frame(offset) for offset in range(3_000, 3_100)]
    found.append(late, [], [(b"id-9", *a_frame(9)[:2], 3_050)], 3_100)
    yield found
    found.abandon()


def test_an_export_beside_the_owner_holds_what_a_scan_reads(
    store: LoneRocks, shard: ShardFolder, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(shard.path).rglob("*")}
    done = export_rocks(shard, tmp_path / "out.parquet", topic="delay_topic_any")
    rows = pq.read_table(done.path).to_pylist()
    expected = list(store.scanner().frames((0, -1), 10**15))
    keys = [(r["key_ms"], r["offset"], -1 if r["mark"] is None else r["mark"]) for r in rows]
    assert keys == [frame[:3] for frame in expected]
    hashes = [signed(frame_hash(f[0], f[1], None, f[3])) for f in expected]
    assert [row["payload_hash"] for row in rows] == hashes
    assert (done.rows, done.stop_offset) == (3_100, 3_100)
    assert {path: path.stat().st_mtime_ns for path in Path(shard.path).rglob("*")} == before


def test_an_export_says_of_each_record_what_it_is(
    store: LoneRocks, shard: ShardFolder, tmp_path: Path
) -> None:
    del store
    done = export_rocks(shard, tmp_path / "out.parquet", topic="delay_topic_any")
    table = pq.read_table(done.path)
    assert table.schema.names == SCHEMA.names
    named, plain = table.slice(9, 2).to_pylist()
    assert (named["topic"], named["partition"], named["shard"]) == ("delay_topic_any", 2, "00aa")
    assert (named["record_id"], named["source"], named["attempt"]) == (b"id-9", "any:1:0", 2)
    assert (named["mark"], named["key"], named["value"]) == (3_050, b"key", b"v9")
    assert named["headers"] == [{"name": "h", "value": None}]
    assert named["slot_start_ms"] <= named["key_ms"] < named["slot_stop_ms"]
    assert named["frame_hash"] == signed(frame_hash(*a_frame(9)[:2], b"id-9", b""))
    assert (plain["source"], plain["record_id"]) == ("delay_topic_any:2:10", None)
    assert plain["frame_hash"] == plain["payload_hash"]


def test_an_export_of_a_range_without_content(
    store: LoneRocks, shard: ShardFolder, tmp_path: Path
) -> None:
    del store
    bounds = ReadBounds(a_frame(5)[0], a_frame(8)[0])
    done = export_rocks(shard, tmp_path / "out.parquet", bounds=bounds, content=False)
    rows = pq.read_table(done.path).to_pylist()
    assert [row["offset"] for row in rows] == [5, 6, 7]
    assert {row["value"] for row in rows} == {None}


def test_what_is_no_store_is_refused_and_leaves_no_file(
    store: LoneRocks, shard: ShardFolder, tmp_path: Path
) -> None:
    store.close()
    target = tmp_path / "out.parquet"
    for table in Path(shard.path).glob("db/MANIFEST-*"):
        table.write_bytes(b"garbage")
    with pytest.raises(StoreError, match="can't read the store"):
        export_rocks(shard, target)
    Path(shard.path, "VERSION").write_bytes(version_text("wheel", 3))
    with pytest.raises(StoreError, match="holds 'wheel 3'"):
        export_rocks(shard, target)
    assert list(tmp_path.glob("out.parquet*")) == []
