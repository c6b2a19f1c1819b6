"""Questions to workers, and how pauses are told."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from connectors.kafka import control_topics, log_ends
from connectors.kafka.control_topics import ControlReader, PauseWatcher
from delayservice.base.errors import DelayServiceError
from delayservice.engine.pauses import (
    KINDS,
    Pause,
    Paused,
    Pauses,
    decode_key,
    decode_pause,
    encode_key,
    encode_pause,
)
from delayservice.inspection.asking import Answer, NotAnsweredError, WorkerClient, answer_questions
from delayservice.inspection.query import Ahead, BacklogCounts, Question
from tests.elapsed import at_most
from tests.integration.bench import await_true


def client_of(pipe: Connection) -> WorkerClient:
    return WorkerClient(pipe, "worker 0")


def ask(client: WorkerClient, now_ms: int = 5, timeout_s: float = 10) -> int:
    return client.ask(Ahead(now_ms=now_ms), BacklogCounts, timeout_s).total


def told(question: Question) -> Answer:
    assert isinstance(question, Ahead)
    return BacklogCounts(total=question.now_ms)


def test_everybody_who_asks_at_once_gets_the_own_answer() -> None:
    mine, its = Pipe()
    answer_questions(its, told)
    client = client_of(mine)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: ask(client, n), range(100))) == list(range(100))


def test_a_reason_is_handed_on_and_a_mistake_is_not_fatal() -> None:
    mine, its = Pipe()
    errors: list[Exception] = [DelayServiceError("slice 3 is busy"), ValueError("a mistake")]

    def answer(question: Question) -> Answer:
        if errors:
            raise errors.pop(0)
        return told(question)

    answer_questions(its, answer)
    client = client_of(mine)
    # Shown on a terminal, a traceback with all its locals takes seconds on a busy machine.
    with capture_logs() as lines:
        for why in ("slice 3 is busy", "ValueError"):
            with pytest.raises(NotAnsweredError, match=why):
                ask(client)
    assert [line["event"] for line in lines] == ["question_failed"]
    assert ask(client) == 5


def answering(pipe: Connection) -> None:
    answer_questions(pipe, told)
    time.sleep(600)


def test_a_stopped_worker_delays_questions_to_their_deadlines_and_goes_on_later() -> None:
    context = get_context("fork")
    mine, its = context.Pipe()
    worker = context.Process(target=answering, args=(its,), daemon=True)
    worker.start()
    try:
        client = client_of(mine)
        assert ask(client) == 5
        os.kill(worker.pid or 0, signal.SIGSTOP)
        os.waitpid(worker.pid or 0, os.WUNTRACED)
        with at_most(30):
            for n in range(100):
                with pytest.raises(NotAnsweredError, match="in time"):
                    ask(client, n, 0.01)
        os.kill(worker.pid or 0, signal.SIGCONT)
        assert ask(client, 7) == 7, "the answer to an old question is not taken for it"
    finally:
        worker.kill()
        worker.join()
    its.close()
    with pytest.raises(NotAnsweredError, match="has ended"):
        ask(client)


def test_a_question_waits_for_its_turn_until_its_deadline() -> None:
    mine, its = Pipe()
    client = client_of(mine)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(ask, client)
        assert its.poll(10)
        with pytest.raises(NotAnsweredError, match="too much at once"):
            ask(client, timeout_s=0.01)
        answer_questions(its, told)
        assert first.result() == 5


def test_a_question_past_its_deadline_is_not_carried_out() -> None:
    mine, its = Pipe()
    carried_out: list[Question] = []

    def answer(question: Question) -> Answer:
        carried_out.append(question)
        return told(question)

    client = client_of(mine)
    with pytest.raises(NotAnsweredError, match="in time"):
        ask(client, 1, 0.01)
    answer_questions(its, answer)  # the worker comes to itself
    assert ask(client, 2) == 2
    assert carried_out == [Ahead(now_ms=2)]


def test_when_the_supervisor_ends_its_worker_closes_the_pipe() -> None:
    mine, its = Pipe()
    answer_questions(its, told)
    assert ask(client_of(mine)) == 5
    mine.close()
    for thread in threading.enumerate():
        if thread.name == "questions":
            thread.join(10)
    assert its.closed


def test_a_worker_that_ends_leaves_nobody_waiting() -> None:
    mine, its = Pipe()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, client_of(mine), timeout_s=30)
        assert its.poll(10)
        its.close()
        with pytest.raises(NotAnsweredError, match="has ended"):
            asked.result()


# --- pauses: what they match, how they are written, and what happens while nobody can hear of them


NOBODY = {"bootstrap.servers": "127.0.0.1:1", "log_level": "0"}


@given(st.sampled_from(KINDS), st.from_regex(r"[A-Za-z0-9._*?-]{1,40}", fullmatch=True))
def test_a_key_reads_back(kind: str, name: str) -> None:
    paused = Paused(kind, name)  # type: ignore[arg-type]  # Hypothesis knows no literals
    assert decode_key(encode_key(paused)) == paused


@given(st.none() | st.binary(max_size=40))
def test_any_key_and_any_value_are_read(data: bytes | None) -> None:
    found = decode_key(data)
    assert found is None or encode_key(found).decode() == (data or b"").decode("utf-8", "replace")
    assert isinstance(decode_pause(data or b""), Pause)


def test_a_value_reads_back() -> None:
    assert decode_pause(encode_pause(Pause(5, "why"))) == Pause(5, "why")


def test_a_target_is_matched_by_its_pattern_and_a_delay_topic_by_its_name() -> None:
    known = Pauses(
        {
            Paused("target", "orders*"): Pause(1, "move"),
            Paused("topic", "delay_topic_any"): Pause(2),
        }
    )
    assert known.why("orders-eu") == "deliveries to orders* are paused: move"
    assert known.why("mails") is None
    assert known.why("delay_topic_any") is None
    assert known.holds("delay_topic_any")
    assert not known.holds("orders-eu")


def test_everything_is_held_until_pauses_are_heard_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "ASK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(control_topics, "_RETRY_S", 0.02)
    monkeypatch.setattr(control_topics, "_COMPLAIN_S", 0.1)
    monkeypatch.setattr(control_topics, "_WAIT_AT_START_S", 1.0)
    news = PauseWatcher("delay_pauses")
    ControlReader([news], NOBODY, "test")
    assert news.holds("delay_topic_any")
    await_true(lambda: news.problem, "a problem is told")
    assert news.holds("delay_topic_any")
    assert "delay_pauses can't be read" in news.problem
    await_true(lambda: not news.holds("delay_topic_any"), "it holds no longer")
    assert news.problem
