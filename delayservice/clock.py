"""Clocks, and the guard that stops delivery when the wall clock can't be believed.

Due times are wall-clock times, so a wall clock that jumps would deliver early. The guard compares
it with the boot clock, which only ever counts, and with the broker's timestamps, which come from
another machine (design section 12).
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

SLEW_PPM = 500
"""How fast NTP may pull a clock without stepping it: parts per million (``adjtimex``)."""

NOT_COMPARED = "the wall clock has not been compared with the broker's yet"

_PPM = 1_000_000
_GRANULE_MS = 1
"""Both clocks are read as whole milliseconds, so a deviation of one is none."""


class Clock(Protocol):
    """What time it is, three ways. Injected wherever time is read."""

    def wall_ms(self) -> int:
        """Epoch milliseconds; may jump. For due times."""
        ...

    def monotonic_s(self) -> float:
        """Seconds that never go back and may stand still in suspend. For elapsed time."""
        ...

    def boot_s(self) -> float:
        """Seconds since boot, suspend included. For the clock guard."""
        ...


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Epoch milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds of ``CLOCK_MONOTONIC``."""
        return time.monotonic()

    def boot_s(self) -> float:
        """Seconds of ``CLOCK_BOOTTIME``, or of the monotonic clock where there is none."""
        boot_clock = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boot_clock is None else time.clock_gettime(boot_clock)


class ClockGuard:
    """Decides from readings whether the wall clock can be believed; reads no clock itself.

    While ``frozen`` is not None the caller must not advance K; storing goes on. The wall clock's
    distance from the boot clock is the anchor. It follows the wall clock by at most ``SLEW_PPM``,
    so that NTP's slewing is followed for years while many small steps still add up and are caught.

    A frozen guard thaws when the wall clock returns to the anchor, or when a broker agrees with the
    wall clock: then it was stepped for good reason, and the anchor moves there.
    """

    __slots__ = ("_anchor_ms", "_boot_ms", "_boot_reason", "_broker_reason", "_tolerance_ms")

    def __init__(self, tolerance_ms: int = 500) -> None:
        """``tolerance_ms``: how far clocks may be apart."""
        self._tolerance_ms = tolerance_ms
        self._anchor_ms: float | None = None
        self._boot_ms = 0
        self._boot_reason: str | None = None
        self._broker_reason: str | None = None

    @property
    def frozen(self) -> str | None:
        """Why delivery must stand still, for the log and the status; None while all is well."""
        return self._broker_reason or self._boot_reason

    def observe(self, wall_ms: int, boot_ms: int) -> str | None:
        """Take one reading of both clocks, made together, before every tick.

        Returns:
            ``frozen`` after this reading.
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

    def observe_broker(
        self, broker_ms: int, wall_ms: int, boot_ms: int, rtt_ms: int | None = None
    ) -> str | None:
        """Take a timestamp that a broker made (``LogAppendTime``).

        Args:
            broker_ms: the broker's timestamp, epoch milliseconds.
            wall_ms: the wall clock when the timestamp arrived here.
            boot_ms: the boot clock at the same moment.
            rtt_ms: time since the request left, by the monotonic clock, when this is the answer to
                a request of ours. None for a consumed record, whose timestamp may be old: it can
                only show that the wall clock is behind.

        Returns:
            ``frozen`` after this reading.
        """
        behind_ms = broker_ms - wall_ms
        if behind_ms > self._tolerance_ms:
            self._broker_reason = _disagreement(-behind_ms)
        elif rtt_ms is not None:
            ahead_ms = wall_ms - rtt_ms - broker_ms
            if ahead_ms > self._tolerance_ms:
                self._broker_reason = _disagreement(ahead_ms)
            elif rtt_ms <= self._tolerance_ms:
                # A slow answer brackets the truth too loosely to vouch for a step.
                self._broker_reason = None
                if self._boot_reason is not None:
                    self._move_anchor(wall_ms, boot_ms)
        return self.frozen

    def _move_anchor(self, wall_ms: int, boot_ms: int) -> None:
        self._anchor_ms = float(wall_ms - boot_ms)
        self._boot_ms = max(self._boot_ms, boot_ms)
        self._boot_reason = None


class ClockWatch:
    """The guard of one process: all its slices ask the same clock, and any of them may hear from a
    broker. Any thread may call.

    Args:
        clock: this machine's.
        tolerance_ms: how far clocks may be apart.
    """

    def __init__(self, clock: Clock, tolerance_ms: int) -> None:
        self._clock = clock
        self._guard = ClockGuard(tolerance_ms)
        self._is_compared = False
        self._lock = threading.Lock()

    def doubt(self) -> str | None:
        """Why the wall clock is not believed, or None. A clock that was wrong already when the
        process started is found out by the first own checkpoint that is read back.
        """
        with self._lock:
            doubt = self._guard.observe(self._clock.wall_ms(), self._boot_ms())
            return doubt if self._is_compared else doubt or NOT_COMPARED

    def heard(self, broker_ms: int) -> None:
        """A consumed record has this timestamp of a broker's."""
        with self._lock:
            self._guard.observe_broker(broker_ms, self._clock.wall_ms(), self._boot_ms())

    def heard_answer(self, broker_ms: int, wall_ms: int, boot_ms: int, sent_s: float) -> None:
        """A broker put this timestamp on what was sent at ``sent_s`` of the monotonic clock, and it
        was seen when the other two clocks showed ``wall_ms`` and ``boot_ms``.
        """
        waited_ms = (self._clock.monotonic_s() - sent_s) * 1000
        rtt_ms = max(int(waited_ms - (self._boot_ms() - boot_ms)), 0)
        with self._lock:
            self._is_compared = True
            self._guard.observe_broker(broker_ms, wall_ms, boot_ms, rtt_ms)

    def _boot_ms(self) -> int:
        return int(self._clock.boot_s() * 1000)


def _side(ahead_ms: float) -> str:
    return f"{abs(ahead_ms):.0f} ms {'ahead of' if ahead_ms > 0 else 'behind'}"


def _disagreement(ahead_ms: int) -> str:
    return (
        f"the wall clock is {_side(ahead_ms)} the broker's clock; check NTP on this machine and on "
        "the broker's"
    )
