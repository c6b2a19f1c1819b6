"""The rows of the digest topic: which cuts can be compared, and what the copies have there.

What is chosen is decided on the driver from a few cut rows of each copy (``choose``); hour rows, of
which there are many, stay in Spark. ``docs/internals/digests.md`` has the format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import from_arrow_schema
from xxhash import xxh3_64_intdigest

from connectors.spark.common.pending import batch_of
from connectors.spark.common.topics import Place
from connectors.spark.reconcile.plan import Copy
from connectors.spark.reconcile.stored import signed
from delayservice.engine.cursor import Cursor
from delayservice.store.wheel.reading import Damage

NO_CURSOR: Final = Cursor()
CUTS_KEPT: Final = 32
"""Of each copy so many cut rows are looked at; copies that have none of them in common are apart
by that many intervals.
"""
GONE_MS: Final = 86_400_000
"""A node whose newest cut is so much older than another's does not catch up by itself."""

SUMS: Final = (
    "node string, topic string, partition int, slot_start_ms bigint, count bigint, hash bigint"
)
"""What one copy has pending in one slot; the hash is a signed number of 64 bits."""

_CUT: Final = (
    "topic_id string, life string, cut bigint, cut_ms bigint, k array<bigint>, h bigint, "
    "stored bigint, from_ms bigint, count bigint, hash string, pending bigint, scanned_ms bigint, "
    "behind boolean, role string, store string, "
    "damaged array<struct<start_ms: bigint, stop_ms: bigint, first_offset: bigint, "
    "stop_offset: bigint, why: string>>"
)
_COPY: Final = ("node", "topic", "partition")
_SHARD_FIELDS: Final = [("node", pa.string()), ("topic", pa.string()), ("partition", pa.int32())]
_LONG: Final = pa.int64()
_HOUR_SUMS: Final = pa.schema(
    [
        *_SHARD_FIELDS,
        *((name, _LONG) for name in ("hour_ms", "slots", "records", "hash", "print")),
    ]
)
_SLOT_SUMS: Final = pa.schema(
    [*_SHARD_FIELDS, *((name, _LONG) for name in ("slot_start_ms", "count", "hash"))]
)
_LOW: Final = 0xFFFF_FFFF
_MASK: Final = 2**64 - 1
_HEX_HALF: Final = 8


@dataclass(frozen=True, slots=True)
class CutRow:
    """The fields of a cut row; ``row`` is its own offset in the digest topic, ``hash`` is signed.
    ``pending`` is None in rows of older versions.
    """

    node: str
    topic: str
    partition: int
    row: int
    topic_id: str
    life: str
    cut: int
    cut_ms: int
    cursor: Cursor
    stored: int
    from_ms: int
    count: int
    hash: int
    scanned_ms: int
    behind: bool
    role: str
    store: str
    damaged: tuple[Damage, ...] = ()
    pending: int | None = None

    @property
    def copy(self) -> Copy:
        """The node whose copy it is, and the topic and partition."""
        return self.node, self.topic, self.partition


class Retired(NamedTuple):
    """A tombstone of cut rows: the node keeps no copy of the shard any more."""

    node: str
    topic: str
    partition: int
    row: int


@dataclass(frozen=True, slots=True)
class Expected:
    """Which copies should be there.

    Attributes:
        nodes: of every shard, if ``replicas`` is 0; else the nodes that there are. Copies of other
            nodes are not looked at; none: all that report are.
        replicas: copies of each shard at least.
        behind_ms: a copy whose newest cut is so much older than another's is behind, and so is one
            with a cut of that age while the slice goes on. A cut of which the copy says that it has
            not come so far does not count.
    """

    nodes: tuple[str, ...] = ()
    replicas: int = 0
    behind_ms: int = 600_000


class Served(NamedTuple):
    """A shard as it is served now: the topic's id, and its cursor before the digests were read."""

    topic_id: str
    cursor: Cursor


