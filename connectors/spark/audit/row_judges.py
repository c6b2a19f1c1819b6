"""Judges ledger rows on the executors: each record by itself, then verdicts that depend on
its id.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import groupby, islice
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from connectors.spark.audit.group import Group, base_of, group_of, named_row, without_undecided
from connectors.spark.audit.judge import judge
from connectors.spark.audit.rules import OPEN, Rules, ShardRules
from connectors.spark.audit.settlement import elsewhere, own_place, place_at
from connectors.spark.audit.verdicts import (
    CARRIED,
    CERTAIN,
    FOUND,
    IF_MARKED,
    IF_OTHER,
    IF_UNMARKED,
    MALFORMED,
    UNJUDGED,
    UNKNOWN_SOURCE,
    UNLESS_MARKED,
    WRONG_OUTCOME,
    RecordVerdict,
)
from connectors.spark.common.decode import without_collector
from connectors.spark.common.frames import arrow_schema
from connectors.spark.ledger.facts import (
    ARRIVED,
    COPIED,
    DELIVERED,
    FOREIGN,
    FORWARDED,
    NEVER_MS,
    OutputRow,
    SourceRow,
    settlement_name,
)
from connectors.spark.ledger.ids import NONE, IdHistory, Line
from connectors.spark.ledger.rows import COUNTED, NO_SHARD, NOWHERE, LedgerRow, batch_of
from connectors.spark.ledger.rows import MALFORMED as MALFORMED_ROW
from delayservice.contract.entry import HOMEBOUND, INVALID

JUDGED: Final = (
    "kind string, shard long, offset long, source string, target long, target_partition int, "
    "target_offset long, due_ms long, at_ms long, detail string, when byte, claim long, "
    "record_id binary, base long, since_ms long, number long, verdict byte, aim long, packed binary"
)
"""Columns of rows with verdicts. ``verdict`` is a value of ``verdicts`` such as ``FOUND``, or
``LINE`` or ``COUNT`` (``number`` records of ``kind``); ``packed`` is an encoded ``Line``, or the
ledger row that the next cut reads. Other columns are as in ``verdicts.RecordVerdict``."""

LINE: Final = 4
COUNT: Final = 5
"""Values of ``verdict`` besides those of ``verdicts``. ``LINE``: the row holds a record with an id,
as ``ledger.ids.Line``; ``COUNT``: the row holds a number of records."""

_SCHEMA: Final = arrow_schema(JUDGED)
# Largest number of rows that are held as Python objects before they become an Arrow batch.
_ROWS_MAX: Final = 10_000
# Size of a block of neighbouring offsets, which one task judges together: 2 to this power.
_BLOCK_BITS: Final = 13

_Row: TypeAlias = dict[str, Any]
_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder().decode
_unpack_line: Final = msgspec.msgpack.Decoder(Line).decode


def judge_records(rows: DataFrame, rules: Rules, *, keeps: bool) -> DataFrame:
    """Return the verdicts on each record by itself, columns ``JUDGED``."""
    return (
        rows.repartition("shard", sf.shiftright("offset", _BLOCK_BITS))
        .sortWithinPartitions("shard", "offset", "role")
        .mapInArrow(RowJudge(rules, keeps=keeps).judge, JUDGED)
    )


def decide_by_ids(judged: DataFrame, passed: PassedTimes, rules: Rules) -> DataFrame:
    """Return the verdicts that depend on other records of the same id, columns ``JUDGED``."""
    return (
        judged.where((sf.col("verdict") == LINE) | (sf.col("when") != CERTAIN))
        .repartition("shard", "record_id")
        .sortWithinPartitions("shard", "record_id", "offset")
        .mapInArrow(IdJudge(rules, passed).judge, JUDGED)
    )


def ledger_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield batch_of(map(_unpack, batch.column(0).to_pylist()))


class RowJudge:
    def __init__(self, rules: Rules, *, keeps: bool = True) -> None:
        self._rules = rules
        self._keeps = keeps
        self._counts: Counter[str] = Counter()

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield verdicts, and at the end counts; ``batches``: sorted by shard, offset and role."""
        lists = ([column.to_pylist() for column in batch.columns] for batch in batches)
        rows = (row for columns in lists for row in map(LedgerRow, *columns))
        with without_collector():
            groups = groupby(rows, lambda row: row[:2])
            yield from _batches(
                one
                for (shard, _), group in groups
                for one in (self._of_no_shard if shard == NO_SHARD else self._of_group)(list(group))
            )
        yield from _batches(
            {"verdict": COUNT, "kind": kind, "shard": NO_SHARD, "number": number}
            for kind, number in self._counts.items()
        )

    def _of_no_shard(self, rows: Sequence[LedgerRow]) -> Iterator[_Row]:
        for row in rows:
            what = row.offset
            if what not in (MALFORMED_ROW, NOWHERE):
                self._counts[COUNTED[what]] += row.place
                continue
            yield {
                "verdict": FOUND,
                "when": CERTAIN,
                "kind": MALFORMED if what == MALFORMED_ROW else UNKNOWN_SOURCE,
                "shard": NO_SHARD,
                "target": row.topic,
                "target_partition": row.partition,
                "target_offset": row.place,
                "at_ms": row.at_ms,
                "detail": (row.more or b"").decode(),
            }

    def _of_group(self, rows: Sequence[LedgerRow]) -> Iterator[_Row]:
        group = without_undecided(group_of(rows), self._rules.may_be_refused)
        self._counts["outputs"] += len(group.settling) + len(group.successors)
        found = list(judge(group, self._rules, self._counts))
        yield from (_finding_row(f) for f in found if self._keeps or f.verdict <= UNJUDGED)
        line = _line_of(group, found, self._rules)
        if line is not None:
            is_hidden = any(one.verdict == CARRIED and one.kind == OPEN for one in found)
            yield _line_row(group, *line) | {"kind": OPEN if is_hidden else ""}


