"""Judges the sorted ledger, on the executors: nearly all of it by columns, the rest one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from connectors.spark.audit.judge import (
    Finding,
    Rules,
    judge,
)
from connectors.spark.decode import without_collector
from connectors.spark.ledger.facts import (
    DELIVERED,
    NEVER_MS,
    PLAIN_OUTPUT,
    PLAIN_SOURCE,
    SOURCE,
    Output,
    OutputFacts,
    Source,
    SourceFacts,
)
from connectors.spark.ledger.rows import COUNTED, NO_SHARD
from delayservice.core.cursor import Cursor

JUDGED: Final = (
    "kind string, shard int, offset long, source string, target int, target_partition int, "
    "target_offset long, due_ms long, at_ms long, detail string, when byte, claim long, "
    "record_id binary, base long, since_ms long, number long"
)
"""Findings, certain or not, and counts: those have a ``number`` and ``shard`` -1."""

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
    ]
)
_FINDINGS_MAX: Final = 10_000
_PAIR: Final = 2

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
        self._partitions = np.array(rules.partitions, np.int64)
        self._earlier = _Cursors([shard.earlier for shard in rules.shards])
        self._later = _Cursors([shard.later for shard in rules.shards])

    def judge(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Rows of ``JUDGED``: the findings, and at last the counts."""
        with without_collector():
            for batch in whole_groups(batches):
                found = list(self._judge(self._without_counted(batch)))
                for start in range(0, len(found), _FINDINGS_MAX):
                    yield _findings_batch(found[start : start + _FINDINGS_MAX])
        if self._counts:
            yield _counts_batch(self._counts)

    def _without_counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        shards = batch.column("shard").to_numpy()
        if not len(shards) or shards[0] != NO_SHARD:
            return batch
        stop = int(np.searchsorted(shards, NO_SHARD, side="right"))
        counted = batch.slice(0, stop)
        for what, count in zip(
            counted.column("offset").to_pylist(), counted.column("place").to_pylist(), strict=True
        ):
            self._counts[COUNTED[what]] += count
        return batch.slice(stop)

    def _judge(self, batch: pa.RecordBatch) -> Iterator[Finding]:
        if not batch.num_rows:
            return
        starts = group_starts(batch)
        sizes = np.diff(np.append(starts, batch.num_rows))
        columns = _Columns(batch)
        self._counts["outputs"] += int(np.count_nonzero(columns.role != SOURCE))
        is_sound = np.zeros(len(starts), np.bool_)
        pairs = np.flatnonzero(sizes == _PAIR)
        is_sound[pairs] = self._are_delivered(columns, starts[pairs], starts[pairs] + 1)
        self._counts["delivered"] += int(np.count_nonzero(is_sound))
        singles = np.flatnonzero(sizes == 1)
        are_pending = self._are_pending(columns, starts[singles])
        is_sound[singles] = are_pending
        self._counts["pending"] += int(np.count_nonzero(are_pending))
        self._counts["sources"] += int(np.count_nonzero(is_sound))
        odd = np.flatnonzero(~is_sound)
        if len(odd):
            yield from self._judge_each(batch, starts[odd], sizes[odd])

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
        )
        return pending

    def _judge_each(
        self, batch: pa.RecordBatch, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> Iterator[Finding]:
        """The others, one group of rows after the other."""
        wanted = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, sizes, strict=True)])
        rows = list(
            zip(*(column.to_pylist() for column in batch.take(pa.array(wanted))), strict=True)
        )
        bounds = [0, *np.cumsum(sizes).tolist()]
        for start, stop in pairwise(bounds):
            group = rows[start:stop]
            shard, offset = group[0][:2]
            sources = [_source(row) for row in group if row[2] == SOURCE]
            outputs = [_output(row) for row in group if row[2] != SOURCE]
            source = sources[0] if sources else None
            yield from judge(source, outputs, shard, offset, self._rules, self._counts)


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
    """Where rows of another delay record begin, the first row included."""
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
    shard, offset, _, key_ms, due_ms, at_ms, content, topic, partition, _, _, more = row
    facts = PLAIN_SOURCE if more is None else _source_facts(more)
    return Source(shard, offset, key_ms, due_ms, at_ms, content, topic, partition, facts)


def _output(row: Sequence[Any]) -> Output:
    _, _, role, _, due_ms, at_ms, content, topic, partition, place, key_hash, more = row
    facts = PLAIN_OUTPUT if more is None else _output_facts(more)
    return Output(role, due_ms, at_ms, content, topic, partition, place, key_hash, facts)


def _findings_batch(found: Sequence[Finding]) -> pa.RecordBatch:
    return _batch([_finding_row(finding) for finding in found])


def _finding_row(f: Finding) -> tuple[Any, ...]:
    place: tuple[int | None, ...] = (None, None, None)
    at_ms = None
    if f.output is not None:
        place = (f.output.topic, f.output.partition, f.output.place)
        at_ms = f.output.at_ms
    due_ms = f.due_ms if f.due_ms > 0 else None
    return (
        *(f.kind, f.shard, f.offset, f.source, *place, due_ms, at_ms, f.detail),
        *(f.when, f.claim, f.record_id, f.base, f.since_ms, None),
    )


def _counts_batch(counts: Counter[str]) -> pa.RecordBatch:
    empty = (None,) * (len(_SCHEMA) - 3)
    return _batch([(name, NO_SHARD, *empty, number) for name, number in counts.items()])


def _batch(rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True))
    arrays = [pa.array(column, kind.type) for column, kind in zip(columns, _SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_SCHEMA)
