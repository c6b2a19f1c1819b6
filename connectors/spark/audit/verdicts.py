"""Judges the sorted ledger, on the executors: nearly all of it by columns, the rest one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice, pairwise
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from connectors.spark.audit.judge import (
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
    Finding,
    as_refused,
    judge,
    line_of,
)
from connectors.spark.audit.rules import Rules, ShardRules
from connectors.spark.common.decode import without_collector
from connectors.spark.ledger.facts import (
    DELIVERED,
    NAMED,
    NEVER_MS,
    PLAIN_OUTPUT,
    PLAIN_SOURCE,
    SOURCE,
    Output,
    OutputFacts,
    Source,
    SourceFacts,
)
from connectors.spark.ledger.ids import IdHistory, Line
from connectors.spark.ledger.rows import COUNTED, NO_SHARD, NOWHERE
from connectors.spark.ledger.rows import MALFORMED as MALFORMED_ROW
from delayservice.core.cursor import Cursor
from delayservice.core.entry import INVALID

JUDGED: Final = (
    "kind string, shard int, offset long, source string, target int, target_partition int, "
    "target_offset long, due_ms long, at_ms long, detail string, when byte, claim long, "
    "record_id binary, base long, since_ms long, number long, verdict byte, aim int, line binary"
)
"""Columns of the judge's rows. ``verdict`` tells what a row is: a finding or something unjudged,
certain or not; a line of an id's history; when a block of offsets was passed at the latest
(``offset`` is the block); or a count (``number``). The last two have the shard only."""

LINE: Final = 2
PASSED: Final = 3
COUNT: Final = 4
"""Verdicts beside those of ``judge``."""

BLOCK_BITS: Final = 8
"""Size of a block of offsets, as a power of two: the time at which H passed is kept by block."""

_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("shard", pa.int32()),
        ("offset", pa.int64()),
        ("source", pa.string()),
        ("target", pa.int32()),
        ("target_partition", pa.int32()),
        ("target_offset", pa.int64()),
        ("due_ms", pa.int64()),
        ("at_ms", pa.int64()),
        ("detail", pa.string()),
        ("when", pa.int8()),
        ("claim", pa.int64()),
        ("record_id", pa.binary()),
        ("base", pa.int64()),
        ("since_ms", pa.int64()),
        ("number", pa.int64()),
        ("verdict", pa.int8()),
        ("aim", pa.int32()),
        ("line", pa.binary()),
    ]
)
_FINDINGS_MAX: Final = 10_000
_PAIR: Final = 2
_BLOCK_MASK: Final = (1 << 48) - 1

_Row: TypeAlias = dict[str, Any]
"""A row of ``JUDGED``; what is missing is null."""

_pack: Final = msgspec.msgpack.Encoder().encode
_unpack_line: Final = msgspec.msgpack.Decoder(Line).decode
_source_facts: Final = msgspec.msgpack.Decoder(SourceFacts).decode
_output_facts: Final = msgspec.msgpack.Decoder(OutputFacts).decode

Mask = NDArray[np.bool_]


class Court:
    """Judges batches of a ledger that is sorted by shard, offset and role.

    Args:
        rules: what to judge by.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._counts: Counter[str] = Counter()
        self._passed: dict[tuple[int, int], int] = {}
        self._partitions = np.array(rules.partitions, np.int64)
        self._earlier = _Cursors([shard.earlier for shard in rules.shards])
        self._later = _Cursors([shard.later for shard in rules.shards])

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Rows of ``JUDGED``: the findings, and at last the counts."""
        with without_collector():
            for batch in whole_groups(batches):
                yield from _batches(self._judge_batch(batch))
        yield from _batches(
            {"verdict": PASSED, "shard": shard, "offset": block, "at_ms": at_ms}
            for (shard, block), at_ms in self._passed.items()
        )
        yield from _batches(
            {"verdict": COUNT, "kind": kind, "shard": NO_SHARD, "number": number}
            for kind, number in self._counts.items()
        )

    def _judge_batch(self, batch: pa.RecordBatch) -> Iterator[_Row]:
        shards = batch.column("shard").to_numpy()
        stop = int(np.searchsorted(shards, NO_SHARD, side="right"))
        yield from self._of_no_shard(batch.slice(0, stop))
        yield from self._judge(batch.slice(stop))

    def _of_no_shard(self, batch: pa.RecordBatch) -> Iterator[_Row]:
        """Count what settles nothing, and find what says so in a wrong way."""
        for row in batch.to_pylist():
            what = row["offset"]
            if what not in (MALFORMED_ROW, NOWHERE):
                self._counts[COUNTED[what]] += row["place"]
                continue
            yield {
                "verdict": FOUND,
                "when": CERTAIN,
                "kind": MALFORMED if what == MALFORMED_ROW else UNKNOWN_SOURCE,
                "shard": NO_SHARD,
                "target": row["topic"],
                "target_partition": row["partition"],
                "target_offset": row["place"],
                "at_ms": row["at_ms"],
                "detail": row["more"].decode(),
            }

    def _judge(self, batch: pa.RecordBatch) -> Iterator[_Row]:
        if not batch.num_rows:
            return
        starts = group_starts(batch)
        sizes = np.diff(np.append(starts, batch.num_rows))
        columns = _Columns(batch)
        self._counts["outputs"] += int(np.count_nonzero(columns.role != SOURCE))
        is_sound = np.zeros(len(starts), np.bool_)
        pairs = np.flatnonzero(sizes == _PAIR)
        is_sound[pairs] = self._are_delivered(columns, starts[pairs], starts[pairs] + 1)
        self._note_passed(columns, starts[pairs][is_sound[pairs]])
        self._counts["delivered"] += int(np.count_nonzero(is_sound))
        singles = np.flatnonzero(sizes == 1)
        are_pending = self._are_pending(columns, starts[singles])
        is_sound[singles] = are_pending
        self._counts["pending"] += int(np.count_nonzero(are_pending))
        self._counts["sources"] += int(np.count_nonzero(is_sound))
        odd = np.flatnonzero(~is_sound)
        if len(odd):
            yield from self._judge_each(batch, starts[odd], sizes[odd])

    def _note_passed(self, columns: _Columns, source: NDArray[np.int64]) -> None:
        """H had passed these records when they were settled."""
        blocks = (columns.shard[source].astype(np.int64) << 48) | (
            columns.offset[source] >> BLOCK_BITS
        )
        found, at = np.unique(blocks, return_inverse=True)
        first_ms = np.full(len(found), NEVER_MS, np.int64)
        np.minimum.at(first_ms, at, columns.at_ms[source + 1])
        for block, at_ms in zip(found.tolist(), first_ms.tolist(), strict=True):
            key = (block >> 48, block & _BLOCK_MASK)
            self._passed[key] = min(at_ms, self._passed.get(key, NEVER_MS))

    def _are_delivered(
        self, columns: _Columns, source: NDArray[np.int64], output: NDArray[np.int64]
    ) -> Mask:
        """Which pairs of rows are a plain record and its one delivery, with nothing wrong."""
        c, rules = columns, self._rules
        due_ms, at_ms = c.due_ms[source], c.at_ms[output]
        named, held = c.partition[source], c.partition[output]
        key_hash, topic = c.key_hash[output], c.topic[output]
        late_ms = NEVER_MS if rules.late_ms is None else rules.late_ms
        by_key = (key_hash < 0) | (key_hash % self._partitions[topic] == held)
        sound: Mask = (
            (c.role[source] == SOURCE)
            & (c.role[output] == DELIVERED)
            & c.is_plain[source]
            & c.is_plain[output]
            & (c.content[source] == c.content[output])
            & (c.topic[source] == topic)
            & (due_ms == c.due_ms[output])
            & np.where(named >= 0, named == held, by_key)
            & (at_ms >= due_ms - rules.early_ms)
            & (at_ms - np.maximum(due_ms, c.at_ms[source]) <= late_ms)
            & self._later.have_settled(c, source)
        )
        return sound

    def _are_pending(self, columns: _Columns, rows: NDArray[np.int64]) -> Mask:
        """Which rows are plain records that need no settlement yet."""
        pending: Mask = (
            (columns.role[rows] == SOURCE)
            & columns.is_plain[rows]
            & ~self._earlier.have_settled(columns, rows)
            & (
                np.maximum(columns.key_ms[rows], columns.at_ms[rows])
                >= self._rules.overdue_since_ms
            )
        )
        return pending

    def _judge_each(
        self, batch: pa.RecordBatch, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Iterator[_Row]:
        """The others, one group of rows after the other."""
        wanted = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, sizes, strict=True)])
        rows = list(
            zip(*(column.to_pylist() for column in batch.take(pa.array(wanted))), strict=True)
        )
        bounds = [0, *np.cumsum(sizes).tolist()]
        for start, stop in pairwise(bounds):
            group = rows[start:stop]
            shard, offset = group[0][:2]
            outputs = [_output(row) for row in group if row[2] not in (SOURCE, NAMED)]
            sources = [as_refused(_source(row), outputs) for row in group if row[2] == SOURCE]
            named = [_source(row) for row in group if row[2] == NAMED]
            source = sources[0] if sources else None
            found: list[Finding] = []
            if not named:
                found += judge(source, outputs, shard, offset, self._rules, self._counts)
            yield from [_finding_row(one) for one in found]
            for one in (*sources, *named):
                if one.facts.record_id is not None and one.facts.kind != INVALID:
                    yield _line_row(one, outputs, found, self._rules)


class _Cursors:
    """Cursors of all shards, to ask of many records at once what ``Cursor.has_settled`` says."""

    def __init__(self, cursors: Sequence[Cursor]) -> None:
        self._key_ms = np.array([cursor.key[0] for cursor in cursors], np.int64)
        self._key_offset = np.array([cursor.key[1] for cursor in cursors], np.int64)
        self._offset = np.array([cursor.offset for cursor in cursors], np.int64)

    def have_settled(self, columns: _Columns, rows: NDArray[np.int64]) -> Mask:
        shard, offset, key_ms = columns.shard[rows], columns.offset[rows], columns.key_ms[rows]
        k_ms = self._key_ms[shard]
        by_key = (key_ms < k_ms) | ((key_ms == k_ms) & (offset <= self._key_offset[shard]))
        settled: Mask = (offset < self._offset[shard]) & by_key
        return settled


class _Columns:
    """Columns of a batch, as numbers."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.shard = batch.column("shard").to_numpy()
        self.offset = batch.column("offset").to_numpy()
        self.role = batch.column("role").to_numpy()
        self.key_ms = batch.column("key_ms").to_numpy()
        self.due_ms = batch.column("due_ms").to_numpy()
        self.at_ms = batch.column("at_ms").to_numpy()
        self.content = batch.column("content").to_numpy()
        self.topic = batch.column("topic").to_numpy()
        self.partition = batch.column("partition").to_numpy()
        self.key_hash = batch.column("key_hash").to_numpy()
        self.is_plain = batch.column("more").is_null().to_numpy(zero_copy_only=False)


