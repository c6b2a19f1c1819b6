"""Thread-safe access to a worker's election, for questions and reports of other threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from queue import SimpleQueue
from typing import Final

import structlog

from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import ZooKeeper
from delayservice.engine.electability import Verdict, WorkerFacts, electability
from delayservice.engine.role import Role
from ha.election import Election
from ha.ensemble import Ensemble, EnsembleError
from ha.lease import Lease
from ha.members import Members
from ha.notes import NodeNote, PinNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts
from ha.role_views import RoleViews

_LEAVE_S: Final = 8.0

_log = structlog.get_logger(__name__)


class ElectionPort:
    """The part of a worker's ownership that any thread may call. ``_run`` is the body of the
    deciding thread.

    Args:
        zookeeper: the ensemble.
        me: this node.
        election: the decisions.
        lease: time for which roles are valid without an answer from ZooKeeper.
    """

    def __init__(
        self, zookeeper: ZooKeeper, me: NodeNote, election: Election, lease: Lease
    ) -> None:
        self._me = me
        self._election = election
        self._lease = lease
        self._lock = threading.Lock()  # of the election, which many threads report to
        self._wake = threading.Event()
        self._changes: SimpleQueue[int] = SimpleQueue()
        self._leaving = threading.Event()
        self._left = threading.Event()
        self._views = RoleViews({}, {})
        self._on_change: Callable[[], None] = lambda: None
        self._is_registered = False
        self._rival = ""
        self._pin: PinNote | None = None
        self._unusable = ""
        """Reason of ZooKeeper's last failure or refusal; empty: there was no failure."""
        self._ensemble = Ensemble(zookeeper, self._changed)
        self._thread = threading.Thread(target=self._run, name="ownership", daemon=True)
        self._has_failed = False

    @property
    def has_failed(self) -> bool:
        """Return whether the thread has ended with an error."""
        return self._has_failed

    def start(self) -> None:
        """Start connecting to ZooKeeper, and the deciding thread."""
        self._ensemble.connect()
        self._thread.start()

    def roles(self) -> Mapping[int, Role]:
        """Return this worker's role for each slice, limited by lease and connection."""
        views = self._views
        if not self._lease.is_valid:
            return views.ended
        return views.owning if self._ensemble.is_connected else views.paused

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register the one callable that the ownership thread calls when ``roles`` has changed.
        It is not called at the end of the lease while that thread waits for ZooKeeper.
        """
        self._on_change = callback

    def role(self, slice_no: int) -> Role:
        """Return this worker's role for the slice."""
        return self.roles().get(slice_no, Role.REPLICA)

    def confirm(self, slice_no: int) -> bool:
        """Ask ZooKeeper's leader; return whether this worker owns the slice."""
        return slice_no in self.confirm_all([slice_no])

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        """Ask ZooKeeper's leader; return those of the slices that this worker owns."""
        roles = self.roles()
        asked = [n for n in slice_nos if roles.get(n) is Role.OWNER]
        confirmed = set()
        try:
            for slice_no in self._ensemble.confirm_all(asked) if asked else ():
                confirmed.add(slice_no)  # one by one: errors are raised at the end
        except EnsembleError as exc:
            missing = sorted(set(asked) - confirmed)
            _log.warning("ownership_not_confirmed", slices=missing, why=str(exc))
        return frozenset(confirmed)

    def epoch(self, slice_no: int) -> int:
        """Return the epoch of this worker's ownership of the slice; 0: not the owner."""
        return self._views.epochs.get(slice_no, 0)

    def contract_version(self) -> int:
        """Return the newest version of the contract that every live node knows."""
        with self._lock:
            return self._election.contract_version

    def pinned(self) -> str:
        """Return why ownership is pinned; empty: it is not."""
        pin = self._pin
        return "" if pin is None else str(pin)

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Report that the slice's loop has begun to settle, or has stopped."""
        with self._lock:
            self._election.settling(slice_no, is_settling=is_settling)
        self._wake.set()

    def gave_up(self, slice_no: int, why: str) -> None:
        """Report why this worker can't serve the slice now."""
        with self._lock:
            self._election.gave_up(slice_no, why)
        self._wake.set()

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        """Report the progress of this node's copy of a slice."""
        now_s = self._lease.now_s()
        with self._lock:
            could = self._election.verdict(slice_no, now_s).may_own
            self._election.standing(slice_no, standing)
            can = self._election.verdict(slice_no, now_s).may_own
        if can and not could:
            self._wake.set()

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        """Set the slices that exist; return those of which this worker keeps a copy."""
        with self._lock:
            before = self._election.slices
            kept = self._election.serve(slices)
        for slice_no in kept - before:
            self._changed(slice_no)
        return kept

    def survey(self) -> Members:
        """Return the state of the cluster as read from ZooKeeper now.

        Raises:
            DelayServiceError: ZooKeeper does not answer.
        """
        with self._lock:
            slices = self._election.known
        try:
            return self._ensemble.survey(slices)
        except EnsembleError as exc:
            raise DelayServiceError(str(exc)) from exc

    def judge(self, facts: WorkerFacts) -> Verdict:
        """Set the facts about this worker, with its ZooKeeper state; return whether it may own."""
        facts = facts._replace(zookeeper=self._trouble)
        with self._lock:
            is_news = self._election.judge(facts)
        if is_news:
            self._wake.set()
        return electability(facts)

    def verdict(self, slice_no: int) -> Verdict:
        """Return whether this worker may own a slice of which it keeps a copy."""
        with self._lock:
            return self._election.verdict(slice_no, self._lease.now_s())

    @property
    def _trouble(self) -> str:
        """Return why this session can't own a slice; empty: it can. A lost connection counts only
        after the end of the lease.
        """
        if self._is_registered and self._lease.is_valid:
            return ""
        if self._rival:
            return f"node_id {self._me.node_id} is in use by another node: {self._rival}"
        return self._unusable or "there is no session yet"

    def close(self) -> None:
        """Hand over own slices, waiting up to 8 s, and end the session."""
        self._leaving.set()
        self._wake.set()
        self._left.wait(_LEAVE_S)
        self._views = RoleViews({}, {})
        self._ensemble.close()

    def _changed(self, what: int) -> None:
        self._changes.put(what)
        self._wake.set()

    def _run(self) -> None:
        raise NotImplementedError
