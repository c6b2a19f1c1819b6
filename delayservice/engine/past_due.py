"""Append times of records that were due before they were written; their lateness counts from
these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delayservice.contract.entry import SCHEDULE, Entry, Row
from delayservice.engine.cursor import Cursor
from delayservice.engine.pending import NO_MARK

NOTED_MAX: Final = 20_000
"""Largest number of noted records; the lateness of further ones counts from their due times."""


class PastDue(dict[int, int]):
    """Append times, epoch milliseconds, by source offset, of unsettled records that were due before
    they were written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys_ms: dict[int, int] = {}

    def note(self, rows: Sequence[Row], entries: Sequence[Entry]) -> None:
        """Note the append times of those ``rows`` (consumed records) that were due before they were
        written, as long as fewer than ``NOTED_MAX`` are noted. ``entries``: the rows decoded, in
        the same order.
        """
        found = [
            (entry[0], row[1], entry[2])
            for row, entry in zip(rows, entries, strict=True)
            if entry[2] < row[1] and entry[1] == SCHEDULE
        ]
        for offset, written_ms, key_ms in found[: NOTED_MAX - len(self)]:
            self[offset] = written_ms
            self._keys_ms[offset] = key_ms

    def forget(self, committed: Cursor) -> None:
        """Drop the records that are settled by ``committed``, the cursor of the shard as last
        committed.
        """
        keys = self._keys_ms
        gone = [o for o in keys if committed.has_settled((keys[o], o), NO_MARK)]
        for offset in gone:
            del self[offset], keys[offset]
