"""Helper processes: load and judge of ``smoke``, demo and benches, each with its own interpreter.

The work of a helper is a function of a plan, a pipe and a counter: it sends ``READY`` first,
and its results in order.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from typing import Final, Self, TypeAlias, TypeVar

from confluent_kafka import KafkaException

from delayservice.base.errors import ClusterError, DelayServiceError

_SPAWN: Final = get_context("spawn")
READY: Final = "ready"
_LOOK_S: Final = 0.2
_START_S: Final = 120.0
_TIMEOUT_S: Final = 1_800.0


# Number of records so far, in memory that both processes share.
Counter: TypeAlias = "Synchronized[int]"
_Plan = TypeVar("_Plan")
_Result = TypeVar("_Result")
_Work = Callable[[_Plan, Connection, Counter], None]


class Helper:
    """Process that does ``work``. ``progress`` is called with its counter until it ends."""

    def __init__(
        self,
        work: _Work[_Plan],
        plan: _Plan,
        progress: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._pipe, theirs = _SPAWN.Pipe()
        self._name = work.__name__
        self._counter: Counter = _SPAWN.Value("q", 0)
        self._process = _SPAWN.Process(
            target=_serve, args=(work, plan, theirs, self._counter), daemon=True
        )
        self._process.start()
        theirs.close()
        self._shown = threading.Thread(target=self._show, args=(progress,), daemon=True)
        self._shown.start()
        self.expect(str, _START_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._shown.join()
        self._pipe.close()

    @property
    def count(self) -> int:
        return self._counter.value

    def _show(self, progress: Callable[[int], None]) -> None:
        while self._process.is_alive():
            progress(self.count)
            time.sleep(_LOOK_S)
        progress(self.count)

    def tell(self, word: object = None) -> None:
        """Send the next word, for which the helper waits."""
        try:
            self._pipe.send(word)
        except OSError as exc:
            raise self._ended() from exc

    def expect(self, kind: type[_Result], timeout_s: float = _TIMEOUT_S) -> _Result:
        if not self._pipe.poll(timeout_s):
            raise ClusterError(
                f"the process {self._name} did not answer within {timeout_s:.0f} s; is the machine "
                "too busy, or does a server not answer? Run it again"
            )
        try:
            found = self._pipe.recv()
        except (EOFError, OSError) as exc:
            raise self._ended() from exc
        if isinstance(found, DelayServiceError):
            raise found
        if not isinstance(found, kind):
            raise TypeError(f"{self._name} sent {found!r}, not {kind.__name__}")
        return found

    def _ended(self) -> ClusterError:
        return ClusterError(
            f"the process {self._name} ended before it was done; "
            "was it killed, or is there no memory left? Run it again"
        )


def _serve(work: _Work[_Plan], plan: _Plan, pipe: Connection, counter: Counter) -> None:
    # Ctrl-C goes to all processes of a terminal; the owner ends its helpers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        work(plan, pipe, counter)
    except (KafkaException, DelayServiceError) as exc:
        pipe.send(ClusterError(f"{work.__name__}: {exc}"))


def _end_with_parent() -> None:
    # An owner that was killed can't end its helpers.
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
