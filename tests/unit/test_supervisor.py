"""Processes of a node: what ends a worker, and how questions reach it."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from connectors.kafka import log_ends, node_topics
from connectors.kafka.node_topics import NodeTopicReader, PauseWatcher
from delayservice.base.errors import DelayServiceError, KafkaEdgeError
from delayservice.config.settings import load
from delayservice.engine.electability import SILENT_S_MAX, TURN_S_MAX
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
from delayservice.metrics.hub import MetricsHub
from delayservice.metrics.snapshot import Snapshot, encode_snapshot
from delayservice.process import node
from delayservice.process.fork_server import CONTEXT
from delayservice.process.waiting import wait_for_kafka
from ha.zookeeper_session import SharedSession
from tests.elapsed import at_most
from tests.integration.bench import await_true

ROOT = Path(__file__).parents[2]
NODE = """
import sys
from delayservice.process import node
from delayservice.config.settings import load

def broken(_):
    raise OSError("no more processes")

node._prepare_topics = lambda *_: True  # no Kafka: the workers wait for it
node.Supervisor._restart_dead = broken

if __name__ == "__main__":
    sets = [f"node.state_dir={sys.argv[1]}", "node.workers=2", "metrics.listen=", "admin.listen="]
    sets += ["kafka.bootstrap=127.0.0.1:1", "log.format=json"]
    sys.exit(node.run(load(None, sets, {})))
"""


def test_a_supervisor_that_fails_ends_the_node_and_its_workers(tmp_path: Path) -> None:
    script = tmp_path / "failing_node.py"
    script.write_text(NODE, "utf-8")
    done = subprocess.run(
        [sys.executable, script, tmp_path / "state"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode not in {0, None}
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert "no more processes" in done.stderr
    assert [event["message"] for event in events if event["message"] == "supervisor_failed"]
    started = [event["pid"] for event in events if event["message"] == "worker_started"]
    assert len(started) == 2
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_kafka_is_waited_for_until_it_answers_or_the_node_is_to_stop() -> None:
    answers = iter([False, True])
    reasons: list[str] = []

    def ask() -> int:
        if next(answers, False):
            return 7
        raise KafkaEdgeError("no broker answers")

    stopping = threading.Event()
    assert wait_for_kafka(ask, stopping, reasons.append) == 7
    stopping.set()
    assert wait_for_kafka(ask, stopping, reasons.append) is None
    assert reasons == ["no broker answers"] * 2


# The lock is the one that the main thread holds while it begins or ends ``Event.wait``.
STOPPED_IN_WAIT = """
import signal
from delayservice.process.waiting import stop_event

stopping = stop_event(signal.SIGTERM)
with stopping._cond:
    signal.raise_signal(signal.SIGTERM)
