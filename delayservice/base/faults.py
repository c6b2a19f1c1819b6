"""Named points where a demo or a test makes a process stop, hang, die or exit.

``DELAYSERVICE_FAULT=NAME:ACTION:N`` acts on the Nth time that the point is passed in a process.
``NAME:ACTION:/FILE`` acts whenever that file exists, and removes it, so that another process can
choose the moment. Without the variable, as in production, ``point`` is an empty function.

Actions: ``stop`` suspends the process (SIGSTOP), ``hang`` blocks the thread for ``HANG_S``,
``stick`` blocks it for ever, ``kill`` ends the process by SIGKILL, ``exit`` with status
``EXIT_STATUS``.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from delayservice.base.errors import SettingsError

VARIABLE = "DELAYSERVICE_FAULT"

# By name, with the state of the process when each is passed.
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

EXIT_STATUS = 70
HANG_S = 25.0


_ACTIONS: Mapping[str, Callable[[], None]] = {
    # Signal this thread: a signal to the process may be delivered to another thread first, and on
    # a busy machine this one would go on until that one is scheduled.
    "stop": lambda: signal.pthread_kill(threading.get_ident(), signal.SIGSTOP),
    "hang": lambda: time.sleep(HANG_S),
    "stick": lambda: time.sleep(1e9),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    # Not sys.exit: nothing may be cleaned up, as in a crash.
    "exit": partial(os._exit, EXIT_STATUS),
}


def bind(setting: str) -> Callable[[str], None]:
    """Return the function that every fault point calls with its name. ``setting``:
    ``NAME:ACTION:N`` or ``NAME:ACTION:/FILE``; empty: no fault. Without ``:N``, N is 1.
    """
    if not setting:
        return lambda _: None
    name, _, rest = setting.partition(":")
    action, _, count = rest.partition(":")
    if name not in POINTS:
        raise SettingsError(f"{VARIABLE}: no point {name!r}; there are {', '.join(POINTS)}")
    if action not in _ACTIONS:
        raise SettingsError(f"{VARIABLE}: no action {action!r}; there are {', '.join(_ACTIONS)}")
    if count.startswith("/"):
        return _at_point(name, partial(_is_removed, count), _ACTIONS[action])
    count = count or "1"
    if not count.isdecimal() or int(count) == 0:
        raise SettingsError(f"{VARIABLE}: {count!r} must be a number, 1 or more, or a file")
    passes, nth = itertools.count(1), int(count)
    return _at_point(name, lambda: next(passes) == nth, _ACTIONS[action])


def _at_point(
    name: str, is_time: Callable[[], bool], act: Callable[[], None]
) -> Callable[[str], None]:
    # The function calls ``act`` at this point if ``is_time()`` is True.
    def point(passed: str, /) -> None:
        if passed not in POINTS:
            raise SettingsError(f"no fault point {passed!r}: add it to faults.POINTS")
        if passed == name and is_time():
            act()

    return point


def _is_removed(path: str) -> bool:
    # Of several threads, one gets True.
    try:
        os.unlink(path)  # noqa: PTH108  # a path object for each pass would cost more
    except FileNotFoundError:
        return False
    return True


point = bind(os.environ.get(VARIABLE, ""))
"""Function of all fault points: ``faults.point("before_commit")``, with a name of ``POINTS``."""
