"""Records that the broker refused one by one, such as a record that is too large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdicts:
    """Refusals of single records by the broker, until a committed transaction settles the records.

    ``refused`` maps a source offset to ``(code, detail)``: the broker will never take this record,
    so it is dead-lettered. ``stripped`` holds the offsets whose dead letter was refused too: it is
    written without the record's content.
    """

    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    stripped: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)
    """Refused offsets that are settled in the open transaction."""

    def refusal(self, offset: int) -> tuple[str, str] | None:
        """Return why the broker refused the record at a source offset, as code and detail, and note
        that the open transaction settles it; None: it was not refused.
        """
        found = self.refused.get(offset) if self.refused else None
        if found is not None:
            self.staged.add(offset)
        return found

    def refuse(self, refusals: Sequence[tuple[int, tuple[str, str]]]) -> None:
        """Add refusals: ``(source offset, (code, detail))``. If an offset is refused a second time,
        its dead letter will have no content.
        """
        for offset, reason in refusals:
            if offset in self.refused:
                self.stripped.add(offset)
            self.refused.setdefault(offset, reason)

    def committed(self) -> None:
        """Drop the refusals of records that the committed transaction has settled."""
        for offset in self.staged:
            self.refused.pop(offset, None)
            self.stripped.discard(offset)
        self.staged.clear()

    def step_down(self) -> None:
        """Keep all refusals: the open transaction has not settled them, and the next commit may
        carry a first checkpoint only.
        """
        self.staged.clear()
