"""A small log to fill stores from, and what a store must hold of it: a pure function of offsets."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field

from delayservice.base.errors import SlotDamagedError
from delayservice.engine.cursor import Cursor, Key
from delayservice.store.base import NO_MARK, Frame, Mark, Named, Store

START_MS = 1_800_000_000_000 // 3_600_000 * 3_600_000 + 3_597_000
"""Three seconds before the end of an hour, so that a few slots need two folders."""

FAR_MS = 10**16


@dataclass
class ModelLog:
    """``count`` offsets: most are records, some bear an id, some cancel an earlier one."""

    count: int
    seed: int = 1
    spread_ms: int = 9_000
    frames: dict[int, Frame] = field(default_factory=dict)
    named: dict[int, Named] = field(default_factory=dict)
    marks: dict[int, Mark] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Fill the log."""
        rng = random.Random(self.seed)
        latest: dict[bytes, Key] = {}
        for offset in range(self.count):
            record_id = b"id-%d" % rng.randrange(9) if rng.random() < 0.3 else None
            if record_id in latest and record_id is not None:
                self.marks[offset] = (record_id, *latest.pop(record_id), offset)
                if rng.random() < 0.5:
                    continue
            key = (START_MS + rng.randrange(self.spread_ms), offset)
            self.frames[offset] = (*key, NO_MARK, rng.randbytes(rng.randrange(40)))
            if record_id is not None:
                latest[record_id] = key
                self.named[offset] = (record_id, *key, (f"target {offset % 3}", 0, False))

    def feed(self, store: Store, start: int, stop: int) -> None:
        """Append offsets ``[start, stop)`` in one batch, by a label of their own."""
        store.set_label(_label_from(start))
        offsets = range(start, stop)
        store.append(
            [self.frames[o] for o in offsets if o in self.frames],
            [self.named[o] for o in offsets if o in self.named],
            [self.marks[o] for o in offsets if o in self.marks],
            stop,
        )

    @staticmethod
    def check_label(store: Store, stop: int, batches: Iterable[int]) -> None:
        """That label and horizon are a pair that there was: that of the batch which ends at
        ``stop``, or the one that was set for the next; ``batches``: sizes.
        """
        labels = {_label_from(stop), *(_label_from(stop - size) for size in batches)}
        assert store.label in (labels if stop else {b"", _label_from(0)})

    def held(self, stop: int, after: Key) -> list[Frame]:
        """What a store with horizon ``stop`` must give above ``after``."""
        marked = {m[2]: m[3] for o, m in self.marks.items() if o < stop}
        return sorted(
            (f[0], o, marked.get(o, NO_MARK), f[3])
            for o, f in self.frames.items()
            if o < stop and f[:2] > after
        )

    def latest_unmarked(self, record_id: bytes) -> Key | None:
        """At the end of the log."""
        marked = {mark[2] for mark in self.marks.values()}
        keys = [name[1:3] for o, name in self.named.items() if name[0] == record_id]
        live = [key for key in keys if key[1] not in marked]
        return max(live, key=lambda key: key[1], default=None)

    def check_ids(self, store: Store, stop: int, cursor: Cursor) -> None:
        """Marks and names below ``stop`` of records that the cursor has not settled."""
        expected = [(o, (m[1], m[2])) for o, m in sorted(self.marks.items()) if o < stop]
        expected = [e for e in expected if e[0] >= cursor.offset and e[1] > cursor.key]
        found = [e for e in store.marked_from(cursor.offset) if e[1] > cursor.key]
        assert found == expected
        marked = {m[2] for o, m in self.marks.items() if o < stop}
        for record_id in {n[0] for n in self.named.values()}:
            keys = [n[1:3] for o, n in self.named.items() if n[0] == record_id and o < stop]
            live = [k for k in keys if k[1] not in marked]
            latest = max(live, key=lambda k: k[1], default=None)
            if latest is None or latest > cursor.key:
                assert store.latest_unmarked(record_id, stop) == latest
                named = None if latest is None else self.named[latest[1]]
                assert store.group_of(record_id) == (named and named[3])


def _label_from(start: int) -> bytes:
    """What is set before offset ``start``: longer and shorter by turns."""
    return b"from %d" % start + b"." * (start * 37 % 101)


def read_all(store: Store, after: Key, limit: int = 50) -> list[Frame]:
    """Everything above ``after``; damage is an error."""
    found: list[Frame] = []
    while part := store.read_due(found[-1][:2] if found else after, FAR_MS, limit):
        found += part
    return found


def read_all_rebuilding(store: Store, log: ModelLog, stop: int, after: Key) -> list[Frame]:
    """Everything above ``after``; what is damaged is read again from the log, as a lane does."""
    found: list[Frame] = []
    for _ in range(10_000):
        try:
            part = store.read_due(found[-1][:2] if found else after, FAR_MS, 20)
        except SlotDamagedError as damage:
            again = [
                f
                for f in log.held(stop, (-1, -1))
                if damage.start_ms <= f[0] < damage.stop_ms
                and damage.first_offset <= f[1] < damage.stop_offset
            ]
            again = [f if f[2] < damage.stop_offset else (*f[:2], -1, f[3]) for f in again]
            store.rebuild(damage.start_ms, damage.stop_ms, again)
            continue
        if not part:
            return found
        found += part
    raise AssertionError("reading does not come to an end")
