"""Batches of requests: how many wait at a time, and what becomes of those that fail."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    RolledBackError,
    RuntimeInconsistency,
)

from ha.pipeline import REQUESTS_MAX, EnsembleError, EnsembleRefusedError, Pipeline


class SilenceError(Exception):
    """An answer that has not come in time."""


class Server:
    """A client of kazoo's as a pipeline uses it, whose answers are set beforehand."""

    def __init__(self) -> None:
        self.connected = True
        self.handler = SimpleNamespace(timeout_exception=SilenceError)
        self.waiting = 0
        self.waiting_max = 0
        self.sent = 0
        self.waits_s: list[float] = []

    def request(self, answer: object) -> Callable[[], Any]:
        """A request with this answer, or this error."""

        def get(timeout: float) -> object:
            self.waits_s.append(timeout)
            self.waiting -= 1
            if isinstance(answer, Exception):
                raise answer
            return answer

        def send() -> Any:
            self.sent += 1
            self.waiting += 1
            self.waiting_max = max(self.waiting_max, self.waiting)
            return SimpleNamespace(get=get)

        return send

    def transaction(self, *results: object) -> Any:
        """A transaction with these results of its parts."""
        return SimpleNamespace(commit_async=self.request(list(results)))


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def pipeline(server: Server) -> Pipeline:
    return Pipeline(server, 6.0)


def test_a_batch_is_sent_without_waiting_and_bounded(server: Server, pipeline: Pipeline) -> None:
    asked = {n: server.request(n * n) for n in range(1_000)}
    assert pipeline.ask_all(asked) == {n: n * n for n in range(1_000)}
    assert server.waiting_max == REQUESTS_MAX
    pipeline.raise_failure()


def test_how_the_nodes_are_is_an_answer_of_a_batch(server: Server, pipeline: Pipeline) -> None:
    errors = [NoNodeError(), NodeExistsError(), BadVersionError()]
    assert pipeline.ask_all(dict(enumerate(map(server.request, errors)))) == dict(enumerate(errors))
    pipeline.raise_failure()
    with pytest.raises(NoNodeError):
        pipeline.ask(server.request(NoNodeError()))


def test_one_that_fails_is_left_out_and_raised_after_all_others(
    server: Server, pipeline: Pipeline
) -> None:
    answers = [0, NoAuthError(), 2, ConnectionLoss(), 4]
    assert pipeline.ask_all(dict(enumerate(map(server.request, answers)))) == {0: 0, 2: 2, 4: 4}
    assert pipeline.ask_all({5: server.request(5)}) == {5: 5}
    with pytest.raises(EnsembleRefusedError, match="NoAuth"):
        pipeline.raise_failure()


def test_after_silence_nothing_more_is_sent_or_waited_for(
    server: Server, pipeline: Pipeline
) -> None:
    silence = {n: server.request(SilenceError()) for n in range(REQUESTS_MAX * 2)}
    assert pipeline.ask_all(silence) == {}
    assert server.sent == REQUESTS_MAX
    assert server.waits_s == [6.0] + [0.0] * (REQUESTS_MAX - 1)
    assert pipeline.ask_all({0: server.request(0)}) == {}
    with pytest.raises(EnsembleError, match="no answer"):
        pipeline.raise_failure()


def test_nothing_is_sent_while_disconnected(server: Server, pipeline: Pipeline) -> None:
    server.connected = False
    assert pipeline.ask_all({0: server.request(0)}) == {}
    assert server.sent == 0
    with pytest.raises(EnsembleError, match="out of reach"):
        pipeline.raise_failure()


def test_a_transaction_that_loses_keeps_no_other_from_being_carried_out(
    server: Server, pipeline: Pipeline
) -> None:
    transactions = {
        0: server.transaction("stat", "path"),
        1: server.transaction(BadVersionError(), RuntimeInconsistency()),
        2: server.transaction(RolledBackError(), NodeExistsError()),
        3: server.transaction("stat", "path"),
    }
    assert pipeline.commit_all(transactions) == {0, 3}
    pipeline.raise_failure()


def test_a_transaction_that_is_refused_is_raised_after_all_others(
    server: Server, pipeline: Pipeline
) -> None:
    transactions = {
        0: server.transaction(NoAuthError(), RuntimeInconsistency()),
        1: server.transaction("stat", "path"),
    }
    assert pipeline.commit_all(transactions) == {1}
    with pytest.raises(EnsembleRefusedError):
        pipeline.raise_failure()
