"""The thread that reads ZooKeeper and carries out what ``election`` decides.

Storing does not depend on it. While ZooKeeper is out of reach, owners begin no transaction; at the
end of the lease they step down; delivery resumes without a restart when ZooKeeper is back.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, TypeVar

import msgspec
import structlog

from delayservice.config.cluster import Placement, ZooKeeper
from delayservice.engine.ports import Role
from ha.election import Election
from ha.election_state import (
    Announce,
    ClaimSlice,
    Effect,
    Evict,
    Lease,
    Resign,
    RoleViews,
    SliceOwner,
)
from ha.ensemble import EVERYTHING, MEMBERS, Ensemble, EnsembleError, EnsembleRefusedError
from ha.notes import LifeNote, NodeNote, OwnerNote, PinNote, worker_of
from ha.pipeline import REQUESTS_MAX


class EffectRunner:
    """Runner that writes one worker's decisions to the owner nodes in ZooKeeper."""

    def __init__(
        self, ensemble: Ensemble, me: OwnerNote, seat_of: Callable[[int], SliceOwner | None]
    ) -> None:
        self._ensemble = ensemble
        self._me = me
        self._seat_of = seat_of

    def carry_out(self, effects: Sequence[Effect]) -> None:
        """Carry out decisions, each about another slice: first write heirs, then resign, evict and
        claim. If some fail (``EnsembleError``), others of the same kind were carried out, and those
        of later kinds were not.
        """
        heirs = {e.slice_no: e.heir for e in effects if isinstance(e, Announce)}
        reasons = {e.slice_no: e.why for e in effects if isinstance(e, Resign)}
        evictions = [e.slice_no for e in effects if isinstance(e, Evict)]
        claims = [e.slice_no for e in effects if isinstance(e, ClaimSlice)]
        # First the effects that other nodes wait for.
        if heirs:
            self._announce(heirs)
        if reasons:
            self._ensemble.resign_all(reasons)
            for why, slices in _by_value(reasons).items():
                _log.info("resigned", slices=slices, why=why)
        if evictions:
            self._ensemble.evict_all(evictions, self._me.worker_id)
            _log.info("predecessor_evicted", slices=evictions)
        if claims:
            won = self._ensemble.claim_all(claims, self._me)
            _log.debug("claimed", slices=sorted(won), lost=sorted(set(claims) - won))

    def _announce(self, heirs: Mapping[int, str]) -> None:
        seats = {slice_no: self._seat_of(slice_no) for slice_no in heirs}
        owners = {n: seat.owner for n, seat in seats.items() if seat is not None and seat.owner}
        for heir, slices in _by_value({n: heirs[n] for n in owners}).items():
            _log.info("handing_over", slices=slices, to=heir or None)
        replace = msgspec.structs.replace
        self._ensemble.announce_all({n: replace(o, heir=heirs[n]) for n, o in owners.items()})


def _by_value(values: Mapping[int, str]) -> dict[str, list[int]]:
    found = defaultdict(list)
    for slice_no, value in values.items():
        found[value].append(slice_no)
    return found


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


