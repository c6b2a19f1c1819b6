"""What other threads have for a worker's loop ends its wait for records at once."""

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
from delayservice.engine.ports import PolledBatch
from delayservice.process.observer import MetricsObserver
from delayservice.process.worker_thread import Turns, WorkerThread
from ha.notes import NodeNote
from ha.ownership import Standalone
from ha.placement import SliceFacts
from tests.unit.loop_stage import Logs, Stage

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
        """Wait until ``poll`` was called so many times."""
        with self._polled:
            assert self._polled.wait_for(lambda: self.polls >= more, _SOON_S)


def made(logs: Blocking, *slices: int) -> tuple[WorkerThread, Standalone]:
    """A loop on a thread that is not started, and the ownership it goes by."""
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
    """The same, and it runs and waits for records."""
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
def test_a_new_event_ends_the_wait_of_the_loop(
    change: Callable[[WorkerThread, Standalone], object],
) -> None:
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
