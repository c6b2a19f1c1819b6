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
from delayservice.engine.ports import Role
from ha.election import Election
from ha.election_state import ElectionPace, Lease, RoleViews
from ha.election_thread import ElectionThread
from ha.ensemble import EnsembleError
from ha.members import Members
from ha.notes import NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts

_LEAVE_S: Final = 8.0

_log = structlog.get_logger(__name__)


class ElectedOwnership:
    """Ownership of one worker's slices among all nodes of the cluster."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        placement: Placement,
        me: NodeNote,
        worker: int,
        *,
        boot_s: Callable[[], float],
        # Seconds for which an owner goes on after it has named its heir; longer than waking the
        # heir's loop takes.
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
        return self._thread.has_failed

    def start(self) -> None:
        self._thread.start()

    def roles(self) -> Mapping[int, Role]:
        return self._thread.roles()

    def on_change(self, callback: Callable[[], None]) -> None:
        # It is not called at the end of the lease while the election thread waits for ZooKeeper.
        self._thread.on_change = callback

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
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
        return self._thread.views.epochs.get(slice_no, 0)

    def contract_version(self) -> int:
        with self._thread.lock:
            return self._election.view.contract_version

    def pinned(self) -> str:
        pin = self._thread.pin
        return "" if pin is None else str(pin)

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        with self._thread.lock:
            self._election.settling(slice_no, is_settling=is_settling)
        self._thread.wake.set()

    def gave_up(self, slice_no: int, why: str) -> None:
        with self._thread.lock:
            self._election.gave_up(slice_no, why)
        self._thread.wake.set()

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        with self._thread.lock:
            has_caught_up = self._election.standing(slice_no, standing)
        if has_caught_up:
            self._thread.wake.set()

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        with self._thread.lock:
            before = self._election.slices
            kept = self._election.serve(slices)
        for slice_no in kept - before:
            self._thread.changed(slice_no)
        return kept

    def survey(self) -> Members:
        with self._thread.lock:
            slices = self._election.view.known
        try:
            return self._thread.ensemble.survey(slices)
        except EnsembleError as exc:
            raise DelayServiceError(str(exc)) from exc

    def judge(self, facts: WorkerFacts) -> Verdict:
        facts = facts._replace(zookeeper=self._trouble)
        with self._thread.lock:
            is_news = self._election.judge(facts)
        if is_news:
            self._thread.wake.set()
        return electability(facts)

    def verdict(self, slice_no: int) -> Verdict:
        with self._thread.lock:
            return self._election.verdict(slice_no, self._lease.now_s())

    @property
    def _trouble(self) -> str:
        # A lost connection counts only after the end of the lease.
        if self._thread.is_registered and self._lease.is_valid:
            return ""
        if self._thread.rival:
            return f"node_id {self._me.node_id} is in use by another node: {self._thread.rival}"
        return self._thread.unusable or "there is no session yet"

    def close(self) -> None:
        self._thread.leaving.set()
        self._thread.wake.set()
        self._thread.left.wait(_LEAVE_S)
        self._thread.views = RoleViews({}, {})
        self._thread.ensemble.session.close()