def _finding_row(one: RecordVerdict) -> _Row:
    packed = None if one.row is None else _pack(one.row)
    due_ms = one.due_ms if one.due_ms > 0 else None
    row = one._asdict() | {"due_ms": due_ms, "packed": packed}  # a batch takes its columns only
    return row if one.output is None else row | _place_row(one.output)


def _place_row(output: OutputRow) -> _Row:
    return {
        "target": output.topic,
        "target_partition": output.partition,
        "target_offset": output.place,
        "at_ms": output.at_ms,
    }


def _batches(rows: Iterable[_Row]) -> Iterator[pa.RecordBatch]:
    kept = iter(rows)
    while some := list(islice(kept, _ROWS_MAX)):
        yield pa.RecordBatch.from_pylist(some, schema=_SCHEMA)


def _line_of(
    group: Group, found: Sequence[RecordVerdict], rules: Rules
) -> tuple[bytes, Line] | None:
    if group.named is not None:
        record_id, line = group.named
        return record_id, line._replace(is_home=line.is_home or bool(group.arrivals))
    source = group.source
    if source is None or source.facts.record_id is None or source.facts.kind == INVALID:
        return None
    return source.facts.record_id, _line(source, group, found, rules)


def _line(source: SourceRow, group: Group, found: Sequence[RecordVerdict], rules: Rules) -> Line:
    # A record with an unconditional finding counts as not settled.
    facts = source.facts
    line = Line(
        *(source.offset, facts.kind, base_of(source), source.key_ms, source.written_ms),
        acts=facts.acts if facts.kind in FOREIGN else facts.kind,
        source=elsewhere(facts.origin, own_place(source, rules)),
        is_home=bool(group.arrivals)
        or any(one.role in (ARRIVED, FORWARDED) for one in group.settling)
        or (facts.kind == HOMEBOUND and rules.unseen_home(source, source.written_ms) is not None),
    )
    is_wrong = any(one.verdict in (FOUND, UNJUDGED) and one.when == CERTAIN for one in found)
    if not group.settling or is_wrong:
        return line
    own = [one for one in group.settling if one.role != DELIVERED or one.topic == source.topic]
    if len({one.role for one in own}) != 1:  # a crash under at_least_once: either may be the first
        return line
    first, told = own[0], own[0].facts
    return line._replace(
        settlement=settlement_name(first.role, told.outcome),
        at_ms=first.at_ms,
        by=told.by,
        copy_base=told.base if first.role == COPIED else NONE,
        by_source=elsewhere(told.by_source, place_at(source, told.by, rules)),
    )


def _line_row(group: Group, record_id: bytes, line: Line) -> _Row:
    source = group.source
    row: _Row = {
        "verdict": LINE,
        "shard": group.shard,
        "offset": line.offset,
        "source": "" if source is None else source.facts.origin,
        "due_ms": None if source is None or source.due_ms <= 0 else source.due_ms,
        "when": CERTAIN,
        "record_id": record_id,
        "packed": _pack(line),
    }
    return row | _place_row(group.settling[0]) if group.settling else row