assert stopping.wait(10)
"""


def test_a_signal_at_the_start_of_a_wait_stops_the_process() -> None:
    command = [sys.executable, "-c", STOPPED_IN_WAIT]
    subprocess.run(command, cwd=ROOT, timeout=60, check=True)


class Process:
    exitcode = -9
    is_killed = False

    def kill(self) -> None:
        self.is_killed = True

    def join(self) -> None: ...


def supervising(*, has_reported: bool) -> tuple[node.Supervisor, Process]:
    settings = load(None, ["node.workers=1"], {})
    supervisor = node.Supervisor(settings, (b"secret",), "me", MetricsHub(settings))
    process = Process()
    nobody: Any = None
    child: Any = node._Child(
        process,  # type: ignore[arg-type]
        SharedSession(CONTEXT),
        nobody,
        time.monotonic(),
        has_reported=has_reported,
    )
    supervisor._children[0] = child
    return supervisor, process


@pytest.mark.parametrize(("has_reported", "limit_s"), [(True, SILENT_S_MAX + 5), (False, 60)])
def test_a_worker_silent_for_too_long_is_ended(*, has_reported: bool, limit_s: float) -> None:
    supervisor, process = supervising(has_reported=has_reported)
    for _ in range(math.floor(limit_s)):
        supervisor._end_hung(1.0)
    assert not process.is_killed
    supervisor._end_hung(1.0)
    assert process.is_killed


def report(supervisor: node.Supervisor, *, turn_s: float) -> None:
    """A worker reports, how long its turn has lasted among the rest."""
    supervisor._hub.update(0, encode_snapshot(Snapshot(1, turn_s=turn_s)))
    supervisor._children[0].silent_s = 0.0


def pass_time(supervisor: node.Supervisor, seconds: float, *, hangs: bool) -> None:
    for _ in range(math.ceil(seconds)):
        report(supervisor, turn_s=TURN_S_MAX + 1 if hangs else 0.01)
        supervisor._end_hung(1.0)


def test_a_worker_whose_loop_hangs_for_too_long_is_ended_although_it_reports() -> None:
    supervisor, process = supervising(has_reported=True)
    pass_time(supervisor, node.HUNG_S_MAX, hangs=True)
    assert not process.is_killed
    pass_time(supervisor, 1, hangs=True)
    assert process.is_killed


def test_long_turns_with_an_end_are_no_reason_to_end_a_worker() -> None:
    supervisor, process = supervising(has_reported=True)
    for _ in range(3):
        pass_time(supervisor, node.HUNG_S_MAX, hangs=True)
        pass_time(supervisor, 1, hangs=False)
    assert not process.is_killed


def test_time_in_which_the_supervisor_was_suspended_is_no_hang() -> None:
    supervisor, process = supervising(has_reported=True)
    report(supervisor, turn_s=3_600)  # the machine was suspended for an hour
    supervisor._end_hung(1.0)
    assert not process.is_killed


def test_a_worker_that_hung_soon_after_its_start_counts_as_one_that_crashed() -> None:
    supervisor, _ = supervising(has_reported=True)
    supervisor._restarts[0] = 2
    pass_time(supervisor, node.HUNG_S_MAX + 1, hangs=True)
    child = supervisor._children[0]
    child.started_s -= node.HUNG_S_MAX + 30
    supervisor._buried(0)
    assert supervisor._restarts[0] == 3, (
        "its successor hears of it, and leaves its slices to others"
    )


def test_the_lives_of_a_worker_that_ended_soon_are_counted_for_the_next_one() -> None:
    supervisor, _ = supervising(has_reported=True)
    for crashes in (1, 2, 3):
        child = supervisor._children[0]
        supervisor._buried(0)
        assert supervisor._restarts[0] == crashes
        supervisor._children[0] = child
    supervisor._restarts[0] = 2_000
    supervisor._buried(0)
    assert supervisor._next_start_s <= time.monotonic() + node.RESTART_WAIT_S_MAX
    supervisor._children[0] = child
    child.started_s -= 3_600
    supervisor._buried(0)
    assert supervisor._restarts[0] == 1, "it lived for long"


def stop_in_a_report(pipe: Connection) -> None:
    os.write(pipe.fileno(), b"\0\0")  # half of a length
    os.kill(os.getpid(), signal.SIGSTOP)


def test_a_worker_that_stops_within_a_report_blocks_nothing() -> None:
    supervisor, _ = supervising(has_reported=True)
    supervisor._children[1] = supervisor._children[0]
    pipes = [CONTEXT.Pipe() for _ in range(2)]
    for index, (mine, _) in enumerate(pipes):
        threading.Thread(target=supervisor._read, args=(index, mine), daemon=True).start()
    (_, its), (_, other) = pipes
    stopped = CONTEXT.Process(target=stop_in_a_report, args=(its,))
    stopped.start()
    its.close()
    while psutil.Process(stopped.pid).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    other.send_bytes(encode_snapshot(Snapshot(1, turn_s=7.0)))
    supervisor._listen(5)
    turn_s = supervisor._hub.turn_s(1)
    stopped.kill()
    assert turn_s == pytest.approx(7.0)
    supervisor._listen(60)
    assert list(supervisor._children) == [1]


# --- questions to workers, and how pauses are told ------------------------------------------------


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
    monkeypatch.setattr(node_topics, "_RETRY_S", 0.02)
    monkeypatch.setattr(node_topics, "_COMPLAIN_S", 0.1)
    monkeypatch.setattr(node_topics, "_WAIT_AT_START_S", 600.0)
    news = PauseWatcher("delay_pauses")
    NodeTopicReader([news], NOBODY, "test")
    assert news.holds("delay_topic_any")
    await_true(lambda: news.problem, "a problem is told")
    assert news.holds("delay_topic_any")
    monkeypatch.setattr(node_topics, "_WAIT_AT_START_S", 0.0)
    assert "delay_pauses can't be read" in news.problem
    await_true(lambda: not news.holds("delay_topic_any"), "it holds no longer")
    assert news.problem
