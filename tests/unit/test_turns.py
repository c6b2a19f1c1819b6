"""One thread works, others look while it waits, and never otherwise."""

from __future__ import annotations

import threading

import pytest

from delayservice.process.worker_thread import BusyError, Turns


def test_others_look_in_a_pause_and_only_then() -> None:
    turns = Turns()
    working, pause, paused, resume = (threading.Event() for _ in range(4))

    def work() -> None:
        with turns.working():
            working.set()
            pause.wait(10)
            with turns.pausing():
                paused.set()
                resume.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    working.wait(10)
    with pytest.raises(BusyError, match="was busy"), turns.looking(0.05):
        pytest.fail("it was working")
    pause.set()
    paused.wait(10)
    with turns.looking(10):
        resume.set()
        thread.join(0.05)
        assert thread.is_alive()  # it can't go on while somebody looks
    thread.join(10)
    with pytest.raises(BusyError, match="has ended"), turns.looking(10):
        pytest.fail("its stores are closed")


def test_a_look_that_fails_does_not_stop_the_work() -> None:
    turns = Turns()
    with turns.working(), turns.pausing():
        with pytest.raises(ValueError, match="odd"), turns.looking(1):
            raise ValueError("odd")
        with turns.looking(1):
            pass
