"""A step of an audit that follows, without Spark: for few records, Spark would need longer to start
its jobs than they need. The judge gets all records, where ``engine`` leaves it only the odd ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final, TypeAlias

import pyarrow as pa
from pyarrow import dataset

from connectors.kafka.scan import row_of
from connectors.spark.audit.carried_state import CarriedState, waiting_kind
from connectors.spark.audit.engine import FoundRows, StepResult
from connectors.spark.audit.evidence import Evidence
from connectors.spark.audit.row_judges import COUNT, JUDGED_NAMES, PassedTimes, RowJudge
from connectors.spark.audit.rules import OPEN as HIDDEN
from connectors.spark.audit.rules import Rules
from connectors.spark.audit.sieve import BLOCK_BITS
from connectors.spark.audit.state import (
    BITMAP_BITS,
    GONE,
    IDENTIFIED,
    JUDGED,
    JUDGED_ROWS,
    OPEN,
    RECENT,
    SPECIAL,
    WAITING,
    StoredRun,
)
from connectors.spark.audit.verdicts import (
    ABOUT,
    FINDING_NAMES,
    FOUND,
    SETTLED,
    UNJUDGED,
    RecordVerdict,
    with_id,
)
from connectors.spark.common import frames
from connectors.spark.common.decode import without_collector
from connectors.spark.common.files import read_parquet
from connectors.spark.common.topics import Place, Span
from connectors.spark.ledger.facts import (
    DELIVERED,
    NEVER_MS,
    OUTCOME,
    REMEMBERED,
    SOURCE,
    SOURCES,
)
from connectors.spark.ledger.outputs import OutputReader
from connectors.spark.ledger.rows import NO_ID, NO_SHARD, SCHEMA, Ledger, LedgerRow, batch_of
from connectors.spark.ledger.sources import SourceReader

ROWS_MAX: Final = 200_000
"""Largest number of new offsets, and of stored rows, of a step without Spark."""

_AT_ONCE: Final = 1_000

ReadLogs: TypeAlias = Callable[[dict[Place, Span]], Iterator[Any]]
"""Function from the offsets of some logs to their messages, as ``clients.read_logs``."""


def judged_here(
    logs: ReadLogs, evidence: Evidence, rules: Rules, ledger: Ledger, held: CarriedState
) -> StepResult[FoundRows] | None:
    """Judge the records of one step, and store what the next one reads. None: there are too many,
    or a log can't be read, for example as retention has just deleted some of it; Spark can judge
    such a step, or says what is wrong.
    """
    _, old = held.left()
    if evidence.offsets > ROWS_MAX or sum(run.rows for run in old) > ROWS_MAX:
        return None
    stored = _StoredRows(held)
    try:
        with without_collector():
            rows = list(_read(logs, evidence, ledger))
            rows += stored.beside(rows)
            rows += stored.look_up(_unmatched(rows))
            judge, found = judge_all(rows, rules)
    except _OnlyOnSparkError:
        return None
    runs = stored.keep(found)
    told = told_by(judge, found, rows)
    findings = {kind: [_finding(row) for row in told if row["verdict"] == kind] for kind in _SAID}
    return StepResult(findings[FOUND], findings[UNJUDGED], counts_of(told, judge), runs)


_SAID: Final = (FOUND, UNJUDGED)


class _OnlyOnSparkError(Exception):
    """This step can't be made without Spark."""


def _read(logs: ReadLogs, evidence: Evidence, ledger: Ledger) -> Iterator[LedgerRow]:
    sources = SourceReader(ledger)
    messages = logs(dict(evidence.spans))
    for place, held in groupby(messages, lambda message: (message.topic(), message.partition())):
        while some := list(islice(held, _AT_ONCE)):
            if any(message.error() is not None for message in some):
                raise _OnlyOnSparkError
            rows = [row_of(message) for message in some]
            if place in ledger.shards:
                yield from sources.rows(place, rows)
            else:
                yield from OutputReader(ledger, place).rows(rows)


def _unmatched(rows: Iterable[LedgerRow]) -> set[tuple[int, int]]:
    known = {row[:2] for row in rows if row.role in (SOURCE, REMEMBERED)}
    return {row[:2] for row in rows if row.role not in SOURCES and row.shard != NO_SHARD} - known


# --- judge ---------------------------------------------------------------------------------------


