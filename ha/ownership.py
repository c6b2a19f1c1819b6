"""The owner of a slice: the rest of the service asks here, whatever gives the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple, Protocol

from delayservice.engine.electability import CopyFacts, Verdict, WorkerFacts, electability
from delayservice.engine.role import Role
from ha.members import Members, survey_of
from ha.notes import LifeNote, NodeNote, OwnerNote
from ha.placement import SliceFacts


class SliceStanding(NamedTuple):
    """Progress of a node's copy of a slice: ``stored`` by delay topic is S, ``lag_s`` how long ago
    the owner was where this copy is now (infinite: not known); ``refusal`` why nothing of the
    slice may be stored (empty: it may).
    """

    stored: Mapping[str, int]
    lag_s: float
    refusal: str = ""


class Ownership(Protocol):
    """Answers for every slice of a worker, at any time, from any thread."""

    @property
    def has_failed(self) -> bool:
        """Return whether it has ended with an error: the worker has to end as well."""

    def roles(self) -> Mapping[int, Role]:
        """Return what this worker may do with each slice now; a slice that is missing is a replica.
        The same object is returned until a role or an epoch changes, so that a loop may compare
        identities at every turn.
        """

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register the one callable that is called when ``roles`` has changed, to wake a loop. It
        runs in another thread and must return at once. ``roles`` may change a moment earlier.
        """

    def role(self, slice_no: int) -> Role:
        """Return what this worker may do with the slice; costs nothing to ask."""

    def confirm(self, slice_no: int) -> bool:
        """Return whether this node is the owner: asks the ensemble, before and after fencing."""

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        """Return those slices that this worker owns beyond doubt: asks the ensemble once for all.
        Slices about which the ensemble gives no answer are left out.
        """

    def epoch(self, slice_no: int) -> int:
        """The number of this ownership, higher than that of every owner before."""

    def contract_version(self) -> int:
        """Return the newest version of the contract that every live node knows."""

    def pinned(self) -> str:
        """Return why owners stay where they are, for people; empty: they don't have to."""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """The slice's loop has begun to settle, or has stopped: its transaction is over."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """The slice can't be served here now: another node may have more luck."""

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        """Take how far this node's copy is; called about once a second."""

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        """These slices exist. Which of them this worker is to keep a copy of."""

    def survey(self) -> Members:
        """The cluster, for people.

        Raises:
            DelayServiceError: it can't be asked now.
        """

    def judge(self, facts: WorkerFacts) -> Verdict:
        """Take what is known about this worker, but for ZooKeeper; return whether it may own."""

    def verdict(self, slice_no: int) -> Verdict:
        """Return whether this worker may own a slice of which it keeps a copy."""

    def close(self) -> None:
        """Hand over what can be handed over, and leave."""


class Standalone:
    """One node owns every slice; no ZooKeeper."""

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
        """Return the role of owner for every slice of this worker's share."""
        return self._roles

    def on_change(self, callback: Callable[[], None]) -> None:
        """Register the one callable that ``serve`` calls when the share has changed."""
        self._on_change = callback

    def role(self, slice_no: int) -> Role:  # noqa: ARG002  # the answer is the same for all
        """Owner."""
        return Role.OWNER

    def confirm(self, slice_no: int) -> bool:  # noqa: ARG002
        """Yes."""
        return True

    def confirm_all(self, slice_nos: Iterable[int]) -> frozenset[int]:
        """Return all of them."""
        return frozenset(slice_nos)

    def epoch(self, slice_no: int) -> int:  # noqa: ARG002
        """Whatever the checkpoint says, and one more."""
        return 0

    def contract_version(self) -> int:
        """Return the own one."""
        return self._me.contract_version

    def pinned(self) -> str:
        """Ignore it: there is no node to hand over to."""
        return ""

    def settling(self, slice_no: int, *, is_settling: bool) -> None:
        """Ignore it: no other node waits."""

    def gave_up(self, slice_no: int, why: str) -> None:
        """Ignore it: there is no other node."""

    def standing(self, slice_no: int, standing: SliceStanding) -> None:
        """Note it, for people."""
        self._standings[slice_no] = standing

    def serve(self, slices: Collection[SliceFacts]) -> frozenset[int]:
        """This worker's share."""
        mine = frozenset(
            facts.slice_no for facts in slices if facts.slice_no % self._me.workers == self._worker
        )
        if mine != self._slices:
            self._slices = mine
            self._roles = dict.fromkeys(sorted(mine), Role.OWNER)
            self._on_change()
        return mine

    def survey(self) -> Members:
        """This worker and its slices; the other workers tell of theirs."""
        name = self._me.node_id
        life = LifeNote(name, self._me.instance, self._worker)
        owner = OwnerNote(name, self._me.instance, self._worker, 0)
        return survey_of([self._me], [life], dict.fromkeys(self._slices, owner))

    def judge(self, facts: WorkerFacts) -> Verdict:
        """Return it; there is no other node that could own."""
        self._facts = facts
        return electability(facts)

    def verdict(self, slice_no: int) -> Verdict:
        """Return what is to be said of the slice."""
        standing = self._standings.get(slice_no, SliceStanding({}, math.inf))
        return electability(self._facts, CopyFacts(standing.lag_s, refusal=standing.refusal))

    def close(self) -> None:
        """Nothing to leave."""
