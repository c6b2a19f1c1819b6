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
from delayservice.commands.options import KafkaOptions, duration, flag, moment, with_options
from delayservice.contract import dead_letters, names
from delayservice.contract.codes import EXPLANATIONS
from delayservice.contract.dead_letters import DeadLetter, Filter
from delayservice.contract.names import Header

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
    **dead_letters.REASONS,
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
        facts = {
            "id": one["id"],
            "key": _size(one["key_bytes"]),
            "value": _size(one["value_bytes"]),
            "replays": one["replays"] or None,
        }
        told = [f"{name} {fact}" for name, fact in facts.items() if fact is not None]
        say(out, f"  {', '.join(told)}{', replayed' if one['replayed'] else ''}", "dim")
        if "value" in one:
            key, value = ("null" if one[name] is None else one[name] for name in ("key", "value"))
            say(out, f"  {key}  {value}"[:_CONTENT_CHARS_MAX])
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


REPLAYS_MAX: Final = 3
_BATCH_RECORDS_MAX: Final = 500
_BATCH_BYTES_MAX: Final = 8 * 1024 * 1024
_SOURCE: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})(?::(\d{1,10})(?::(\d{1,19}))?)?")

app = typer.Typer(help="List and replay dead letters.", no_args_is_help=True)

_Code = Annotated[
    list[str] | None, typer.Option("--code", metavar="CODE", help="With this code; repeatable.")
]
_From = Annotated[int | None, moment("--from", "Dead-lettered at or after")]
_To = Annotated[int | None, moment("--to", "Dead-lettered before")]
_Source = Annotated[
    str | None,
    typer.Option(metavar="TOPIC[:PARTITION[:OFFSET]]", help="Where the record was written."),
]


@app.command(
    "list", epilog="Example: [bold]delayservice dlq list --code target-unknown --from -2h[/]"
)
@with_options
def list_letters(
    *,
    code: _Code = None,
    from_ms: _From = None,
    to_ms: _To = None,
    source: _Source = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number, oldest first.")] = 100,
    every: Annotated[bool, flag("--all", "Include replayed dead letters.")] = False,
    values: Annotated[bool, flag("--values", "Show keys and values.")] = False,
    common: KafkaOptions,
) -> None:
    """List dead letters that were not replayed yet."""
    wanted = _filter(code, from_ms, to_ms, source)
    letters = _Letters(common.settings())
    matching = (
        one for one in letters.matching(wanted) if every or one.place not in letters.replayed
    )
    found = list(islice(matching, limit + 1))
    told = [described(one, letters.replayed, values=values) for one in found[:limit]]
    emit(told, lambda: show(told), as_json=common.as_json)
    if len(found) > limit:
        err.print(f"{limit} are shown of more: raise --limit, or narrow the search", style="dim")