@dataclass(slots=True)
class Comparison:
    """The parts of one shard that are compared.

    Attributes:
        topic: the delay topic.
        partition: its partition.
        cursor: K and H at which the copies are compared.
        from_ms: only slots from here on are.
        cut: offset of the checkpoint; None: not by digests.
        cut_ms: when the broker appended it.
        nodes: whose copies are compared.
        rows: their cut rows, if it is by digests.
        damaged: what a node could not read of its copy.
        behind: nodes whose copy can't be compared, and why.
        stale: those of them that are behind only because the slice goes on, and their newest cuts.
        silent: nodes without a report, ``""`` for one of unknown name, and why.
        owners: nodes that deliver; of copies on disks any may.
        pending: records that wait, by the copy that has the most.
        records: of these, those that are compared with another copy or the log.
    """

    topic: str
    partition: int
    cursor: Cursor = NO_CURSOR
    from_ms: int = 0
    cut: int | None = None
    cut_ms: int | None = None
    nodes: list[str] = field(default_factory=list)
    rows: list[CutRow] = field(default_factory=list)
    damaged: dict[str, tuple[Damage, ...]] = field(default_factory=dict)
    behind: dict[str, str] = field(default_factory=dict)
    stale: dict[str, int] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    owners: set[str] = field(default_factory=set)
    pending: int = 0
    records: int = 0

    @property
    def place(self) -> Place:
        """Topic and partition."""
        return self.topic, self.partition

    def to_json(self) -> dict[str, object]:
        """For the summary."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "cut": self.cut,
            "cut_ms": self.cut_ms,
            "k": list(self.cursor.key),
            "h": self.cursor.offset,
            "from_ms": self.from_ms,
            "pending": self.pending,
            "records": self.records,
            "compared": self.nodes,
            "behind": self.behind,
            "silent": self.silent,
        }

    def leave_out(self, node: str, why: str) -> None:
        """A copy turned out to say nothing."""
        self.nodes.remove(node)
        self.rows = [row for row in self.rows if row.node != node]
        self.behind[node] = why


# --- choose --------------------------------------------------------------------------------------


def choose(
    rows: Iterable[CutRow | Retired],
    shards: Mapping[Place, Served],
    expected: Expected,
    now_ms: int,
) -> list[Comparison]:
    """For each shard the newest cut that its copies have in common.

    Args:
        rows: of the copies, some of the newest of each.
        shards: what is compared.
        expected: which copies should be there.
        now_ms: the time by the brokers' clocks, as far as is known.
    """
    copies: dict[Copy, list[CutRow | Retired]] = {}
    for row in sorted(rows, key=lambda row: -row.row):
        copies.setdefault((row.node, row.topic, row.partition), []).append(row)
    found = []
    for place, shard in sorted(shards.items()):
        lives = {
            copy[0]: _this_life(told, shard.topic_id)
            for copy, told in copies.items()
            if copy[1:] == place and (not expected.nodes or copy[0] in expected.nodes)
        }
        known = {node: told for node, told in sorted(lives.items()) if told}
        one = _compare(place, known, expected)
        _leave_out_stale(one, known, shard.cursor, now_ms - expected.behind_ms)
        found.append(one)
    return found


def _this_life(told: Sequence[CutRow | Retired], topic_id: str) -> list[CutRow]:
    """The cut rows that hold now, newest first; each cut once."""
    newest = told[0]
    if isinstance(newest, Retired):
        return []
    cuts: dict[int, CutRow] = {}
    for row in told:
        if isinstance(row, Retired) or row.life != newest.life or row.topic_id != topic_id:
            break
        cuts.setdefault(row.cut, row)
    return list(cuts.values())


def _compare(place: Place, lives: Mapping[str, Sequence[CutRow]], expected: Expected) -> Comparison:
    newest_ms = max((told[0].cut_ms for told in lives.values()), default=0)
    gone = _gone(lives, newest_ms - max(GONE_MS, expected.behind_ms))
    there = {node: told for node, told in lives.items() if node not in gone}
    found = Comparison(*place, silent={**silent(there.keys(), expected), **gone})
    found.damaged = {node: told[0].damaged for node, told in there.items() if told[0].damaged}
    found.owners = {node for node, told in there.items() if told[0].role == "owner"}
    found.pending = max((told[0].pending or told[0].count for told in there.values()), default=0)
    usable: dict[str, dict[int, CutRow]] = {}
    for node, told in there.items():
        if why := _behind(told, newest_ms - expected.behind_ms, newest_ms):
            found.behind[node] = why
        else:
            usable[node] = {row.cut: row for row in told if not row.behind}
    _choose_cut(found, usable)
    return found


def _choose_cut(found: Comparison, usable: Mapping[str, Mapping[int, CutRow]]) -> None:
    """Choose the cut that most copies have."""
    shared = Counter(cut for cuts in usable.values() for cut in cuts)
    if not shared:
        return
    cut = max(shared, key=lambda cut: (shared[cut], cut))
    for node, cuts in usable.items():
        if cut in cuts:
            found.nodes.append(node)
            found.rows.append(cuts[cut])
        else:
            found.behind[node] = f"it has no cut in common with the others, such as {cut}"
    found.cut, found.cut_ms = cut, found.rows[0].cut_ms
    found.cursor = found.rows[0].cursor
    found.from_ms = max(row.from_ms for row in found.rows)


def _leave_out_stale(
    found: Comparison, lives: Mapping[str, Sequence[CutRow]], cursor: Cursor, since_ms: int
) -> None:
    """Leave out copies that have published nothing since then although the slice goes on."""
    for node in list(found.nodes):
        newest = lives[node][0]
        if newest.cut_ms < since_ms and newest.cursor != cursor:
            age_s = (since_ms - newest.cut_ms) // 1000
            found.leave_out(node, f"its newest cut is {age_s} s too old, and the slice goes on")
            found.stale[node] = newest.cut


def _gone(lives: Mapping[str, Sequence[CutRow]], since_ms: int) -> dict[str, str]:
    """Nodes that have reported nothing since then, and what to do about it."""
    why = (
        "it has reported nothing for a day or longer: start it; if it was taken away for good, "
        "name the nodes that there are (--node)"
    )
    return {node: why for node, told in lives.items() if told[0].cut_ms < since_ms}


def _behind(told: Sequence[CutRow], since_ms: int, newest_ms: int) -> str | None:
    """Return why a copy can't be compared: it had reached none of its cuts since then.

    A copy may be some moments late at one cut; then the cut before is good enough.
    """
    reached = next((row for row in told if not row.behind), None)
    if reached is not None and reached.cut_ms >= since_ms:
        return None
    if told[0].behind:
        return f"has stored up to {told[0].stored} and not to {told[0].cursor.offset}"
    return f"its newest cut is {(newest_ms - told[0].cut_ms) // 1000} s older than another's"


def silent(nodes: Collection[str], expected: Expected) -> dict[str, str]:
    """Nodes that should have a copy of a shard and are not among ``nodes``, and why."""
    if expected.replicas:
        missing = expected.replicas - len(nodes)
        why = f"{len(nodes)} copies report, and {expected.replicas} are expected"
        return {"": why} if missing > 0 else {}
    if not nodes and not expected.nodes:
        return {"": "no copy reports this shard"}
    absent = [node for node in expected.nodes if node not in nodes]
    return dict.fromkeys(absent, "it has not reported this shard")


# --- rows ----------------------------------------------------------------------------------------


def parse_keys(records: DataFrame) -> DataFrame:
    """Records of the digest topic by what their keys say.

    Returns:
        ``kind`` (``c`` or ``h``), ``node``, ``topic``, ``partition``, ``hour_ms``, ``row`` (the
        offset), and ``value``, text.
    """
    parts = sf.split(sf.col("key").cast("string"), "/")
    return records.select(
        sf.get(parts, sf.lit(0)).alias("kind"),
        sf.get(parts, sf.lit(1)).alias("node"),
        sf.get(parts, sf.lit(2)).alias("topic"),
        sf.get(parts, sf.lit(3)).try_cast("int").alias("partition"),
        sf.get(parts, sf.lit(4)).try_cast("bigint").alias("hour_ms"),
        sf.col("offset").alias("row"),
        sf.col("value").cast("string").alias("value"),
    )


def newest_cuts(rows: DataFrame) -> list[CutRow | Retired]:
    """The newest cut rows of each copy, at most ``CUTS_KEPT``."""
    order = Window.partitionBy(*_COPY).orderBy(sf.desc("row"))
    newest = (
        rows.where("kind = 'c'")
        .withColumn("rank", sf.row_number().over(order))
        .where(sf.col("rank") <= CUTS_KEPT)
        .select(*_COPY, "row", sf.from_json("value", _CUT).alias("said"))
        .withColumn("bits", from_hex(sf.col("said.hash")))
    )
    return [_cut_row(row.asDict(recursive=True)) for row in newest.toLocalIterator()]


def _cut_row(row: Mapping[str, object]) -> CutRow | Retired:
    place = {name: row[name] for name in (*_COPY, "row")}
    said = row["said"]
    if not isinstance(said, dict):
        return Retired(**place)  # type: ignore[arg-type] # as the schema says
    damaged = tuple(Damage(**damage) for damage in said.pop("damaged") or ())
    k_ms, k_offset = said.pop("k")
    cursor = Cursor((k_ms, k_offset), said.pop("h"))
    said["hash"] = row["bits"]
    return CutRow(**place, **said, cursor=cursor, damaged=damaged)  # type: ignore[arg-type] # ditto


def hours_at(spark: SparkSession, rows: DataFrame, compared: Iterable[Comparison]) -> DataFrame:
    """The hours of every copy that is compared, as of its cut.

    Args:
        spark: the session.
        rows: as ``parse_keys`` gives them; read twice, so persist them.
        compared: what is compared.

    Returns:
        ``node, topic, partition, hour_ms, from_ms``, and what the rows say and must say.
    """
    cuts = [
        (*row.copy, row.life, row.row, row.cut, one.from_ms) for one in compared for row in one.rows
    ]
    at_cut = sf.broadcast(
        spark.createDataFrame(
            cuts,
            "node string, topic string, partition int, cut_life string, cut_row bigint, "
            "at_cut bigint, from_ms bigint",
        )
    )
    known = rows.where("kind = 'h'").join(at_cut, list(_COPY)).where("row < cut_row")
    # By their offsets, so that no text is moved.
    last = known.groupBy(*_COPY, "hour_ms").agg(sf.max("row").alias("row")).select("row")
    # A tombstone has no life; whatever it ends is over in any.
    return known.join(sf.broadcast(last), "row", "left_semi").where("value is not null")


class _Hour(msgspec.Struct):
    """The row of an hour."""

    life: str
    cut: int
    slot_ms: int
    slots: msgspec.Raw


_Slots: TypeAlias = list[tuple[int, int, int]]
"""``(index, count, hash)`` of each."""
_decode_hour = msgspec.json.Decoder(_Hour).decode
_decode_slots = msgspec.json.Decoder(list[tuple[int, int, str]]).decode


def hour_sums(hours: DataFrame) -> DataFrame:
    """Sum up hours; ``hours``: as ``hours_at`` gives them.

    Returns:
        ``node, topic, partition, hour_ms``; ``slots``, ``records`` and signed ``hash`` of all of
        it, to be held against the cut row; ``print``, which is the same for the same slots, of
        those that are compared, null if none is.
    """
    return hours.mapInArrow(_sum_hours, from_arrow_schema(_HOUR_SUMS))


def _sum_hours(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            (
                *(*copy, hour_ms, len(slots)),
                sum([count for _, count, _ in slots]),
                signed(sum([hashed for _, _, hashed in slots]) & _MASK),
                _print(said, _compared(slots, said.slot_ms, from_ms - hour_ms), len(slots)),
            )
            for copy, hour_ms, from_ms, said, slots in _hours_in(batch)
        ]
        yield batch_of(rows, _HOUR_SUMS)


def slot_sums(hours: DataFrame) -> DataFrame:
    """``SUMS`` of hours, a row for each slot that is compared; ``hours``: as ``hours_at`` gives
    them.
    """
    return hours.mapInArrow(_sum_slots, SUMS)


def _sum_slots(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        rows = [
            (*copy, hour_ms + index * said.slot_ms, count, signed(hashed))
            for copy, hour_ms, from_ms, said, slots in _hours_in(batch)
            for index, count, hashed in _compared(slots, said.slot_ms, from_ms - hour_ms)
        ]
        yield batch_of(rows, _SLOT_SUMS)


def _hours_in(batch: pa.RecordBatch) -> Iterator[tuple[Copy, int, int, _Hour, _Slots]]:
    """Hours that belong to the cut, with what they say; others are of another life, or later."""
    columns = (*_COPY, "hour_ms", "from_ms", "value", "cut_life", "at_cut")
    for node, topic, partition, hour_ms, from_ms, value, life, cut in zip(
        *(batch.column(name).to_pylist() for name in columns), strict=True
    ):
        try:
            said = _decode_hour(value)
            slots = [(n, count, int(hashed, 16)) for n, count, hashed in _decode_slots(said.slots)]
        except (msgspec.DecodeError, ValueError):  # the rest doesn't make up the cut: it is behind
            continue
        if said.life == life and said.cut <= cut:
            yield (node, topic, partition), hour_ms, from_ms, said, slots


def _compared(slots: _Slots, slot_ms: int, first_ms: int) -> _Slots:
    """The slots of an hour that begin at ``first_ms`` of it or later."""
    return slots if first_ms <= 0 else [slot for slot in slots if slot[0] * slot_ms >= first_ms]


def _print(said: _Hour, compared: _Slots, filled: int) -> int | None:
    """A hash of the slots that are compared; of all of them, of the text that the node wrote: nodes
    write the same text for the same slots.
    """
    text = bytes(said.slots)
    if len(compared) < filled:
        text = msgspec.json.encode([(n, count, f"{hashed:016x}") for n, count, hashed in compared])
    return signed(xxh3_64_intdigest(text, said.slot_ms)) if compared else None


def totals(hours: DataFrame) -> dict[Copy, tuple[int, int, int]]:
    """Slots, records and signed hash of each copy; ``hours``: as ``hour_sums`` gives them."""
    summed = hours.groupBy(*_COPY).agg(
        sf.sum("slots").alias("slots"),
        sf.sum("records").alias("records"),
        sum64(sf.col("hash")).alias("hash"),
    )
    return {
        (row["node"], row["topic"], row["partition"]): (row["slots"], row["records"], row["hash"])
        for row in summed.collect()
    }


def differing_hours(
    spark: SparkSession, hours: DataFrame, compared: Iterable[Comparison]
) -> DataFrame:
    """``topic, partition, hour_ms`` of the hours that are not the same in all copies; ``hours``: as
    ``hour_sums`` gives them.
    """
    nodes = sf.broadcast(
        spark.createDataFrame(
            [(*one.place, node, len(one.nodes)) for one in compared for node in one.nodes],
            "topic string, partition int, node string, copies int",
        )
    )
    return (
        hours.where("print is not null")
        .join(nodes, list(_COPY))
        .groupBy("topic", "partition", "hour_ms")
        .agg(
            sf.min("print").alias("least"),
            sf.max("print").alias("most"),
            sf.count("*").alias("rows"),
            sf.first("copies").alias("copies"),
        )
        .where("rows < copies or least != most")
        .select("topic", "partition", "hour_ms")
    )


# --- numbers of 64 bits --------------------------------------------------------------------------


def from_hex(digits: Column) -> Column:
    """16 hexadecimal digits as a signed number."""
    high = sf.conv(sf.substring(digits, 1, _HEX_HALF), 16, 10).cast("bigint")
    low = sf.conv(sf.substring(digits, _HEX_HALF + 1, _HEX_HALF), 16, 10).cast("bigint")
    return sf.shiftleft(high, 32).bitwiseOR(low)


def sum64(numbers: Column) -> Column:
    """The sum modulo 2^64 of signed numbers: by halves, for Spark's own sum may not overflow."""
    low = sf.sum(numbers.bitwiseAND(sf.lit(_LOW)))
    high = sf.sum(sf.shiftrightunsigned(numbers, 32)) + sf.shiftright(low, 32)
    return sf.shiftleft(high, 32).bitwiseOR(low.bitwiseAND(sf.lit(_LOW)))
