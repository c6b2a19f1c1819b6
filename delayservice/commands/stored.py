"""Content and check of a store folder, read offline without changes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

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
    print_json,
    say,
    show_facts,
    show_table,
)
from delayservice.contract.codec import decode_payload
from delayservice.engine.cursor import NO_MARK, Frame
from delayservice.store.folder import ShardFolder
from delayservice.store.offline import (
    Damage,
    ReadBounds,
    StoreFacts,
    ViewedStore,
    each_store,
    look,
    read,
    user_of,
)

_HOURS_SHOWN: Final = 24
_TEXT_CHARS_MAX: Final = 60

# Kinds of damage: what a node does about it, and advice to a person.
_SLOT: Final = {
    "case": "slot",
    "then": "a node that reads it moves it to quarantine and reads these offsets again from the "
    "log",
    "advice": "No action needed. `delayservice spark reconcile` and `spark repair` repair it "
    "before it is due",
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


def inspect(path: Path, *, as_json: bool) -> int:
    """Print facts about each store in a folder: format, horizon, contracts, counts by hour of due
    time. Return the exit status: 1: a store could not be read.
    """
    shards = [_facts(shard, facts) for shard, facts in _looked(path, "reading")]
    found = {"v": 1, "kind": "inspect", "shards": shards}

    def show() -> None:
        for one in shards:
            _show_facts(one)

    emit(found, show, as_json=as_json)
    is_whole = not any("error" in one or one["damaged"] for one in shards)
    return 0 if is_whole else EXIT_ERROR


def _looked(
    path: Path, doing: str, *, checked: bool = False
) -> Iterator[tuple[ShardFolder, StoreFacts | StoreError]]:
    stores = each_store(path, checked=checked)
    for shard, store in track(
        stores, doing, console=err, transient=True, disable=not err.is_terminal
    ):
        try:
            yield shard, store if isinstance(store, StoreError) else look(store)
        except StoreError as exc:
            yield shard, exc


def _shard(shard: ShardFolder) -> dict[str, Any]:
    # Partition None: unknown.
    partition = None if shard.partition < 0 else shard.partition
    return {"path": shard.path, "shard": shard.shard, "partition": partition}


def _place(told: dict[str, Any]) -> str:
    # A store may have several shards: of the topic whose id has this hash, one for each partition.
    partition = "?" if told["partition"] is None else told["partition"]
    return f"{told['path']}  {told['shard']}/{partition}"


def _facts(shard: ShardFolder, facts: StoreFacts | StoreError) -> dict[str, Any]:
    if isinstance(facts, StoreError):
        return {**_shard(shard), "error": str(facts)}
    return {
        **_shard(shard),
        "store": facts.kind,
        "in_use_by": user_of(shard.path),
        "stop_offset": facts.stop_offset,
        "label": _label(facts),
        "records": facts.records,
        "bytes": facts.bytes,
        "oldest_due_ms": facts.first_ms,
        "newest_due_ms": facts.last_ms,
        "hours": [asdict(hour) for hour in facts.hours],
        "damaged": [damage._asdict() for damage in facts.damages],
    }


def _label(facts: StoreFacts) -> object:
    # The contracts by which the records were read; an invalid label is shown in hex.
    try:
        return json.loads(facts.label) if facts.label else None
    except ValueError:
        return facts.label.hex()


def _show_facts(told: dict[str, Any]) -> None:
    if "error" in told:
        print_error(told["error"])
        return
    say(out, _place(told), "bold")
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
        (f"{_time(hour['hour_ms'])[:16]}Z", f"{hour['records']:,}", f"{hour['bytes']:,}")
        for hour in hours[:_HOURS_SHOWN]
    ]
    show_table(("hour", "records", "bytes"), rows, "no records")
    if len(hours) > _HOURS_SHOWN:
        say(out, f"and {len(hours) - _HOURS_SHOWN:,} more hours; --json has them all")
    for damage in told["damaged"]:
        _tell_damage(Damage(**damage))


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
        left = limit
        try:
            for found in _read(store, wanted):
                if isinstance(found, Damage):
                    status = EXIT_ERROR
                    _tell_damage(found)
                elif left:
                    left -= 1
                    record = _record(shard, found, values=values)
                    (print_json if as_json else _show_record)(record)
                else:
                    break
        except StoreError as exc:
            status = EXIT_ERROR
            print_error(str(exc))
    return status


def _read(store: ViewedStore | StoreError, wanted: RecordFilter) -> Iterator[Frame | Damage]:
    if isinstance(store, StoreError):
        raise store
    for found in read(store, wanted.bounds):
        if isinstance(found, Damage):
            yield found
        else:
            yield from filter(wanted, found)


def _tell_damage(damage: Damage) -> None:
    span = f"{_time(damage.start_ms)} to {_time(damage.stop_ms)}"
    say(err, f"not readable, due {span}: {damage.why}", "yellow")


def _record(shard: ShardFolder, frame: Frame, *, values: bool) -> dict[str, Any]:
    key_ms, offset, mark, packed = frame
    target, partition, key, value, headers, due_ms, meta = decode_payload(packed)
    record_id, source, attempt, expires_ms = (None, None, 1, None) if meta is None else meta[:4]
    found: dict[str, Any] = {
        **_shard(shard),
        "offset": offset,
        "due_ms": due_ms,
        "due_at": _time(due_ms),
        "key_ms": key_ms,
        "cancelled_by": None if mark == NO_MARK else mark,
        "target": target,
        "target_partition": None if partition < 0 else partition,
        **_field("id", record_id),
        **_field("source", source),
        "attempt": attempt,
        "expires_ms": expires_ms,
        **_field("key", key),
        "value_bytes": None if value is None else len(value),
    }
    if values:
        found |= _field("value", value)
        found["headers"] = [{"name": name, **_field("value", text)} for name, text in headers]
    return found


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    # As text if they are UTF-8, else base64 as ``<name>_base64``.
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _text(found: dict[str, Any], name: str) -> str:
    encoded = found.get(f"{name}_base64")
    text = found.get(name) if encoded is None else f"base64 {encoded}"
    return "null" if text is None else str(text)[:_TEXT_CHARS_MAX]


def _show_record(found: dict[str, Any]) -> None:
    size, mark = found["value_bytes"], found["cancelled_by"]
    words = [
        f"partition {found['partition']}",
        f"offset {found['offset']}",
        f"to {found['target']}",
        *(f"{name} {_text(found, name)}" for name in ("key", "id")),
        "null" if size is None else f"{size:,} bytes",
        *([] if found["key_ms"] == found["due_ms"] else [f"acts at {_time(found['key_ms'])}"]),
        *([] if mark is None else [f"cancelled or replaced by offset {mark}"]),
    ]
    say(out, f"{found['due_at']}  {', '.join(words)}")
    if "headers" in found:
        say(out, f"    value {_text(found, 'value')}")
        for header in found["headers"]:
            say(out, f"    header {header['name']} = {_text(header, 'value')}")


def verify(path: Path, *, as_json: bool) -> int:
    """Check every shard's store and print the damage. Return the exit status: 3: a store is
    damaged; 1: a store is unreadable; else 0.
    """
    shards = [_checked(shard, facts) for shard, facts in _looked(path, "checking", checked=True)]

    def show() -> None:
        for one in shards:
            _show_checked(one)

    emit({"v": 1, "kind": "verify", "shards": shards}, show, as_json=as_json)
    states = {one["state"] for one in shards}
    return EXIT_FINDINGS if "damaged" in states else EXIT_ERROR if "unreadable" in states else 0


def _checked(shard: ShardFolder, facts: StoreFacts | StoreError) -> dict[str, Any]:
    if isinstance(facts, StoreDamagedError):
        findings = [{**_START_OVER, "what": str(facts), "due_ms": None, "offsets": None}]
        sizes = dict.fromkeys(("stop_offset", "records", "bytes"), 0)
        return {**_shard(shard), "state": "damaged", **sizes, "findings": findings}
    if isinstance(facts, StoreError):
        return {**_shard(shard), "state": "unreadable", "error": str(facts)}
    damages = [
        {
            **_SLOT,
            "what": damage.why,
            "due_ms": (damage.start_ms, damage.stop_ms),
            "offsets": (damage.first_offset, damage.stop_offset),
        }
        for damage in facts.damages
    ]
    return {
        **_shard(shard),
        "state": "damaged" if damages else "sound",
        "stop_offset": facts.stop_offset,
        "records": facts.records,
        "bytes": facts.bytes,
        "findings": damages,
    }


def _show_checked(found: dict[str, Any]) -> None:
    state = found["state"]
    said = f"{state}  {_place(found)}"
    if state == "unreadable":
        say(out, f"{said}\n  {found['error']}", _STYLES[state])
        return
    counts = f"{found['records']:,} records below offset {found['stop_offset']:,}"
    say(out, f"{said}  {counts}", _STYLES[state])
    for one in found["findings"]:
        due = one["due_ms"]
        span = "" if due is None else f" (due {_time(due[0])} to {_time(due[1])})"
        say(out, f"  damage: {one['what']}{span}.")
        say(out, f"    What happens: {one['then']}. What to do: {one['advice']}.")
