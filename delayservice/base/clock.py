"""Clocks, and the guard that stops delivery when the wall clock can't be trusted.

Due times are wall-clock times, so a wall clock that jumps ahead would deliver early. The guard
compares it with the boot clock, which never jumps, and with the broker's timestamps, which come
from another machine ("Clock guard" in ``docs/internals/design.md``).
"""

from __future__ import annotations

import math
import threading
import time
from typing import NamedTuple, Protocol

# Fastest rate at which NTP slews a clock, parts per million (``adjtimex``).
SLEW_PPM = 500

NOT_COMPARED = "the wall clock has not been compared with the broker's yet"

_PPM = 1_000_000
# Ignored deviation of two clocks, because both are read in whole milliseconds.
_GRANULE_MS = 1


class Clock(Protocol):
    """Wall and monotonic clock of a node, injected wherever time is read."""

    def wall_ms(self) -> int:
        """Return the wall clock, epoch milliseconds, for due times; it may jump."""

    def monotonic_s(self) -> float:
        """Return the monotonic clock, seconds, for elapsed time. It never goes back, and may stand
        still while the machine is suspended.
        """


class NodeClock(Clock, Protocol):
    """Wall, monotonic and boot clock of a node."""

    def boot_s(self) -> float:
        """Return the seconds since boot, time in suspend included, for the clock guard."""