class PassedTimes:
    """Times by which H (offset up to which cancels were read) had passed blocks of 2**``bits``
    offsets.

    A record is settled only after H has passed it. So the time of its settlement is such a time for
    all offsets up to its own.
    """

    def __init__(self, bits: int = 0, blocks: Iterable[tuple[int, int, int]] = ()) -> None:
        self._bits = bits
        held: dict[int, list[tuple[int, int]]] = {}
        for shard, block, at_ms in blocks:
            held.setdefault(shard, []).append((block, at_ms))
        self._shards = {shard: _suffix_minima(sorted(told)) for shard, told in held.items()}

    def at_ms(self, shard: int, offset: int) -> int | None:
        blocks, at_ms = self._shards.get(shard, _NOTHING)
        at = int(np.searchsorted(blocks, offset >> self._bits, side="right"))
        return int(at_ms[at]) if at < len(blocks) else None


_Minima: TypeAlias = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]
_NOTHING: Final[_Minima] = (np.array([], np.int64), np.array([], np.int64))


def _suffix_minima(held: Sequence[tuple[int, int]]) -> _Minima:
    blocks, at_ms = (np.array(column, np.int64) for column in zip(*held, strict=True))
    return blocks, np.minimum.accumulate(at_ms[::-1])[::-1]


class IdJudge:
    def __init__(self, rules: Rules, passed: PassedTimes) -> None:
        self._rules = rules
        self._passed = passed

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the verdicts that count; ``batches``: sorted by shard, id and offset."""
        rows = (row for batch in batches for row in batch.to_pylist())
        with without_collector():
            for (shard, name), group in groupby(rows, lambda row: (row["shard"], row["record_id"])):
                yield from _batches(self._judge(shard, name, list(group)))

    def _judge(self, shard: int, record_id: bytes, rows: Sequence[_Row]) -> Iterator[_Row]:
        own = self._rules.shards[shard]
        held = [row for row in rows if row["verdict"] == LINE]
        lines = [_unpack_line(row["packed"]) for row in held]
        history = IdHistory(lines, own.start, own.has_lost)
        unseen = {row["offset"] for row in rows if row["verdict"] == UNJUDGED}
        for row in rows:
            if row["verdict"] != LINE and self._is_true(row, own, history, unseen):
                yield row | {"when": CERTAIN}
        wrong = dict(history.judge(self._passed_ms(shard), self._rules.lag_ms))
        for number, why in wrong.items():
            source = held[number]["source"] or f"{own.name}:{held[number]['offset']}"
            found = {"verdict": FOUND, "kind": WRONG_OUTCOME, "detail": why, "packed": None}
            yield held[number] | found | {"source": source}
        is_hidden = any(row["kind"] == OPEN for row in held)
        for number, line in enumerate(lines):
            if number not in wrong and _may_matter(line, own, is_hidden=is_hidden):
                yield _finding_row(named_row(shard, line, record_id))

    def _passed_ms(self, shard: int) -> Callable[[int], int | None]:
        def passed_ms(offset: int) -> int | None:
            at_ms = self._passed.at_ms(shard, offset)
            return None if at_ms is None else at_ms + self._rules.grace_ms

        return passed_ms

    def _is_true(
        self, row: _Row, own: ShardRules, history: IdHistory, unseen: Container[int]
    ) -> bool:
        # Records that can't be judged (unseen) count as cancelled if their canceller may be an
        # unread record.
        # What expired before it had an effect is no canceller; it was none if a later one acted.
        canceller = history.canceller(row["base"])
        if canceller is not None and own.has_lost(canceller.offset):
            return bool(row["when"] == IF_UNMARKED)
        is_known = history.is_certain(row["base"])
        mark = NEVER_MS if canceller is None else canceller.offset
        is_marked = mark < own.earlier.offset or (not is_known and row["offset"] in unseen)
        is_before = row["claim"] in range(row["base"], own.start)
        is_true: dict[int, bool] = {
            IF_MARKED: is_marked,
            IF_UNMARKED: not is_marked,
            UNLESS_MARKED: is_known and mark >= own.later.offset,
            IF_OTHER: mark != row["claim"] and (is_known or not is_before),
        }
        return is_true[row["when"]]


def _may_matter(line: Line, own: ShardRules, *, is_hidden: bool) -> bool:
    # H of the earlier cursor has not passed the record, so it may still cancel others; or it waits
    # for its home and has not arrived there; or it may have cancelled another record of its id,
    # which is judged again (is_hidden).
    if not line.settlement:
        return False
    waits = line.kind == HOMEBOUND and line.settlement == "requeued" and not line.is_home
    return is_hidden or waits or line.offset >= own.earlier.offset
