"""Carries out the election's decisions in ZooKeeper, those of one kind together. The *owner node*
of a slice is the ZooKeeper node with its ``OwnerNote`` (see ``notes``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec
import structlog

from ha.election_state import Announce, ClaimSlice, Effect, Evict, Resign, Seat
from ha.ensemble import Ensemble
from ha.notes import OwnerNote

_log = structlog.get_logger(__name__)


class EffectRunner:
    """Runner that writes one worker's decisions to the owner nodes in ZooKeeper."""

    def __init__(
        self, ensemble: Ensemble, me: OwnerNote, seat_of: Callable[[int], Seat | None]
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
