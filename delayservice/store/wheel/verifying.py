"""A wheel's folder checked as a whole: every name, every block that counts, every record.

Nothing is locked or written. Beside a running node files come and go: what seems damaged is looked
at again by the newest index, and only what that still speaks of counts.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delayservice.core.codec import decode_payload
from delayservice.core.pending import NO_MARK
from delayservice.errors import StoreError
from delayservice.store import findings
from delayservice.store.files import Files
from delayservice.store.findings import Case, Finding, Verdict
from delayservice.store.ids import IdRows, synced_offset
from delayservice.store.ids_check import NamedRecord, check_ids
from delayservice.store.rocks import guarded_read
from delayservice.store.rocks_view import viewed_ids
from delayservice.store.wheel.block import (
    HEADER_BYTES,
    MARK_ONLY,
    SLOT_MS,
    BlockDamagedError,
    decode_block,
)
from delayservice.store.wheel.manifest import DAMAGED, Entry, Manifest, ManifestDamagedError
from delayservice.store.wheel.near import count_records, read_blocks
from delayservice.store.wheel.reading import EVERYTHING, WheelState, hours_of, load_state
from delayservice.store.wheel.slots import HOUR, Slot, hour_name, hour_of_name

if TYPE_CHECKING:
    from rocksdict import Rdict

    from delayservice.store.base import Frame
    from delayservice.store.wheel.block import Block

_TRIES: Final = 3
_KNOWN: Final = frozenset({"LOCK", "VERSION", "horizon", "slots", "ids", "quarantine"})
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def verify_wheel(
    path: str, now_ms: Callable[[], int], on_progress: Callable[[int, int], None]
) -> Verdict:
    """Check the folder of one shard.

    Args:
        path: the folder; its VERSION was checked.
        now_ms: the wall clock, epoch milliseconds: what is due may have been settled.
        on_progress: told how many bytes of how many were checked.

    Raises:
        StoreError: a file may not be read.
    """
    try:
        state = _load(path)
    except ManifestDamagedError as exc:
        whole = Finding(findings.START_OVER, f"{exc}", "horizon")
        return Verdict(0, 0, 0, (whole, *_check_names(path, None)))
    if state is None:
        return Verdict(0, 0, 0, tuple(_check_names(path, None)))
    check = _Check(path, state, now_ms, on_progress)
    check.run()
    found = [*check.found, *_check_names(path, state)]
    found.sort(key=lambda finding: not finding.case.is_damage)
    return Verdict(state.stop_offset, check.records, check.bytes, tuple(found))


def _load(path: str) -> WheelState | None:
    """What the horizon vouches for; None: there is none yet.

    Raises:
        ManifestDamagedError: it can't be trusted.
    """
    why: Exception | None = None
    for _ in range(_TRIES):  # beside a running node an index may be replaced between two reads
        files = Files(read_only=True)
        try:
            state = Manifest(path, files).read()
        except ManifestDamagedError as exc:
            why = exc
        except OSError as exc:
            _raise_unless_gone(path, exc)
            why = exc
        else:
            return WheelState(state.stop_offset, state.label, tuple(state.live), state.has_ids)
        finally:
            files.close()
    has_index = any(Path(path).glob("index.*"))
    if not has_index and not Path(path, "horizon").exists():
        return None
    if isinstance(why, OSError):
        why = ManifestDamagedError(f"horizon or index is missing ({why.strerror})")
    raise ManifestDamagedError(str(why)) from why


def _raise_unless_gone(path: str, exc: OSError) -> None:
    """An error of the medium is a finding; one of rights is about us."""
    if exc.errno in (errno.EACCES, errno.EPERM):
        raise StoreError(
            f"can't read {path}: {exc.strerror}; run as the user of the service, or read a copy"
        ) from exc


# --- names ---------------------------------------------------------------------------------------


def _check_names(path: str, state: WheelState | None) -> Iterator[Finding]:
    """What is in the folder beside what the index speaks of."""
    files = Files(read_only=True)
    for name in files.list_dir(path):
        if name == "horizon.new" or (name.startswith("index.") and name[6:].isdecimal()):
            continue
        if name not in _KNOWN:
            yield Finding(findings.STRAY, "no file or folder of a wheel is called so", name)
    aside = files.list_dir(f"{path}/quarantine")
    if aside:
        what = f"{len(aside)} damaged files were set aside by a node"
        yield Finding(findings.SET_ASIDE, what, "quarantine")
    yield from _check_slot_names(files, path, state)


def _check_slot_names(files: Files, path: str, state: WheelState | None) -> Iterator[Finding]:
    known = {_where(Slot.of_entry(entry)) for entry in (state.entries if state else ())}
    for folder in files.list_dir(f"{path}/slots"):
        hour = hour_of_name(folder)
        if hour is None or not Path(path, "slots", folder).is_dir():
            yield Finding(findings.STRAY, "no hour is called so", f"slots/{folder}")
            continue
        for name in files.list_dir(f"{path}/slots/{folder}"):
            where = f"slots/{folder}/{name}"
            if where in known:
                continue
            slot = _slot_of_name(name)
            if slot is None or slot.second // HOUR != hour:
                yield Finding(findings.STRAY, "no slot of this hour is called so", where)
            else:
                yield Finding(
                    findings.UNSYNCED, "the index does not speak of it", where, _due(slot)
                )


def _slot_of_name(name: str) -> Slot | None:
    second, _, width = name.partition(".")
    if not second.isdecimal() or width not in ("", "60", "3600"):
        return None
    slot = Slot(int(second), int(width or 1))
    return slot if slot.second % slot.width == 0 else None


def _where(slot: Slot) -> str:
    return f"slots/{hour_name(slot.second // HOUR)}/{slot.name}"


def _due(slot: Slot) -> tuple[int, int]:
    return slot.second * SLOT_MS, slot.stop_second * SLOT_MS


# --- slots ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Read:
    """What was read of one slot's file; ``why``: what is wrong with it."""

    records: int = 0
    named: dict[int, NamedRecord] = field(default_factory=dict)
    marks: dict[int, int] = field(default_factory=dict)
    extra_bytes: int = 0
    is_missing: bool = False
    why: str = ""
    is_inconsistent: bool = False


