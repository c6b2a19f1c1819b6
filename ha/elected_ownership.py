"""Ownership of slices by election in ZooKeeper: the methods by which other threads, at any time,
query the election thread and report to it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import structlog

from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.engine.electability import Verdict, WorkerFacts, electability
from delayservice.engine.role import Role
from ha.election import Election
from ha.election_state import ElectionPace
from ha.election_thread import ElectionThread
from ha.ensemble import EnsembleError
from ha.lease import Lease, RoleViews
from ha.members import Members
from ha.notes import NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts

_LEAVE_S: Final = 8.0

_log = structlog.get_logger(__name__)


class ElectedOwnership:
    """Ownership of one worker's slices among all nodes of the cluster.

    Args:
        zookeeper: address of ZooKeeper and login.
        placement: settings of the placement of copies and owners.
        me: note of this node.
        worker: number of this worker in its node.
        boot_s: returns the seconds since boot, suspend included.
        alert_s: seconds for which an owner goes on after it has named its heir; longer than waking
            the heir's loop takes.
        kept: slices of which this node had copies before its start.
        noted: called with id and password of each ZooKeeper session; must return at once.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        placement: Placement,
        me: NodeNote,
        worker: int,
        *,
        boot_s: Callable[[], float],
        alert_s: float,
        kept: frozenset[int] = frozenset(),
        noted: Callable[[int, bytes], None] = lambda *_: None,
    ) -> None:
        pace = ElectionPace(
            placement.claim_stagger_ms / 1000,
            placement.lag_s_max,
            alert_s,
            handed_s=placement.leader_stable_s,
        )
        replicas = None if placement.replicas == "all" else placement.replicas
        self._me = me
        self._election = Election(me, worker, replicas, pace, kept)
        self._lease = Lease(boot_s)
        self._thread = ElectionThread(
            zookeeper, placement, me, worker, self._election, self._lease, noted
        )

    @property
    def has_failed(self) -> bool:
        """Return whether the election thread has ended with an error."""
        return self._thread.has_failed

    def start(self) -> None:
        """Start connecting to ZooKeeper, and start the election thread."""
        self._thread.start()

    def roles(self) -> Mapping[int, Role]:
        """Return this worker's role for each slice. A slice that it owns has the role ``PAUSED``
        while ZooKeeper is disconnected, and ``REPLICA`` after the end of the lease.
        """
        return self._thread.roles()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register the one callable that the election thread calls when ``roles`` has changed. It
        is not called at the end of the lease while that thread waits for ZooKeeper.
        """
        self._thread.on_change = callback

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        """Ask ZooKeeper's leader which of the slices this worker owns; return those, without slices
        that get no answer. Slices for which ``roles`` has another role than ``OWNER`` are left out.
        """
        roles = self.roles()
        asked = [n for n in slice_nos if roles.get(n) is Role.OWNER]
        confirmed = set()
        try:
            for slice_no in self._thread.ensemble.confirm_all(asked) if asked else ():
                confirmed.add(slice_no)  # one by one: errors are raised at the end
        except EnsembleError as exc:
            missing = sorted(set(asked) - confirmed)
            _log.warning("ownership_not_confirmed", slices=missing, why=str(exc))
        return frozenset(confirmed)

    def epoch(self, slice_no: int) -> int:
        """Return the epoch of this worker's ownership of a slice; 0: it is not the owner."""
        return self._thread.views.epochs.get(slice_no, 0)

    def contract_version(self) -> int:
        """Return the newest contract version that every live node supports."""
        with self._thread.lock:
            return self._election.view.contract_version

    def pinned(self) -> str:
        """Return since when, by whom and why owners are pinned to their slices; empty: they are
        not.
        """
        pin = self._thread.pin
        return "" if pin is None else str(pin)

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Report that this worker has begun to settle records of a slice, or has stopped."""
        with self._thread.lock:
            self._election.settling(slice_no, is_settling=is_settling)
        self._thread.wake.set()

    def gave_up(self, slice_no: int, why: str) -> None:
        """Report the reason ``why`` this worker can't serve a slice that it owns; it resigns the
        slice.
        """
        with self._thread.lock:
            self._election.gave_up(slice_no, why)
        self._thread.wake.set()

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        """Report the progress of this node's copy of a slice. Wake the election thread if the copy
        has caught up.
        """
        with self._thread.lock:
            has_caught_up = self._election.standing(slice_no, standing)
        if has_caught_up:
            self._thread.wake.set()

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        """Set the facts of all slices that exist; return the numbers of those of which this worker
        keeps a copy.
        """
        with self._thread.lock:
            before = self._election.slices
            kept = self._election.serve(slices)
        for slice_no in kept - before:
            self._thread.changed(slice_no)
        return kept

    def survey(self) -> Members:
        """Return the state of the cluster as read from ZooKeeper now.

        Raises:
            DelayServiceError: ZooKeeper does not answer.
        """
        with self._thread.lock:
            slices = self._election.view.known
        try:
            return self._thread.ensemble.survey(slices)
        except EnsembleError as exc:
            raise DelayServiceError(str(exc)) from exc

    def judge(self, facts: WorkerFacts) -> Verdict:
        """Store the facts about this worker, completed by the state of its ZooKeeper session;
        return whether it may own slices, and why not.
        """
        facts = facts._replace(zookeeper=self._trouble)
        with self._thread.lock:
            is_news = self._election.judge(facts)
        if is_news:
            self._thread.wake.set()
        return electability(facts)

    def verdict(self, slice_no: int) -> Verdict:
        """Return whether this worker may own a slice of which it keeps a copy, and why not."""
        with self._thread.lock:
            return self._election.verdict(slice_no, self._lease.now_s())

    @property
    def _trouble(self) -> str:
        """Return why this worker's ZooKeeper session can't own a slice; empty: it can. A lost
        connection counts only after the end of the lease.
        """
        if self._thread.is_registered and self._lease.is_valid:
            return ""
        if self._thread.rival:
            return f"node_id {self._me.node_id} is in use by another node: {self._thread.rival}"
        return self._thread.unusable or "there is no session yet"

    def close(self) -> None:
        """Hand over the slices that this worker owns, waiting up to 8 s, and end its ZooKeeper
        session.
        """
        self._thread.leaving.set()
        self._thread.wake.set()
        self._thread.left.wait(_LEAVE_S)
        self._thread.views = RoleViews({}, {})
        self._thread.ensemble.session.close()
