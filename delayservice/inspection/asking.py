"""Queries of the supervisor to a worker process, and the answers, over a pipe.

Up to ``WAITING_MAX`` queries to a worker may wait for their answers; each has a number, which its
answer repeats. When a worker ends, its waiting queries fail with ``NotAnsweredError``.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from itertools import count
from multiprocessing.connection import Connection
from typing import Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import structlog

from delayservice.base.errors import DelayServiceError
from delayservice.inspection.query import BacklogCounts, Page, Pending, Question, RecordStatus
from ha.members import Members

Answer: TypeAlias = (
    Page | RecordStatus | BacklogCounts | Members | list[Pending] | list[bytes] | None
)

_THREADS: Final = 4
WAITING_MAX: Final = 64

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class NotAnsweredError(DelayServiceError):
    """Query that a worker did not answer, or answered with an error."""


class _Envelope(msgspec.Struct):
    number: int
    question: Question
    # Monotonic seconds; all processes of a machine share that clock.
    deadline_s: float


class _Reply(msgspec.Struct):
    number: int
    answer: bytes
    error: str


_pack = msgspec.msgpack.Encoder().encode
_read_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_read_reply = msgspec.msgpack.Decoder(_Reply).decode


class WorkerClient:
    """Client of one worker, at the supervisor's end of the pipe. All methods are thread-safe."""

    def __init__(self, pipe: Connection, name: str) -> None:
        self._pipe = pipe
        self._name = name
        self._lock = threading.Lock()
        self._sending = threading.Lock()
        self._numbers = count()
        self._waiting: dict[int, Future[_Reply]] = {}
        self._is_gone = False
        threading.Thread(target=self._hear, name=f"answers-{name}", daemon=True).start()

    def ask(self, question: Question, timeout_s: float) -> Asked:
        """Send a query to the worker, and return a handle that waits for its answer until
        ``timeout_s`` seconds from now. Raises ``NotAnsweredError`` if it can't be sent.
        """
        future: Future[_Reply] = Future()
        with self._lock:
            number = next(self._numbers)
            if self._is_gone:
                raise self._gone()
            if len(self._waiting) >= WAITING_MAX:
                raise NotAnsweredError(f"{self._name} is asked too much at once; try again")
            self._waiting[number] = future
        deadline_s = time.monotonic() + timeout_s
        try:
            self._send(_pack(_Envelope(number, question, deadline_s)), deadline_s)
        except NotAnsweredError:
            self.forget(number)
            raise
        return Asked(self, number, future, deadline_s)

    def _send(self, data: bytes, deadline_s: float) -> None:
        # Without the lock of the answers, because a full pipe must not delay them.
        if not self._sending.acquire(timeout=max(deadline_s - time.monotonic(), 0.0)):
            raise self._full()
        try:
            # A pipe that can be written to has room for far more than a query, so that sending one
            # never waits for a worker that is stopped.
            room = select.poll()
            room.register(self._pipe, select.POLLOUT)
            if not room.poll(max(deadline_s - time.monotonic(), 0.0) * 1_000):
                raise self._full()
            self._pipe.send_bytes(data)
        except OSError as exc:
            raise self._gone() from exc
        finally:
            self._sending.release()

    def forget(self, number: int) -> None:
        """Ignore the answer to the query with this number, if it still comes."""
        with self._lock:
            self._waiting.pop(number, None)

    def _full(self) -> NotAnsweredError:
        return NotAnsweredError(f"{self._name} takes no questions; try again")

    def _gone(self) -> NotAnsweredError:
        return NotAnsweredError(f"{self._name} has ended; it is started again in a moment")

    def _hear(self) -> None:
        while True:
            try:
                reply = _read_reply(self._pipe.recv_bytes())
            except (EOFError, OSError):
                break
            with self._lock:
                future = self._waiting.pop(reply.number, None)
            if future is not None:
                future.set_result(reply)
        with self._lock:
            self._is_gone = True
            left, self._waiting = self._waiting, {}
        for future in left.values():
            future.set_exception(self._gone())
        self._pipe.close()


class Asked(NamedTuple):
    """Handle of a query that was sent; the deadline is in monotonic seconds."""

    client: WorkerClient
    number: int
    future: Future[_Reply]
    deadline_s: float

    def answer(self, kind: type[T]) -> T:
        """Wait for the answer until the deadline, and return it, decoded as ``kind``. Raises
        ``NotAnsweredError``.
        """
        try:
            reply = self.future.result(max(self.deadline_s - time.monotonic(), 0.0))
        except FutureTimeoutError:
            self.client.forget(self.number)
            raise NotAnsweredError("a worker gave no answer in time; is it busy?") from None
        if reply.error:
            raise NotAnsweredError(reply.error)
        return msgspec.msgpack.decode(reply.answer, type=kind)


def answer_questions(pipe: Connection, answer: Callable[[Question], Answer]) -> None:
    """Start threads that answer queries at the worker's end of ``pipe``, until the other end is
    closed. A query fails with the text of the error that ``answer`` raises. Queries past their
    deadline are dropped.

    Only the thread that reads from the pipe closes it. If another thread closed it, the reading one
    could go on with an invalid or reused file handle.
    """
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="answering")
    sending = threading.Lock()

    def reply_to(envelope: _Envelope) -> None:
        if time.monotonic() > envelope.deadline_s:
            return
        found, why = answered(lambda: _pack(answer(envelope.question)))
        with sending:
            pipe.send_bytes(_pack(_Reply(envelope.number, found or b"", why)))

    def hear() -> None:
        with pipe, pool:
            while True:
                try:
                    data = pipe.recv_bytes()
                except (EOFError, OSError):
                    return
                pool.submit(reply_to, _read_envelope(data))

    threading.Thread(target=hear, name="questions", daemon=True).start()


def answered(answer: Callable[[], T]) -> tuple[T | None, str]:
    """Return what ``answer`` returns, and ``""``; or None, and the text of the error it raises."""
    try:
        return answer(), ""
    except DelayServiceError as exc:
        return None, str(exc)
    except Exception as exc:  # noqa: BLE001  # whatever it is, an answer is waited for
        _log.exception("question_failed")
        return None, f"{type(exc).__name__} in a worker; its log says more"