class _Check:
    """The slots of one shard, hour by hour."""

    def __init__(
        self,
        path: str,
        state: WheelState,
        now_ms: Callable[[], int],
        on_progress: Callable[[int, int], None],
    ) -> None:
        self.found: list[Finding] = []
        self.records = 0
        self.bytes = 0
        self._path = path
        self._state = state
        self._now_ms = now_ms
        self._on_progress = on_progress
        self._bytes_all = sum(entry.size - entry.moved for entry in state.entries)

    def run(self) -> None:
        """Check ids and slots together."""
        with ExitStack() as stack:
            self._check_hours(self._open_ids(stack))

    def _open_ids(self, stack: ExitStack) -> IdRows | None:
        """The ids, if the horizon speaks of any and they can be read."""
        if not self._state.has_ids:
            return None
        path = f"{self._path}/ids"
        try:
            database = stack.enter_context(viewed_ids(path))
            with guarded_read(f"the ids {path}"):
                self._check_synced(database)
        except StoreError as exc:
            self.found.append(Finding(findings.START_OVER, str(exc), "ids"))
            return None
        return IdRows(database)

    def _check_synced(self, database: Rdict) -> None:
        synced = synced_offset(database)
        if synced is None or synced < self._state.stop_offset:
            what = f"the ids were synced up to {synced}, and S is {self._state.stop_offset}"
            self.found.append(Finding(findings.START_OVER, what, "ids"))

    def _check_hours(self, ids: IdRows | None) -> None:
        for hour, entries in hours_of(self._state.entries, EVERYTHING).items():
            named: dict[int, NamedRecord] = {}
            marks: dict[int, int] = {}
            whole: list[Slot] = []
            for entry in entries:
                read = self._check_slot(entry)
                named |= read.named
                marks |= read.marks
                if not read.why and not entry.moved:
                    whole.append(Slot.of_entry(entry))
            if ids is not None:
                self._check_ids(ids, hour, _marked(named, marks), whole)

    def _check_ids(
        self, ids: IdRows, hour: int, named: dict[int, NamedRecord], whole: list[Slot]
    ) -> None:
        def is_whole(key_ms: int) -> bool:
            return any(start <= key_ms < stop for start, stop in map(_due, whole))

        span_ms = (max(hour * SLOT_MS, self._now_ms()), (hour + HOUR) * SLOT_MS)
        stop_offset = self._state.stop_offset
        known = {offset: record for offset, record in named.items() if offset < stop_offset}
        try:
            with guarded_read(f"the ids {self._path}/ids"):
                self.found += check_ids(ids, span_ms, known, stop_offset, is_whole, "ids")
        except StoreError as exc:
            self.found.append(Finding(findings.START_OVER, str(exc), "ids", span_ms))

    def _check_slot(self, entry: Entry) -> _Read:
        """Check one slot; by a newer index, if it seems damaged and there is one."""
        read = self._read(entry, self._state.stop_offset)
        for _ in range(_TRIES):
            state = load_state(self._path) if read.why else None
            if state is None:
                break
            newer = _same_slot(state, entry)
            if newer is None:
                return _Read()  # pruned or moved meanwhile
            if newer == entry:
                break
            entry = newer
            read = self._read(entry, state.stop_offset)
        self._note(entry, read)
        self.records += read.records
        self.bytes += entry.size - entry.moved
        self._on_progress(min(self.bytes, self._bytes_all), self._bytes_all)
        return read

    def _note(self, entry: Entry, read: _Read) -> None:
        slot = Slot.of_entry(entry)
        if entry.state == DAMAGED:
            self._add(findings.WAITING, "the index says that it is damaged", entry)
        elif read.is_missing and _due(slot)[1] <= self._now_ms():
            self._add(findings.SETTLED, "the file is gone, and all of it was due", entry)
        elif read.why:
            case = findings.INCONSISTENT if read.is_inconsistent else findings.SLOT
            self._add(case, read.why, entry)
        elif read.extra_bytes > 0:
            what = f"{read.extra_bytes} bytes follow what the index speaks of"
            self.found.append(Finding(findings.UNSYNCED, what, _where(slot), _due(slot)))

    def _add(self, case: Case, what: str, entry: Entry) -> None:
        slot = Slot.of_entry(entry)
        offsets = (max(0, entry.first), entry.last + 1)
        self.found.append(Finding(case, what, _where(slot), _due(slot), offsets))

    def _read(self, entry: Entry, stop_offset: int) -> _Read:
        read = _Read()
        if entry.state == DAMAGED:
            read.why = "damaged"
            return read
        files = Files(read_only=True)
        try:
            self._read_blocks(files, entry, read)
            if entry.last >= stop_offset:
                _suspect(read, f"it speaks of offset {entry.last}, and S is {stop_offset}")
        except BlockDamagedError as exc:
            read.why = str(exc)
        except OSError as exc:
            _raise_unless_gone(self._path, exc)
            read.is_missing = exc.errno in _GONE
            missing = "the file is missing"
            read.why = missing if read.is_missing else f"it can't be read: {exc.strerror}"
        finally:
            files.close()
        return read

    def _read_blocks(self, files: Files, entry: Entry, read: _Read) -> None:
        slot = Slot.of_entry(entry)
        name = f"{self._path}/{_where(slot)}"
        read_at = partial(files.read_at, name)
        for block in read_blocks(read_at, slot):
            rows = decode_block(
                slot.second, block, read_at(block.position + HEADER_BYTES, block.length)
            )
            read.records += count_records(rows)
            _take(rows, read)
            _suspect(read, _disorder(rows, block, slot, entry))
        if read.records != entry.records:
            _suspect(read, f"it holds {read.records} records, and the index says {entry.records}")
        read.extra_bytes = Path(name).stat().st_size - entry.size


