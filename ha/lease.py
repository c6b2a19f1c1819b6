"""Limits how long a node may go on without an answer from ZooKeeper.

kazoo says SUSPENDED and then nothing for ever when the network is cut, and it says nothing at all
while the process is frozen. So ownership has an end of its own, on a clock that neither stops in
suspend nor jumps: the session can't have ended before (design section 6).
"""

from __future__ import annotations

from collections.abc import Callable

_SAFE_PART = 2 / 3
"""Of the session timeout. The rest is for the server, which hears of us through its leader up to
half a tick late, and for clocks that run differently fast."""


class Lease:
    """Ends unless it is renewed in time. Written by one thread, read by any.

    Args:
        boot_s: seconds since boot, suspend included.
    """

    def __init__(self, boot_s: Callable[[], float]) -> None:
        self._boot_s = boot_s
        self._end_s = float("-inf")

    def now_s(self) -> float:
        """The lease's clock, to be read before a beat is sent."""
        return self._boot_s()

    def renew(self, sent_s: float, session_timeout_s: float) -> None:
        """The ensemble has answered a beat that was sent at ``sent_s``."""
        self._end_s = max(self._end_s, sent_s + session_timeout_s * _SAFE_PART)

    def end(self) -> None:
        """The session is lost."""
        self._end_s = float("-inf")

    @property
    def end_s(self) -> float:
        """End of the lease, on its clock; minus infinity when it has been ended."""
        return self._end_s

    @property
    def is_valid(self) -> bool:
        """Return whether the session can't have ended yet."""
        return self._boot_s() < self._end_s
