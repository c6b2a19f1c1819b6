"""Preparations for records that were just read from a delay topic: looks up their targets before
they are due, and notes the delivery times that an earlier owner assigned to paced records.
"""

from __future__ import annotations

from collections.abc import Sequence

from delayservice.contract.codec import turn_of
from delayservice.contract.entry import COPY, Entry
from delayservice.engine.flow import Flow
from delayservice.engine.ports import Targets
from delayservice.engine.settle import Settler


class Prefetch:
    """Preparations for the records of one shard, made when they are stored.

    Args:
        settler: knows the targets that settings deny. They are not looked up, because a client can
            name any number of them.
        targets: states of target topics.
        flow: the limits of the slice; None: no limits.
    """

    def __init__(self, settler: Settler, targets: Targets, flow: Flow | None) -> None:
        self._settler = settler
        self._targets = targets
        self._flow = flow

    def note(self, entries: Sequence[Entry]) -> None:
        """Report the delivery times that paced records have from an earlier owner to ``flow``, and
        start to look up targets whose state is unknown. ``entries``: records just stored, decoded.
        """
        flow, targets = self._flow, self._targets
        if flow is not None and flow.has_rates:
            for payload in (entry[4] for entry in entries if entry[1] == COPY):
                turn_ms = turn_of(payload[6])
                if turn_ms is not None:
                    flow.observe(payload[0], turn_ms)
        named = {entry[4][:2] for entry in entries if entry[1] <= COPY}
        unknown = [
            target
            for target in named
            if target not in targets.fit and self._settler.denial(target[0]) is None
        ]
        if unknown:
            targets.expect(unknown)