def _same_slot(state: WheelState, entry: Entry) -> Entry | None:
    """What an index says of a slot that another one spoke of."""
    place = (entry.second, entry.width)
    return next((e for e in state.entries if (e.second, e.width) == place), None)


def _suspect(read: _Read, why: str) -> None:
    """All checksums are right, and yet something does not fit."""
    if why and not read.why:
        read.why = why
        read.is_inconsistent = True


def _disorder(rows: list[Frame], block: Block, slot: Slot, entry: Entry) -> str:
    """What is wrong with rows whose checksum is right; "": nothing."""
    keys = [row[:2] for row in rows]
    at = f"the block at byte {block.position}"
    if any(above < below for below, above in pairwise(keys)):
        return f"{at} is out of order"
    if (keys[0], keys[-1]) != (block.first, block.last):
        return f"the header of {at} speaks of other rows"
    start_ms, stop_ms = _due(slot)
    if not start_ms <= keys[0][0] <= keys[-1][0] < stop_ms:
        return f"{at} holds records of other slots"
    offsets = [row[1] for row in rows]
    if min(offsets) < entry.first or max(*offsets, *(row[2] for row in rows)) > entry.last:
        return f"{at} holds offsets that the index does not speak of"
    return ""


def _take(rows: list[Frame], read: _Read) -> None:
    """Note records that bear an id, and marks; payloads that can't be decoded are suspect."""
    for key_ms, offset, mark, payload in rows:
        if mark != NO_MARK:
            read.marks[offset] = mark
        if payload is MARK_ONLY:
            continue
        try:
            meta = decode_payload(payload)[6]
        except StoreError as exc:
            _suspect(read, f"offset {offset}: {exc}")
            continue
        if meta is not None and meta[0] is not None:
            read.named[offset] = NamedRecord(meta[0], key_ms, mark)


def _marked(named: dict[int, NamedRecord], marks: dict[int, int]) -> dict[int, NamedRecord]:
    """A mark may lie in another block or slot of the hour than its record."""
    return {
        offset: record._replace(mark=marks.get(offset, NO_MARK)) for offset, record in named.items()
    }