class SystemClock:
    """Wall, monotonic and boot clock of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        return time.monotonic()

    def boot_s(self) -> float:
        # Systems without it have only the monotonic clock.
        boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


class _Bracket(NamedTuple):
    """Bounds of the broker's clock minus this machine's boot clock, milliseconds, as of the boot
    time ``boot_ms``, milliseconds since boot.
    """

    low_ms: float
    high_ms: float
    boot_ms: int

    def at(self, boot_ms: int) -> _Bracket:
        """Return the bounds at a later boot time, widened by the most that both clocks may have
        drifted since (``SLEW_PPM``).
        """
        drift_ms = max(boot_ms - self.boot_ms, 0) * 2 * SLEW_PPM / _PPM
        return _Bracket(self.low_ms - drift_ms, self.high_ms + drift_ms, boot_ms)

    def narrowed(self, newer: _Bracket) -> _Bracket:
        """Return the intersection of these bounds with those of ``newer``; ``newer`` alone if the
        two ranges don't overlap.
        """
        low_ms, high_ms = max(self.low_ms, newer.low_ms), min(self.high_ms, newer.high_ms)
        return newer if low_ms > high_ms else _Bracket(low_ms, high_ms, newer.boot_ms)


class ClockGuard:
    """Decides from readings whether the wall clock can be trusted; reads no clock itself.

    While ``frozen`` is not None the caller must not deliver; storing goes on. The anchor is the
    wall clock's distance from the boot clock. It follows the wall clock by at most ``SLEW_PPM``,
    so that NTP's slewing is followed for years while many small steps still add up and are caught.

    A broker stamps a request between its sending and its answer, so each answer brackets the
    distance of the broker's clock from the boot clock (Cristian's algorithm). Brackets are
    intersected, so several slow answers together may give a narrow bracket.

    The guard freezes when the wall clock differs from the anchor or from the bracket by more than
    the tolerance. After a difference from the anchor it thaws when the wall clock returns there.
    After any difference it thaws when the bracket shows that the wall clock is not ahead of the
    broker's by more than the tolerance: then a step was a correction, and the anchor is set anew. A
    bracket that is too wide to decide neither freezes nor thaws.
    """

    def __init__(self, tolerance_ms: int = 500) -> None:
        # Frozen (no delivery) until a broker's clock was compared.
        self._tolerance_ms = tolerance_ms
        self._anchor_ms: float | None = None
        self._boot_ms = 0
        self._boot_reason: str | None = None
        self._broker_reason: str | None = NOT_COMPARED
        self._bracket: _Bracket | None = None

    @property
    def frozen(self) -> str | None:
        """Why delivery must stop, as text; None: the wall clock can be trusted."""
        if self._broker_reason == NOT_COMPARED:
            return self._boot_reason or NOT_COMPARED
        return self._broker_reason or self._boot_reason

    def observe(self, wall_ms: int, boot_ms: int) -> str | None:
        """Check the wall clock, epoch ms, against the boot clock, ms since boot, both read at the
        same moment just before a delivery. Return as ``frozen``.
        """
        if self._anchor_ms is None:
            self._move_anchor(wall_ms, boot_ms)
            return self.frozen
        slewed_ms = max(0, boot_ms - self._boot_ms) * SLEW_PPM / _PPM
        self._boot_ms = max(self._boot_ms, boot_ms)
        ahead_ms = (wall_ms - boot_ms) - self._anchor_ms
        if abs(ahead_ms) > self._tolerance_ms + _GRANULE_MS:
            self._boot_reason = (
                f"the wall clock is {_side(ahead_ms)} the boot clock; it was stepped, and is "
                "trusted again when it returns or the broker's clock agrees with it"
            )
        else:
            self._boot_reason = None
            self._anchor_ms += min(max(ahead_ms, -slewed_ms), slewed_ms)
        return self.frozen

    def observe_answer(
        self, broker_ms: int, sent_boot_ms: int, answered_boot_ms: int, wall_ms: int, boot_ms: int
    ) -> str | None:
        """Check the wall clock against the timestamp that a broker put on a record of this process.
        Return as ``frozen``.

        Args:
            broker_ms: the broker's timestamp (``LogAppendTime``), epoch milliseconds.
            sent_boot_ms: the boot clock before the record was sent, milliseconds.
            answered_boot_ms: the boot clock when the record was known to be stamped, milliseconds.
            wall_ms: the wall clock now, epoch milliseconds.
            boot_ms: the boot clock now, milliseconds.
        """
        answer = _Bracket(
            broker_ms - max(answered_boot_ms, sent_boot_ms), broker_ms - sent_boot_ms, boot_ms
        )
        before = self._bracket
        self._bracket = answer if before is None else before.at(boot_ms).narrowed(answer)
        ahead_ms_min = wall_ms - boot_ms - self._bracket.high_ms
        ahead_ms_max = wall_ms - boot_ms - self._bracket.low_ms
        if ahead_ms_min > self._tolerance_ms:
            self._broker_reason = _disagreement(ahead_ms_min)
        elif ahead_ms_max < -self._tolerance_ms:
            self._broker_reason = _disagreement(ahead_ms_max)
        elif ahead_ms_max <= self._tolerance_ms:
            self._broker_reason = None
            if self._boot_reason is not None or self._is_off_anchor(wall_ms, boot_ms):
                self._move_anchor(wall_ms, boot_ms)
        elif self._broker_reason is not None:
            self._broker_reason = (
                f"the wall clock may be up to {ahead_ms_max:.0f} ms ahead of the broker's clock: "
                "its answers are too slow to tell"
            )
        return self.frozen

    def _is_off_anchor(self, wall_ms: int, boot_ms: int) -> bool:
        if self._anchor_ms is None:
            return False
        return abs(wall_ms - boot_ms - self._anchor_ms) > self._tolerance_ms + _GRANULE_MS

    def _move_anchor(self, wall_ms: int, boot_ms: int) -> None:
        self._anchor_ms = float(wall_ms - boot_ms)
        self._boot_ms = max(self._boot_ms, boot_ms)
        self._boot_reason = None


class ClockWatch:
    """The clock guard of one process, shared by all of its slices. Thread-safe. ``tolerance_ms``:
    allowed deviation of the wall clock.
    """

    def __init__(self, clock: NodeClock, tolerance_ms: int) -> None:
        self._clock = clock
        self._guard = ClockGuard(tolerance_ms)
        self._lock = threading.Lock()

    def doubt(self) -> str | None:
        """Read the clocks; return why the wall clock is not trusted, as text; None: it is trusted,
        which needs a comparison with a broker's clock first (``heard_answer``).
        """
        with self._lock:
            return self._guard.observe(self._clock.wall_ms(), self._boot_ms())

    def heard_answer(
        self, broker_ms: int, boot_ms: int, sent_s: float, acknowledged_s: float | None = None
    ) -> None:
        """Check the wall clock against the timestamp that a broker put on a record of this process.
        ``doubt`` returns the result.

        Args:
            broker_ms: the timestamp, epoch milliseconds.
            boot_ms: the boot clock when the timestamp was read, milliseconds.
            sent_s: the monotonic clock before the record was sent, seconds.
            acknowledged_s: the monotonic clock when the broker had acknowledged the record,
                seconds. It narrows the possible range, because commit and reading back take longer.
                None: not known.
        """
        with self._lock:
            now_boot_ms = self._boot_ms()
            # A suspend since then makes both moments seem later, which can freeze but never thaw.
            since_boot_ms = now_boot_ms - self._clock.monotonic_s() * 1000
            answered_ms = float(boot_ms)
            if acknowledged_s is not None:
                answered_ms = min(answered_ms, acknowledged_s * 1000 + since_boot_ms)
            self._guard.observe_answer(
                broker_ms,
                math.floor(sent_s * 1000 + since_boot_ms),
                math.ceil(answered_ms),
                self._clock.wall_ms(),
                now_boot_ms,
            )

    def _boot_ms(self) -> int:
        return int(self._clock.boot_s() * 1000)


def _side(ahead_ms: float) -> str:
    return f"{abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms > 0 else 'behind'}"


def _disagreement(ahead_ms: float) -> str:
    return (
        f"the wall clock is {_side(ahead_ms)} the broker's clock; check NTP on this machine and on "
        "the broker's"
    )
