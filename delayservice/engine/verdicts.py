"""The broker's answers about single records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdicts:
    """The broker's answers about single records: facts, not decisions.

    ``refused`` maps a source offset to ``(code, detail)``: the broker will never take this record,
    so it is dead-lettered. ``stripped`` holds those whose dead letter was refused in turn: theirs
    says only where the record is.
    """

    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    stripped: set[int] = field(default_factory=set)
    staged: set[int] = field(default_factory=set)
    """Offsets whose dead letter is part of the transaction."""

    def refusal(self, offset: int) -> tuple[str, str] | None:
        """Return why a record was refused, for it is settled now; None: it was not."""
        found = self.refused.get(offset) if self.refused else None
        if found is not None:
            self.staged.add(offset)
        return found

    def refuse(self, refusals: Sequence[tuple[int, tuple[str, str]]]) -> None:
        """Note refused offsets; a second refusal strips the content of the dead letter."""
        for offset, reason in refusals:
            if offset in self.refused:
                self.stripped.add(offset)
            self.refused.setdefault(offset, reason)

    def committed(self) -> None:
        """Forget those whose dead letter is committed: they never come again."""
        for offset in self.staged:
            self.refused.pop(offset, None)
            self.stripped.discard(offset)
        self.staged.clear()

    def aborted(self) -> None:
        """Note that the transaction was aborted: none of them is settled."""
        self.staged.clear()
