"""Ownership of slices by election in ZooKeeper: a thread that reads ZooKeeper and carries out what
``election`` decides, and the methods by which other threads query it and report to it.

Storing does not depend on it. While ZooKeeper is out of reach, owners begin no transaction; at the
end of the lease they step down; delivery resumes without a restart when ZooKeeper is back.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import structlog

from delayservice.base.errors import DelayServiceError
from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.engine.electability import Verdict, WorkerFacts, electability
from delayservice.engine.ports import Role
from ha.election import Election
from ha.election_state import (
    Announce,
    ClaimSlice,
    Effect,
    ElectionPace,
    Evict,
    Lease,
    Resign,
    RoleViews,
)
from ha.ensemble import Ensemble
from ha.members import Members
from ha.notes import LifeNote, NodeNote, OwnerNote, PinNote, worker_of
from ha.ownership import SliceStanding
from ha.pipeline import REQUESTS_MAX, EnsembleError, EnsembleRefusedError
from ha.placement import SliceFacts
from ha.zookeeper_session import EVERYTHING, MEMBERS

_LEAVE_S: Final = 8.0
_BEATS_PER_SESSION: Final = 6
_REPLACE_AFTER_SESSIONS: Final = 3
_REMIND_S: Final = 30.0
_RETRY_S: Final = 0.2
_REFUSED_S: Final = 2.0
_LOGIN_HINT: Final = "check zookeeper.auth, zookeeper.username and its password"
# Time without an answer from ZooKeeper before it is logged, in s: connecting takes a moment.
_PATIENCE_S: Final = 2.0

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class ElectedOwnership:
    """Ownership of one worker's slices among all nodes of the cluster. ``alert_s``: seconds for
    which an owner goes on after it has named its heir; longer than waking the heir's loop takes.
    ``noted`` gets id and password of each session.
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
        self._me = me
        self._worker = worker
        self._never_forgets = placement.replicas == "all"
        replicas = None if placement.replicas == "all" else placement.replicas
        # The decisions; used only while the lock is held, as many threads report to it.
        self._election = Election(me, worker, replicas, pace, kept)
        self._lock = threading.Lock()
        self._lease = Lease(boot_s)
        self._away_s = placement.away_ms / 1000
        self.wake = threading.Event()
        # Set to hand over all owned slices and end the thread.
        self.leaving = threading.Event()
        # Set when no slice is left to hand over.
        self.left = threading.Event()
        # Whether the thread has ended with an error.
        self.has_failed = False
        # Roles and epochs, as last decided.
        self._views = RoleViews({}, {})
        self._shown_roles = self._views.owning
        self._on_change: Callable[[], None] = lambda: None
        # Whether ZooKeeper has this worker's note under the present session.
        self._is_registered = False
        # Instance of another living node with this node's name; empty: there is no such node.
        self._rival = ""
        # Note by which owners are pinned to their slices; None: they are not.
        self._pin: PinNote | None = None
        # Reason of ZooKeeper's last failure or refusal; empty: there was no failure.
        self._unusable = ""
        self.ensemble = Ensemble(zookeeper, self.changed, noted)
        self._session = self.ensemble.session
        self._changes: SimpleQueue[int] = SimpleQueue()
        self._has_told = False  # the election that this worker leaves
        self._is_connected = False
        self._is_prepared = False
        self._beat_due_s = float("-inf")
        self._step_due_s = float("inf")
        self._quiet_since_s = self._lease.now_s()
        self._replaced_s = float("-inf")
        self._reminded_s = float("-inf")
        self._complaints: set[str] = set()
        self._nodes: list[NodeNote] = []
        self._names: frozenset[str] = frozenset()
        self._gone_since_s: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="ownership", daemon=True)

    def start(self) -> None:
        self._session.connect()
        self._thread.start()

    def roles(self) -> Mapping[int, Role]:
        views = self._views
        if not self._lease.is_valid:
            return views.ended
        return views.owning if self._session.is_connected else views.paused

    # --- what other threads ask and report -----------------------------------------------------

    def on_change(self, callback: Callable[[], None]) -> None:
        # It is not called at the end of the lease while the election thread waits for ZooKeeper.
        self._on_change = callback

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        roles = self.roles()
        asked = [n for n in slice_nos if roles.get(n) is Role.OWNER]
        confirmed = set()
        try:
            for slice_no in self.ensemble.confirm_all(asked) if asked else ():
                confirmed.add(slice_no)  # one by one: errors are raised at the end
        except EnsembleError as exc:
            missing = sorted(set(asked) - confirmed)
            _log.warning("ownership_not_confirmed", slices=missing, why=str(exc))
        return frozenset(confirmed)

    def epoch(self, slice_no: int) -> int:
        return self._views.epochs.get(slice_no, 0)

    def contract_version(self) -> int:
        with self._lock:
            return self._election.view.contract_version

    def pinned(self) -> str:
        pin = self._pin
        return "" if pin is None else str(pin)

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        with self._lock:
            self._election.settling(slice_no, is_settling=is_settling)
        self.wake.set()

    def gave_up(self, slice_no: int, why: str) -> None:
        with self._lock:
            self._election.gave_up(slice_no, why)
        self.wake.set()

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        with self._lock:
            has_caught_up = self._election.standing(slice_no, standing)
        if has_caught_up:
            self.wake.set()

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        with self._lock:
            before = self._election.slices
            kept = self._election.serve(slices)
        for slice_no in kept - before:
            self.changed(slice_no)
        return kept

    def survey(self) -> Members:
        with self._lock:
            slices = self._election.view.known
        try:
            return self.ensemble.survey(slices)
        except EnsembleError as exc:
            raise DelayServiceError(str(exc)) from exc

    def judge(self, facts: WorkerFacts) -> Verdict:
        facts = facts._replace(zookeeper=self._trouble)
        with self._lock:
            is_news = self._election.judge(facts)
        if is_news:
            self.wake.set()
        return electability(facts)

    def verdict(self, slice_no: int) -> Verdict:
        with self._lock:
            return self._election.verdict(slice_no, self._lease.now_s())

    @property
    def _trouble(self) -> str:
        # A lost connection counts only after the end of the lease.
        if self._is_registered and self._lease.is_valid:
            return ""
        if self._rival:
            return f"node_id {self._me.node_id} is in use by another node: {self._rival}"
        return self._unusable or "there is no session yet"

    def close(self) -> None:
        self.leaving.set()
        self.wake.set()
        self.left.wait(_LEAVE_S)
        self._views = RoleViews({}, {})
        self.ensemble.session.close()

    # --- the thread ----------------------------------------------------------------------------

    def changed(self, what: int) -> None:
        self._changes.put(what)
        self.wake.set()

    def _run(self) -> None:
        try:
            while not self.left.is_set():
                self.wake.wait(self.wait_s())
                self.wake.clear()
                self.turn()
        except BaseException:  # noqa: BLE001  # the worker must learn of any error
            self.has_failed = True
            self._views = RoleViews({}, {})
            _log.exception("ownership_failed")
            self._on_change()

    def wait_s(self) -> float:
        now_s = self._lease.now_s()
        due_s = min(self._beat_due_s, self._step_due_s)
        if self._lease.is_valid:  # its end changes the roles
            due_s = min(due_s, self._lease.end_s)
        return max(due_s - now_s, 0.0)

    def turn(self) -> None:
        if self._session.take_lost():
            self._session_lost()
        self._step_due_s = float("inf")  # without an answer there is nothing to decide on time
        try:
            if self._session.is_connected:
                self._look()
                self._act()
        except EnsembleError as exc:
            _log.debug("ensemble_not_reached", why=str(exc))
            self._changes.put(EVERYTHING)  # with the next beat
            self._is_prepared = False
            self._beat_due_s = self._lease.now_s() + _RETRY_S
            self._unusable = str(exc)
            if isinstance(exc, EnsembleRefusedError):
                self._unusable += f"; {_LOGIN_HINT}"
                self._beat_due_s += _REFUSED_S
                self._complain("zookeeper_refuses", str(exc), _LOGIN_HINT)
        if not self._session.is_connected:
            self._out_of_reach()
        self._publish()
        self._leave_when_done()

    def _session_lost(self) -> None:
        if self._is_registered:
            _log.warning(
                "session_lost", hint="ZooKeeper ended the session; its slices go to other nodes"
            )
        self._lease.end()
        self._is_registered = self._is_prepared = False
        self.changed(EVERYTHING)
        with self._lock:
            self._election.forget_seats()
        self._publish()

    def _publish(self) -> None:
        with self._lock:
            roles, epochs = self._election.roles(self._lease.now_s()), self._election.epochs
        if (roles, epochs) != (self._views.owning, self._views.epochs):
            self._views = RoleViews(roles, epochs)
        shown = self.roles()
        if shown is not self._shown_roles:
            self._shown_roles = shown
            self._on_change()

    def _look(self) -> None:
        if not self._is_connected:
            self._beat_due_s = float("-inf")  # the lease may have run out meanwhile
        if not self._is_prepared:
            self.ensemble.prepare()
            self._is_prepared = True
        has_beaten = self._beat_when_time()
        if not self._is_connected:  # not before an answer: kazoo connects first and then logs in
            self._is_connected = True
            self._complaints.clear()
            _log.info("zookeeper_connected", session_timeout_s=self._session.session_timeout_s)
        if not self._is_registered and not self.leaving.is_set():
            self._register()
        changes = self._take_changes()
        if has_beaten or not changes.isdisjoint({MEMBERS, EVERYTHING}):
            self._read_members(anew=not changes.isdisjoint({MEMBERS, EVERYTHING}))
        slices = self._election.slices
        changed = sorted(slices if EVERYTHING in changes else slices & changes)
        for batch in self._between_beats(changed):
            self._read_seats(batch, have_acted=False)

    def _take_changes(self) -> set[int]:
        taken = set()
        with suppress(Empty):
            while True:
                taken.add(self._changes.get_nowait())
        return taken

    def _register(self) -> None:
        with self._lock:
            life = self._election.life(self._lease.now_s())
        other = self.ensemble.register(self._me, life)
        if other is None:
            self._is_registered = True
            self._rival = ""
            self.changed(MEMBERS)
            _log.info("registered", node=self._me.node_id, worker=self._worker)
        elif other.instance != self._rival:
            self._rival = other.instance
            _log.error(
                "node_id_in_use",
                node=self._me.node_id,
                worker=self._worker,
                by=other.instance,
                hint="another node runs under this name; give each a node.node_id of its own. This "
                "one stores and owns nothing meanwhile",
            )

    def _beat_when_time(self) -> bool:
        sent_s = self._lease.now_s()
        if sent_s < self._beat_due_s:
            return False
        with self._lock:
            life = self._election.life(self._lease.now_s()) if self._is_registered else None
        if not self.ensemble.beat(life):
            _log.warning("registration_gone", node=self._me.node_id, worker=self._worker)
            self._is_registered = False
            self.wake.set()
        timeout_s = self._session.session_timeout_s
        if not self._session.is_lost:  # else a new session has answered, and this one owns nothing
            self._lease.renew(sent_s, timeout_s)
        self._beat_due_s = sent_s + timeout_s / _BEATS_PER_SESSION
        self._quiet_since_s = sent_s
        return True

    def _read_members(self, *, anew: bool) -> None:
        if anew:
            # Notes last: a returning node writes its note before it registers, and no watch fires
            # for a note that changes later.
            self._names = frozenset(self.ensemble.live())
            self._nodes = self.ensemble.nodes()
            self._read_pin()
            if self._is_registered and self._me.node_id not in {n.node_id for n in self._nodes}:
                self.ensemble.enroll(self._me)  # forgotten just as it came back, or by hand
        workers = [worker for name in self._names if (worker := worker_of(name)) is not None]
        live = {node_id for node_id, _ in workers}
        with self._lock:
            if anew:
                self._election.nodes(self._nodes)
                self._election.pin(is_pinned=self._pin is not None)
            self._election.live(live, is_registered=self._is_registered)
            rivals = self._election.rivals & self._names
        lives = self.ensemble.lives(sorted(rivals))
        with self._lock:
            self._election.view.set_lives(lives)
        self._forget_the_gone(self._nodes, live)

    def _read_pin(self) -> None:
        before, self._pin = self._pin, self.ensemble.pin()
        if self._pin is not None and self._pin != before:
            hint = "owners keep their slices; delayservice cluster unpin ends it"
            _log.warning("ownership_pinned", why=str(self._pin), hint=hint)
        elif before is not None and self._pin is None:
            _log.info("ownership_unpinned")

    def _forget_the_gone(self, nodes: Collection[NodeNote], live: Collection[str]) -> None:
        now_s = self._lease.now_s()
        gone = {note.node_id for note in nodes} - set(live) - {self._me.node_id}
        self._gone_since_s = {n: self._gone_since_s.get(n, now_s) for n in gone}
        for node_id, since_s in self._gone_since_s.items():
            if not self._never_forgets and now_s - since_s > self._away_s:
                _log.warning("node_forgotten", node=node_id, away_s=round(now_s - since_s))
                self.ensemble.forget(node_id)

    def _read_seats(self, slice_nos: Collection[int], *, have_acted: bool) -> None:
        """Read the owners of slices. Warn of slices that this worker has lost, unless it has just
        changed their owners itself (``have_acted``).
        """
        # This reading covers changes up to now. Own claims fire watches as well, and each slice
        # would be read twice.
        for what in self._take_changes() - set(slice_nos):
            self._changes.put(what)
        for slice_no, seat in self.ensemble.owners(slice_nos):
            with self._lock:
                before = self._election.seat_of(slice_no)
                self._election.seat(slice_no, seat, self._lease.now_s())
            if not have_acted and before is not None and before.is_mine and not seat.is_mine:
                _log.warning("owner_node_gone", slice=slice_no)

    def _between_beats(self, items: Sequence[_T]) -> Iterator[Sequence[_T]]:
        # So that the lease does not end meanwhile.
        for start in range(0, len(items), REQUESTS_MAX):
            self._beat_when_time()
            yield items[start : start + REQUESTS_MAX]

    def _act(self) -> None:
        with self._lock:
            effects = self._election.step(self._lease.now_s())
            self._step_due_s = self._election.wake_s
        for batch in self._between_beats(effects):
            self._carry_out(batch)
            self._read_seats([effect.slice_no for effect in batch], have_acted=True)
        if effects:
            self.wake.set()

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out decisions, each about another slice: first those that other nodes wait for. If
        some fail (``EnsembleError``), others of the same kind were carried out, and those of later
        kinds were not.
        """
        heirs = {e.slice_no: e.heir for e in effects if isinstance(e, Announce)}
        reasons = {e.slice_no: e.why for e in effects if isinstance(e, Resign)}
        evictions = [e.slice_no for e in effects if isinstance(e, Evict)]
        claims = [e.slice_no for e in effects if isinstance(e, ClaimSlice)]
        me = OwnerNote(self._me.node_id, self._me.instance, self._worker, 0)
        if heirs:
            for heir, slices in _by_value(heirs).items():
                _log.info("handing_over", slices=slices, to=heir or None)
            self.ensemble.announce_all(heirs)
        if reasons:
            self.ensemble.resign_all(reasons)
            for why, slices in _by_value(reasons).items():
                _log.info("resigned", slices=slices, why=why)
        if evictions:
            self.ensemble.evict_all(evictions, me.worker_id)
            _log.info("predecessor_evicted", slices=evictions)
        if claims:
            won = self.ensemble.claim_all(claims, me)
            _log.debug("claimed", slices=sorted(won), lost=sorted(set(claims) - won))

    def _out_of_reach(self) -> None:
        now_s = self._lease.now_s()
        timeout_s = self._session.session_timeout_s
        self._beat_due_s = now_s + timeout_s / _BEATS_PER_SESSION
        quiet_s = now_s - self._quiet_since_s
        why, is_refused = self._session.trouble, self._session.is_refused
        self._unusable = f"the login was refused; {_LOGIN_HINT}" if is_refused else why
        if why or self._is_connected or quiet_s > _PATIENCE_S:
            hint = _LOGIN_HINT if is_refused else "storing goes on, delivery waits"
            self._complain("waiting_for_zookeeper", why or "no answer", hint)
        self._is_connected = False
        patience_s = _REFUSED_S if is_refused else timeout_s * _REPLACE_AFTER_SESSIONS
        if now_s - max(self._quiet_since_s, self._replaced_s) > patience_s:
            self._replaced_s = now_s
            self._session.replace()

    def _complain(self, event: str, why: str, hint: str) -> None:
        now_s = self._lease.now_s()
        if now_s - self._reminded_s > _REMIND_S:
            self._reminded_s = now_s
            self._complaints.clear()
        if why not in self._complaints:
            self._complaints.add(why)
            _log.warning(event, why=why, hint=hint)

    def _leave_when_done(self) -> None:
        if not self.leaving.is_set():
            return
        with self._lock:
            has_left = not self._is_registered and not self._election.owned
        if has_left or not self._session.is_connected:
            self.left.set()
        elif not self._has_told:
            self._has_told = True
            with self._lock:
                self._election.leave()
                life = self._election.life(self._lease.now_s())
            if self._is_registered:  # else the node of that name is another's, or none
                self._unregister(life)
            self.changed(MEMBERS)

    def _unregister(self, life: LifeNote) -> None:
        self._is_registered = False
        try:
            self.ensemble.unregister(life)
        except EnsembleError as exc:
            _log.debug("ensemble_not_reached", why=str(exc))


def _by_value(values: Mapping[int, str]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for slice_no, value in values.items():
        found[value].append(slice_no)
    return found