def group_starts(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the indices at which the rows of a delay record begin; 0 is the first."""
    shard, offset = batch.column("shard").to_numpy(), batch.column("offset").to_numpy()
    changes = (np.diff(shard) != 0) | (np.diff(offset) != 0)
    return np.append(np.int64(0), np.flatnonzero(changes) + 1)


def whole_groups(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Batches cut so that all rows of a delay record are in one of them."""
    kept: pa.RecordBatch | None = None
    for batch in batches:
        joined = batch if kept is None else pa.concat_batches([kept, batch])
        if not joined.num_rows:
            continue
        last = int(group_starts(joined)[-1])
        kept = joined.slice(last)
        if last:
            yield joined.slice(0, last)
    if kept is not None:
        yield kept


def _source(row: Sequence[Any]) -> Source:
    shard, offset, _, key_ms, due_ms, at_ms, content, topic, partition, _, key_hash, more = row
    facts = PLAIN_SOURCE if more is None else _source_facts(more)
    return Source(shard, offset, key_ms, due_ms, at_ms, content, topic, partition, facts, key_hash)


def _output(row: Sequence[Any]) -> Output:
    _, _, role, _, due_ms, at_ms, content, topic, partition, place, key_hash, more = row
    facts = PLAIN_OUTPUT if more is None else _output_facts(more)
    return Output(role, due_ms, at_ms, content, topic, partition, place, key_hash, facts)


def _finding_row(f: Finding) -> _Row:
    row: _Row = {
        "verdict": f.verdict,
        "kind": f.kind,
        "shard": f.shard,
        "offset": f.offset,
        "source": f.source,
        "due_ms": f.due_ms if f.due_ms > 0 else None,
        "detail": f.detail,
        "when": f.when,
        "claim": f.claim,
        "record_id": f.record_id,
        "base": f.base,
        "since_ms": f.since_ms,
        "aim": f.aim,
    }
    return row if f.output is None else row | _place_of(f.output)


def _place_of(output: Output) -> _Row:
    return {
        "target": output.topic,
        "target_partition": output.partition,
        "target_offset": output.place,
        "at_ms": output.at_ms,
    }


def _line_row(
    source: Source, outputs: Sequence[Output], found: Sequence[Finding], rules: Rules
) -> _Row:
    """A line of its id's history, and where its settlement is, for a finding about that."""
    row: _Row = {
        "verdict": LINE,
        "shard": source.shard,
        "offset": source.offset,
        "source": source.facts.origin or f"{rules.shards[source.shard].name}:{source.offset}",
        "due_ms": source.due_ms if source.due_ms > 0 else None,
        "when": CERTAIN,
        "record_id": source.facts.record_id,
        "line": _pack(line_of(source, outputs, found, rules)),
    }
    return row | _place_of(outputs[0]) if outputs else row


def _batches(rows: Iterable[_Row]) -> Iterator[pa.RecordBatch]:
    kept = iter(rows)
    while some := list(islice(kept, _FINDINGS_MAX)):
        yield pa.RecordBatch.from_pylist(some, schema=_SCHEMA)


# --- by id ---------------------------------------------------------------------------------------


class Passed:
    """The latest times at which H passed offsets of one shard, from the settlements behind them.

    Args:
        blocks: ``(block of offsets, when one of it was settled)``.
    """

    def __init__(self, blocks: Iterable[tuple[int, int]] = ()) -> None:
        held = sorted(blocks)
        self._blocks = np.array([block for block, _ in held], np.int64)
        at_ms = np.array([at for _, at in held], np.int64)
        self._at_ms = np.minimum.accumulate(at_ms[::-1])[::-1]

    def __call__(self, offset: int, grace_ms: int = 0) -> int | None:
        """Return the instant, epoch milliseconds, and so much later as outputs may be ahead of
        their checkpoint; None: it is not known.
        """
        at = int(np.searchsorted(self._blocks, offset >> BLOCK_BITS, side="right"))
        return int(self._at_ms[at]) + grace_ms if at < len(self._blocks) else None


class IdCourt:
    """Judges what depends on other records of the same id.

    Args:
        rules: what to judge by.
        passed: by the shards' numbers.
    """

    def __init__(self, rules: Rules, passed: Mapping[int, Passed]) -> None:
        self._rules = rules
        self._passed = passed

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Certain rows of ``JUDGED``, of rows that bear an id, sorted by shard, id and offset."""
        rows = (row for batch in batches for row in batch.to_pylist())
        with without_collector():
            for (shard, _), group in groupby(rows, lambda row: (row["shard"], row["record_id"])):
                yield from _batches(self._judge(shard, list(group)))

    def _judge(self, shard: int, rows: Sequence[_Row]) -> Iterator[_Row]:
        own = self._rules.shards[shard]
        held = [row for row in rows if row["verdict"] == LINE]
        lines = [_unpack_line(row["line"]) for row in held]
        history = IdHistory(lines, own.known_from)
        for row in rows:
            if row["verdict"] != LINE and self._is_true(row, own, history):
                yield row | {"when": CERTAIN}
        passed_ms = self._passed.get(shard, Passed())
        grace_ms = self._rules.grace_ms  # what was ahead of its checkpoint proves nothing yet
        for number, why in history.judge(
            lambda offset: passed_ms(offset, grace_ms), self._rules.lag_ms
        ):
            yield held[number] | {
                "verdict": FOUND,
                "kind": WRONG_OUTCOME,
                "detail": why,
                "line": None,
            }

    def _is_true(self, row: _Row, own: ShardRules, history: IdHistory) -> bool:
        """Return whether a finding that depends on the record's canceller is one."""
        canceller = history.canceller(row["base"])
        mark = NEVER_MS if canceller is None else canceller.offset
        if not history.is_certain(row["base"]):  # the canceller may be another one, before it
            is_unseen = row["claim"] in range(row["base"], own.known_from)
            are_true = {
                IF_MARKED: mark < own.earlier.offset or row["verdict"] == UNJUDGED,
                IF_OTHER: mark != row["claim"] and not is_unseen,
            }
            return bool(are_true.get(row["when"]))
        are_true = {
            IF_MARKED: mark < own.earlier.offset,
            IF_UNMARKED: mark >= own.earlier.offset,
            UNLESS_MARKED: mark >= own.later.offset,
            IF_OTHER: mark != row["claim"],
        }
        return bool(are_true[row["when"]])
