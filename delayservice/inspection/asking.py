"""Queries of the supervisor to a worker process, and the answers, over a pipe, one after another.

When a worker ends, its waiting queries fail with ``NotAnsweredError``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TypeAlias, TypeVar

import msgspec
import structlog

from delayservice.base.errors import DelayServiceError
from delayservice.inspection.query import BacklogCounts, Page, Pending, Question, RecordStatus
from ha.members import Members

Answer: TypeAlias = (
    Page | RecordStatus | BacklogCounts | Members | list[Pending] | list[bytes] | None
)

T = TypeVar("T")

_log = structlog.get_logger(__name__)


class NotAnsweredError(DelayServiceError):
    """Query that a worker did not answer, or answered with an error."""


class _Envelope(msgspec.Struct):
    question: Question
    # Monotonic seconds; all processes of a machine share that clock.
    deadline_s: float


class _Reply(msgspec.Struct):
    answer: bytes
    error: str


_pack = msgspec.msgpack.Encoder().encode
_read_envelope = msgspec.msgpack.Decoder(_Envelope).decode
_read_reply = msgspec.msgpack.Decoder(_Reply).decode


class WorkerClient:
    """Client of one worker, at the supervisor's end of the pipe; for any thread."""

    def __init__(self, pipe: Connection, name: str) -> None:
        self._pipe = pipe
        self._name = name
        self._turn = threading.Lock()
        # Whether a query is on its way that was given up; its answer still comes.
        self._is_owed = False

    def ask(self, question: Question, kind: type[T], timeout_s: float) -> T:
        """Send a query, and return its answer, decoded as ``kind``. Raises ``NotAnsweredError``."""
        deadline_s = time.monotonic() + timeout_s
        if not self._turn.acquire(timeout=timeout_s):
            raise NotAnsweredError(f"{self._name} is asked too much at once; try again")
        try:
            # Not before the last answer, so that a stopped worker's pipe is never full.
            if self._is_owed:
                self._reply(deadline_s)
            self._is_owed = True
            self._pipe.send_bytes(_pack(_Envelope(question, deadline_s)))
            reply = self._reply(deadline_s)
        except (EOFError, OSError) as exc:
            self._pipe.close()
            gone = f"{self._name} has ended; it is started again in a moment"
            raise NotAnsweredError(gone) from exc
        finally:
            self._turn.release()
        if reply.error:
            raise NotAnsweredError(reply.error)
        return msgspec.msgpack.decode(reply.answer, type=kind)

    def _reply(self, deadline_s: float) -> _Reply:
        if not self._pipe.poll(max(deadline_s - time.monotonic(), 0.0)):
            raise NotAnsweredError(f"{self._name} gave no answer in time; is it busy?")
        reply = _read_reply(self._pipe.recv_bytes())
        self._is_owed = False
        return reply


def answer_questions(pipe: Connection, answer: Callable[[Question], Answer]) -> None:
    """Start a thread that answers queries at the worker's end of ``pipe``, until the other end is
    closed. A query fails with the text of the error that ``answer`` raises, or if it comes past its
    deadline.
    """

    def reply_to(envelope: _Envelope) -> _Reply:
        if time.monotonic() > envelope.deadline_s:
            return _Reply(b"", "it was asked too long ago")
        found, why = answered(lambda: _pack(answer(envelope.question)))
        return _Reply(found or b"", why)

    def hear() -> None:
        with pipe:
            try:
                while True:
                    pipe.send_bytes(_pack(reply_to(_read_envelope(pipe.recv_bytes()))))
            except (EOFError, OSError):
                return

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
