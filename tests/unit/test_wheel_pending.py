"""What the wheel says of how many records wait."""

from __future__ import annotations

from pathlib import Path

from delayservice.engine.cursor import Cursor
from delayservice.engine.pending import NO_MARK
from tests.wheels import LoneStore

START_MS = 1_700_000_000_000


def test_marks_are_no_records_among_those_that_have_passed(tmp_path: Path) -> None:
    store = LoneStore(tmp_path / "shard")
    store.open()
    keys = [(START_MS + number, number) for number in range(10)]
    named = [(b"%d" % offset, key_ms, offset) for key_ms, offset in keys]
    store.append([(*key, NO_MARK, b"payload") for key in keys], named, [], 10)
    marks = [(b"%d" % o, key_ms, o, 10 + o) for key_ms, o in keys[:5]]
    store.append([], [], marks, 15)
    assert len(store.read_due((0, -1), START_MS + 6, 100)) == 7
    store.prune(Cursor(keys[6], 15))
    assert store.stats().pending == 3
    store.close()
