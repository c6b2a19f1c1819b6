"""Settles one partition of a level topic: rows in, outputs out, in the order of the log. A *row* is
a record as the consumer returned it.

All of its records wait equally long from the moment at which the broker appended them. So the log
is in due order, Kafka is the store, and the cursor is H alone: the next records are fetched ahead,
and the first is settled when it is due. Later ones wait for it, even if the broker's clock was set
back between the two and they are due earlier.

K only follows: it is the highest key that H has passed, so that rule 1 applies, and the topic can
become a normal delay topic. Rules 3 to 8 and 10 to 14 of ``docs/internals/design.md`` don't apply:
no record has an id or is pending below H, and records are requeued to another delay topic only. By
rule 7, H waits for the end of the log at take-over because a cancel or a requeued record may lie
between. Here the outcome of a record depends on no other record, so a new owner begins at H at
once. Open transactions of users need no care: a read-committed log ends before them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from delayservice.contract.codes import COPY_FORGED
from delayservice.contract.contracts import MAX_DELAY_MS_MAX, Contracts
from delayservice.contract.entry import (
    INVALID,
    OFFSET_MAX,
    SCHEDULE,
    UNREADABLE,
    Headers,
    PolledRecord,
)
from delayservice.contract.input_headers import ALIASES, RULES
from delayservice.contract.names import COPY_NAMES, DELAY_TARGET_TOPIC
from delayservice.contract.provenance import Provenance, due_header
from delayservice.contract.record import PARTITION_BY_KEY, RecordReader
from delayservice.engine.cursor import Cursor
from delayservice.engine.outcome import DELIVERED, Output
from delayservice.engine.settle import Settler

# All other headers are delivered.
_INPUT = frozenset((*RULES, *(alias.header for alias in ALIASES), *COPY_NAMES))
_TARGETS_MAX = 1_024
_NO_COPIES = "the service writes no copies to level topics"


class LevelRecords:
    """Builder of the outputs of one level topic's partition. Not thread-safe: it caches targets.
    ``reader`` decodes records with other input headers than a target, ``settler`` settles them.
    """

    def __init__(self, reader: RecordReader, contracts: Contracts, settler: Settler) -> None:
        self._reader = reader
        self._contracts = contracts
        self._settler = settler
        self._provenance = Provenance(settler.topic, settler.partition)
        self._enter(0)

    def _enter(self, offset: int) -> None:
        self._first, stop = self._contracts.span(offset)
        self._stop = OFFSET_MAX if stop is None else stop
        self._level_ms = self._contracts.at(offset).level_ms
        self._targets: dict[bytes | None, str] = {}

    def due_ms(self, row: PolledRecord) -> int:
        """Return the due time of a row, epoch milliseconds; 0: its timestamp is invalid."""
        if not 0 <= row[1] < MAX_DELAY_MS_MAX:
            return 0
        return row[1] + self._contracts.at(row[0]).level_ms

    def settle(self, rows: Iterable[PolledRecord], now_ms: int) -> list[Output]:
        """Return an output for each row, up to the first that is not due or can't be settled
        now. One function, because every record passes it.
        """
        outputs: list[Output] = []
        add = outputs.append
        origin = self._provenance.origin
        stamped_ms, due = 0, due_header(0)
        is_hindered = bool(self._settler.verdicts.refused or self._settler.has_limits)
        writable = self._settler.targets.writable
        first, stop, level_ms, targets = self._first, self._stop, self._level_ms, self._targets
        for row in rows:
            offset, timestamp_ms, key, value, headers = row
            if not first <= offset < stop:
                self._enter(offset)
                first, stop, level_ms, targets = (
                    *(self._first, self._stop, self._level_ms),
                    self._targets,
                )
            due_ms = timestamp_ms + level_ms
            if due_ms > now_ms and timestamp_ms < MAX_DELAY_MS_MAX:
                break
            is_plain = 0 <= timestamp_ms < MAX_DELAY_MS_MAX and headers is not UNREADABLE
            text: bytes | None = None
            own: Headers = []
            for header in headers or ():
                name = header[0]
                if name == DELAY_TARGET_TOPIC:
                    is_plain = is_plain and text is None and header[1] is not None
                    text = header[1]
                elif name in _INPUT:
                    is_plain = False
                else:
                    own.append(header)
            target = targets.get(text) if is_plain else None
            if target is not None and not is_hindered and (target, PARTITION_BY_KEY) in writable:
                if due_ms != stamped_ms:  # all records of a producer's batch have one timestamp
                    stamped_ms, due = due_ms, due_header(due_ms)
                own += (due, *origin(offset))
                add((DELIVERED, target, PARTITION_BY_KEY, key, value, own, due_ms, offset))
                continue
            output = self._settle_any(row, now_ms, plain_text=text if is_plain else b"")
            if output is None:
                break
            self._settler.targets.reserve([output])
            add(output)
        return outputs

    # None: it can't be settled now. ``plain_text`` is the key of the target cache; ``b""``: cache
    # nothing, as the header is invalid or not the only one.
    def _settle_any(
        self, row: PolledRecord, now_ms: int, plain_text: bytes | None
    ) -> Output | None:
        offset, kind, key_ms, _, payload, extra = self._reader.read(*row)
        if kind == INVALID:
            return self._settler.undelivered.dead_letter(offset, payload, *extra)
        if kind != SCHEDULE:
            original = (row[2], row[3], row[4] or [])
            return self._settler.undelivered.dead_letter(offset, original, COPY_FORGED, _NO_COPIES)
        if plain_text != b"" and self._settler.denial(payload[0]) is None:
            if len(self._targets) >= _TARGETS_MAX:
                self._targets.clear()
            self._targets[plain_text] = payload[0]
        return self._settler.settle(offset, key_ms, payload, now_ms, offset + 1)


class LevelShard:
    """State of one level topic's partition on one node. Not thread-safe.

    Like ``engine.shard.Shard`` it only *stages*: ``commit`` settles once the transaction was
    committed; else the shard is taken over anew. ``read`` is the next offset to fetch;
    ``records_max`` and ``bytes_max`` limit what is fetched and not staged.
    """

    # Unlike ``Shard``, there is no queue of records that H still has to pass.
    is_walked = True
    # A commit frees no room, because fetched rows wait for their due times.
    is_filling = False

    def __init__(self, records_max: int, bytes_max: int) -> None:
        self._records_max = records_max
        self._bytes_max = bytes_max
        self._records: LevelRecords | None = None
        self._rows: list[PolledRecord] = []
        self._staged_rows = 0
        self._bytes = 0
        self._end = 0
        self.owned = False
        self.read = 0
        self.committed = Cursor()
        self.staged = Cursor()

    # --- roles ---------------------------------------------------------------------------------

    def follow(self, cursor: Cursor) -> None:
        """Become a replica, with the newest checkpoint's cursor; a replica fetches no rows."""
        self._begin(cursor)
        self.owned = False

    def take_over(self, cursor: Cursor, end: int, records: LevelRecords) -> None:
        """Become the owner from ``cursor`` on. ``end``: end offset of the log now."""
        self._begin(cursor)
        self.owned = True
        self._end = end
        self._records = records

    def go_back(self, offset: int) -> None:
        """Drop all fetched rows and go on from ``offset``, where the truncated log holds others
        now.
        """
        self._begin(Cursor(self.committed.key, offset))

    def _begin(self, cursor: Cursor) -> None:
        self._rows.clear()
        self._staged_rows = self._bytes = 0
        self.committed = self.staged = cursor
        self.read = cursor.offset

    # --- fetch ahead ---------------------------------------------------------------------------

    def reaches(self, end: int) -> None:
        self._end = max(self._end, end)

    @property
    def stored(self) -> int:
        return max(self._end, self.read)

    @property
    def pending(self) -> int:
        return self.stored - self.committed.offset

    def ingest(self, rows: Sequence[PolledRecord], stop: int) -> None:
        """Add the fetched rows of the log from offset ``read`` up to ``stop``, exclusive."""
        self._rows += rows
        self._bytes += _content_bytes(rows)
        self.read = stop

    @property
    def waiting(self) -> int:
        return len(self._rows) - self._staged_rows

    @property
    def is_full(self) -> bool:
        return self.waiting >= self._records_max or self._bytes >= self._bytes_max

    @property
    def has_room(self) -> bool:
        return 2 * self.waiting <= self._records_max and 2 * self._bytes <= self._bytes_max

    # --- settle --------------------------------------------------------------------------------

    def next_due_ms(self) -> int | None:
        """Return the due time, epoch ms, of the first fetched row that is not staged."""
        if self._records is None or not self.waiting:
            return None
        return self._records.due_ms(self._rows[self._staged_rows])

    @property
    def mean_bytes(self) -> float:
        return max(self._bytes / max(len(self._rows), 1), 1.0)

    def advance(self, now_ms: int, limit: int) -> list[Output]:
        """Stage rows that are due at ``now_ms``, epoch ms, at most ``limit``; return their
        outputs. Offsets without a record are passed too: transaction markers and aborted
        records.
        """
        if self._records is None or not self.owned:
            return []
        at = self._staged_rows
        outputs = self._records.settle(self._rows[at : at + limit], now_ms)
        at += len(outputs)
        self._staged_rows = at
        reached = self._rows[at][0] if at < len(self._rows) else self.read
        key = self.staged.key
        if outputs:
            last_due_ms = max([output[6] for output in outputs])
            key = max(key, (last_due_ms, outputs[-1][7]))
        self.staged = Cursor(key, reached)
        return outputs

    # --- commit --------------------------------------------------------------------------------

    @property
    def is_staged(self) -> bool:
        return self.staged != self.committed

    def commit(self) -> None:
        gone = self._rows[: self._staged_rows]
        del self._rows[: self._staged_rows]
        self._bytes = self._bytes - _content_bytes(gone) if self._rows else 0
        self._staged_rows = 0
        self.committed = self.staged


def _content_bytes(rows: Sequence[PolledRecord]) -> int:
    contents = sum([len(key or b"") + len(value or b"") for _, _, key, value, _ in rows])
    texts = [len(name) + len(text or b"") for row in rows for name, text in row[4] or ()]
    return contents + sum(texts)
