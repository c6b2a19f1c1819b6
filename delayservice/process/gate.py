"""Permission for a worker's loop to settle records: roles for slices, and a trusted clock."""

from __future__ import annotations

from collections.abc import Mapping

from delayservice.base.clock import ClockWatch
from delayservice.engine.ports import NO_TIME, ReadBack
from delayservice.engine.role import Role
from ha.ownership import Ownership


class WorkerGate:
    """Permission to settle records of a slice, by its ownership and a trusted wall clock."""

    def __init__(self, ownership: Ownership, watch: ClockWatch) -> None:
        self._ownership = ownership
        self._watch = watch

    def roles(self) -> Mapping[int, Role]:
        """Return this worker's role for each slice now, by the slice's number."""
        return self._ownership.roles()

    def epoch(self, slice_no: int) -> int:
        """Return the lowest epoch that this ownership of a slice may have in checkpoints."""
        return self._ownership.epoch(slice_no)

    def contract_version(self) -> int:
        """Return the newest version of the contract that every live node can read."""
        return self._ownership.contract_version()

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Report to the ownership whether this worker settles a slice now: True from the end of its
        take-over, False after its last transaction.
        """
        self._ownership.settling(slice_no, is_settling=is_settling)

    def gave_up(self, slice_no: int, why: str) -> None:
        """Report to the ownership that a slice can't be served here now, so that another node takes
        it over. ``why``: the reason, for people.
        """
        self._ownership.gave_up(slice_no, why)

    def frozen(self) -> str | None:
        """Return why the wall clock is not trusted; None: it is."""
        return self._watch.doubt()

    def heard_broker(self, broker_ms: int, read_back: ReadBack | None, sent_s: float) -> None:
        """Check the wall clock against a broker's timestamp. ``frozen`` returns the result.

        Args:
            broker_ms: the timestamp, epoch milliseconds.
            read_back: checkpoint of this worker that carried it; None: a consumed record did.
            sent_s: when the commit of that checkpoint began, monotonic seconds.
        """
        if read_back is None:
            self._watch.heard(broker_ms)
        elif broker_ms != NO_TIME:
            acknowledged_s = read_back.acknowledged_s
            self._watch.heard_answer(broker_ms, read_back.boot_ms, sent_s, acknowledged_s)
