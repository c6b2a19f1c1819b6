"""Questions over a pipe: answered, refused, timed out, and never left hanging."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection

import pytest
from structlog.testing import capture_logs

from delayservice.base.errors import DelayServiceError
from delayservice.inspection.asking import (
    WAITING_MAX,
    Answer,
    NotAnsweredError,
    WorkerClient,
    answer_questions,
)
from delayservice.inspection.query import Ahead, BacklogCounts, Question
from tests.elapsed import at_most

AHEAD = Ahead(now_ms=5)


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    mine, its = Pipe()
    yield mine, its
    hang_up(its)
    its.close()  # if nothing has read it


def hang_up(pipe: Connection) -> None:
    """End a pipe at both ends, and join the threads that read them: they close them."""
    with socket.socket(fileno=os.dup(pipe.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    for thread in threading.enumerate():
        if thread.name.startswith(("questions", "answers-", "answering")):
            thread.join(10)
            assert not thread.is_alive(), thread.name


def test_answers_find_whoever_asked_in_whatever_order_they_come(
    ends: tuple[Connection, Connection],
) -> None:
    slow = threading.Event()

    def answer(question: Question) -> Answer:
        assert isinstance(question, Ahead)
        if question.now_ms == 0:
            slow.wait(10)
        return BacklogCounts(total=question.now_ms)

    answer_questions(ends[1], answer)
    client = WorkerClient(ends[0], "worker 0")
    asked = [client.ask(Ahead(now_ms=n), 10) for n in range(4)]
    assert [one.answer(BacklogCounts).total for one in reversed(asked[1:])] == [3, 2, 1]
    slow.set()
    assert asked[0].answer(BacklogCounts).total == 0


def test_a_reason_is_handed_on_and_a_mistake_is_not_fatal(
    ends: tuple[Connection, Connection],
) -> None:
    errors: list[Exception] = [DelayServiceError("slice 3 is busy"), ValueError("a mistake")]

    def answer(_: Question) -> Answer:
        if errors:
            raise errors.pop(0)
        return BacklogCounts(total=1)

    answer_questions(ends[1], answer)
    client = WorkerClient(ends[0], "worker 0")
    # Shown on a terminal, a traceback with all its locals takes seconds on a busy machine.
    with capture_logs() as lines:
        with pytest.raises(NotAnsweredError, match="slice 3 is busy"):
            client.ask(AHEAD, 10).answer(BacklogCounts)
        with pytest.raises(NotAnsweredError, match="ValueError"):
            client.ask(AHEAD, 10).answer(BacklogCounts)
    assert [line["event"] for line in lines] == ["question_failed"]
    assert client.ask(AHEAD, 10).answer(BacklogCounts).total == 1


def test_a_worker_that_reads_nothing_holds_nobody_up_for_longer_than_asked(
    ends: tuple[Connection, Connection],
) -> None:
    client = WorkerClient(ends[0], "worker 0")
    began_s = time.monotonic()
    waiting = [client.ask(AHEAD, 0.2) for _ in range(WAITING_MAX)]
    with pytest.raises(NotAnsweredError, match="too much at once"):
        client.ask(AHEAD, 0.2)
    for one in waiting:
        with pytest.raises(NotAnsweredError, match="in time"):
            one.answer(BacklogCounts)
    assert time.monotonic() - began_s < 5
    client.ask(AHEAD, 0.01)  # there is room again


def answering(pipe: Connection) -> None:
    answer_questions(pipe, lambda _: BacklogCounts(total=1))
    time.sleep(600)


def test_a_worker_that_is_stopped_delays_a_question_to_its_deadline_at_most() -> None:
    context = get_context("fork")
    mine, its = context.Pipe()
    worker = context.Process(target=answering, args=(its,), daemon=True)
    worker.start()
    try:
        client = WorkerClient(mine, "worker 0")
        assert client.ask(AHEAD, 10).answer(BacklogCounts).total == 1
        os.kill(worker.pid or 0, signal.SIGSTOP)
        with suppress(NotAnsweredError):
            for _ in range(100_000):  # until the pipe is full
                client.forget(client.ask(AHEAD, 0.2).number)
        with at_most(30), pytest.raises(NotAnsweredError, match="takes no questions"):
            client.ask(AHEAD, 0.2)
        os.kill(worker.pid or 0, signal.SIGCONT)
        assert client.ask(AHEAD, 10).answer(BacklogCounts).total == 1
    finally:
        worker.kill()
        worker.join()
        its.close()


def test_a_question_past_its_deadline_is_not_answered(ends: tuple[Connection, Connection]) -> None:
    carried_out: list[int] = []

    def answer(question: Question) -> Answer:
        assert isinstance(question, Ahead)
        carried_out.append(question.now_ms)
        return BacklogCounts()

    client = WorkerClient(ends[0], "worker 0")
    with pytest.raises(NotAnsweredError):
        client.ask(Ahead(now_ms=1), 0.01).answer(BacklogCounts)
    answer_questions(ends[1], answer)  # the worker comes to itself
    client.ask(Ahead(now_ms=2), 10).answer(BacklogCounts)
    assert carried_out == [2]


def test_when_a_pipe_ends_both_ends_are_closed_and_no_thread_is_left() -> None:
    mine, its = Pipe()
    answer_questions(its, lambda _: BacklogCounts(total=1))
    assert WorkerClient(mine, "worker 0").ask(AHEAD, 10).answer(BacklogCounts).total == 1
    hang_up(mine)
    assert mine.closed
    assert its.closed


def test_a_worker_that_ends_leaves_nobody_waiting() -> None:
    mine, its = Pipe()
    client = WorkerClient(mine, "worker 0")
    asked = client.ask(AHEAD, 30)
    its.close()
    with pytest.raises(NotAnsweredError, match="has ended"):
        asked.answer(BacklogCounts)
    with pytest.raises(NotAnsweredError, match="has ended"):
        client.ask(AHEAD, 30)