def judge_all(rows: Iterable[LedgerRow], rules: Rules) -> tuple[RowJudge, list[RecordVerdict]]:
    """Judge all rows but those of ``NO_SHARD``; return the judge, with its counts, and its
    verdicts.
    """
    told = [row for row in rows if row.shard != NO_SHARD]
    ids = {row[:2]: row.id_hash for row in told if row.role == SOURCE}
    families = [(row.id_hash if row.role in SOURCES else 0) or ids.get(row[:2]) for row in told]
    pairs = [(family or hash(row[:2]), row) for family, row in zip(families, told, strict=True)]
    judge = RowJudge(rules, PassedTimes())
    lone = (pair for pair, family in zip(pairs, families, strict=True) if not family)
    found = list(judge.verdicts(sorted(lone, key=_in_order)))
    of_ids = [pair for pair, family in zip(pairs, families, strict=True) if family]
    if of_ids:
        of_ids.sort(key=_in_order)
        # What settled records shows when H had passed those of an id.
        at_first = RowJudge(rules, PassedTimes()).verdicts(of_ids)
        passed = PassedTimes(BLOCK_BITS, _passed([*found, *at_first]))
        again = RowJudge(rules, passed)
        found += again.verdicts(of_ids)
        judge.counts.update(again.counts)
    return judge, found


def _in_order(pair: tuple[int, LedgerRow]) -> tuple[int, ...]:
    family, row = pair
    return (row.shard, family, row.offset, row.role not in SOURCES, row.at_ms, row.place)


def _passed(found: Sequence[RecordVerdict]) -> Iterator[tuple[int, int, int]]:
    wrong = {(one.shard, one.offset) for one in found if one.verdict in _SAID}
    for one in found:
        row = one.row
        is_right = one.verdict == SETTLED and (one.shard, one.offset) not in wrong
        if is_right and row is not None and row.kind in (DELIVERED, OUTCOME):
            yield one.shard, one.offset >> BLOCK_BITS, row.at_ms


def told_by(
    judge: RowJudge, found: Iterable[RecordVerdict], rows: Iterable[LedgerRow]
) -> list[dict[str, Any]]:
    """Return what users are told, columns ``JUDGED``: of verdicts, and of rows of ``NO_SHARD``."""
    told = [judge.columns(one) for one in found if one.verdict in _SAID]
    told += [judge.of_no_shard(row) for row in rows if row.shard == NO_SHARD]
    return [dict(zip(JUDGED_NAMES, columns, strict=True)) for columns in told]


def counts_of(told: Iterable[Mapping[str, Any]], judge: RowJudge) -> dict[str, int]:
    counts = Counter(judge.counts)
    for row in told:
        if row["verdict"] == COUNT:
            counts[row["kind"]] += row["number"]
    return dict(sorted(counts.items()))


def _finding(row: Mapping[str, Any]) -> dict[str, Any]:
    about = {
        record: row[output] if row[record] is None else row[record]
        for record, output in ABOUT.items()
    }
    found = with_id({**row, **about})
    return {name: found[name] for name in FINDING_NAMES}


# --- state ---------------------------------------------------------------------------------------


