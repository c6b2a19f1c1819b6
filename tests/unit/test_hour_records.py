"""A worker tells the records of one hour of a copy, a few at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delayservice.base.errors import DelayServiceError
from delayservice.engine.cursor import NO_GROUP
from delayservice.process import answering
from delayservice.process.answering import hour_records
from delayservice.replicas.commands import Command, RecordHash
from delayservice.replicas.digest import HOUR_MS, frame_hash
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.memory import MemoryStore

TOPIC, NOW_MS = "delay_topic_any", 1_000
ALL: list[Frame] = [(HOUR_MS + n * HOUR_MS // 20, n, NO_MARK, b"value %d" % n) for n in range(60)]
TOLD: list[RecordHash] = [
    (key_ms, offset, 55 if offset == 21 else NO_MARK, f"{hashed:016x}")
    for key_ms, offset, _, data in ALL[20:40]
    for hashed in [frame_hash(key_ms, offset, None, data)]
]


def lane() -> SimpleNamespace:
    store = MemoryStore()
    store.open()
    store.append(ALL, [(b"id", *ALL[21][:2], NO_GROUP)], [(b"id", *ALL[21][:2], 55)], 60)
    made = SimpleNamespace(topic=TOPIC, topic_id="id", store=store)
    made.window = None
    return made


class Thread:
    """The loop's thread; its lanes may be opened anew between two looks at them."""

    def __init__(self, *lanes: SimpleNamespace) -> None:
        self.lanes = list(lanes)
        self.looks = 0

    @contextmanager
    def looking(self, slice_no: int, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        assert (slice_no, timeout_s) == (3, answering.LOOK_TIMEOUT_S)
        self.looks += 1
        now = self.lanes.pop(0) if len(self.lanes) > 1 else self.lanes[0]
        yield {TOPIC: now}


def told(thread: Thread, **more: Any) -> tuple[list[RecordHash], bool]:
    command = Command(
        plan="p",
        step=0,
        command="records",
        node="n1",
        topic=TOPIC,
        partition=3,
        hour_ms=2 * HOUR_MS,
        expires_ms=NOW_MS,
        **more,
    )
    return hour_records(command, cast("Any", thread), NOW_MS)


@pytest.fixture(autouse=True)
def _few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "_HOUR_ROWS", 6)


def test_the_records_of_an_hour_are_told_in_key_order_with_their_cancellers() -> None:
    thread = Thread(lane())
    assert told(thread) == (TOLD, False)
    assert thread.looks > len(TOLD) // 6


def test_of_a_large_hour_the_first_records_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "ROWS_MAX", 10)
    assert told(Thread(lane())) == (TOLD[:10], True)
    monkeypatch.setattr(answering, "ROWS_MAX", 20)
    assert told(Thread(lane())) == (TOLD, False)


def test_a_copy_that_is_opened_anew_meanwhile_is_read_on() -> None:
    before, after = lane(), lane()
    assert told(Thread(before, after)) == (TOLD, False)


def test_a_topic_that_was_made_anew_is_not_read() -> None:
    with pytest.raises(DelayServiceError, match="made anew"):
        told(Thread(lane()), topic_id="another")
