"""Printed output of ``delayservice dlq``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from delayservice.commands.console import err, instant, out, print_json
from delayservice.contract import dead_letters
from delayservice.contract.codes import printable
from delayservice.contract.dead_letters import DeadLetter

if TYPE_CHECKING:
    from connectors.kafka.dead_letters import Place, Replay

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_VALUE_CHARS_MAX: Final = 200
_FACTS: Final = ("time", "code", "source", "target", "id", "key", "value", "replays")
_NUMBERS: Final = {"key", "value", "replays"}
# Least width of each column with wrapped text, in characters; narrower, no table is shown.
_FOLDED_WIDTH_MIN: Final = 30


@dataclass(slots=True)
class ReplayTally:
    """Counts of replayed dead letters by (code, target topic), and of skipped ones by reason."""

    replayed: Counter[tuple[str, str]] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)

    def count(self, batch: Iterable[Replay], refused: Collection[Place] = ()) -> None:
        """Count the dead letters of a batch as replayed, or as skipped if they are in ``refused``,
        because the broker refused the new records.
        """
        for letter, _ in batch:
            if letter.place in refused:
                self.skipped[REFUSED] += 1
            else:
                self.replayed[letter.code, letter.target or ""] += 1


REFUSED: Final = "refused"
_REASONS: Final = {
    **dead_letters.REASONS,
    REFUSED: "the broker refuses the record, which is larger than it was; see max.message.bytes",
}


def described(
    letter: DeadLetter, replayed: Collection[Place], *, values: bool
) -> dict[str, object]:
    content = {"key": _text(letter.key), "value": _text(letter.value)} if values else {}
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "time": instant(letter.time_ms, "T", zone="+00:00"),
        "code": letter.code,
        "detail": letter.detail,
        "source": None if letter.source is None else str(letter.source),
        "target": letter.target,
        "id": _text(letter.record_id),
        "key_bytes": None if letter.key is None else len(letter.key),
        "value_bytes": None if letter.value is None else len(letter.value),
        "replays": letter.replays,
        "replayed": letter.place in replayed,
        **content,
    }


def show(
    letters: list[DeadLetter], replayed: Collection[Place], *, every: bool, values: bool
) -> None:
    """Print dead letters as a table, or as some lines each if the terminal is too narrow."""
    if not letters:
        err.print("no dead letter matches", style="dim")
        return
    names = [*_FACTS, *(["replayed"] if every else []), *(["content"] if values else []), "detail"]
    rows = [_cells(letter, replayed, every=every, values=values) for letter in letters]
    facts = [names, *rows]
    width = sum(max(len(row[at]) for row in facts) + 1 for at in range(len(_FACTS)))
    if width + _FOLDED_WIDTH_MIN * (len(names) - len(_FACTS)) <= out.width:
        _show_table(names, rows)
    else:
        _show_blocks(names, rows)


def _cells(
    letter: DeadLetter, replayed: Collection[Place], *, every: bool, values: bool
) -> list[str]:
    cells = [
        instant(letter.time_ms, "T", zone="+00:00"),
        letter.code,
        str(letter.source or "?"),
        letter.target or "",
        _text(letter.record_id) or "",
        *(_size(part) for part in (letter.key, letter.value)),
        str(letter.replays),
    ]
    if every:
        cells.append("yes" if letter.place in replayed else "")
    if values:
        cells.append(f"{_text(letter.key)}  {_text(letter.value)}"[:_VALUE_CHARS_MAX])
    return [printable(cell) for cell in (*cells, letter.detail)]


def _show_table(names: list[str], rows: list[list[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for at, name in enumerate(names):
        is_fact = at < len(_FACTS)
        justify: Literal["left", "right"] = "right" if name in _NUMBERS else "left"
        table.add_column(name, justify=justify, no_wrap=is_fact, overflow="fold")
    for row in rows:
        # Text, never markup: its origin is unknown.
        table.add_row(*(Text(cell) for cell in row))
    out.print(table)


def _show_blocks(names: list[str], rows: list[list[str]]) -> None:
    # For terminals too narrow for a table.
    for row in rows:
        time, code, source, target, *rest = row
        out.print(f"{time}  {code}", style="bold", markup=False)
        out.print(f"  {source} to {target or '?'}", markup=False)
        told = [f"{name} {cell}" for name, cell in zip(names[4:-1], rest, strict=False) if cell]
        out.print(f"  {', '.join(told)}", style="dim", markup=False)
        out.print(f"  {row[-1]}", markup=False)


def tell(tally: ReplayTally, what: str, *, as_json: bool) -> None:
    """Print the counts of a replay. ``what``: text after the number of replayed dead letters, as in
    ``7 replayed``; JSON has a fixed name instead.
    """
    if as_json:
        replayed = [
            {"code": code, "target": target or None, "records": records}
            for (code, target), records in tally.replayed.items()
        ]
        print_json({"replayed": tally.replayed.total(), "by": replayed, "skipped": tally.skipped})
        return
    out.print(f"{tally.replayed.total():,} {what}", style="bold green")
    for (code, target), records in tally.replayed.most_common():
        out.print(f"  {records:,}  {code}  {printable(target)}", markup=False)
    for reason, records in tally.skipped.most_common():
        out.print(f"{records:,} skipped: {_REASONS[reason]}", style="yellow")


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "replace")


def _size(content: bytes | None) -> str:
    return "null" if content is None else f"{len(content):,}"
