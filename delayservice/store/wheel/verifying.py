"""Check of one shard in a wheel: all valid blocks, all records, and the ids.

Files are not locked, and are opened for reading only. A running node creates and removes files
meanwhile, so a file that seems damaged is read again by the newest horizon file.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

from delayservice.base.errors import StoreError
from delayservice.contract.codec import decode_payload
from delayservice.engine.cursor import NO_MARK
from delayservice.store import findings
from delayservice.store.files import Files
from delayservice.store.findings import Case, CheckVerdict, Finding, NamedRecord, check_ids
from delayservice.store.folder import ShardFolder, unreadable
from delayservice.store.ids import IdRows, synced_offset
from delayservice.store.rocks import guarded_read, prefix_of
from delayservice.store.rocks_view import viewed_ids
from delayservice.store.wheel.block import (
    MARK_ONLY,
    Block,
    BlockDamagedError,
    bounds_of,
    count_records,
)
from delayservice.store.wheel.horizon import NAME, HorizonDamagedError, read_horizon
from delayservice.store.wheel.reading import (
    Part,
    WheelState,
    load_horizon,
    load_state,
    read_newest,
    wheel_shards,
)
from delayservice.store.wheel.slots import FOLDER, RunReader, file_name
from delayservice.store.wheel.wheel import IDS_FOLDER

if TYPE_CHECKING:
    from rocksdict import Rdict

    from delayservice.store.base import Frame

_KNOWN: Final = frozenset(
    {"LOCK", "VERSION", NAME, f"{NAME}.new", FOLDER, IDS_FOLDER, "quarantine"}
)
_GONE: Final = frozenset({errno.ENOENT, errno.ENOTDIR})


def verify_wheel(
    shard: ShardFolder,
    now_ms: Callable[[], int],
    on_progress: Callable[[int, int], None],
    reader: RunReader,
) -> CheckVerdict:
    """Check one shard of a wheel, and return the findings. With the first shard of the wheel, the
    names of the files in the folder are checked too.

    Args:
        shard: the shard and its wheel's folder; the folder's VERSION was checked already.
        now_ms: returns the present time, epoch milliseconds; records due by then may have been
            settled.
        on_progress: takes the number of checked slots, and the number of all slots.
        reader: reader of the wheel's files, whose cache also serves the checks of other shards.
    """
    state = load_state(shard)
    names = (
        list(_check_names(shard.path))
        if wheel_shards(Path(shard.path))[:1] in ([], [shard])
        else []
    )
    if state is None:
        return CheckVerdict(0, 0, 0, (*_check_horizon(shard.path), *names))
    check = _Check(shard, state, now_ms, reader)
    for done, part in enumerate(state.parts):
        check.check_part(part)
        on_progress(done + 1, len(state.parts))
    check.check_ids()
    found = [*check.found, *names]
    found.sort(key=lambda finding: not finding.case.is_damage)
    return CheckVerdict(state.stop_offset, check.records, check.bytes, tuple(found))


def _check_horizon(path: str) -> Iterator[Finding]:
    try:
        read_horizon(path)
    except HorizonDamagedError as exc:
        yield Finding(findings.START_OVER, str(exc), NAME)
    except OSError as exc:
        if exc.errno not in _GONE:
            raise unreadable(path, exc) from exc
        if Files(read_only=True).list_dir(f"{path}/{FOLDER}"):
            yield Finding(findings.START_OVER, "the horizon is missing", NAME)


def _check_names(path: str) -> Iterator[Finding]:
    files = Files(read_only=True)
    for name in files.list_dir(path):
        if name not in _KNOWN:
            yield Finding(findings.STRAY, "no file or folder of a wheel is called so", name)
    aside = files.list_dir(f"{path}/quarantine")
    if aside:
        what = f"{len(aside)} damaged files were set aside by a node"
        yield Finding(findings.SET_ASIDE, what, "quarantine")
    horizon = load_horizon(path)
    sizes = {file_name(row.start_ms): row.size for row in horizon.slots} if horizon else {}
    for name in files.list_dir(f"{path}/{FOLDER}"):
        where = f"{FOLDER}/{name}"
        extra = files.size_of(f"{path}/{where}") - sizes.get(name, 0)
        if not sizes.get(name):
            yield Finding(findings.UNSYNCED, "the horizon does not speak of it", where)
        elif extra > 0:
            yield Finding(
                findings.UNSYNCED, f"{extra} bytes follow what the horizon speaks of", where
            )


@dataclass(slots=True)
class _Read:
    """Content of a shard in one slot, as read for the check."""

    records: int = 0
    # Bytes of the blocks; of a block shared with other shards, this shard's part.
    bytes: int = 0
    # Records with an id, by source offset.
    named: dict[int, NamedRecord] = field(default_factory=dict)
    # Offset of the canceller, by source offset of the marked record.
    marks: dict[int, int] = field(default_factory=dict)
    is_missing: bool = False
    # Damage or inconsistency that was found; empty: the slot is sound.
    why: str = ""
    # Whether the content is wrong although all checksums are right.
    is_inconsistent: bool = False

    def suspect(self, why: str) -> None:
        if why and not self.why:
            self.why, self.is_inconsistent = why, True


class _Check:
    def __init__(
        self,
        shard: ShardFolder,
        state: WheelState,
        now_ms: Callable[[], int],
        reader: RunReader,
    ) -> None:
        self.found: list[Finding] = []
        self.records = 0
        self.bytes = 0
        self._shard = shard
        self._state = state
        self._now_ms = now_ms
        self._reader = reader
        self._named: dict[int, NamedRecord] = {}
        self._whole: list[Part] = []

    def check_part(self, part: Part) -> None:
        # A slot that a node has pruned meanwhile is left out.
        found = read_newest(
            self._shard, self._reader, part, self._read, lambda read: bool(read.why)
        )
        if found is None:
            return
        last_offset, stop_offset = part.stop_offset - 1, self._state.stop_offset
        part, read = found
        if last_offset >= stop_offset:
            read.suspect(f"it speaks of offset {last_offset}, and S is {stop_offset}")
        self._note(part, read)
        self.records += read.records
        self.bytes += read.bytes
        for offset, record in read.named.items():
            mark = read.marks.get(offset, NO_MARK)
            self._named[offset] = record._replace(mark=mark)
        if not read.why:
            self._whole.append(part)

    def _note(self, part: Part, read: _Read) -> None:
        if part.lost is not None:
            self._add(findings.WAITING, "the horizon says that it is damaged", part)
        elif read.is_missing and part.stop_ms <= self._now_ms():
            self._add(findings.SETTLED, "the file is gone, and all of it was due", part)
        elif read.why:
            case = findings.INCONSISTENT if read.is_inconsistent else findings.SLOT
            self._add(case, read.why, part)

    def _add(self, case: Case, what: str, part: Part) -> None:
        span, offsets = (part.start_ms, part.stop_ms), (part.first_offset, part.stop_offset)
        self.found.append(Finding(case, what, part.name, span, offsets))

    def _read(self, part: Part) -> _Read:
        read = _Read()
        try:
            self._read_blocks(part, read)
            if part.lost is not None:
                read.why = "damaged"
            elif read.records != part.records:
                read.suspect(f"it holds {read.records} records, and not {part.records}")
        except BlockDamagedError as exc:
            read.why = str(exc)
        except OSError as exc:
            if exc.errno in (errno.EACCES, errno.EPERM):
                raise unreadable(self._shard.path, exc) from exc
            read.is_missing = exc.errno in _GONE
            missing = "the file is missing"
            read.why = missing if read.is_missing else f"it can't be read: {exc.strerror}"
        return read

    def _read_blocks(self, part: Part, read: _Read) -> None:
        for block in part.blocks(self._reader):
            rows = self._reader.rows(part.start_ms, block, part.generation)
            read.records += count_records(rows)
            read.bytes += block.bytes_of(len(rows))
            _take(rows, read)
            read.suspect(_disorder(rows, block, part))

    def check_ids(self) -> None:
        # Records of damaged slots are left out; an unreadable id database is a finding.
        if not self._state.has_ids:
            return
        path = f"{self._shard.path}/{IDS_FOLDER}"
        try:
            with ExitStack() as stack, guarded_read(f"the ids {path}"):
                database = stack.enter_context(viewed_ids(path))
                self._check_synced(database)
                self._compare(IdRows(database, prefix_of(self._state.generation)))
        except StoreError as exc:
            self.found.append(Finding(findings.START_OVER, str(exc), IDS_FOLDER))

    def _check_synced(self, database: Rdict) -> None:
        prefix, stop_offset = prefix_of(self._state.generation), self._state.stop_offset
        synced = synced_offset(database, prefix)
        if synced is None or synced < stop_offset:
            what = f"the ids were synced up to {synced}, and S is {stop_offset}"
            self.found.append(Finding(findings.START_OVER, what, IDS_FOLDER))

    def _compare(self, ids: IdRows) -> None:
        stop_offset = self._state.stop_offset
        known = {offset: record for offset, record in self._named.items() if offset < stop_offset}
        for part in self._whole:
            span_ms = (max(part.start_ms, self._now_ms()), part.stop_ms)
            mine = {o: r for o, r in known.items() if part.start_ms <= r.key_ms < part.stop_ms}
            self.found += check_ids(ids, span_ms, mine, stop_offset, IDS_FOLDER)


def _disorder(rows: list[Frame], block: Block, part: Part) -> str:
    # The text says what is wrong although the checksum is right; empty: nothing.
    keys = [row[:2] for row in rows]
    at = f"the block at byte {block.position}"
    if any(above < below for below, above in pairwise(keys)):
        return f"{at} is out of order"
    if not block.first_ms <= keys[0][0] <= keys[-1][0] <= block.last_ms:
        return f"the header of {at} speaks of other rows"
    if not part.start_ms <= keys[0][0] <= keys[-1][0] < part.stop_ms:
        return f"{at} holds records of other slots"
    first, stop = bounds_of(rows)
    if first < part.first_offset or stop > part.stop_offset:
        return f"{at} holds offsets that the horizon does not speak of"
    return ""


def _take(rows: list[Frame], read: _Read) -> None:
    for key_ms, offset, mark, payload in rows:
        if mark != NO_MARK:
            read.marks[offset] = mark
        if payload is MARK_ONLY:
            continue
        try:
            meta = decode_payload(payload)[6]
        except StoreError as exc:
            read.suspect(f"offset {offset}: {exc}")
            continue
        if meta is not None and meta[0] is not None:
            read.named[offset] = NamedRecord(meta[0], key_ms, mark)