class _StoredRows:
    """As ``CarriedState``, with lists of rows."""

    def __init__(self, held: CarriedState) -> None:
        self._held = held
        self._found: list[LedgerRow] = []

    def beside(self, new: Sequence[LedgerRow]) -> list[LedgerRow]:
        held = self._held
        opened, due = self._rows((OPEN,)), self._live(held.after_ms, held.due_ms)
        ids = {(row.shard, row.id_hash) for row in (*new, *opened) if row.id_hash != NO_ID}
        if ids:
            is_named = _is_in("id_hash", {number for _, number in ids})
            named = self._live(held.due_ms, NEVER_MS, (IDENTIFIED,), is_named)
            self._found = [row for row in named if (row.shard, row.id_hash) in ids]
        return [*opened, *due, *self._found]

    def look_up(self, keys: set[tuple[int, int]]) -> list[LedgerRow]:
        if not keys:
            return []
        is_asked = _is_in("offset", {offset for _, offset in keys})
        pending = self._live(self._held.due_ms, NEVER_MS, WAITING, is_asked)
        early = [row for row in pending if row[:2] in keys]
        self._found += early
        late = keys - {row[:2] for row in early}
        kept = sorted(self._rows((RECENT, SPECIAL), is_asked), key=lambda row: row.due_ms)
        newest = {row[:2]: row for row in kept if row[:2] in late}
        return [*early, *newest.values(), *self._judged(late - newest.keys())]

    def _live(
        self,
        after_ms: int,
        until_ms: int,
        kinds: Sequence[str] = WAITING,
        where: dataset.Expression | None = None,
    ) -> list[LedgerRow]:
        key_ms = dataset.field("key_ms")
        is_asked = (key_ms > after_ms) & (key_ms <= until_ms)
        is_asked = is_asked if where is None else is_asked & where
        gone = {row[:2] for row in self._rows((GONE,), is_asked)}
        return [row for row in self._rows(kinds, is_asked) if row[:2] not in gone]

    def _rows(
        self, kinds: Sequence[str], where: dataset.Expression | None = None
    ) -> list[LedgerRow]:
        return _rows_of(self._read(kinds, where, SCHEMA))

    def _judged(self, keys: set[tuple[int, int]]) -> list[LedgerRow]:
        blocks = {offset // BITMAP_BITS + 1 for _, offset in keys}
        where = _is_in("shard", {shard for shard, _ in keys}) & _is_in("block", blocks)
        asked: dict[tuple[int, int], list[int]] = defaultdict(list)
        for shard, offset in keys:
            asked[shard, offset // BITMAP_BITS + 1].append(offset)
        return [
            LedgerRow(row["shard"], offset, REMEMBERED, row["kind"], topic=row["topic"])
            for row in self._read((JUDGED,), where, _BITMAPS).to_pylist()
            for offset in asked[row["shard"], row["block"]]
            if _has_bit(row["offsets"], offset % BITMAP_BITS)
        ]

    def _read(
        self, kinds: Sequence[str], where: dataset.Expression | None, schema: pa.Schema
    ) -> pa.Table:
        paths = [self._held.state.path_of(run) for run in self._held.runs if run.kind in kinds]
        read = read_parquet(paths, schema, where, ROWS_MAX + 1)
        if len(read) > ROWS_MAX:
            raise _OnlyOnSparkError
        return read

    def keep(self, found: Iterable[RecordVerdict]) -> tuple[StoredRun, ...]:
        held, rows = self._held, defaultdict[str, list[LedgerRow]](list)
        known, moved = {_identity(row) for row in self._found}, set()
        for one in found:
            row = one.row
            if row is None:
                continue
            if one.verdict == SETTLED:
                moved.add(row[:2])
                kind = RECENT if row.more is None else SPECIAL
                rows[kind].append(row._replace(due_ms=held.number))
            elif one.kind == HIDDEN:
                moved.add(row[:2])
                rows[OPEN].append(row)
            elif _identity(row) not in known:
                rows[waiting_kind(row, held.due_ms)].append(row)
        rows[GONE] = [row for row in self._found if row[:2] in moved]
        left, old = held.left()
        past = _rows_of(read_parquet([held.state.path_of(run) for run in old], SCHEMA))
        if not held.grace_ms:
            past += rows.pop(RECENT, [])
        tables = {kind: _by_key(some) for kind, some in rows.items() if some}
        if past:
            tables[JUDGED] = _folded(past)
        new = [
            held.state.write_table(kind, table, held.number, held.taken_ms)
            for kind, table in tables.items()
        ]
        return held.merged(left + new)


_BITMAPS: Final = frames.arrow_schema(JUDGED_ROWS)
_BYTE: Final = 8


def _is_in(name: str, numbers: Iterable[int]) -> dataset.Expression:
    return dataset.field(name).isin(pa.array(sorted(numbers), pa.int64()))


def _identity(row: LedgerRow) -> tuple[int, ...]:
    return (*row[:3], row.topic, row.partition, row.place)


def _rows_of(table: pa.Table) -> list[LedgerRow]:
    return list(map(LedgerRow, *(column.to_pylist() for column in table.columns)))


def _by_key(rows: list[LedgerRow]) -> pa.Table:
    rows.sort(key=lambda row: row.key_ms)
    return pa.Table.from_batches([batch_of(rows)])


def _folded(rows: Iterable[LedgerRow]) -> pa.Table:
    # As Spark's bitmap_construct_agg.
    bitmaps: dict[tuple[int, ...], bytearray] = defaultdict(lambda: bytearray(BITMAP_BITS // _BYTE))
    for row in rows:
        block, bit = divmod(row.offset, BITMAP_BITS)
        place = (row.shard, row.kind, row.topic, block + 1)
        bitmaps[place][bit // _BYTE] |= 1 << bit % _BYTE
    made = [(*place, bytes(bits)) for place, bits in sorted(bitmaps.items())]
    return pa.Table.from_batches([frames.batch_of(made, _BITMAPS)])


def _has_bit(bitmap: bytes, bit: int) -> bool:
    return bool(bitmap[bit // _BYTE] >> bit % _BYTE & 1)
