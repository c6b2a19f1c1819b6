"""Commands about a copy are carried out a little at a time, and answered whatever happens."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from delayservice.base.errors import KafkaEdgeError
from delayservice.replicas.commands import Command, Report, Verb, decode_message
from delayservice.slices.copies import CopyKeeper
from delayservice.slices.digests import SliceDigests
from delayservice.slices.lane import Lane
from delayservice.slices.repair import RepairingStore

TOPIC, TOPIC_ID, NOW_MS = "delay_topic_any", "id", 1_000


class Keeper:
    """A keeper with one copy; ``said`` are its answers."""

    def __init__(self) -> None:
        self.said: list[Report] = []
        self.digests = create_autospec(SliceDigests, instance=True)
        self.digests.is_reading = False
        self.lane = create_autospec(Lane, instance=True)
        self.lane.topic_id = TOPIC_ID
        self.lane.window = None
        self.lane.repairing = create_autospec(RepairingStore, instance=True)
        self.lanes: dict[str, Any] = {TOPIC: self.lane}
        clock = SimpleNamespace(wall_ms=lambda: NOW_MS)
        self.keeper = CopyKeeper(self.digests, self.answer, "n1", cast("Any", clock))

    def answer(self, _plan: str, value: bytes) -> None:
        said = decode_message(value)
        assert isinstance(said, Report)
        self.said.append(said)

    def ask(self, verb: Verb, expires_ms: int = NOW_MS + 1, **more: Any) -> None:
        self.keeper.ask(
            Command(
                plan="p",
                step=1,
                command=verb,
                node="n1",
                topic=TOPIC,
                partition=0,
                expires_ms=expires_ms,
                **more,
            )
        )

    def turn(self, *, is_owner: bool = False) -> None:
        self.keeper.turn(self.lanes, is_owner=is_owner)

    @property
    def why(self) -> str:
        (report,) = self.said
        assert report.status == "failed"
        return report.detail


@pytest.fixture
def keeper() -> Keeper:
    return Keeper()


def test_a_repair_goes_on_turn_by_turn_and_is_answered_after_a_scan(keeper: Keeper) -> None:
    keeper.lane.repairing.repair.return_value = iter([1, 2, 3])
    keeper.ask("rebuild")
    for _ in range(3):
        keeper.turn()
        assert keeper.keeper.is_busy
        assert not keeper.digests.ask_scan.called
    keeper.turn()
    assert not keeper.keeper.is_busy
    keeper.digests.ask_scan.call_args.args[1]()
    assert [(one.status, one.frames) for one in keeper.said] == [("done", 3)]


def test_a_copy_that_is_closed_meanwhile_is_let_go(keeper: Keeper) -> None:
    keeper.lane.repairing.repair.return_value = iter([1, 2, 3])
    keeper.ask("rebuild")
    keeper.turn()
    keeper.lanes = {TOPIC: create_autospec(Lane, instance=True)}
    keeper.turn()
    assert "closed" in keeper.why
    assert not keeper.keeper.is_busy


def test_a_log_that_can_not_be_read_fails_the_command_and_nothing_else(keeper: Keeper) -> None:
    def steps() -> Iterator[int]:
        yield 1
        raise KafkaEdgeError("no broker")

    keeper.lane.repairing.repair.return_value = steps()
    keeper.ask("rebuild")
    keeper.turn()
    keeper.turn()
    assert keeper.why == "no broker"


def test_what_has_expired_or_is_not_kept_here_is_not_begun(keeper: Keeper) -> None:
    keeper.ask("rebuild", expires_ms=NOW_MS - 1)
    keeper.turn()
    assert "expired" in keeper.why
    keeper.said.clear()
    keeper.lanes = {}
    keeper.ask("detail")
    keeper.turn()
    assert "not kept here" in keeper.why
    assert not keeper.lane.repairing.repair.called


def test_an_owner_does_what_is_not_for_replicas_only(keeper: Keeper) -> None:
    keeper.lane.repairing.repair.return_value = iter([1])
    keeper.ask("rebuild", replica_only=True)
    keeper.turn(is_owner=True)
    assert "this node delivers" in keeper.why
    assert not keeper.lane.repairing.repair.called
    keeper.ask("rebuild", replica_only=True)
    keeper.turn()
    assert keeper.lane.repairing.repair.called
    keeper.turn()
    keeper.ask("rebuild")
    keeper.turn(is_owner=True)
    assert keeper.lane.repairing.repair.call_count == 2


def test_a_whole_copy_is_rebuilt_on_a_replica_and_never_on_the_owner(keeper: Keeper) -> None:
    keeper.lane.start_over.return_value = iter([0])
    keeper.ask("rebuild_copy")
    keeper.turn(is_owner=True)
    assert "this node delivers" in keeper.why
    assert not keeper.lane.start_over.called
    keeper.ask("rebuild_copy")
    keeper.turn()
    keeper.turn()
    keeper.digests.ask_scan.call_args.args[1]()
    assert keeper.said[-1].status == "done"


def test_a_topic_that_was_made_anew_is_not_touched(keeper: Keeper) -> None:
    keeper.lane.repairing.repair.return_value = iter([1])
    keeper.ask("rebuild", topic_id="another")
    keeper.turn()
    assert "made anew" in keeper.why
    assert not keeper.lane.repairing.repair.called
    keeper.ask("rebuild", topic_id=TOPIC_ID)
    keeper.turn()
    assert keeper.lane.repairing.repair.called
