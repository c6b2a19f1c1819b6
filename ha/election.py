"""Election of slice owners: one worker's decisions from the state in ZooKeeper. No I/O, no clock.

There is no controller. Every node ranks the candidates of a slice with the same pure function. The
first candidate claims a vacant slice at once, each other one a little later; ZooKeeper lets one
win. An owner that is not the first hands over when the first has caught up: it names its heir, goes
on until the heir has noticed, finishes its transaction, and resigns.

``nodes``, ``live``, ``seat`` and similar methods take events; ``step`` returns what to do. The
*owner node* of a slice is the ZooKeeper node with its ``OwnerNote`` (see ``notes``).
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
from delayservice.engine.ports import Role
from ha.cluster_view import ClusterView
from ha.election_state import (
    Announce,
    ClaimSlice,
    Effect,
    ElectionPace,
    Evict,
    Resign,
    SliceElection,
    epoch_of,
)
from ha.notes import LifeNote, NodeNote, SliceOwner
from ha.ownership import SliceStanding
from ha.placement import SliceFacts

_UNKNOWN_SLICE = SliceElection()


class Election:
    """Decisions of one worker about the owners of its slices. All times are in s on the lease's
    clock.

    A slice stays placed while its topic can't be described, so that copies of others don't move.
    """

    def __init__(
        self,
        me: NodeNote,
        worker: int,
        replicas: int | None,
        pace: ElectionPace,
        # Slices of which this node had copies before its start, kept until their placement is
        # known.
        kept: frozenset[int] = frozenset(),
    ) -> None:
        self.view = ClusterView(me, replicas)
        self._me = me
        self._replicas = replicas
        self._worker = worker
        self._pace = pace
        self._slices: dict[int, SliceElection] = {}
        self._kept: frozenset[int] = frozenset()
        # Slices with data on the disk, including slices that ``serve`` has not reported yet.
        self._copies = kept
        self._is_registered = False
        self._is_leaving = False
        self._facts_here = WorkerFacts()
        self._is_pinned = False
        self._wake_s = math.inf

    def nodes(self, notes: Iterable[NodeNote]) -> None:
        if self.view.set_nodes(notes):
            self._plan()

    def live(self, node_ids: Collection[str], *, is_registered: bool) -> None:
        self._is_registered = is_registered
        if self.view.live != frozenset(node_ids):
            self.view.live = frozenset(node_ids)
            self._plan()

    def pin(self, *, is_pinned: bool) -> None:
        self._is_pinned = is_pinned

    def serve(self, facts: Collection[SliceFacts]) -> frozenset[int]:
        # A copy no longer placed on this node is kept until the nodes it is placed on have caught
        # up. A copy of a slice missing from ``facts`` stays as it is: its placement is unknown.
        told = {fact.slice_no: fact for fact in facts}
        if self.view.add_slices(told):
            self._plan()
        known = self.view.known
        mine = [n for n in known if n % self._me.workers == self._worker]
        kept = frozenset(n for n in mine if (self._keeps(n) if n in told else n in self._kept))
        for slice_no in kept:
            self._slices.setdefault(slice_no, SliceElection())
        for slice_no in self._slices.keys() - kept:
            del self._slices[slice_no]
        self._kept = kept
        self._copies = kept | (self._copies - known)
        return kept

    def seat(self, slice_no: int, seat: SliceOwner, now_s: float) -> None:
        state = self._slices.get(slice_no)
        if state is None:
            return
        before = state.seat
        state.seat = seat
        if before is None or before.is_mine != seat.is_mine or epoch_of(before) != epoch_of(seat):
            # At the first reading, no node may have had the time to catch up yet.
            state.since_s = now_s if before is not None else now_s + self._pace.first_s
            state.is_handing_over = False
            state.announced_s = math.inf
            self._inherit(state, before, seat)
            state.trouble = ""
            state.is_giving_up = False

    def _inherit(self, state: SliceElection, before: SliceOwner | None, seat: SliceOwner) -> None:
        """Set from the note of an owner that left who its heir is, who gave the slice away, and
        whether it has to be rescued; or clear that.
        """
        last = before.owner if before and not seat.owner else None
        if last is not None:
            state.heir, state.previous_owner, state.is_rescued = last.heir, last, not last.heir
        else:
            is_handed = seat.is_mine and state.heir == self._me.node_id
            state.heir, state.previous_owner = "", state.previous_owner if is_handed else None
            state.is_rescued = state.is_rescued and seat.is_mine
        self._drop_gone_giver(state)

    def _drop_gone_giver(self, state: SliceElection) -> None:
        # It did not hand over to a better owner.
        previous_owner = state.previous_owner
        if previous_owner is not None:
            note = self.view.nodes.get(previous_owner.node_id)
            is_there = note is not None and note.instance == previous_owner.instance
            state.previous_owner = (
                previous_owner if is_there and previous_owner.node_id in self.view.live else None
            )

    def forget_seats(self) -> None:
        for state in self._slices.values():
            state.seat = None
        self._is_registered = False

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        # A start clears the count of failures, and what the loop gave up for, unless that was acted
        # upon.
        state = self._slices.get(slice_no)
        if state is not None:
            state.is_settling = is_settling
            if is_settling:
                state.failures = 0
                if not state.is_giving_up:
                    state.trouble = ""

    def gave_up(self, slice_no: int, why: str) -> None:
        state = self._slices.get(slice_no)
        if state is not None and state.seat is not None and state.seat.is_mine:
            state.trouble = why

    def standing(self, slice_no: int, standing: SliceStanding) -> bool:
        """Set the progress of this node's copy of a slice: what is stored, and how far it lags.
        Return whether the copy has caught up since the last call.
        """
        state = self._slices.get(slice_no)
        if state is None:
            return False
        before, state.standing = state.standing, standing
        return self._is_close(standing) and not self._is_close(before)

    def _is_close(self, standing: SliceStanding) -> bool:
        return standing.lag_s <= self._pace.lag_s_max

    def judge(self, facts: WorkerFacts) -> bool:
        """Set the facts about this worker; return whether its electability has changed."""
        before, now = electability(self._facts_here), electability(facts)
        self._facts_here = facts
        return (now.cause, now.may_keep) != (before.cause, before.may_keep)

    def leave(self) -> None:
        self._is_leaving = True
        self._plan()

    @property
    def slices(self) -> frozenset[int]:
        return self._kept

    @property
    def owned(self) -> list[int]:
        return [n for n, state in self._slices.items() if state.seat and state.seat.is_mine]

    @property
    def epochs(self) -> dict[int, int]:
        seats = ((n, state.seat) for n, state in self._slices.items())
        return {n: seat.owner.epoch for n, seat in seats if seat and seat.is_mine and seat.owner}

    @property
    def wake_s(self) -> float:
        return self._wake_s

    @property
    def rivals(self) -> frozenset[str]:
        """Return the names of the workers whose notes are needed: possible heirs, and workers on
        nodes to which a copy moves from this node.
        """
        wanted = [(n, node_id) for n in self.owned for node_id in self._relief(n)]
        for slice_no in self._kept:
            placed = self.view.placed_on(slice_no)
            if self._me.node_id not in placed:
                wanted += [(slice_no, node_id) for node_id in placed]
        names = (self.view.worker_of(node_id, slice_no) for slice_no, node_id in wanted)
        return frozenset(name for name in names if name is not None)

    def seat_of(self, slice_no: int) -> SliceOwner | None:
        state = self._slices.get(slice_no)
        return None if state is None else state.seat

    def verdict(self, slice_no: int, now_s: float) -> Verdict:
        state = self._slices.get(slice_no, _UNKNOWN_SLICE)
        standing, left_s = state.standing, state.rest_until_s - now_s
        copy = CopyFacts(
            standing.lag_s, self._pace.lag_s_max, standing.refusal, state.failure, left_s
        )
        return electability(self._facts_here, copy)

    def life(self, now_s: float) -> LifeNote:
        return LifeNote(
            self._me.node_id,
            self._me.instance,
            self._worker,
            tuple(n for n in sorted(self._slices) if self.verdict(n, now_s).may_own),
            {n: sum(s.standing.stored.values()) for n, s in sorted(self._slices.items())},
        )

    def roles(self, now_s: float) -> dict[int, Role]:
        # As if the lease were valid.
        return {n: self._role(n, state, now_s) for n, state in self._slices.items()}

    def _role(self, slice_no: int, state: SliceElection, now_s: float) -> Role:
        seat = state.seat
        if seat is None:
            return Role.REPLICA
        if seat.is_mine:
            stopped = state.is_handing_over or state.trouble
            return Role.REPLICA if stopped else Role.OWNER
        expected = self._me.node_id == (
            seat.owner.heir if seat.owner else next(iter(self.view.ranked(slice_no)), "")
        )
        is_able = expected and self.verdict(slice_no, now_s).may_own
        return Role.HEIR if is_able else Role.REPLICA

    def _plan(self) -> None:
        for state in self._slices.values():
            self._drop_gone_giver(state)
        self.view.rank(without_me=self._is_leaving)

    def _keeps(self, slice_no: int) -> bool:
        if not self.view.is_informed and self._replicas is not None:
            return slice_no in self._copies
        placed = self.view.placed_on(slice_no)
        if self._me.node_id in placed:
            return True
        state = self._slices.get(slice_no)
        is_owner = state is not None and state.seat is not None and state.seat.is_mine
        ready = all(self.view.is_ready(node_id, slice_no) for node_id in placed)
        return slice_no in self._copies and (is_owner or not ready)

    def _candidates(self, slice_no: int) -> tuple[str, ...]:
        """Return the nodes to which this owner may hand over: all ranked nodes if it is not ranked,
        else the first. Empty while owners are pinned, unless this worker leaves or is not live.
        """
        ranked = self.view.ranked(slice_no)
        me = self._me.node_id
        if self._is_pinned and me in self.view.live and not self._is_leaving:
            return ()
        if me in ranked:
            return () if ranked[0] == me else ranked[:1]
        return ranked

    def step(self, now_s: float) -> list[Effect]:
        """Return the changes due in ZooKeeper at ``now_s``. The caller makes each one and passes
        the owner then read to ``seat`` before the next step; a failed change is returned again.
        """
        self._wake_s = math.inf
        effects = (self._decide(n, state, now_s) for n, state in self._slices.items())
        return [effect for effect in effects if effect is not None]

    def _decide(self, slice_no: int, state: SliceElection, now_s: float) -> Effect | None:
        seat = state.seat
        if seat is None:
            return None
        if seat.is_mine:  # registered or not: it must leave a slice that it can't serve
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
            return None  # not served yet, so it can't be handed over
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
        """Return why to resign an owned slice at once; empty: the worker may keep it, or no other
        node is ready.
        """
        verdict = electability(self._facts_here)
        if verdict.may_own or verdict.may_keep:
            return ""
        is_relieved = any(self.view.is_ready(n, slice_no) for n in self._relief(slice_no))
        return verdict.reason if is_relieved else ""

    def _relief(self, slice_no: int) -> tuple[str, ...]:
        if electability(self._facts_here).may_own:
            return self._candidates(slice_no)
        return tuple(n for n in self.view.ranked(slice_no) if n != self._me.node_id)

    def _give_up(self, state: SliceElection, why: str, now_s: float) -> None:
        # A failure counts once for each ownership.
        if not state.is_giving_up:
            state.is_giving_up = True
            state.failures += 1
            state.trouble = state.failure = why  # also if resigning fails and the reason passes
            state.rest_until_s = now_s + rest_s(state.failures)

    def _heir(self, slice_no: int, state: SliceElection, now_s: float) -> str:
        """Return the node to hand over to; empty: there is no node, or it is too early. If a worker
        leaves, and no node may follow, begin to resign the slice without an heir.
        """
        candidates = self._candidates(slice_no)
        has_to_go = self._me.node_id not in self.view.ranked(slice_no)
        if not candidates:
            if self._is_leaving:  # there is no other node to wait for
                state.is_handing_over = True
                self._wake_s = now_s
            return ""
        is_moved = state.previous_owner is not None or state.is_rescued
        tenure_s = max(self._pace.tenure_s, self._pace.handed_s if is_moved else 0.0)
        if not has_to_go and not self._is_over(state.since_s + tenure_s, now_s):
            return ""
        ready = (node_id for node_id in candidates if self.view.is_ready(node_id, slice_no))
        return next(ready, "")

    def _as_candidate(self, slice_no: int, state: SliceElection, now_s: float) -> Effect | None:
        ranked = self.view.ranked(slice_no)
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
        is_alone = ranked == (me,) and self._is_close(state.standing)
        if verdict.is_last_resort and not is_alone:
            wait_s += self._pace.last_s
        claim_s = state.since_s + wait_s if wait_s else now_s
        if self._is_over(max(claim_s, rested_s), now_s):
            return ClaimSlice(slice_no)
        return None

    def _is_over(self, end_s: float, now_s: float) -> bool:
        """Return whether ``end_s`` has passed; if not, have ``step`` called then at the latest."""
        if end_s > now_s:
            self._wake_s = min(self._wake_s, end_s)
        return end_s <= now_s
