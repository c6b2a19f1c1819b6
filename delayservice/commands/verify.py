"""Check of a whole store folder, with an explanation of each damage."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from rich.markup import escape
from rich.progress import track

from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.commands.console import err, out, print_json
from delayservice.commands.stored import shard_names, shard_text, time_text
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import Damage, StoreFacts, ViewedStore, each_store, look

EXIT_UNREADABLE: Final = 1
EXIT_DAMAGED: Final = 3


class Case(NamedTuple):
    """Kind of damage: what a node does about it, and advice to a person."""

    name: str
    then: str
    advice: str


SLOT: Final = Case(
    "slot",
    "a node that reads it moves it to quarantine and reads these offsets again from the log",
    "No action needed. `delayservice spark reconcile` and `spark repair` repair it before it is "
    "due",
)
START_OVER: Final = Case(
    "start-over",
    "a node that opens the folder puts aside what is damaged and starts its shards over from the "
    "log; one that has it open restarts its worker for that",
    "No action needed, while the delay topic still holds what is pending",
)


@dataclass(frozen=True, slots=True)
class _Checked:
    """Result of the check of a shard, or of a whole folder.

    Attributes:
        facts: what was read; None: ``error`` says why nothing was.
    """

    shard: ShardFolder
    facts: StoreFacts | None = None
    error: StoreError | None = None

    @property
    def state(self) -> str:
        if isinstance(self.error, StoreDamagedError) or (self.facts and self.facts.damages):
            return "damaged"
        return "sound" if self.error is None else "unreadable"

    @property
    def findings(self) -> list[tuple[Case, str, Damage | None]]:
        """The damage: its kind, what it is, and its range, if it has one."""
        if isinstance(self.error, StoreDamagedError):
            return [(START_OVER, str(self.error), None)]
        return [(SLOT, damage.why, damage) for damage in (self.facts.damages if self.facts else ())]


def run(path: Path, *, as_json: bool) -> int:
    """Check every shard's store and print the damage. Return the exit status: 3: a store is
    damaged; 1: a store is unreadable; else 0.
    """
    stores = each_store(path, checked=True)
    shown = track(stores, "checking", console=err, transient=True, disable=not err.is_terminal)
    checked = [_check(shard, store) for shard, store in shown]
    if as_json:
        print_json({"v": 1, "kind": "verify", "shards": [_as_json(found) for found in checked]})
    else:
        for found in checked:
            _show(found)
    states = {found.state for found in checked}
    if "damaged" in states:
        return EXIT_DAMAGED
    return EXIT_UNREADABLE if "unreadable" in states else 0


def _check(shard: ShardFolder, store: ViewedStore | StoreError) -> _Checked:
    if isinstance(store, StoreError):
        return _Checked(shard, error=store)
    try:
        return _Checked(shard, look(store))
    except StoreError as exc:
        return _Checked(shard, error=exc)


def _as_json(found: _Checked) -> dict[str, object]:
    names = {**shard_names(found.shard), "state": found.state}
    if found.state == "unreadable":
        return {**names, "error": str(found.error)}
    facts = found.facts
    return {
        **names,
        "stop_offset": 0 if facts is None else facts.stop_offset,
        "records": 0 if facts is None else facts.records,
        "bytes": 0 if facts is None else facts.bytes,
        "findings": [_finding_as_json(*finding) for finding in found.findings],
    }


def _finding_as_json(case: Case, what: str, damage: Damage | None) -> dict[str, object]:
    return {
        "case": case.name,
        "what": what,
        "due_ms": None if damage is None else (damage.start_ms, damage.stop_ms),
        "offsets": None if damage is None else (damage.first_offset, damage.stop_offset),
        "then": case.then,
        "advice": case.advice,
    }


_STYLES: Final = {"sound": "green", "damaged": "red", "unreadable": "yellow"}


def _show(found: _Checked) -> None:
    out.print(f"{found.state}  ", style=f"bold {_STYLES[found.state]}", end="")
    out.print(escape(shard_text(found.shard)), end="")
    facts = found.facts
    told = (
        "" if facts is None else f"  {facts.records:,} records below offset {facts.stop_offset:,}"
    )
    out.print(told)
    if found.state == "unreadable":
        out.print(f"  {found.error}", markup=False)
    for case, what, damage in found.findings:
        out.print("  damage: ", style="red", end="")
        span = (
            ""
            if damage is None
            else (f" (due {time_text(damage.start_ms)} to {time_text(damage.stop_ms)})")
        )
        out.print(f"{what}{span}.", markup=False)
        out.print(f"    What happens: {case.then}. What to do: {case.advice}.", markup=False)
