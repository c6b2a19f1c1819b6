"""Settles rows of one level topic's partition, in the order of the log. A *row* is a record as the
consumer returned it.
"""

from __future__ import annotations

from collections.abc import Iterable

from delayservice.contract import provenance
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
from delayservice.contract.input_headers import KNOWN
from delayservice.contract.names import DELAY_TARGET_TOPIC
from delayservice.contract.provenance import Provenance, due_header
from delayservice.contract.record import PARTITION_BY_KEY, RecordReader
from delayservice.engine.outcome import DELIVERED, Output
from delayservice.engine.settle import Settler

# All other headers are delivered.
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
        writable, large_bytes = self._settler.targets.writable, provenance.LARGE_BYTES
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
            content_bytes = len(value or b"")
            for header in headers or ():
                name = header[0]
                if name == DELAY_TARGET_TOPIC:
                    is_plain = is_plain and text is None and header[1] is not None
                    text = header[1]
                elif name in KNOWN:
                    is_plain = False
                else:
                    own.append(header)
                    content_bytes += len(header[1] or b"")
            target = targets.get(text) if is_plain else None
            is_fit = content_bytes <= large_bytes and (target, PARTITION_BY_KEY) in writable
            if target is not None and is_fit and not is_hindered:
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
