"""``delayservice dlq``: list dead letters, and replay them."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from delayservice.base.errors import DelayServiceError
from delayservice.commands.console import emit, err, instant, out, print_json, say
from delayservice.commands.options import Duration, KafkaOptions, Moment, with_options
from delayservice.contract import names, replays
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.names import Header
from delayservice.contract.replays import DeadLetter

if TYPE_CHECKING:
    from connectors.kafka.dead_letters import Advance, LetterPosition, Replay
    from delayservice.config.settings import Settings

# Heavy modules are imported when a command runs, so that help is shown at once.
# ruff: noqa: PLC0415

_CONTENT_CHARS_MAX: Final = 200


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
    **replays.REASONS,
    REFUSED: "the broker refuses the record, which is larger than it was; see max.message.bytes",
}


def described(
    letter: DeadLetter, replayed: Collection[LetterPosition], *, values: bool
) -> dict[str, Any]:
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


def show(letters: list[dict[str, Any]]) -> None:
    """Print some lines for each dead letter, so that all of it fits on any terminal."""
    if not letters:
        err.print("no dead letter matches", style="dim")
    for one in letters:
        route = f"{one['source'] or '?'} to {one['target'] or '?'}"
        say(out, f"{one['time']}  {one['code']}  {route}", "bold")
        sizes = ", ".join(f"{name} {_size(one[f'{name}_bytes'])}" for name in ("key", "value"))
        record_id = "" if one["id"] is None else f"id {one['id']}, "
        count = f", replays {one['replays']}" if one["replays"] else ""
        replayed = ", replayed" if one["replayed"] else ""
        say(out, f"  {record_id}{sizes}{count}{replayed}", "dim")
        if "value" in one:
            texts = ["null" if one[name] is None else one[name] for name in ("key", "value")]
            say(out, f"  {'  '.join(texts)}"[:_CONTENT_CHARS_MAX])
        say(out, f"  {one['detail']}")


def tell(tally: ReplayTally, what: str, *, as_json: bool, console: Console = out) -> None:
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
    say(console, f"{tally.replayed.total():,} {what}", "bold green")
    for (code, target), records in tally.replayed.most_common():
        say(console, f"  {records:,}  {code}  {target}")
    for reason, records in tally.skipped.most_common():
        say(console, f"{records:,} skipped: {_REASONS[reason]}", "yellow")


def _text(content: bytes | None) -> str | None:
    return None if content is None else content.decode("utf-8", "replace")


def _size(size: int | None) -> str:
    return "null" if size is None else f"{size:,} bytes"


_BATCH_RECORDS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
_SOURCE: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}(:\d{1,10}(:\d{1,19})?)?")

app = typer.Typer(help="List and replay dead letters.", no_args_is_help=True)


@dataclass(frozen=True, slots=True)
class LetterOptions(KafkaOptions):
    """Options that say which dead letters are meant."""

    code: Annotated[list[str] | None, typer.Option(metavar="CODE")] = None
    """With this code; repeatable."""
    from_ms: Moment | None = None
    """Dead-lettered at or after"""
    to_ms: Moment | None = None
    """Dead-lettered before"""
    source: Annotated[str | None, typer.Option(metavar="TOPIC[:PARTITION[:OFFSET]]")] = None
    """Where the record was written."""

    def check(self) -> None:
        for code in self.code or ():
            if code not in EXPLANATIONS:
                known = ", ".join(EXPLANATIONS)
                raise typer.BadParameter(f"{code!r} is none: use {known}", param_hint="--code")
        if self.source is not None and not _SOURCE.fullmatch(self.source):
            why = f"{self.source!r} must be TOPIC[:PARTITION[:OFFSET]]"
            raise typer.BadParameter(why, param_hint="--source")

    def matches(self, letter: DeadLetter) -> bool:
        return (
            (not self.code or letter.code in self.code)
            and (self.from_ms is None or letter.time_ms >= self.from_ms)
            and (self.to_ms is None or letter.time_ms < self.to_ms)
            and (self.source is None or f"{letter.source or ''}:".startswith(f"{self.source}:"))
        )


@dataclass(frozen=True, slots=True)
class ListOptions(LetterOptions):
    limit: Annotated[int, typer.Option(min=1)] = 100
    """Maximum number, oldest first."""
    every: Annotated[bool, typer.Option("--all")] = False
    """Include replayed dead letters."""
    values: bool = False
    """Show keys and values."""


@dataclass(frozen=True, slots=True)
class ReplayOptions(LetterOptions):
    limit: Annotated[int | None, typer.Option(min=1)] = None
    """Maximum number, oldest first."""
    at_ms: Moment | None = None
    """New due time"""
    after_ms: Duration | None = None
    """New delay from now: 0, 30s, 2h."""
    replays_max: Annotated[int, typer.Option(min=1)] = replays.REPLAYS_MAX
    """Skip what was replayed so often."""
    dry_run: bool = False
    """Show what would be written."""
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False
    """Don't ask."""

    def time(self) -> Header | None:
        """Return the header of the new due time; None: it stays."""
        if self.at_ms is not None and self.after_ms is not None:
            raise typer.BadParameter("give --at or --after, not both")
        if self.at_ms is not None:
            return names.DELAY_AT, b"%d" % self.at_ms
        return None if self.after_ms is None else (names.DELAY_AFTER, b"%d" % self.after_ms)