class ElectionThread:
    """Thread that takes part in the election for one worker. ``ElectedOwnership`` passes it reports
    of other threads.
    """

    def __init__(
        self,
        zookeeper: ZooKeeper,
        placement: Placement,
        me: NodeNote,
        worker: int,
        # The decisions; changed only while ``lock`` is held, as many threads report to it.
        election: Election,
        lease: Lease,
        noted: Callable[[int, bytes], None],
    ) -> None:
        self._me = me
        self._worker = worker
        self._election = election
        self._lease = lease
        self._away_s = placement.away_ms / 1000
        self._never_forgets = placement.replicas == "all"
        # Lock that protects ``election``.
        self.lock = threading.Lock()
        self.wake = threading.Event()
        # Event, set to hand over all owned slices and end the thread.
        self.leaving = threading.Event()
        # Event, set when no slice is left to hand over.
        self.left = threading.Event()
        # Roles and epochs, as last decided.
        self.views = RoleViews({}, {})
        # Called when ``roles`` has changed; must return at once.
        self.on_change: Callable[[], None] = lambda: None
        # Whether ZooKeeper has this worker's note under the present session.
        self.is_registered = False
        # Instance of another living node with this node's name; empty: there is no such node.
        self.rival = ""
        # Note by which owners are pinned to their slices; None: they are not.
        self.pin: PinNote | None = None
        # Reason of ZooKeeper's last failure or refusal; empty: there was no failure.
        self.unusable = ""
        # Whether the thread has ended with an error.
        self.has_failed = False
        self.ensemble = Ensemble(zookeeper, self.changed, noted)
        self._session = self.ensemble.session
        self._changes: SimpleQueue[int] = SimpleQueue()
        self._has_told = False  # the election that this worker leaves
        self._shown_roles = self.views.owning
        self._is_connected = False
        self._is_prepared = False
        self._beat_due_s = float("-inf")
        self._step_due_s = float("inf")
        self._quiet_since_s = lease.now_s()
        self._replaced_s = float("-inf")
        self._reminded_s = float("-inf")
        self._complaints: set[str] = set()
        self._nodes: list[NodeNote] = []
        self._names: frozenset[str] = frozenset()
        self._gone_since_s: dict[str, float] = {}
        self._effects = EffectRunner(
            self.ensemble, OwnerNote(me.node_id, me.instance, worker, 0), election.seat_of
        )
        self._thread = threading.Thread(target=self._run, name="ownership", daemon=True)

    def start(self) -> None:
        self._session.connect()
        self._thread.start()

    def roles(self) -> Mapping[int, Role]:
        views = self.views
        if not self._lease.is_valid:
            return views.ended
        return views.owning if self._session.is_connected else views.paused

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
            self.views = RoleViews({}, {})
            _log.exception("ownership_failed")
            self.on_change()

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
            self.unusable = str(exc)
            if isinstance(exc, EnsembleRefusedError):
                self.unusable += f"; {_LOGIN_HINT}"
                self._beat_due_s += _REFUSED_S
                self._complain("zookeeper_refuses", str(exc), _LOGIN_HINT)
        if not self._session.is_connected:
            self._out_of_reach()
        self._publish()
        self._leave_when_done()

    def _session_lost(self) -> None:
        if self.is_registered:
            _log.warning(
                "session_lost", hint="ZooKeeper ended the session; its slices go to other nodes"
            )
        self._lease.end()
        self.is_registered = self._is_prepared = False
        self.changed(EVERYTHING)
        with self.lock:
            self._election.forget_seats()
        self._publish()

    def _publish(self) -> None:
        with self.lock:
            roles, epochs = self._election.roles(self._lease.now_s()), self._election.epochs
        if (roles, epochs) != (self.views.owning, self.views.epochs):
            self.views = RoleViews(roles, epochs)
        shown = self.roles()
        if shown is not self._shown_roles:
            self._shown_roles = shown
            self.on_change()

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
        if not self.is_registered and not self.leaving.is_set():
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
        with self.lock:
            life = self._election.life(self._lease.now_s())
        other = self.ensemble.register(self._me, life)
        if other is None:
            self.is_registered = True
            self.rival = ""
            self.changed(MEMBERS)
            _log.info("registered", node=self._me.node_id, worker=self._worker)
        elif other.instance != self.rival:
            self.rival = other.instance
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
        with self.lock:
            life = self._election.life(self._lease.now_s()) if self.is_registered else None
        if not self.ensemble.beat(life):
            _log.warning("registration_gone", node=self._me.node_id, worker=self._worker)
            self.is_registered = False
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
            if self.is_registered and self._me.node_id not in {n.node_id for n in self._nodes}:
                self.ensemble.enroll(self._me)  # forgotten just as it came back, or by hand
        workers = [worker for name in self._names if (worker := worker_of(name)) is not None]
        live = {node_id for node_id, _ in workers}
        with self.lock:
            if anew:
                self._election.nodes(self._nodes)
                self._election.pin(is_pinned=self.pin is not None)
            self._election.live(live, is_registered=self.is_registered)
            rivals = self._election.rivals & self._names
        lives = self.ensemble.lives(sorted(rivals))
        with self.lock:
            self._election.view.set_lives(lives)
        self._forget_the_gone(self._nodes, live)

    def _read_pin(self) -> None:
        before, self.pin = self.pin, self.ensemble.pin()
        if self.pin is not None and self.pin != before:
            hint = "owners keep their slices; delayservice zookeeper unpin ends it"
            _log.warning("ownership_pinned", why=str(self.pin), hint=hint)
        elif before is not None and self.pin is None:
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
        for slice_no, held in self.ensemble.owners(slice_nos):
            seat = SliceOwner(None) if held is None else SliceOwner(held.note, held.is_mine)
            with self.lock:
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
        with self.lock:
            effects = self._election.step(self._lease.now_s())
            self._step_due_s = self._election.wake_s
        for batch in self._between_beats(effects):
            self._effects.carry_out(batch)
            self._read_seats([effect.slice_no for effect in batch], have_acted=True)
        if effects:
            self.wake.set()

    def _out_of_reach(self) -> None:
        now_s = self._lease.now_s()
        timeout_s = self._session.session_timeout_s
        self._beat_due_s = now_s + timeout_s / _BEATS_PER_SESSION
        quiet_s = now_s - self._quiet_since_s
        why, is_refused = self._session.trouble, self._session.is_refused
        self.unusable = f"the login was refused; {_LOGIN_HINT}" if is_refused else why
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
        with self.lock:
            has_left = not self.is_registered and not self._election.owned
        if has_left or not self._session.is_connected:
            self.left.set()
        elif not self._has_told:
            self._has_told = True
            with self.lock:
                self._election.leave()
                life = self._election.life(self._lease.now_s())
            if self.is_registered:  # else the node of that name is another's, or none
                self._unregister(life)
            self.changed(MEMBERS)

    def _unregister(self, life: LifeNote) -> None:
        self.is_registered = False
        try:
            self.ensemble.unregister(life)
        except EnsembleError as exc:
            _log.debug("ensemble_not_reached", why=str(exc))
