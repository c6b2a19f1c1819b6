"""Changes all pending records that match, page by page, by the API of one node."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Final

import typer
from rich.console import Console

from delayservice.base.errors import DelayServiceError
from delayservice.commands.api import Api, ApiOptions
from delayservice.commands.console import (
    EXIT_NOT_KNOWN,
    EXIT_NOT_REACHED,
    EXIT_NOTHING,
    RefusedError,
    emit,
    err,
    out,
    say,
)
from delayservice.commands.options import Duration, Moment, now_ms

# Records of one request. A node reads each record that it moves from its store again.
_PAGE: Final = {"cancel": 10_000, "fire": 10_000, "reschedule": 1_000}


@dataclass(frozen=True, slots=True)
class Selection(ApiOptions):
    """Options that say which pending records are meant."""

    PANEL: ClassVar = "Selection"

    id_pattern: Annotated[str | None, typer.Option("--id")] = None
    """Pattern of ids; * and ? stand for any."""
    target: Annotated[str | None, typer.Option("--target", "-t")] = None
    """Pattern of target topics."""
    topic: str | None = None
    """Delay topic."""
    from_ms: Moment | None = None
    """Due at or after"""
    to_ms: Moment | None = None
    """Due before"""
    recurring: bool = False
    """Recurring schedules only."""

    def asked(self) -> dict[str, object]:
        """Return what the API is asked for."""
        named = {
            "id": self.id_pattern,
            "target": self.target,
            "topic": self.topic,
            "from": self.from_ms,
            "to": self.to_ms,
            "recurring": self.recurring or None,
        }
        return {name: value for name, value in named.items() if value is not None}

    @property
    def is_bare(self) -> bool:
        """Return whether every record matches."""
        patterns = (self.id_pattern or "", self.target or "")
        return not self.asked().keys() - {"id", "target"} and not "".join(patterns).strip("*")


@dataclass(frozen=True, slots=True)
class ChangeOptions(Selection):
    PANEL: ClassVar = "Change"

    wait_ms: Duration = 5_000
    """Longest wait for the outcome, of each page."""
    every: Annotated[bool, typer.Option("--all")] = False
    """Change every record, if nothing is selected."""
    limit: Annotated[int | None, typer.Option(min=1)] = None
    """Maximum number of matching records."""
    cursor: str | None = None
    """Go on where a run has stopped."""
    dry_run: bool = False
    """Count only."""
    yes: Annotated[bool, typer.Option("--yes", "-y")] = False
    """Don't ask."""

    @property
    def is_for_many(self) -> bool:
        return bool(self.asked() or self.every or self.limit or self.cursor or self.dry_run)


@dataclass
class BulkTally:
    """Counts of the records that matched, by outcome, and what is left to do."""

    cursor: str | None
    # Largest number of records; None: unlimited.
    limit: int | None
    matched: int = 0
    # Ranges of due times that can't be read now.
    damaged: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    # Slices of which the node has no whole copy.
    slices_elsewhere: list[int] = field(default_factory=list)

    def pages(self, api: Api, asked: Mapping[str, Any]) -> Iterator[int]:
        """Change what matches; yield the number of records of each page."""
        page_max = _PAGE[asked["operation"]]
        while self.limit is None or self.matched < self.limit:
            rows = page_max if self.limit is None else min(self.limit - self.matched, page_max)
            body = {**asked, "cursor": self.cursor, "limit": rows}
            page = api.send("POST", "/v1/records/bulk", body)
            self.matched += page["matched"]
            self.damaged += page["damaged"]
            self.outcomes.update(page["outcomes"])
            self.cursor = page["next"]
            self.slices_elsewhere = page["slices_elsewhere"]
            yield page["matched"]
            if self.cursor is None:
                return


def change_matching(
    options: ChangeOptions, operation: str, at_ms: int | None = None, after_ms: int | None = None
) -> None:
    """Change all pending records of a selection, after a question on a terminal; print the counts.
    ``at_ms`` or ``after_ms``: new due time of a reschedule.
    """
    if options.is_bare and not options.every:
        raise typer.BadParameter(
            "every record would be changed: give the id of one, or select by --id, --target, "
            "--topic, --from, --to or --recurring; --all means every record"
        )
    if not (options.yes or options.dry_run or sys.stdin.isatty()):
        raise typer.BadParameter("stdin is not a terminal: add --yes, or --dry-run to look first")
    if after_ms is not None:  # one time for all pages, so that no record is moved twice
        at_ms = now_ms() + after_ms
    asked = {
        **options.asked(),
        "operation": operation,
        "at_ms": at_ms,
        "wait_ms": options.wait_ms,
        "beyond_window": True,  # nothing that matches may be left out
        "dry_run": options.dry_run,
    }
    api, total = options.connect(), None
    if not (options.yes or options.dry_run):
        survey = _run(api, options, asked | {"dry_run": True})
        _show(survey, err)
        total = survey.matched
        if total and not typer.confirm(f"{operation.capitalize()} them?", err=True):
            return
    done = _run(api, options, asked, total)
    _tell(done, asked, as_json=options.as_json)
    if done.damaged or done.slices_elsewhere:
        raise typer.Exit(EXIT_NOT_REACHED)
    if done.outcomes["unknown"] or not done.matched:
        raise typer.Exit(EXIT_NOT_KNOWN if done.matched else EXIT_NOTHING)


def _run(
    api: Api, options: ChangeOptions, asked: Mapping[str, Any], total: int | None = None
) -> BulkTally:
    from rich.progress import Progress  # noqa: PLC0415  # not needed for a help text

    done = BulkTally(options.cursor, options.limit)
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("counting" if asked["dry_run"] else asked["operation"], total=total)
        try:
            for records in done.pages(api, asked):
                bar.advance(task, records)
        except (DelayServiceError, KeyboardInterrupt) as exc:
            is_unknown = not (asked["dry_run"] or isinstance(exc, RefusedError))
            if done.matched:
                _tell(done, asked, as_json=options.as_json)
            elif is_unknown and asked["at_ms"] is not None:
                text = "some may be changed: to move none of them twice, repeat it with"
                say(err, f"{text} --at {asked['at_ms']}", "yellow")
            raise
    return done


def _tell(done: BulkTally, asked: Mapping[str, Any], *, as_json: bool) -> None:
    told = {name: asked[name] for name in ("operation", "at_ms", "dry_run")} | vars(done)
    emit(told, lambda: _show(done, out, asked["at_ms"]), as_json=as_json)


def _show(done: BulkTally, console: Console, at_ms: int | None = None) -> None:
    say(console, f"{done.matched:,} match", "bold")
    for outcome, records in done.outcomes.most_common():
        say(console, f"  {records:,}  {outcome.replace('_', ' ')}")
    if done.cursor is not None:
        same = "" if at_ms is None else f" --at {at_ms}"
        say(err, f"more may match: go on with --cursor {done.cursor}{same}", "yellow")
    warn_of_gaps(done.damaged, done.slices_elsewhere)


def warn_of_gaps(damaged: int, slices_elsewhere: Sequence[int]) -> None:
    """Say which pending records a node could not look at."""
    if damaged:
        text = f"{damaged:,} ranges of due times can't be read now, so their records are missing: "
        say(
            err, f"{text}ask another node, or rebuild them (delayservice spark reconcile)", "yellow"
        )
    if slices_elsewhere:
        slices = ", ".join(map(str, slices_elsewhere))
        say(
            err,
            f"no whole copy of slices {slices} here: repeat it with --api of another node",
            "yellow",
        )
