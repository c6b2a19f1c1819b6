"""Content and check of a store folder, read offline without changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from rich.progress import track

from delayservice.base.errors import StoreDamagedError, StoreError
from delayservice.commands.console import (
    EXIT_ERROR,
    EXIT_FINDINGS,
    emit,
    err,
    instant,
    out,
    print_error,
    say,
    show_facts,
    show_table,
)
from delayservice.commands.record import show_pending
from delayservice.contract.codec import decode_payload
from delayservice.engine.cursor import Frame
from delayservice.inspection.looking import pending_of
from delayservice.inspection.query import Pending
from delayservice.replicas.digest_rows import Damage
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import (
    ReadBounds,
    StoreFacts,
    ViewedStore,
    each_store,
    look,
    read,
    user_of,
)

_HOURS_SHOWN: Final = 24
_JSON: Final = TypeAdapter(Pending)

# Kinds of damage: what a node does about it, and advice to a person.
_SLOT: Final = {
    "case": "slot",
    "then": "a node that reads it moves it to quarantine and reads these offsets again from the "
    "log",
    "advice": "No action needed. `delayservice spark reconcile --repair` repairs it before it "
    "is due",
}
_START_OVER: Final = {
    "case": "start-over",
    "then": "a node that opens the folder puts aside what is damaged and starts its shards over "
    "from the log; one that has it open restarts its worker for that",
    "advice": "No action needed, while the delay topic still holds what is pending",
}
_STYLES: Final = {"sound": "green", "damaged": "red", "unreadable": "yellow"}


@dataclass(frozen=True, slots=True)
class RecordFilter:
    """Filter of stored records by id and target; the reader of the store applies ``bounds``, a
    range of key times.
    """

    bounds: ReadBounds
    record_id: bytes | None
    target: str | None

    def __call__(self, frame: Frame) -> bool:
        if self.record_id is None and self.target is None:
            return True
        payload = decode_payload(frame[3])
        record_id = None if payload[6] is None else payload[6][0]
        return self.record_id in (None, record_id) and self.target in (None, payload[0])


def show_stores(path: Path, *, checked: bool, as_json: bool) -> int:
    """Print what each store in a folder holds: horizon, contracts, counts by hour of due time, and
    what of it is damaged. ``checked``: read all of it for damage, and print only that. Return the
    exit status: 3: a store is damaged; 1: a store is unreadable; else 0.
    """
    shards = [_facts(shard, facts) for shard, facts in _looked(path, checked=checked)]

    def show() -> None:
        for one in shards:
            _show_state(one)
            if not checked and "hours" in one:
                _show_content(one)
            for finding in one["findings"]:
                _show_finding(finding)

    kind = "verify" if checked else "inspect"
    emit({"v": 1, "kind": kind, "shards": shards}, show, as_json=as_json)
    states = {one["state"] for one in shards}
    return EXIT_FINDINGS if "damaged" in states else EXIT_ERROR if "unreadable" in states else 0


def _looked(path: Path, *, checked: bool) -> Iterator[tuple[ShardFolder, StoreFacts | StoreError]]:
    stores = each_store(path, checked=checked)
    for shard, store in track(
        stores, "reading", console=err, transient=True, disable=not err.is_terminal
    ):
        try:
            yield shard, store if isinstance(store, StoreError) else look(store)
        except StoreError as exc:
            yield shard, exc


def _facts(shard: ShardFolder, facts: StoreFacts | StoreError) -> dict[str, Any]:
    # Partition None: unknown.
    partition = None if shard.partition < 0 else shard.partition
    place = {"path": shard.path, "shard": shard.shard, "partition": partition}
    if isinstance(facts, StoreDamagedError):
        finding = {**_START_OVER, "what": str(facts), "due_ms": None, "offsets": None}
        return {**place, "state": "damaged", "findings": [finding]}
    if isinstance(facts, StoreError):
        return {**place, "state": "unreadable", "error": str(facts), "findings": []}
    return {
        **place,
        "state": "damaged" if facts.damages else "sound",
        "store": facts.kind,
        "in_use_by": user_of(shard.path),
        "stop_offset": facts.stop_offset,
        "label": _label(facts),
        "records": facts.records,
        "bytes": facts.bytes,
        "oldest_due_ms": facts.first_ms,
        "newest_due_ms": facts.last_ms,
        "hours": [asdict(hour) for hour in facts.hours],
        "findings": [
            {
                **_SLOT,
                "what": damage.why,
                "due_ms": (damage.start_ms, damage.stop_ms),
                "offsets": (damage.first_offset, damage.stop_offset),
            }
            for damage in facts.damages
        ],
    }


def _label(facts: StoreFacts) -> object:
    # The contracts by which the records were read; an invalid label is shown in hex.
    try:
        return json.loads(facts.label) if facts.label else None
    except ValueError:
        return facts.label.hex()


def _show_state(told: dict[str, Any]) -> None:
    # A store may have several shards: of the topic whose id has this hash, one for each partition.
    partition = "?" if told["partition"] is None else told["partition"]
    text = f"{told['state']}  {told['path']}  {told['shard']}/{partition}"
    if "error" in told:
        text += f"\n  {told['error']}"
    elif "records" in told:
        text += f"  {told['records']:,} records below offset {told['stop_offset']:,}"
    say(out, text, _STYLES[told["state"]])


def _show_content(told: dict[str, Any]) -> None:
    hours, user = told["hours"], told["in_use_by"]
    facts = {
        "store": told["store"] + ("" if user is None else f", open in process {user}"),
        "horizon S": f"{told['stop_offset']:,}: all records below it are stored",
        "read by": json.dumps(told["label"]),
        "records": f"{told['records']:,} in {len(hours):,} hours, {told['bytes']:,} bytes",
        "oldest due": _time(told["oldest_due_ms"]),
        "newest due": _time(told["newest_due_ms"]),
    }
    show_facts(facts.items())
    rows = [
        (f"{_time(hour['hour_ms'])[:16]}Z", hour["records"], hour["bytes"])
        for hour in hours[:_HOURS_SHOWN]
    ]
    show_table(("hour", "records", "bytes"), rows, "no records")
    if len(hours) > _HOURS_SHOWN:
        say(out, f"and {len(hours) - _HOURS_SHOWN:,} more hours; --json has them all")


def _show_finding(found: dict[str, Any]) -> None:
    due = found["due_ms"]
    span = "" if due is None else f" (due {_time(due[0])} to {_time(due[1])})"
    say(out, f"  damage: {found['what']}{span}.")
    say(out, f"    What happens: {found['then']}. What to do: {found['advice']}.")


def _time(ms: int | None) -> str:
    return "none" if ms is None else instant(ms, "T")


def show_records(
    path: Path, wanted: RecordFilter, limit: int, *, values: bool, as_json: bool
) -> int:
    """Print the records of each shard that match ``wanted``, in order of delivery, ``limit`` per
    shard at most. Return the exit status: 1: some could not be read.
    """
    status = 0
    for shard, store in each_store(path):
        problems: list[str] = []
        found = islice(_read(shard, store, wanted, problems, values=values), limit)
        emit(found, partial(show_pending, found, whole=values), as_json=as_json)
        for problem in problems:
            print_error(problem)
            status = EXIT_ERROR
    return status


def _read(
    shard: ShardFolder,
    store: ViewedStore | StoreError,
    wanted: RecordFilter,
    problems: list[str],
    *,
    values: bool,
) -> Iterator[dict[str, Any]]:
    try:
        if isinstance(store, StoreError):
            raise store
        for found in read(store, wanted.bounds):
            if isinstance(found, Damage):
                span = f"{_time(found.start_ms)} to {_time(found.stop_ms)}"
                problems.append(f"not readable, due {span}: {found.why}")
                continue
            for key_ms, offset, mark, packed in filter(wanted, found):
                place, payload = (shard.shard, shard.partition), decode_payload(packed)
                record = pending_of(place, (key_ms, offset), mark, payload, whole=values)
                yield {"path": shard.path, **_JSON.dump_python(record, mode="json")}
    except StoreError as exc:
        problems.append(str(exc))
