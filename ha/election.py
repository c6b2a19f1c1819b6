"""The election: one worker's decisions, from what ZooKeeper shows. No I/O and no clock.

There is no controller. Every node ranks the candidates of a slice with the same pure function; the
first one claims a vacant slice at once, the others a little later each, and ZooKeeper lets one of
them win. An owner that is not the first hands over when the first has caught up: it names its heir,
goes on until the heir has noticed, finishes its transaction, and resigns.

Told with ``nodes``, ``live``, ``seat`` and so on; ``step`` answers with what is to be done.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from delayservice.engine.electability import (
    CopyFacts,
    Verdict,
    WorkerFacts,
    electability,
    rest_s,
)
from delayservice.engine.role import Role
from ha.cluster_view import ClusterView
from ha.election_state import (
    Announce,
    ClaimSlice,
    Effect,
    ElectionPace,
    Evict,
    Resign,
    Seat,
    SliceElection,
    epoch_of,
)
from ha.notes import LifeNote, NodeNote
from ha.ownership import SliceStanding
from ha.placement import SliceFacts

_UNKNOWN_SLICE = SliceElection()


class Election(ClusterView):
    """The decisions of one worker.

    Args:
        me: this node.
        worker: which of its workers this is; it serves every slice whose number is this one modulo
            the number of workers.
        replicas: copies of each slice; None: every node keeps one.
        pace: how fast.
        kept: slices of which this node had copies before: it goes on with them until it hears where
            they belong.

    A slice that has existed once stays in the plan: a topic that can't be described for a moment
    comes back, and to plan without it would move copies and owners of others as well.
    """

    def __init__(
        self,
        me: NodeNote,
        worker: int,
        replicas: int | None,
        pace: ElectionPace,
        kept: frozenset[int] = frozenset(),
    ) -> None:
        super().__init__(me, replicas)
        self._worker = worker
        self._pace = pace
        self._slices: dict[int, SliceElection] = {}
        self._kept: frozenset[int] = frozenset()
        self._copies = kept
        """Slices of which there is something on the disk, among them those not heard of yet."""
        self._is_registered = False
        self._is_leaving = False
        self._facts_here = WorkerFacts()
        self._is_pinned = False
        self._wake_s = math.inf

    def nodes(self, notes: Iterable[NodeNote]) -> None:
        """Hear who the members of the cluster are."""
        nodes = {note.node_id: note for note in notes} | {self._me.node_id: self._me}
        is_news = nodes != self._nodes or not self._is_informed
        self._nodes = nodes
        self._is_informed = True
        if is_news:
            self._plan()

    def live(self, node_ids: Collection[str], *, is_registered: bool) -> None:
        """Which nodes have a living worker, and whether this worker is known to the others."""
        self._is_registered = is_registered
        if self._live != frozenset(node_ids):
            self._live = frozenset(node_ids)
            self._plan()

    def pin(self, *, is_pinned: bool) -> None:
        """Return whether owners stay where they are, though another node is preferred."""
        self._is_pinned = is_pinned

    def serve(self, facts: Collection[SliceFacts]) -> frozenset[int]:
        """These slices exist; which of them this worker is to keep a copy of.

        A copy that is no longer placed here is kept until those that are can do without it. One of
        a slice that is not told of any more is kept as it is: nothing says where it belongs.
        """
        told = {fact.slice_no: fact for fact in facts}
        known = self._facts | told
        if known != self._facts:
            self._facts = known
            self._plan()
        mine = [n for n in known if n % self._me.workers == self._worker]
        kept = frozenset(n for n in mine if (self._keeps(n) if n in told else n in self._kept))
        for slice_no in kept:
            self._slices.setdefault(slice_no, SliceElection())
        for slice_no in self._slices.keys() - kept:
            del self._slices[slice_no]
        self._kept = kept
        self._copies = kept | (self._copies - known.keys())
        return kept

    def seat(self, slice_no: int, seat: Seat, now_s: float) -> None:
        """Hear who owns a slice, as ZooKeeper shows it now."""
        state = self._slices.get(slice_no)
        if state is None:
            return
        before = state.seat
        state.seat = seat
        if before is None or before.is_mine != seat.is_mine or epoch_of(before) != epoch_of(seat):
            # At first sight no node may have had the time yet to be ready.
            state.since_s = now_s if before is not None else now_s + self._pace.first_s
            state.is_handing_over = False
            state.announced_s = math.inf
            self._inherit(state, before, seat)
            state.trouble = ""
            state.is_giving_up = False

    def _inherit(self, state: SliceElection, before: Seat | None, seat: Seat) -> None:
        """Take over successor and giver of a slice from the last note of an owner that has left."""
        last = before.owner if before and not seat.owner else None
        if last is not None:
            state.heir, state.giver = last.heir, last
        else:
            is_handed = seat.is_mine and state.heir == self._me.node_id
            state.heir, state.giver = "", state.giver if is_handed else None
        self._drop_gone_giver(state)

    def _drop_gone_giver(self, state: SliceElection) -> None:
        """Forget a giver that left the cluster: it did not let go for the sake of another owner."""
        giver = state.giver
        if giver is not None:
            note = self._nodes.get(giver.node_id)
            is_there = note is not None and note.instance == giver.instance
            state.giver = giver if is_there and giver.node_id in self._live else None

    def forget_seats(self) -> None:
        """The session is lost, and with it everything that was known."""
        for state in self._slices.values():
            state.seat = None
        self._is_registered = False

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """The slice's loop has begun to settle, or has stopped."""
        state = self._slices.get(slice_no)
        if state is not None:
            state.is_settling = is_settling
            if is_settling:
                state.failures = 0

    def gave_up(self, slice_no: int, why: str) -> None:
        """The slice's loop can't serve it."""
        state = self._slices.get(slice_no)
        if state is not None and state.seat is not None and state.seat.is_mine:
            state.trouble = why

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        """Take how far this node's copy is."""
        state = self._slices.get(slice_no)
        if state is not None:
            state.standing = standing

    def judge(self, facts: WorkerFacts) -> bool:
        """Take what is known about this worker; return whether the verdict on it has changed."""
        before, now = electability(self._facts_here), electability(facts)
        self._facts_here = facts
        return (now.cause, now.may_keep) != (before.cause, before.may_keep)

    def leave(self) -> None:
        """Hand everything over; claim nothing more."""
        self._is_leaving = True
        self._plan()

    @property
    def slices(self) -> frozenset[int]:
        """The slices that this worker keeps a copy of."""
        return self._kept

    @property
    def owned(self) -> list[int]:
        """The slices whose owner node this worker holds."""
        return [n for n, state in self._slices.items() if state.seat and state.seat.is_mine]

    @property
    def epochs(self) -> dict[int, int]:
        """Numbers of this worker's ownerships, by slice."""
        seats = ((n, state.seat) for n, state in self._slices.items())
        return {n: seat.owner.epoch for n, seat in seats if seat and seat.is_mine and seat.owner}

    @property
    def wake_s(self) -> float:
        """Return when ``step`` is to be called again if nothing happens before."""
        return self._wake_s

    @property
    def rivals(self) -> frozenset[str]:
        """Names of the workers whose progress has to be known: possible heirs, and those that
        relieve this node of a copy.
        """
        wanted = [(n, node_id) for n in self.owned for node_id in self._relief(n)]
        for slice_no in self._kept:
            placed = self._placed.get(slice_no, frozenset())
            if self._me.node_id not in placed:
                wanted += [(slice_no, node_id) for node_id in placed]
        names = (self._worker_of(node_id, slice_no) for slice_no, node_id in wanted)
        return frozenset(name for name in names if name is not None)

    def seat_of(self, slice_no: int) -> Seat | None:
        """Return the last known owner of a slice; None: not known."""
        state = self._slices.get(slice_no)
        return None if state is None else state.seat

    def verdict(self, slice_no: int, now_s: float) -> Verdict:
        """Return whether this worker may own a slice of which it keeps a copy."""
        state = self._slices.get(slice_no, _UNKNOWN_SLICE)
        standing, left_s = state.standing, state.rest_until_s - now_s
        copy = CopyFacts(
            standing.lag_s, self._pace.lag_s_max, standing.refusal, state.failure, left_s
        )
        return electability(self._facts_here, copy)

    def life(self, now_s: float) -> LifeNote:
        """Return this worker's note to the others. It offers to own what it would claim."""
        return LifeNote(
            self._me.node_id,
            self._me.instance,
            self._worker,
            tuple(n for n in sorted(self._slices) if self.verdict(n, now_s).may_own),
            {n: sum(s.standing.stored.values()) for n, s in sorted(self._slices.items())},
        )

    def roles(self, now_s: float) -> dict[int, Role]:
        """Return what this worker may do with each slice, as far as the others are concerned."""
        return {n: self._role(n, state, now_s) for n, state in self._slices.items()}

    def _role(self, slice_no: int, state: SliceElection, now_s: float) -> Role:
        seat = state.seat
        if seat is None:
            return Role.REPLICA
        if seat.is_mine:
            stopped = state.is_handing_over or state.trouble
            return Role.REPLICA if stopped else Role.OWNER
        expected = self._me.node_id == (seat.owner.heir if seat.owner else self._first(slice_no))
        is_able = expected and self.verdict(slice_no, now_s).may_own
        return Role.HEIR if is_able else Role.REPLICA

    def _plan(self) -> None:
        """Rank the candidates anew; the facts, the nodes or the living have changed."""
        for state in self._slices.values():
            self._drop_gone_giver(state)
        self._rank(without_me=self._is_leaving)

    def _keeps(self, slice_no: int) -> bool:
        if not self._is_informed and self._replicas is not None:
            return slice_no in self._copies
        placed = self._placed.get(slice_no, frozenset())
        if self._me.node_id in placed:
            return True
        state = self._slices.get(slice_no)
        is_owner = state is not None and state.seat is not None and state.seat.is_mine
        ready = all(self._is_ready(node_id, slice_no) for node_id in placed)
        return slice_no in self._copies and (is_owner or not ready)

    def _candidates(self, slice_no: int) -> tuple[str, ...]:
        """Return the nodes that an owner may hand over to: any when it has to go, else the first.
        While ownership is pinned none, though its copy may belong to another node by now.
        """
        ranked = self._ranked.get(slice_no, ())
        me = self._me.node_id
        if self._is_pinned and me in self._live and not self._is_leaving:
            return ()
        if me in ranked:
            return () if ranked[0] == me else ranked[:1]
        return ranked

    def step(self, now_s: float) -> list[Effect]:
        """Return what is to be done now. Each effect is carried out, and its seat told, before the
        next step; one that failed is asked for again.
        """
        self._wake_s = math.inf
        effects = (self._decide(n, state, now_s) for n, state in self._slices.items())
        return [effect for effect in effects if effect is not None]

    def _decide(self, slice_no: int, state: SliceElection, now_s: float) -> Effect | None:
        seat = state.seat
        if seat is None:
            return None
        if seat.is_mine:  # registered or not: what it can't serve it has to leave
            return self._as_owner(slice_no, state, now_s)
        if not self._is_registered and not self._is_leaving:
            return None
        if seat.owner is None:
            return self._as_candidate(slice_no, state, now_s)
        if seat.owner.worker_id == (self._me.node_id, self._me.instance, self._worker):
            return Evict(slice_no)
        return None

    def _as_owner(self, slice_no: int, state: SliceElection, now_s: float) -> Effect | None:
        why = state.trouble or self._why_to_leave(slice_no)
        if why:
            self._give_up(state, why, now_s)
            return Resign(slice_no, why)
        if state.is_handing_over:
            return None if state.is_settling else Resign(slice_no, "handed over")
        if not state.is_settling and not self._is_leaving:
            return None  # not served yet: there is nothing to hand over
        heir = self._heir(slice_no, state, now_s)
        announced = state.seat.owner.heir if state.seat and state.seat.owner else ""
        if heir != announced:
            state.announced_s = math.inf
            return Announce(slice_no, heir)
        state.announced_s = min(state.announced_s, now_s)
        if heir and self._is_over(state.announced_s + self._pace.alert_s, now_s):
            state.is_handing_over = True
            self._wake_s = now_s
        return None

    def _why_to_leave(self, slice_no: int) -> str:
        """Return why an own slice is to be left at once; empty: it is not, or no other node may own
        it.
        """
        verdict = electability(self._facts_here)
        if verdict.may_own or verdict.may_keep:
            return ""
        is_relieved = any(self._is_ready(n, slice_no) for n in self._relief(slice_no))
        return verdict.reason if is_relieved else ""

    def _relief(self, slice_no: int) -> tuple[str, ...]:
        """The nodes that may relieve this owner of a slice: all others when it should not own."""
        if electability(self._facts_here).may_own:
            return self._candidates(slice_no)
        return tuple(n for n in self._ranked.get(slice_no, ()) if n != self._me.node_id)

    def _give_up(self, state: SliceElection, why: str, now_s: float) -> None:
        """Leave the slice alone for a while, once for each time that it could not be served."""
        if not state.is_giving_up:
            state.is_giving_up = True
            state.failures += 1
            state.trouble = state.failure = why  # also if resigning fails and the reason passes
            state.rest_until_s = now_s + rest_s(state.failures)

    def _heir(self, slice_no: int, state: SliceElection, now_s: float) -> str:
        """Return the node to hand over to; none when empty."""
        candidates = self._candidates(slice_no)
        has_to_go = self._me.node_id not in self._ranked.get(slice_no, ())
        if not candidates:
            if self._is_leaving:  # no other node is there, so there is nothing to wait for
                state.is_handing_over = True
                self._wake_s = now_s
            return ""
        tenure_s = max(self._pace.tenure_s, self._pace.handed_s if state.giver else 0.0)
        if not has_to_go and not self._is_over(state.since_s + tenure_s, now_s):
            return ""
        ready = (node_id for node_id in candidates if self._is_ready(node_id, slice_no))
        return next(ready, "")

    def _as_candidate(self, slice_no: int, state: SliceElection, now_s: float) -> Effect | None:
        ranked = self._ranked.get(slice_no, ())
        me = self._me.node_id
        rested_s = max(now_s, state.rest_until_s)
        verdict = self.verdict(slice_no, rested_s)
        if me not in ranked or not (verdict.may_own or verdict.is_last_resort):
            return None
        wait_s = ranked.index(me) * self._pace.stagger_s
        if state.heir == me:
            wait_s = 0.0
        elif state.heir in ranked:
            wait_s += self._pace.heir_s
        if verdict.is_last_resort:
            wait_s += self._pace.last_s
        claim_s = state.since_s + wait_s if wait_s else now_s
        if self._is_over(max(claim_s, rested_s), now_s):
            return ClaimSlice(slice_no)
        return None

    def _is_over(self, end_s: float, now_s: float) -> bool:
        """Return whether the time has come; if not, it is when to look again."""
        if end_s > now_s:
            self._wake_s = min(self._wake_s, end_s)
        return end_s <= now_s
