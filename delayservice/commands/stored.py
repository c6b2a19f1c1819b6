"""Content of a store folder, read offline without changes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.markup import escape
from rich.progress import track

from delayservice.base.errors import StoreError
from delayservice.commands.console import err, instant, out, print_error, print_json, show_table
from delayservice.contract.codec import Payload, decode_payload
from delayservice.contract.times import DUE_STOP_MS
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
_TEXT_SHOWN: Final = 60


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


def wanted(
    from_ms: int | None, to_ms: int | None, record_id: str | None, target: str | None
) -> RecordFilter:
    bounds = ReadBounds(from_ms or 0, DUE_STOP_MS if to_ms is None else to_ms)
    return RecordFilter(bounds, None if record_id is None else record_id.encode(), target)


def time_text(ms: int | None) -> str:
    return "none" if ms is None else instant(ms, "T")


def show_facts(path: Path, *, as_json: bool) -> bool:
    """Print facts about each store in a folder: format, horizon, contracts, counts by hour of due
    time. Return whether all stores could be read.
    """
    seen: list[dict[str, object]] = []
    is_whole = True
    stores = each_store(path)
    for shard, store in track(
        stores, "reading", console=err, transient=True, disable=not err.is_terminal
    ):
        user = user_of(shard.path)
        try:
            facts = look(_readable(store))
        except StoreError as exc:
            is_whole = False
            seen.append({**shard_names(shard), "error": str(exc)})
            if not as_json:
                print_error(str(exc))
            continue
        is_whole = is_whole and not facts.damages
        seen.append(_as_json(shard, facts, user))
        if not as_json:
            _print_facts(shard, facts, user)
    if as_json:
        print_json({"v": 1, "kind": "inspect", "shards": seen})
    return is_whole


def _readable(store: ViewedStore | StoreError) -> ViewedStore:
    if isinstance(store, StoreError):
        raise store
    return store


def _as_json(shard: ShardFolder, facts: StoreFacts, user: int | None) -> dict[str, object]:
    return {
        **shard_names(shard),
        "store": facts.kind,
        "in_use_by": user,
        "stop_offset": facts.stop_offset,
        "label": _label(facts),
        "records": facts.records,
        "bytes": facts.bytes,
        "oldest_due_ms": facts.first_ms,
        "newest_due_ms": facts.last_ms,
        "hours": [asdict(hour) for hour in facts.hours],
        "damaged": [damage._asdict() for damage in facts.damages],
    }


def shard_names(shard: ShardFolder) -> dict[str, object]:
    # Partition None: unknown.
    partition = None if shard.partition < 0 else shard.partition
    return {"path": shard.path, "shard": shard.shard, "partition": partition}


def shard_text(shard: ShardFolder) -> str:
    # The shard's name only if the store has several shards.
    whole = Path(shard.path).resolve()
    is_own = whole.name == str(shard.partition) and whole.parent.name == shard.shard
    return (
        shard.path if is_own or not shard.shard else f"{shard.path} {shard.shard}/{shard.partition}"
    )


def _label(facts: StoreFacts) -> object:
    # The contracts by which the records were read; an invalid label is shown in hex.
    try:
        return json.loads(facts.label) if facts.label else None
    except ValueError:
        return facts.label.hex()


def _print_facts(shard: ShardFolder, facts: StoreFacts, user: int | None) -> None:
    out.print(escape(shard_text(shard)), style="bold")
    rows = {
        "store": facts.kind + (f", open in process {user}" if user is not None else ""),
        "shard": f"{shard.shard} (hash of the topic id), "
        + (f"partition {shard.partition}" if shard.partition >= 0 else "partition not known"),
        "horizon S": f"{facts.stop_offset:,}: all records below it are stored",
        "read by": escape(json.dumps(_label(facts))),
        "records": f"{facts.records:,} in {len(facts.hours):,} hours, {facts.bytes:,} bytes",
        "oldest due": time_text(facts.first_ms),
        "newest due": time_text(facts.last_ms),
    }
    for name, text in rows.items():
        out.print(f"  {name:<11}{text}")
    if facts.hours:
        _show_hours(facts)
    for damage in facts.damages:
        _tell_damage(damage)


def _show_hours(facts: StoreFacts) -> None:
    rows = [
        (f"{time_text(hour.hour_ms)[:16]}Z", f"{hour.records:,}", f"{hour.bytes:,}")
        for hour in facts.hours[:_HOURS_SHOWN]
    ]
    show_table(("hour", "records", "bytes"), rows)
    if len(facts.hours) > _HOURS_SHOWN:
        out.print(f"  and {len(facts.hours) - _HOURS_SHOWN:,} more hours; --json has them all")


@dataclass(frozen=True, slots=True)
class _Row:
    """Shard of a stored record, the record as stored (``frame``), and decoded (``payload``)."""

    shard: ShardFolder
    frame: Frame
    payload: Payload


def show_records(
    path: Path, wanted: RecordFilter, limit: int, *, values: bool, as_json: bool
) -> bool:
    """Print the records of each shard that match ``wanted``, in order of delivery, ``limit`` per
    shard at most. Return whether all requested records could be read.
    """
    show = _print_json_record if as_json else _print_record
    is_whole = True
    for shard, store in each_store(path):
        left = limit
        try:
            for found in read(_readable(store), wanted.bounds):
                if isinstance(found, Damage):
                    is_whole = False
                    _tell_damage(found)
                    continue
                for frame in filter(wanted, found):
                    if not left:
                        break
                    left -= 1
                    show(_Row(shard, frame, decode_payload(frame[3])), values)
                if not left:
                    break
        except StoreError as exc:
            is_whole = False
            print_error(str(exc))
    return is_whole


def _tell_damage(damage: Damage) -> None:
    span = f"{time_text(damage.start_ms)} to {time_text(damage.stop_ms)}"
    err.print(f"not readable, due {span}: {damage.why}", style="yellow", markup=False)


def _print_json_record(row: _Row, values: bool) -> None:  # noqa: FBT001 - private
    key_ms, offset, mark, _ = row.frame
    target, partition, key, value, headers, due_ms, meta = row.payload
    record_id, source, attempt, expires_ms = (None, None, 1, None) if meta is None else meta[:4]
    shown: dict[str, object] = {
        **shard_names(row.shard),
        "offset": offset,
        "due_ms": due_ms,
        "due_at": time_text(due_ms),
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
        shown |= _field("value", value)
        shown["headers"] = [{"name": name, **_field("value", text)} for name, text in headers]
    print_json(shown)


def _field(name: str, data: bytes | None) -> dict[str, str | None]:
    # As text if they are UTF-8, else base64 as ``<name>_base64``.
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _print_record(row: _Row, values: bool) -> None:  # noqa: FBT001 - private
    key_ms, offset, mark, _ = row.frame
    target, partition, key, value, headers, due_ms, meta = row.payload
    words = [f"offset {offset}"]
    if row.shard.partition >= 0:
        words.insert(0, f"partition {row.shard.partition}")
    words += [f"to {target}" + (f":{partition}" if partition >= 0 else ""), f"key {safe_text(key)}"]
    if meta is not None and meta[0] is not None:
        words.append(f"id {safe_text(meta[0])}")
    if key_ms != due_ms:
        words.append(f"acts at {time_text(key_ms)}")
    if mark != NO_MARK:
        words.append(f"cancelled or replaced by offset {mark}")
    size = "null" if value is None else f"{len(value):,} bytes"
    out.print(time_text(due_ms), style="bold", end="  ")
    out.print(", ".join([*words, size]), markup=False)
    for line in _content(value, headers) if values else ():
        out.print(f"    {line}", markup=False)


def _content(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> Iterator[str]:
    yield f"value {safe_text(value)}"
    for name, text in headers:
        yield f"header {safe_text(name.encode())} = {safe_text(text)}"


def safe_text(data: bytes | None) -> str:
    # Cut to 60 characters; in hex if it is not printable.
    if data is None:
        return "null"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        text = ""
    if not text.isprintable() or (data and not text):
        text = f"hex {data.hex()}"
    cut = "" if len(text) <= _TEXT_SHOWN else f"… ({len(data):,} bytes)"
    return f"{text[:_TEXT_SHOWN]}{cut}" if text else '""'
