"""Commands on copies: rebuilds, and the records of an hour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.engine.cursor import NO_GROUP
from delayservice.process import answering
from delayservice.process.answering import hour_records
from delayservice.replicas.commands import Command, RecordHash, Report, Verb
from delayservice.replicas.digest import HOUR_MS, frame_hash
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests
from delayservice.slices.lane import Lane
from delayservice.store.base import NO_MARK, Frame
from delayservice.store.memory import MemoryStore

TOPIC, TOPIC_ID, NOW_MS = "delay_topic_any", "id", 1_000


def command(verb: Verb, partition: int, expires_ms: int, **more: Any) -> Command:
    place: dict[str, Any] = {"node": "n1", "topic": TOPIC, "partition": partition}
    return Command(plan="p", step=1, command=verb, expires_ms=expires_ms, **place, **more)


class Keeper:
    """A keeper with one copy; ``said`` are its answers."""

    def __init__(self) -> None:
        self.said: list[Report] = []
        self.digests = create_autospec(SliceDigests, instance=True)
        self.digests.is_reading = False
        self.lane = create_autospec(Lane, instance=True)
        self.lane.topic_id = TOPIC_ID
        self.lane.window = None
        self.lanes: dict[str, Any] = {TOPIC: self.lane}
        clock = SimpleNamespace(wall_ms=lambda: NOW_MS)
        self.keeper = CopyKeeper(self.digests, self.said.append, cast("Any", clock))

    def ask(self, verb: Verb, expires_ms: int = NOW_MS + 1, **more: Any) -> None:
        self.keeper.ask(command(verb, 0, expires_ms, **more))

    def turn(self, *, is_owner: bool = False) -> None:
        self.keeper.turn(self.lanes, cast("Any", None), is_owner=is_owner)

    @property
    def why(self) -> str:
        (report,) = self.said
        assert report.status == "failed"
        return report.detail


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_a_rebuild_goes_on_turn_by_turn_and_is_reported_after_a_scan(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None] * 3)
    keeper.ask("rebuild")
    for _ in range(3):
        keeper.turn()
        assert keeper.keeper.is_busy
        assert not keeper.digests.ask_scan.called
    keeper.turn()
    assert not keeper.keeper.is_busy
    keeper.digests.ask_scan.call_args.args[1]()
    assert [one.status for one in keeper.said] == ["done"]


def test_a_copy_that_is_closed_meanwhile_is_let_go(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None] * 3)
    keeper.ask("rebuild")
    keeper.turn()
    keeper.lanes = {TOPIC: create_autospec(Lane, instance=True)}
    keeper.turn()
    assert "closed" in keeper.why
    assert not keeper.keeper.is_busy


def test_a_log_that_can_not_be_read_fails_the_command_and_nothing_else(keeper: Keeper) -> None:
    def steps() -> Iterator[None]:
        yield
        raise KafkaEdgeError("no broker")

    keeper.lane.start_over.return_value = steps()
    keeper.ask("rebuild")
    keeper.turn()
    keeper.turn()
    assert keeper.why == "no broker"
    assert not keeper.digests.ask_scan.called


@pytest.mark.parametrize("verb", ["rebuild", "scan"])
def test_orders_that_expired_or_are_for_other_nodes_are_ignored(keeper: Keeper, verb: Verb) -> None:
    keeper.ask(verb, expires_ms=NOW_MS - 1)
    keeper.turn()
    assert "expired" in keeper.why
    keeper.said.clear()
    keeper.lanes = {}
    keeper.ask(verb)
    keeper.turn()
    assert "not kept here" in keeper.why
    assert not keeper.lane.start_over.called
    assert not keeper.digests.ask_scan.called


def test_a_copy_is_rebuilt_on_a_replica_and_never_on_the_owner(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None])
    keeper.ask("rebuild")
    keeper.turn(is_owner=True)
    assert "this node delivers" in keeper.why
    assert "restart the node" in keeper.why
    assert not keeper.lane.start_over.called
    keeper.ask("rebuild")
    keeper.turn()
    keeper.turn()
    keeper.digests.ask_scan.call_args.args[1]()
    assert keeper.said[-1].status == "done"


def test_an_owner_reads_its_copy_from_the_disk(keeper: Keeper) -> None:
    keeper.ask("scan")
    keeper.turn(is_owner=True)
    keeper.digests.ask_scan.call_args.args[1]()
    assert [one.status for one in keeper.said] == ["done"]


def test_a_topic_that_was_made_anew_is_not_touched(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([None])
    keeper.ask("rebuild", topic_id="another")
    keeper.turn()
    assert "made anew" in keeper.why
    assert not keeper.lane.start_over.called
    keeper.ask("rebuild", topic_id=TOPIC_ID)
    keeper.turn()
    assert keeper.lane.start_over.called


# --- a worker tells the records of one hour of a copy, a few at a time ----------------------------


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
    asked = command("records", 3, NOW_MS, hour_ms=2 * HOUR_MS, **more)
    return hour_records(asked, cast("Any", thread), NOW_MS)


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