@app.command(
    epilog="Examples: [bold]delayservice dlq replay --code target-unknown --dry-run[/]"
    "\n\n[bold]delayservice dlq replay --source delay_topic_any:3:1707 --after 0 --yes[/]"
)
@with_options
def replay(
    *,
    code: _Code = None,
    from_ms: _From = None,
    to_ms: _To = None,
    source: _Source = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Maximum number, oldest first.")] = None,
    at_ms: Annotated[int | None, moment("--at", "New due time")] = None,
    after_ms: Annotated[int | None, duration("--after", "New delay from now: 0, 30s, 2h.")] = None,
    replays_max: Annotated[int, typer.Option(min=1, help="Skip what was replayed so often.")] = 3,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be written.")] = False,
    yes: Annotated[bool, flag("--yes", "Don't ask.", "-y")] = False,
    common: KafkaOptions,
) -> None:
    """Write dead letters to the delay topic and partition that they came from, each once.

    Records dead-lettered during the run are left for the next one. A due time in the past is now.
    """
    from connectors.kafka.dead_letters import Replayer

    choice = _Choice(
        _filter(code, from_ms, to_ms, source), _new_time(at_ms, after_ms), limit, replays_max
    )
    if not (yes or dry_run or sys.stdin.isatty()):
        raise typer.BadParameter("stdin is not a terminal: add --yes, or --dry-run to look first")
    settings = common.settings()
    if dry_run:
        tell(_survey(_Letters(settings), choice), "would be replayed", as_json=common.as_json)
        return
    transactional_id = f"{settings.kafka.transactional_id_prefix}-dlq-replay"
    producer = settings.kafka.client_config("producer")
    done = ReplayTally()
    with Replayer(settings.topics.dead_letter, transactional_id, producer) as replayer:
        # Opened after fencing, so that the end of the log is above the records of an older replay.
        letters = _Letters(settings)
        if not yes:
            survey = _survey(letters, choice)
            tell(survey, "to be replayed", as_json=False, console=err)
            yes = bool(survey.replayed) and typer.confirm("Replay them?", err=True)
        try:
            for batch in _batches(letters.chosen(choice, done)) if yes else ():
                done.count(batch, replayer.replay(batch))
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

    def matching(self, wanted: Filter) -> Iterator[DeadLetter]:
        with _progress(self._topic.length) as advance:
            yield from filter(wanted.matches, self._topic.letters(advance))

    def chosen(self, choice: _Choice, tally: ReplayTally) -> Iterator[Replay]:
        """Yield the dead letters to replay; count the others in ``tally`` by reason."""
        return islice(self._chosen(choice, tally), choice.limit)

    def _chosen(self, choice: _Choice, tally: ReplayTally) -> Iterator[Replay]:
        for letter in self.matching(choice.wanted):
            reason = self._refusal(letter, choice)
            if reason is not None:
                tally.skipped[reason] += 1
            elif letter.source is not None:
                is_level = letter.source.topic in self._settings.levels.by_topic
                again = dead_letters.rewritten(
                    letter, letter.source, choice.time, is_level=is_level
                )
                yield letter, again

    def _refusal(self, letter: DeadLetter, choice: _Choice) -> str | None:
        from connectors.kafka.topic_configs import is_delay_topic

        if letter.place in self.replayed:
            return dead_letters.REPLAYED

        def is_ours(topic: str, partition: int) -> bool:
            is_known = partition < self._counts.get(topic, 0)
            return is_known and is_delay_topic(topic, self._settings)

        is_retimed = choice.time is not None
        return dead_letters.refusal(letter, choice.replays_max, is_ours, retimed=is_retimed)


def _filter(
    codes: list[str] | None, from_ms: int | None, to_ms: int | None, source: str | None
) -> Filter:
    for code in codes or ():
        if code not in EXPLANATIONS:
            known = ", ".join(EXPLANATIONS)
            raise typer.BadParameter(f"{code!r} is none: use {known}", param_hint="--code")
    place = _SOURCE.fullmatch(source) if source is not None else None
    if source is not None and place is None:
        told = f"{source!r} must be TOPIC[:PARTITION[:OFFSET]]"
        raise typer.BadParameter(told, param_hint="--source")
    topic, partition, offset = place.groups() if place is not None else (None, None, None)
    return Filter(
        codes=frozenset(codes or ()),
        since_ms=from_ms,
        until_ms=to_ms,
        topic=topic,
        partition=None if partition is None else int(partition),
        offset=None if offset is None else int(offset),
    )


def _new_time(at_ms: int | None, after_ms: int | None) -> Header | None:
    if at_ms is not None and after_ms is not None:
        raise typer.BadParameter("give --at or --after, not both")
    if at_ms is not None:
        return names.DELAY_AT, b"%d" % at_ms
    return None if after_ms is None else (names.DELAY_AFTER, b"%d" % after_ms)


def _survey(letters: _Letters, choice: _Choice) -> ReplayTally:
    survey = ReplayTally()
    survey.count(letters.chosen(choice, survey))
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
