from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from delayservice.contract.entry import SCHEDULE, Entry, Row
from delayservice.engine.cursor import Cursor
from delayservice.engine.pending import NO_MARK

# The lateness of further ones counts from their due times.
NOTED_MAX: Final = 20_000


class PastDue(dict[int, int]):
    """Append times, epoch ms, by source offset, of unsettled records that were due before then."""

    def __init__(self) -> None:
        super().__init__()
        self._keys_ms: dict[int, int] = {}

    def note(self, rows: Sequence[Row], entries: Sequence[Entry]) -> None:
        """Note those of ``rows``; ``entries`` are the same rows decoded."""
        found = [
            (entry[0], row[1], entry[2])
            for row, entry in zip(rows, entries, strict=True)
            if entry[2] < row[1] and entry[1] == SCHEDULE
        ]
        for offset, written_ms, key_ms in found[: NOTED_MAX - len(self)]:
            self[offset] = written_ms
            self._keys_ms[offset] = key_ms

    def forget(self, committed: Cursor) -> None:
        keys = self._keys_ms
        gone = [o for o in keys if committed.has_settled((keys[o], o), NO_MARK)]
        for offset in gone:
            del self[offset], keys[offset]
