"""Named points where a demo or a test makes a process stop, hang, die or exit.

``DELAYSERVICE_FAULT=NAME:ACTION:N`` acts on the Nth time that the point is passed in a process, and
``NAME:ACTION:/FILE`` whenever that file is there, which it removes: another process says when.
Unset, which is how the service runs, ``point`` is an empty function bound at import.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from delayservice.base.errors import SettingsError

VARIABLE = "DELAYSERVICE_FAULT"

POINTS: Mapping[str, str] = MappingProxyType(
    {
        "after_poll": "source records were read, nothing is stored",
        "after_append": "source records are in the store, not durable",
        "before_produce": "a transaction is open and empty",
        "flushed": "outputs are flushed, the transaction is open",
        "before_commit": "outputs and the checkpoint are flushed, the commit is next",
        "after_commit": "the broker has committed, this process has not noted it",
        "before_prune": "the commit is known, the store still holds what was settled",
        "after_prune": "the store has forgotten what was settled",
        "take_over": "the old owner is fenced, the checkpoint is not read yet",
        "bulk_fencing": "a part of a bulk schedule is about to fence earlier writers",
        "bulk_fenced": "the earlier writers are fenced, the part's mark is read",
        "bulk_produced": "records of a part are queued in an open transaction",
        "bulk_flushed": "they are at the broker, the mark is not in the transaction",
        "bulk_marked": "records and mark are in the transaction, the commit is next",
        "bulk_committed": "the broker has committed, the task has not ended",
        "bulk_written": "all parts of a batch are committed, Spark has not noted it",
        "audit_judged": "the findings of an interval are written, its manifest is not",
        "audit_committed": "the manifest of an interval is there, its findings are not published",
        "audit_published": "they are published, the process has not noted it",
    }
)
"""Every point there is, and what has happened when it is passed."""

EXIT_STATUS = 70
HANG_S = 25.0
"""Time that a thread hangs, seconds."""


def _exit() -> None:
    # Not sys.exit: nothing may be cleaned up, as in a crash.
    os._exit(EXIT_STATUS)


def _stop() -> None:
    # To this thread: of a signal to the process another thread may hear first, and on a busy
    # machine this one would go on until that is scheduled.
    signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


def _hang(seconds: float | None) -> None:
    """Let this thread stand still while the others of the process go on; None: for ever."""
    threading.Event().wait(seconds)


_ACTIONS: Mapping[str, Callable[[], None]] = {
    "stop": _stop,
    "hang": partial(_hang, HANG_S),
    "stick": partial(_hang, None),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": _exit,
}


def _no_fault(name: str, /) -> None:
    """Pass a fault point: nothing happens."""


def bind(setting: str) -> Callable[[str], None]:
    """Make the function that every fault point calls.

    Args:
        setting: ``NAME:ACTION:N`` or ``NAME:ACTION:/FILE``, or nothing for no fault. ``:N`` may be
            left out and is 1 then.

    Raises:
        SettingsError: an unknown name or action, or N is neither a positive number nor a path.
    """
    if not setting:
        return _no_fault
    name, _, rest = setting.partition(":")
    action, _, count = rest.partition(":")
    if name not in POINTS:
        raise SettingsError(f"{VARIABLE}: no point {name!r}; there are {', '.join(POINTS)}")
    if action not in _ACTIONS:
        raise SettingsError(f"{VARIABLE}: no action {action!r}; there are {', '.join(_ACTIONS)}")
    if count.startswith("/"):
        return _Trap(name, _ACTIONS[action], count).point
    if not (count or "1").isdecimal() or int(count or "1") == 0:
        raise SettingsError(f"{VARIABLE}: {count!r} must be a number, 1 or more, or a file")
    return _Fault(name, _ACTIONS[action], int(count or "1")).point


def _check_point(name: str) -> None:
    if name not in POINTS:
        raise SettingsError(f"no fault point {name!r}: add it to faults.POINTS")


class _Trap:
    """Acts once for each time that a file was put there."""

    __slots__ = ("_act", "_name", "_path")

    def __init__(self, name: str, act: Callable[[], None], path: str) -> None:
        self._name = name
        self._act = act
        self._path = path

    def point(self, name: str, /) -> None:
        """Pass a fault point."""
        _check_point(name)
        if name != self._name:
            return
        try:
            # Of several threads that pass at the same time, one can remove it.
            os.unlink(self._path)  # noqa: PTH108  # a path object for each pass would cost more
        except FileNotFoundError:
            return
        self._act()


class _Fault:
    """Counts down to one act."""

    __slots__ = ("_act", "_left", "_name")

    def __init__(self, name: str, act: Callable[[], None], nth: int) -> None:
        self._name = name
        self._act = act
        self._left = nth

    def point(self, name: str, /) -> None:
        """Pass a fault point."""
        _check_point(name)
        if name != self._name:
            return
        self._left -= 1
        if self._left == 0:
            self._act()


point = bind(os.environ.get(VARIABLE, ""))
"""Call it as ``faults.point("before_commit")``; the name is one of ``POINTS``."""
