"""``delayservice verify``: check of a whole store folder, with an explanation of each damage."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from delayservice.base.errors import StoreError
from delayservice.commands.console import err, out, print_json
from delayservice.commands.stored import shard_names, shard_text, time_text
from delayservice.store.findings import CheckVerdict, Finding
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import find_shards, wheel_reader
from delayservice.store.offline import verify as check
from delayservice.store.wheel.slots import RunReader

EXIT_UNREADABLE: Final = 1
EXIT_DAMAGED: Final = 3

# Remarks (findings without damage) of a case that are printed for a shard.
_REMARKS_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class _Checked:
    """Result of the check of a shard; ``verdict`` None: ``error`` says why it was not checked."""

    shard: ShardFolder
    verdict: CheckVerdict | None
    error: str = ""

    @property
    def state(self) -> str:
        if self.verdict is None:
            return "unreadable"
        return "damaged" if self.verdict.is_damaged else "sound"


def run(path: Path, *, as_json: bool) -> int:
    """Check every shard's store and print the findings. Return the exit status: 3: a store is
    damaged; 1: a store is unreadable; else 0.
    """
    shards = find_shards(path)
    checked = _check_all(shards)
    if as_json:
        print_json({"v": 1, "kind": "verify", "shards": [_as_json(found) for found in checked]})
    else:
        for found in checked:
            _show(found)
    states = {found.state for found in checked}
    if "damaged" in states:
        return EXIT_DAMAGED
    return EXIT_UNREADABLE if "unreadable" in states else 0


def _check_all(shards: list[ShardFolder]) -> list[_Checked]:
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
    )
    checked = []
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        for path, of_folder in groupby(shards, key=attrgetter("path")):
            with wheel_reader(path) as reader:
                checked += [_check(shard, reader, progress) for shard in of_folder]
    return checked


def _check(shard: ShardFolder, reader: RunReader, progress: Progress) -> _Checked:
    task = progress.add_task(f"{shard.shard}/{shard.partition}", total=None)

    def advance(done: int, total: int) -> None:
        progress.update(task, completed=done, total=max(total, 1))

    try:
        return _Checked(shard, check(shard, _now_ms, advance, reader))
    except StoreError as exc:
        return _Checked(shard, None, str(exc))
    finally:
        progress.remove_task(task)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _as_json(found: _Checked) -> dict[str, object]:
    names = {**shard_names(found.shard), "state": found.state}
    if found.verdict is None:
        return {**names, "error": found.error}
    verdict = found.verdict
    return {
        **names,
        "stop_offset": verdict.stop_offset,
        "records": verdict.records,
        "bytes": verdict.bytes,
        "findings": [_finding_as_json(finding) for finding in verdict.findings],
    }


def _finding_as_json(finding: Finding) -> dict[str, object]:
    return {
        "case": finding.case.name,
        "is_damage": finding.case.is_damage,
        "what": finding.what,
        "where": finding.where,
        "due_ms": finding.due_ms,
        "offsets": finding.offsets,
        "then": finding.case.then,
        "advice": finding.case.advice,
    }


_STYLES: Final = {"sound": "green", "damaged": "red", "unreadable": "yellow"}


def _show(found: _Checked) -> None:
    out.print(f"{found.state}  ", style=f"bold {_STYLES[found.state]}", end="")
    out.print(escape(shard_text(found.shard)), end="")
    if found.verdict is None:
        out.print()
        out.print(f"  {escape(found.error)}")
        return
    verdict = found.verdict
    out.print(f"  {verdict.records:,} records below offset {verdict.stop_offset:,}")
    remarks: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in verdict.findings:
        if finding.case.is_damage:
            _explain(finding)
        else:
            remarks[finding.case.name].append(finding)
    for found_alike in remarks.values():
        for finding in found_alike[:_REMARKS_SHOWN]:
            _explain(finding)
        more = len(found_alike) - _REMARKS_SHOWN
        if more > 0:
            name = found_alike[0].case.name
            out.print(
                f"  and {more:,} more remarks of the case {name}; --json shows all", style="dim"
            )


def _explain(finding: Finding) -> None:
    case = finding.case
    word, style = ("damage", "red") if case.is_damage else ("remark", "dim")
    where = escape(finding.where)
    if finding.due_ms is not None:
        first_ms, stop_ms = finding.due_ms
        where += f", due {time_text(first_ms)} to {time_text(stop_ms)}"
    if finding.offsets is not None:
        where += f", offsets {finding.offsets[0]:,} to {finding.offsets[1] - 1:,}"
    out.print(f"  {word}: ", style=style, end="")
    out.print(f"{escape(finding.what)} ({where}).")
    out.print(f"    What happens: {case.then}. What to do: {case.advice}.", markup=False)
