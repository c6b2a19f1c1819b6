"""Interface that tells the service which slices a worker owns, and its implementation without
ZooKeeper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from delayservice.engine.electability import CopyFacts, Verdict, WorkerFacts, electability
from delayservice.engine.ports import OwnershipView, Role
from ha.members import Members, survey_of
from ha.notes import LifeNote, NodeNote, OwnerNote
from ha.placement import SliceFacts


class SliceStanding(NamedTuple):
    """Progress of a node's copy of a slice."""

    # Next source offset to be stored, by delay topic.
    stored: Mapping[str, int]
    # Lag behind the owner's copy, in s; infinite: unknown.
    lag_s: float
    # Reason why this node may not store the slice; empty: it may.
    refusal: str = ""


class Ownership(OwnershipView, Protocol):
    """Source of a worker's role for each of its slices; any thread may call."""

    @property
    def has_failed(self) -> bool:
        """Return whether the election has ended with an error, so that the worker must end."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register the one callable that is called when ``roles`` has changed, to wake the worker's
        loop. It runs in another thread and must return at once. ``roles`` may change a moment
        earlier.
        """

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        """Ask ZooKeeper, with one batch of requests, which of the slices this worker owns; return
        those, without slices that get no answer. It is called before former writers are fenced.
        """

    def pinned(self) -> str:
        """Return when, by whom and why owners were pinned to their slices, for people; empty: they
        are not.
        """

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        """Report the progress of this node's copy of a slice; called about once a second."""

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        """Set the facts of all slices that exist; return the numbers of those of which this worker
        keeps a copy.
        """

    def survey(self) -> Members:
        """Return the state of the cluster, for people.

        Raises:
            DelayServiceError: ZooKeeper does not answer.
        """

    def judge(self, facts: WorkerFacts) -> Verdict:
        """Store the facts about this worker; those about ZooKeeper are added here. Return whether
        it may own slices, and why not.
        """

    def verdict(self, slice_no: int) -> Verdict:
        """Return whether this worker may own a slice of which it keeps a copy, and why not."""

    def close(self) -> None:
        """Hand over the slices that this worker owns, in limited time, and leave the cluster."""


class Standalone:
    """Ownership without ZooKeeper: the only node owns every slice."""

    has_failed = False

    def __init__(self, me: NodeNote, worker: int) -> None:
        self._me = me
        self._worker = worker
        self._slices: frozenset[int] = frozenset()
        self._roles: Mapping[int, Role] = {}
        self._on_change: Callable[[], None] = lambda: None
        self._facts = WorkerFacts()
        self._standings: dict[int, SliceStanding] = {}

    def roles(self) -> Mapping[int, Role]:
        return self._roles

    def on_change(self, callback: Callable[[], None]) -> None:
        self._on_change = callback

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        return frozenset(slice_nos)

    def epoch(self, slice_no: int) -> int:  # noqa: ARG002  # the answer is the same for all
        return 0

    def contract_version(self) -> int:
        return self._me.contract_version

    def pinned(self) -> str:
        return ""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Do nothing: no other node waits to take a slice over."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """Do nothing: there is no other node to take the slice over."""

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        self._standings[slice_no] = standing

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        mine = frozenset(
            facts.slice_no for facts in slices if facts.slice_no % self._me.workers == self._worker
        )
        if mine != self._slices:
            self._slices = mine
            self._roles = dict.fromkeys(sorted(mine), Role.OWNER)
            self._on_change()
        return mine

    def survey(self) -> Members:
        name = self._me.node_id
        life = LifeNote(name, self._me.instance, self._worker)
        owner = OwnerNote(name, self._me.instance, self._worker, 0)
        return survey_of([self._me], [life], dict.fromkeys(self._slices, owner))

    def judge(self, facts: WorkerFacts) -> Verdict:
        self._facts = facts
        return electability(facts)

    def verdict(self, slice_no: int) -> Verdict:
        standing = self._standings.get(slice_no, SliceStanding({}, math.inf))
        return electability(self._facts, CopyFacts(standing.lag_s, refusal=standing.refusal))

    def close(self) -> None:
        """Do nothing: there is no session to end."""
