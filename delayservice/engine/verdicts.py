from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Verdicts:
    """Refusals of single records by the broker, such as too large ones, until a commit settles
    them.

    ``refused``: by source offset, ``(code, detail)``; the record is dead-lettered. ``stripped``:
    offsets whose dead letter was refused too; it is written without content.
    """

    refused: dict[int, tuple[str, str]] = field(default_factory=dict)
    stripped: set[int] = field(default_factory=set)
    # Settled in the open transaction.
    staged: set[int] = field(default_factory=set)

    def refusal(self, offset: int) -> tuple[str, str] | None:
        """Return code and detail of a refused record, which the open transaction settles; else
        None.
        """
        found = self.refused.get(offset) if self.refused else None
        if found is not None:
            self.staged.add(offset)
        return found

    def refuse(self, refusals: Sequence[tuple[int, tuple[str, str]]]) -> None:
        """Add refusals. An offset refused twice gets a dead letter without content."""
        for offset, reason in refusals:
            if offset in self.refused:
                self.stripped.add(offset)
            self.refused.setdefault(offset, reason)

    def committed(self) -> None:
        for offset in self.staged:
            self.refused.pop(offset, None)
            self.stripped.discard(offset)
        self.staged.clear()

    def step_down(self) -> None:
        """Keep all refusals: the open transaction has not settled them, and the next commit may
        carry a first checkpoint only.
        """
        self.staged.clear()