@app.command(
    "list", epilog="Example: [bold]delayservice dlq list --code target-unknown --from -2h[/]"
)
@with_options
def list_letters(*, options: ListOptions) -> None:
    """List dead letters that were not replayed yet."""
    options.check()
    limit = options.limit
    letters = _Letters(options.settings())
    matching = (
        one
        for one in letters.matching(options)
        if options.every or one.place not in letters.replayed
    )
    found = list(islice(matching, limit + 1))
    told = [described(one, letters.replayed, values=options.values) for one in found[:limit]]
    emit(told, lambda: show(told), as_json=options.as_json)
    if len(found) > limit:
        err.print(f"{limit} are shown of more: raise --limit, or narrow the search", style="dim")


@app.command(
    epilog="Examples: [bold]delayservice dlq replay --code target-unknown --dry-run[/]"
    "\n\n[bold]delayservice dlq replay --source delay_topic_any:3:1707 --after 0 --yes[/]"
)
@with_options
def replay(*, options: ReplayOptions) -> None:
    """Write dead letters to the delay topic and partition that they came from, each once.

    Records dead-lettered during the run are left for the next one. A due time in the past is now.
    """
    from connectors.kafka.dead_letters import replayer_of

    options.check()
    time = options.time()
    yes, as_json = options.yes, options.as_json
    if not (yes or options.dry_run or sys.stdin.isatty()):
        raise typer.BadParameter("stdin is not a terminal: add --yes, or --dry-run to look first")
    settings = options.settings()
    if options.dry_run:
        tell(_survey(_Letters(settings), options, time), "would be replayed", as_json=as_json)
        return
    done = ReplayTally()
    with replayer_of(settings) as replayer:
        # Opened after fencing, so that the end of the log is above the records of an older replay.
        letters = _Letters(settings)
        if not yes:
            survey = _survey(letters, options, time)
            tell(survey, "to be replayed", as_json=False, console=err)
            yes = bool(survey.replayed) and typer.confirm("Replay them?", err=True)
        limit = options.limit if yes else 0
        try:
            for batch in _batches(islice(letters.chosen(options, time, done), limit)):
                done.count(batch, replayer.replay(batch))
        finally:
            tell(done, "replayed", as_json=as_json)


class _Letters:
    """The dead-letter topic, and which of its dead letters were replayed already."""

    def __init__(self, settings: Settings) -> None:
        from connectors.kafka.clients import admin_client
        from connectors.kafka.dead_letters import DeadLetterTopic, partition_counts

        kafka, name = settings.kafka, settings.topics.dead_letter
        admin = admin_client(kafka.client_config("admin"))
        self._settings = settings
        self._counts = partition_counts(admin)
        if name not in self._counts:
            raise DelayServiceError(f"there is no topic {name}, or it may not be described")
        consumer = kafka.client_config("consumer")
        self._topic = DeadLetterTopic(name, self._counts[name], consumer, admin)
        with _progress(self._topic.length) as advance:
            self.replayed = self._topic.replayed(advance)

    def matching(self, wanted: LetterOptions) -> Iterator[DeadLetter]:
        with _progress(self._topic.length) as advance:
            yield from filter(wanted.matches, self._topic.letters(advance))

    def chosen(
        self, options: ReplayOptions, time: Header | None, tally: ReplayTally
    ) -> Iterator[Replay]:
        """Yield the dead letters to replay, ``time`` being the header of a new due time; count the
        others in ``tally`` by reason.
        """
        for letter in self.matching(options):
            reason = self._refusal(letter, options.replays_max, is_retimed=time is not None)
            if reason is not None:
                tally.skipped[reason] += 1
            elif letter.source is not None:
                is_level = letter.source.topic in self._settings.levels.by_topic
                again = replays.rewritten(letter, letter.source, time, is_level=is_level)
                yield letter, again

    def _refusal(self, letter: DeadLetter, replays_max: int, *, is_retimed: bool) -> str | None:
        from connectors.kafka.topic_configs import is_delay_topic

        if letter.place in self.replayed:
            return replays.REPLAYED

        def is_ours(topic: str, partition: int) -> bool:
            is_known = partition < self._counts.get(topic, 0)
            return is_known and is_delay_topic(topic, self._settings)

        return replays.refusal(letter, replays_max, is_ours, retimed=is_retimed)


def _survey(letters: _Letters, options: ReplayOptions, time: Header | None) -> ReplayTally:
    survey = ReplayTally()
    survey.count(islice(letters.chosen(options, time, survey), options.limit))
    return survey


def _batches(found: Iterable[Replay]) -> Iterator[list[Replay]]:
    # For one transaction each: at most 500 records, some 8 MiB.
    batch: list[Replay] = []
    held = 0
    for replay in found:
        batch.append(replay)
        held += replay[0].bytes_held
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
