"""``delayservice dlq``: list dead letters, and replay them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import err, instant, out, print_json
from delayservice.commands.options import KafkaOptions, moment_ms, with_options
from delayservice.contract import dead_letters, names
from delayservice.contract.codes import EXPLANATIONS, printable
from delayservice.contract.dead_letters import DeadLetter, Filter
from delayservice.contract.names import Header

if TYPE_CHECKING:
    from connectors.kafka.dead_letters import Advance, DeadLetterTopic, LetterPosition, Replay
    from delayservice.config.settings import Settings

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

    def count(self, batch: Iterable[Replay], refused: Collection[LetterPosition] = ()) -> None:
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
    letter: DeadLetter, replayed: Collection[LetterPosition], *, values: bool
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
    letters: list[DeadLetter], replayed: Collection[LetterPosition], *, every: bool, values: bool
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
    letter: DeadLetter, replayed: Collection[LetterPosition], *, every: bool, values: bool
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


REPLAYS_MAX: Final = 3
_BATCH_RECORDS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
_SOURCE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})(?::(\d{1,10})(?::(\d{1,19}))?)?")

app = typer.Typer(help="List and replay dead letters.", no_args_is_help=True)

_Code = Annotated[
    list[str] | None, typer.Option("--code", metavar="CODE", help="With this code; repeatable.")
]
_Since = Annotated[
    str | None, typer.Option(help="Dead-lettered at or after: RFC 3339, or 2h for two hours ago.")
]
_Until = Annotated[str | None, typer.Option(help="Dead-lettered before; as --since.")]
_Source = Annotated[
    str | None,
    typer.Option(metavar="TOPIC[:PARTITION[:OFFSET]]", help="Where the record was written."),
]


@app.command(
    "list", epilog="Example: [bold]delayservice dlq list --code target-unknown --since 2h[/]"
)
@with_options
def list_letters(
    *,
    code: _Code = None,
    since: _Since = None,
    until: _Until = None,
    source: _Source = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number, oldest first.")] = 100,
    every: Annotated[bool, typer.Option("--all", help="Include replayed dead letters.")] = False,
    values: Annotated[bool, typer.Option("--values", help="Show keys and values.")] = False,
    common: KafkaOptions,
) -> None:
    """List dead letters that were not replayed yet."""
    wanted = _filter(code, since, until, source)
    topic, _ = _open(common.settings())
    with _progress(2 * topic.length) as advance:
        replayed = topic.replayed(advance)
        letters = (
            letter
            for letter in topic.letters(advance)
            if wanted.matches(letter) and (every or letter.place not in replayed)
        )
        found = list(islice(letters, limit + 1))
    if common.as_json:
        for letter in found[:limit]:
            print_json(described(letter, replayed, values=values))
        return
    show(found[:limit], replayed, every=every, values=values)
    if len(found) > limit:
        err.print(f"{limit} are shown of more: raise --limit, or narrow the search", style="dim")


@app.command(
    epilog="Examples: [bold]delayservice dlq replay --code target-unknown --dry-run[/]"
    "\n\n[bold]delayservice dlq replay --source delay_topic_any:3:1707 --delay 0 --yes[/]"
)
@with_options
def replay(
    *,
    code: _Code = None,
    since: _Since = None,
    until: _Until = None,
    source: _Source = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number, oldest first.")] = None,
    at: Annotated[
        str | None, typer.Option(help="New due time: RFC 3339 or epoch milliseconds.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option(help="New due time as a delay from now: 0, 30s, 2h, PT30S.")
    ] = None,
    replays_max: Annotated[
        int, typer.Option(min=1, help="Skip records replayed this many times.")
    ] = REPLAYS_MAX,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Dry run: show what would be written.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    common: KafkaOptions,
) -> None:
    """Write dead letters to the delay topic and partition that they came from, each once.

    Records dead-lettered during the run are left for the next one. A due time in the past means
    now; a delay counts from now.
    """
    from connectors.kafka.dead_letters import Replayer

    choice = _Choice(_filter(code, since, until, source), _new_time(at, delay), limit, replays_max)
    if not (yes or dry_run or sys.stdin.isatty()):
        raise DelayServiceError("stdin is not a terminal: add --yes, or --dry-run to look first")
    settings = common.settings()
    if dry_run:
        topic, counts = _open(settings)
        survey = _survey(topic, _Sieve(settings, counts, choice, topic))
        tell(survey, "would be replayed", as_json=common.as_json)
        return
    transactional_id = f"{settings.kafka.transactional_id_prefix}-dlq-replay"
    producer = settings.kafka.client_config("producer")
    with Replayer(settings.topics.dead_letter, transactional_id, producer) as replayer:
        # Opened after fencing, so that the end of the log is above the records of an older replay.
        topic, counts = _open(settings)
        sieve = _Sieve(settings, counts, choice, topic)
        if not yes:
            survey = _survey(topic, sieve)
            tell(survey, "to be replayed", as_json=False)
            if not survey.replayed or not typer.confirm("Replay them?", err=True):
                return
        done = ReplayTally()
        try:
            with _progress(topic.length) as advance:
                for batch in _batches(sieve.sift(topic.letters(advance), done)):
                    refused = replayer.replay(batch)
                    done.count(batch, refused)
        finally:
            tell(done, "replayed", as_json=common.as_json)


@dataclass(frozen=True, slots=True)
class _Choice:
    """Options of a replay. ``time``: header of the new due time; None: unchanged. ``replays_max``:
    number of earlier replays from which a record is skipped.
    """

    wanted: Filter
    time: Header | None
    limit: int | None
    replays_max: int


class _Sieve:
    """Filter that yields the dead letters to replay, and counts the skipped ones by reason.
    ``counts``: partition count of each topic of the cluster.
    """

    def __init__(
        self, settings: Settings, counts: dict[str, int], choice: _Choice, topic: DeadLetterTopic
    ) -> None:
        self._settings = settings
        self._counts = counts
        self._choice = choice
        with _progress(topic.length) as advance:
            self._replayed = topic.replayed(advance)

    def sift(self, letters: Iterable[DeadLetter], tally: ReplayTally) -> Iterator[Replay]:
        return islice(self._sift(letters, tally), self._choice.limit)

    def _sift(self, letters: Iterable[DeadLetter], tally: ReplayTally) -> Iterator[Replay]:
        choice = self._choice
        for letter in filter(choice.wanted.matches, letters):
            reason = self._reason(letter)
            if reason is None and letter.source is not None:
                is_level = letter.source.topic in self._settings.levels.by_topic
                yield (
                    letter,
                    dead_letters.rewritten(letter, letter.source, choice.time, is_level=is_level),
                )
            elif reason is not None:
                tally.skipped[reason] += 1

    def _reason(self, letter: DeadLetter) -> str | None:
        if letter.place in self._replayed:
            return dead_letters.REPLAYED
        return dead_letters.refusal(
            letter,
            self._choice.replays_max,
            self._is_delay_partition,
            retimed=self._choice.time is not None,
        )

    def _is_delay_partition(self, topic: str, partition: int) -> bool:
        topics = self._settings.topics
        named = topic in topics.delay or topic in self._settings.levels.by_topic
        is_ours = named or (topics.discover and fnmatchcase(topic, topics.pattern))
        return is_ours and partition < self._counts.get(topic, 0)


def _filter(
    codes: list[str] | None, since: str | None, until: str | None, source: str | None
) -> Filter:
    for code in codes or ():
        if code not in EXPLANATIONS:
            raise DelayServiceError(f"--code {code!r} is none: use {', '.join(EXPLANATIONS)}")
    place = _SOURCE.fullmatch(source) if source is not None else None
    if source is not None and place is None:
        raise DelayServiceError(f"--source {source!r} must be TOPIC[:PARTITION[:OFFSET]]")
    topic, partition, offset = place.groups() if place is not None else (None, None, None)
    return Filter(
        codes=frozenset(codes or ()),
        since_ms=moment_ms("--since", since),
        until_ms=moment_ms("--until", until),
        topic=topic,
        partition=None if partition is None else int(partition),
        offset=None if offset is None else int(offset),
    )


def _new_time(at: str | None, delay: str | None) -> Header | None:
    from delayservice.commands.send import delay_ms, instant_ms

    if at is not None and delay is not None:
        raise DelayServiceError("give --at or --delay, not both")
    if at is not None:
        return names.DELAY_AT, b"%d" % instant_ms("--at", at)
    if delay is not None:
        return names.DELAY_AFTER, b"%d" % delay_ms("--delay", delay)
    return None


def _open(settings: Settings) -> tuple[DeadLetterTopic, dict[str, int]]:
    from connectors.kafka.clients import admin_client
    from connectors.kafka.dead_letters import DeadLetterTopic, partition_counts

    kafka, name = settings.kafka, settings.topics.dead_letter
    admin = admin_client(kafka.client_config("admin"))
    counts = partition_counts(admin)
    if name not in counts:
        raise DelayServiceError(f"there is no topic {name}, or it may not be described")
    return DeadLetterTopic(name, counts[name], kafka.client_config("consumer"), admin), counts


def _survey(topic: DeadLetterTopic, sieve: _Sieve) -> ReplayTally:
    survey = ReplayTally()
    with _progress(topic.length) as advance:
        survey.count(sieve.sift(topic.letters(advance), survey))
    return survey


def _batches(replays: Iterable[Replay]) -> Iterator[list[Replay]]:
    # For one transaction each: at most 500 records, some 8 MiB.
    batch: list[Replay] = []
    held = 0
    for found in replays:
        batch.append(found)
        held += found[0].bytes_held
        if len(batch) >= _BATCH_RECORDS_MAX or held >= _BATCH_BYTES_MAX:
            yield batch
            batch, held = [], 0
    if batch:
        yield batch


@contextmanager
def _progress(offsets: int) -> Iterator[Advance]:
    from rich.progress import Progress

    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("reading dead letters", total=offsets)
        yield lambda count: bar.advance(task, count)
