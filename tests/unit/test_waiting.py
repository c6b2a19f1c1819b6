"""What a worker's loop waits for, and what ends a wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from connectors.kafka.source import KafkaSource
from delayservice.base.clock import SystemClock
from delayservice.base.errors import KafkaEdgeError
from delayservice.engine.ports import PolledBatch, Role
from delayservice.process.observer import MetricsObserver
from delayservice.process.worker_thread import Turns, WorkerThread
from delayservice.slices.commit import is_staged
from delayservice.slices.edges import Limits
from delayservice.slices.loop import wait_ms_of
from ha.notes import NodeNote
from ha.ownership import Standalone
from ha.placement import SliceFacts
from tests.unit.loop_stage import TOPIC, Logs, Stage

INTERVAL_MS = 20.0


def owner(
    due_in_ms: int | None, *, visible_at_commit: bool = True, since_commit_ms: int = 5
) -> Stage:
    """An owner with nothing staged that committed ``since_commit_ms`` ago."""
    stage = Stage(
        0,
        limits=Limits(
            transaction_interval_ms_min=INTERVAL_MS,
            transaction_interval_ms_max=INTERVAL_MS,
            visible_at_commit=visible_at_commit,
        ),
    )
    stage.own()
    if due_in_ms is not None:
        stage.write(0, 1_000 + since_commit_ms + due_in_ms)
        stage.step(100)  # walked by H
    stage.step(900)  # and committed
    stage.step()
    assert not is_staged(stage.loop.state)
    if due_in_ms is None:
        stage.loop.state.transaction.last_commit_s = stage.clock.monotonic_s()
    stage.clock.now_ms += since_commit_ms
    return stage


@pytest.mark.parametrize(
    ("due_in_ms", "visible_at_commit", "since_commit_ms", "wait_ms"),
    [
        (None, True, 5, 600.0),
        (100, True, 5, 100.0),  # the record is what is waited for
        (2, True, 5, 15.0),  # nobody would see it before the commit
        (2, True, 50, 2.0),  # a commit may come at once
        (2, False, 5, 2.0),  # at least once: it is seen when it is sent
        (-3, True, 5, 15.0),  # due already, and settled right before the commit
        (-3, True, 50, 0.5),  # due already, and so is a commit
        (-3, False, 5, 0.5),  # due already: no wait
    ],
)
def test_a_turn_waits_for_what_it_can_do_something_about(
    *, due_in_ms: int | None, visible_at_commit: bool, since_commit_ms: int, wait_ms: float
) -> None:
    made = owner(due_in_ms, visible_at_commit=visible_at_commit, since_commit_ms=since_commit_ms)
    assert wait_ms_of(made.loop.state) == pytest.approx(wait_ms, abs=0.01)


def test_staged_records_shorten_the_wait_and_cursors_alone_do_not() -> None:
    stage = owner(None, visible_at_commit=False)
    stage.write(0, 0)
    stage.step()
    assert stage.sink.open_outputs
    assert wait_ms_of(stage.loop.state) == pytest.approx(15.0, abs=0.01)
    stage.step(20)
    stage.write(0, 100_000)
    stage.step()
    assert is_staged(stage.loop.state)
    assert wait_ms_of(stage.loop.state) == pytest.approx(500.0, abs=0.01)


@pytest.mark.parametrize(
    ("role", "wait_ms"),
    [
        (Role.REPLICA, 600.0),  # a change of its role wakes it
        (Role.HEIR, 5.0),  # the slice may be its own in a moment
    ],
)
def test_a_replica_waits_unless_its_role_is_about_to_change(role: Role, wait_ms: float) -> None:
    stage = owner(None)
    stage.add(1)
    stage.gate.says(role, [1])
    stage.step()
    assert wait_ms_of(stage.loop.state) == pytest.approx(wait_ms)


def test_an_owner_without_writer_or_clock_looks_again_soon() -> None:
    without = Stage(0)
    without.step()
    assert wait_ms_of(without.loop.state) == pytest.approx(600.0), "a replica needs none"
    without.sink.refuses_to["open"] = KafkaEdgeError("no broker")
    without.gate.says(Role.OWNER, [0])
    without.step()
    assert wait_ms_of(without.loop.state) == pytest.approx(50.0)
    doubting = owner(None)
    doubting.clock_watch.reason = "ahead"
    assert wait_ms_of(doubting.loop.state) == pytest.approx(50.0)


def test_while_a_helper_is_at_work_its_answer_is_looked_for_soon() -> None:
    stage = owner(None)
    stage.background.holds = True
    stage.write(0, 0)
    stage.step(20)
    assert stage.background.waiting
    assert wait_ms_of(stage.loop.state) == pytest.approx(20.0), "as soon as the next may begin"
    stage.clock.now_ms += 19
    assert wait_ms_of(stage.loop.state) == pytest.approx(2.0)
    stage.background.run()
    stage.step()
    assert wait_ms_of(stage.loop.state) > 100


def test_at_least_once_what_comes_due_during_a_commit_is_sent_as_soon_as_that_ends() -> None:
    stage = owner(None, visible_at_commit=False)
    stage.background.holds = True
    stage.write(0, 0)
    stage.step(20)
    assert stage.background.waiting
    assert wait_ms_of(stage.loop.state) == pytest.approx(2.0)


def test_a_paused_delay_topic_and_a_paused_owner_do_not_spin() -> None:
    held: set[str] = set()
    stage = Stage(0, is_held=held.__contains__)
    stage.own()
    held.add(TOPIC)
    stage.write(0, 0)
    stage.step(20, 3)
    assert stage.delivered() == []
    assert wait_ms_of(stage.loop.state) == pytest.approx(10.0)
    held.clear()
    stage.gate.says(Role.PAUSED, [0])
    stage.step(20, 3)
    assert stage.delivered() == []
    assert wait_ms_of(stage.loop.state) == pytest.approx(10.0)


# --- what other threads have for a worker's loop ends its wait for records at once ----------------


_SOON_S = 5.0
_LONG_S = 60.0


class Blocking(Logs):
    """Nothing comes, and ``poll`` waits much longer than a test does."""

    def __init__(self) -> None:
        super().__init__()
        self._polled = threading.Condition()
        self._woken = threading.Event()

    def poll(self, _timeout_s: float, _limit: int, _gather_s: float = 0.0) -> list[PolledBatch]:
        with self._polled:
            self.polls += 1
            self._polled.notify_all()
        self._woken.wait(_LONG_S)
        self._woken.clear()
        return []

    def wake(self) -> None:
        self._woken.set()

    def await_polls(self, more: int) -> None:
        with self._polled:
            assert self._polled.wait_for(lambda: self.polls >= more, _SOON_S)


def made(logs: Blocking, *slices: int) -> tuple[WorkerThread, Standalone]:
    ownership = Standalone(NodeNote("n1", "", 1, 0, "", ""), 0)
    clock = SystemClock()
    thread = WorkerThread(
        Stage(*slices, logs=logs).loop,
        MetricsObserver(),
        ownership,
        clock,
        _unused,
        cast("Any", SimpleNamespace(close=lambda: None)),
        _unused,
        _unused,
        lambda _: None,
        Turns(),
    )
    return thread, ownership


@contextmanager
def running() -> Iterator[tuple[WorkerThread, Blocking, Standalone]]:
    logs = Blocking()
    thread, ownership = made(logs)
    thread.start()
    logs.await_polls(1)
    try:
        yield thread, logs, ownership
    finally:
        thread.stop()
        assert thread.join(_SOON_S)


# There are no topics.
_unused: Any = None


def test_a_stop_ends_the_wait() -> None:
    with running() as (thread, _, _):
        started_s = time.monotonic()
        thread.stop()
        assert thread.join(_SOON_S)
        assert time.monotonic() - started_s < _SOON_S


@pytest.mark.parametrize(
    "change",
    [
        lambda _, ownership: ownership.serve([SliceFacts(0, 0, ())]),
        lambda thread, _: thread.want({}),
        lambda thread, _: thread.loop.attend(0),
    ],
    ids=["another role", "other slices to keep", "a command for a copy"],
)
def test_a_new_event_ends_the_wait(change: Callable[[WorkerThread, Standalone], object]) -> None:
    with running() as (thread, logs, ownership):
        polls = logs.polls
        change(thread, ownership)
        logs.await_polls(polls + 1)


@pytest.fixture
def source() -> Iterator[KafkaSource]:
    """The real one; that no broker answers makes no difference to its wait."""
    made = KafkaSource({"bootstrap.servers": "127.0.0.1:1"}, None, "waking")  # type: ignore[arg-type]
    yield made
    made.close()


def test_a_wait_of_the_client_ends_when_it_is_woken(source: KafkaSource) -> None:
    threading.Timer(0.1, source.wake).start()
    started_s = time.monotonic()
    assert source.poll(_LONG_S, 10) == []
    assert time.monotonic() - started_s < _SOON_S


def test_one_wake_ends_one_wait_also_one_that_begins_later(source: KafkaSource) -> None:
    source.wake()
    started_s = time.monotonic()
    source.poll(_LONG_S, 10)
    assert time.monotonic() - started_s < _SOON_S
    started_s = time.monotonic()
    source.poll(0.3, 10)
    assert time.monotonic() - started_s > 0.2


def test_the_logs_of_quiet_slices_are_measured_in_turn_and_of_others_each_time() -> None:
    thread, _ = made(Blocking(), *range(6))
    for number in range(1, 6):
        thread._observer.of(number)
        thread._observer.sampled[number].is_quiet = True
    asked = []
    for turn in range(3):
        asked.append(thread.to_measure(2))
        thread.measured(float(turn), {number: {} for number in asked[-1]})
    assert asked == [[0, 1, 2], [0, 3, 4], [0, 1, 5]]
