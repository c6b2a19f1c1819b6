"""Requests to ZooKeeper, alone or many at a time, and the handling of their errors.

ZooKeeper carries out the requests of one session in the order in which they were sent. A thousand
of them that are sent without waiting for each answer cost little more than one round trip.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeAlias, TypeVar

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)

# Largest number of requests of a batch that wait for an answer at a time. A ZooKeeper server slows
# all of its clients down at 1,000 (``globalOutstandingLimit``).
REQUESTS_MAX: Final = 256

# Errors about the state of ZooKeeper nodes, which count as answers to a request.
_ANSWERS: Final = (NoNodeError, NodeExistsError, BadVersionError)
_OVERTAKEN: Final = (*_ANSWERS, NotEmptyError)
# Errors of one part of a transaction that only follow from the failure of another part.
_CONSEQUENCES: Final = (RolledBackError, RuntimeInconsistency)

_Key = TypeVar("_Key")
# Function that sends a request with one of kazoo's ``…_async`` methods and returns its
# ``AsyncResult``.
Request: TypeAlias = Callable[[], Any]


class EnsembleError(Exception):
    """Failure of a request that ZooKeeper did not answer in time; the request may be repeated."""


class EnsembleRefusedError(EnsembleError):
    """Refusal by ZooKeeper of a request of this user, or of a client without a login."""


class Pipeline:
    """Sender of requests to ZooKeeper, alone or in batches. A batch goes on when one of its
    requests fails, and leaves that one out of its answers. The first failure is kept for
    ``raise_failure``.
    """

    def __init__(self, client: KazooClient, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._is_silent = False
        self._failure: EnsembleError | None = None

    def ask(self, request: Request) -> Any:  # noqa: ANN401  # kazoo has no types
        """Send one request and return its answer. ``NoNodeError``, ``NodeExistsError``,
        ``BadVersionError``: a ZooKeeper node is not as assumed.
        """
        return self._answer(self._sent(request))

    def ask_all(self, requests: Mapping[_Key, Request]) -> dict[_Key, Any]:
        """Send many requests and return their answers by key, without failed requests. Errors about
        the state of ZooKeeper nodes, such as ``NoNodeError``, count as answers, and are returned.
        """
        answers: dict[_Key, Any] = {}
        waiting: deque[tuple[_Key, Any]] = deque()
        for key, request in requests.items():
            if len(waiting) == REQUESTS_MAX:
                self._take(*waiting.popleft(), answers)
            with self._failing():
                waiting.append((key, self._sent(request)))
        for key, sent in waiting:
            self._take(key, sent, answers)
        return answers

    def commit_all(self, transactions: Mapping[_Key, Any]) -> frozenset[_Key]:
        """Commit many kazoo transactions, each by itself, and return the keys of those carried out.
        The others failed because ZooKeeper nodes have changed since they were read, or
        ``raise_failure`` raises their error.
        """
        done = set()
        commits = {key: transaction.commit_async for key, transaction in transactions.items()}
        for key, results in self.ask_all(commits).items():
            with self._failing():
                if _is_carried_out(results):
                    done.add(key)
        return frozenset(done)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _take(self, key: _Key, sent: Any, answers: dict[_Key, Any]) -> None:  # noqa: ANN401
        with self._failing():
            try:
                answers[key] = self._answer(sent)
            except _ANSWERS as exc:
                answers[key] = exc

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except EnsembleError as exc:
            self._failure = self._failure or exc

    def _sent(self, request: Request) -> Any:  # noqa: ANN401
        # kazoo would queue the request while it is disconnected, and send it too late.
        if self._is_silent or not self._client.connected:
            raise EnsembleError("ZooKeeper is out of reach")
        return request()

    def _answer(self, sent: Any) -> Any:  # noqa: ANN401
        try:
            return sent.get(timeout=0.0 if self._is_silent else self._timeout_s)
        except _ANSWERS:
            raise
        except NoAuthError as exc:
            raise EnsembleRefusedError(f"ZooKeeper does not allow it: {exc!r}") from exc
        except KazooException as exc:
            raise EnsembleError(f"ZooKeeper gave no answer: {exc!r}") from exc
        except self._client.handler.timeout_exception as exc:
            self._is_silent = True
            raise EnsembleError(f"ZooKeeper gave no answer: {exc!r}") from exc


def _is_carried_out(results: list[Any]) -> bool:
    """Return whether a transaction was carried out, from its results; False if another client had
    created, changed or deleted one of its ZooKeeper nodes before. Raise ``EnsembleError`` if it
    failed for any other reason.
    """
    failed = [result for result in results if isinstance(result, Exception)]
    causes = [result for result in failed if not isinstance(result, _CONSEQUENCES)]
    if all(isinstance(cause, _OVERTAKEN) for cause in causes):
        return not failed
    if any(isinstance(cause, NoAuthError) for cause in causes):
        raise EnsembleRefusedError(f"ZooKeeper does not allow it: {causes[0]!r}") from causes[0]
    raise EnsembleError(f"ZooKeeper did not carry it out: {causes[0]!r}") from causes[0]
